"""Kinds of networks, made from KIND:ARGS: rings, grids, trees, dragonflies, hosts, pods, and nested networks."""
