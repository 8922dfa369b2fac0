"""Boards: how the ranks of a job that may span hosts find rank 0, one file for each means."""
