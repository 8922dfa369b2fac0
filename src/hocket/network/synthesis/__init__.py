"""Optimal schedules on any network: the best bandwidth, spanning trees that reach it, and searches step by step."""
