"""The rich console of commands and answers: a terminal, a pipe that its reader may close, or text; tables that fit."""

import shutil
import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import IO, TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.table import Table

_PIPED_WIDTH = 160
_WITHOUT_LIMIT = 100_000  # characters; wider than any table


class Terminal(Console):
    """Standard output or another file, wide enough for tables if it is no terminal. Never cuts a line or a name.

    Colons are printed unchanged. Text in brackets is markup, so callers escape names. Raises BrokenPipeError if the
    reader of a pipe closes it. record: remember what is printed, for export_html.
    """

    def __init__(self, file: IO[str] | None = None, *, record: bool = False) -> None:
        super().__init__(file=file, highlight=False, emoji=False, soft_wrap=True, record=record)
        if not self.is_terminal:
            self.width = _PIPED_WIDTH

    def print_table(self, table: "Table") -> None:
        """Prints a table with its cells whole. On a terminal, the rightmost columns that do not fit are left out.

        A line below the table names the columns that are left out. The first column always stays.
        """
        left_out: list[str] = []
        width, limitless = self.width, self.options.update(width=_WITHOUT_LIMIT)
        while self.is_terminal and len(table.columns) > 1 and self.measure(table, options=limitless).maximum > width:
            left_out.insert(0, str(table.columns.pop().header))
        self.width = max(width, self.measure(table, options=limitless).maximum)
        self.print(table)
        self.width = width
        if left_out:
            text = f"left out, because the terminal is narrow: {', '.join(left_out)}"
            self.print(text, style="dim", markup=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Raises the error again; rich calls this method, which by default ends the program with exit code 1."""
        raise


def terminal_width() -> int | None:
    """Returns the width of the terminal in characters; None if standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def num_fitting(widths: Sequence[int], gap: int, width: int | None) -> int:
    """Returns how many columns of these widths fit into a line, from the left, with `gap` characters between them.

    At least one; all if width is None.
    """
    ends = accumulate(widths, lambda end, one: end + gap + one)
    return max(1, sum(width is None or end <= width for end in ends))
