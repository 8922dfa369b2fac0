"""WHERE: networks, the ways through them, and what no algorithm can beat on them."""
