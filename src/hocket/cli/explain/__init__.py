"""`hocket explain`: which algorithm runs for a call, what each would cost, and why, on this machine or on a network."""

from hocket.cli.explain.command import add_arguments, run

__all__ = ["add_arguments", "run"]
