"""Times of algorithms on this machine, what they cost, and lower bounds from its cores and memory."""
