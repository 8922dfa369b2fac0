"""Predicts how long a schedule takes on a network: in closed form, step by step, or event by event."""
