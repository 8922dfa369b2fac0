"""Kinds of networks, KIND:ARGS: rings, grids, trees, dragonflies, hosts, pods, one network inside another."""
