"""How long a schedule takes on a network: closed form, step by step, and event by event."""
