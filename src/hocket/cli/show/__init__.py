"""`hocket show`: steps of an algorithm, the table of choices, a mesh, a topology."""

from hocket.cli.show.command import add_arguments, run

__all__ = ["add_arguments", "run"]
