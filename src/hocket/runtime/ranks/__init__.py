"""A rank: its number, its cores, the values that each rank has one of, and the end of its process."""
