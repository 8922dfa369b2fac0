"""`hocket trace`: summarises, draws or converts the files that traced programs wrote."""

from hocket.cli.trace.command import add_arguments, run

__all__ = ["add_arguments", "run"]
