"""`hocket doctor`: checks this machine, and how other hosts reach it, and suggests fixes."""

from hocket.cli.doctor.command import add_arguments, run

__all__ = ["add_arguments", "run"]
