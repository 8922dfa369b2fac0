"""Which algorithm runs: the table, what narrows it, and the spellings that people use."""
