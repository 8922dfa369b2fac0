"""What a collective must do, the table that does it, and the proof that it does. NumPy only; nothing compiled."""
