"""Lower bounds that no algorithm can beat on a network: latency, cuts, additions."""
