"""The rich console of commands and answers: a terminal, a pipe that its reader may close, or text. All of it fits."""

import re
import shutil
import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.table import Table

_PIPED_WIDTH = 160
_WITHOUT_LIMIT = 100_000  # characters; wider than any table
_HANGING = 2  # characters by which the rest of an indented line is indented more
_COLUMN = re.compile(r" *\S+(?: \S+)* {2,}(?=\S)")
_WORD = re.compile(r"(?:\[,|\S)(?:(?!\[,)\S)*")  # the usage A:N[,b=][,c=] is three words


class Terminal(Console):
    """Standard output or another file, wide enough for tables if it is no terminal. Never cuts a name.

    On a terminal, a text that is too wide goes on in the next line, between two words. Elsewhere lines stay whole.
    Colons are printed unchanged. Text in brackets is markup, so callers escape names. Raises BrokenPipeError if the
    reader of a pipe closes it. record: remember what is printed, for export_html.
    """

    def __init__(self, file: IO[str] | None = None, *, record: bool = False) -> None:
        super().__init__(file=file, highlight=False, emoji=False, soft_wrap=True, record=record)
        if not self.is_terminal:
            self.width = _PIPED_WIDTH

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints objects as rich does, and breaks texts between words if this is a terminal."""
        if self.is_terminal:
            objects = tuple(
                self._fitting(one, options.get("markup")) if isinstance(one, str) else one for one in objects
            )
        super().print(*objects, **options)

    def _fitting(self, text: str, markup: bool | None) -> Text:
        """Returns the text, with each of its lines broken between words where it is too wide."""
        lines = []
        for line in self.render_str(text, markup=markup).split("\n", allow_blank=True):
            margin = _margin(line.plain, self.width)
            first, *others = line.divide(_starts(line.plain, self.width, margin))
            for part in (first, *others):
                part.rstrip()
            lines += [first, *(Text(" " * margin).append_text(part) for part in others)]
        return Text("\n").join(lines)

    def print_table(self, table: "Table") -> None:
        """Prints a table with its cells whole. On a terminal, columns that do not fit come in blocks below the others.

        Each block begins with the first column, which names the rows.
        """
        width, limitless = self.width, self.options.update(width=_WITHOUT_LIMIT)
        rest, begin = list(table.columns), table.columns[:0]
        while rest:
            table.columns = [*begin, *rest]
            while (
                self.is_terminal
                and len(table.columns) > len(begin) + 1
                and self.measure(table, options=limitless).maximum > width
            ):
                table.columns.pop()
            self.width = max(width, self.measure(table, options=limitless).maximum)
            if begin:
                self.print()
            self.print(table)
            self.width = width
            rest = rest[len(table.columns) - len(begin) :]
            begin, table.title = table.columns[:1], None

    def on_broken_pipe(self) -> None:
        """Raises the error again; rich calls this method, which by default ends the program with exit code 1."""
        raise


def print_aside(text: str) -> None:
    """Prints text on standard error: what is wrong, or what is under way."""
    Terminal(sys.stderr).print(text, markup=False)


def _margin(line: str, width: int) -> int:
    """Returns how far the rest of a line is indented: below its second column, or more than an indented line."""
    column = _COLUMN.match(line)
    if column and column.end() <= width // 2:
        return column.end()
    blanks = len(line) - len(line.lstrip())
    return blanks + _HANGING if blanks else 0


def _starts(line: str, width: int, margin: int) -> list[int]:
    """Returns where lines of at most `width` characters begin, after the first one. `margin`: their indentation."""
    starts: list[int] = []
    for word in _WORD.finditer(line):
        begin, used = (starts[-1], margin) if starts else (0, 0)
        if word.end() - begin + used > width and line[begin : word.start()].strip():
            starts.append(word.start())
    return starts


def terminal_width() -> int | None:
    """Returns the width of the terminal in characters; None if standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def num_fitting(widths: Sequence[int], gap: int, width: int | None) -> int:
    """Returns how many columns of these widths fit into a line, from the left, with `gap` characters between them.

    At least one; all if width is None.
    """
    ends = accumulate(widths, lambda end, one: end + gap + one)
    return max(1, sum(width is None or end <= width for end in ends))
