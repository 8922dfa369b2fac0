"""Schedules: printed step by step, drawn, and as a matrix of which rank holds which contribution."""
