"""`hocket show`: shows the steps of an algorithm, the table of choices, a mesh or a network."""

from hocket.cli.show.command import add_arguments, run

__all__ = ["add_arguments", "run"]
