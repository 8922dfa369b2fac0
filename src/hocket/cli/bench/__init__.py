"""`hocket bench`: times collectives, with the flags and columns of NCCL's tests and a lower bound for each time."""

from hocket.cli.bench.command import add_arguments, run

__all__ = ["add_arguments", "run"]
