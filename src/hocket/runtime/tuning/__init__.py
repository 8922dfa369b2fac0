"""Measured times of algorithms on this machine, costs fitted to them, and lower bounds from its cores and memory."""
