"""`hocket simulate`: predicts how long a collective takes on a network."""

from hocket.cli.simulate.command import add_arguments, run

__all__ = ["add_arguments", "run"]
