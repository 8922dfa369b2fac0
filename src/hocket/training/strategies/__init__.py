"""Strategies: how ranks share the work of training. One file for each, and the protocol that the loop uses."""
