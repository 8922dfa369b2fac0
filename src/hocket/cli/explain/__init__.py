"""`hocket explain`: explains which algorithm runs for a call, on this machine or on a network, its cost and why."""

from hocket.cli.explain.command import add_arguments, run

__all__ = ["add_arguments", "run"]
