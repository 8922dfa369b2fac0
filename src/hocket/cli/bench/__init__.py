"""`hocket bench`: time collectives, with NCCL's flags and columns, and a lower bound beside each."""

from hocket.cli.bench.command import add_arguments, run

__all__ = ["add_arguments", "run"]
