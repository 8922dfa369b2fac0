"""Schedules: as text step by step, as a picture, and as a matrix of the contributions that each rank holds."""
