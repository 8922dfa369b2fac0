"""Prints the steps of a schedule in the terminal: after each, a matrix of ranks and chunks, and what ranks receive.

In a wide terminal several steps are side by side. In a narrow one, cells first become one character wide, then the
received chunks move below the matrix, and finally one column stands for several chunks.
"""

import math
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from hocket.view.schedules.chunk_colours import chunk_colours, ink_on, mixed
from hocket.view.schedules.chunk_contents import ABSENT, FOREIGN, MEANINGS, SPOILED, UNKNOWN, ChunkContents, State
from hocket.view.schedules.transfer_texts import received

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from hocket.schedule import Schedule

_MAX_STEPS = 128
_MAX_LINES_BESIDE, _MAX_LINES = 3, 8  # lines for one rank and one step, beside or below the matrix
_MIN_TEXT = 24  # least width of the text about received chunks, in characters
_GAP = 3  # characters between steps that are side by side
_ODD = {ABSENT: " ", FOREIGN: "?", SPOILED: "!", UNKNOWN: "?"}
_PALE = "#f2f2f2"


@dataclass(frozen=True)
class _Signs:
    """The characters for the contents of cells."""

    nothing: str
    some: str
    full: str
    written: str
    scale: str  # from few to nearly all contributions

    def of_part(self, level: int, total: int) -> str:
        """Returns the character for `level` of `total` contributions."""
        return self.scale[math.ceil(level * len(self.scale) / total) - 1]


_UNICODE = _Signs("·", "▒", "█", "•", "▁▂▃▄▅▆▇")
_ASCII = _Signs(".", "x", "#", "*", "123456789")


class ChunkMatrix:
    """All steps of a schedule of at most chunk_contents.MAX_RANKS ranks, drawn for one console.

    `width` is the width of the console in characters; `side_by_side` allows several steps in the same lines.
    """

    def __init__(self, schedule: "Schedule", console: "Console", width: int, side_by_side: bool) -> None:
        self._console, self._width, self._schedule = console, width, schedule
        self._contents = ChunkContents(schedule)
        self._signs = _ASCII if console.options.ascii_only else _UNICODE
        # Among 16 colours, a chunk's full and its pale colour may be the same.
        self._coloured = console.color_system in ("256", "truecolor") and not console.no_color
        self._colours = chunk_colours(self._contents.num_hues)
        self._states = list(islice(self._contents.states(), _MAX_STEPS + 1))
        self._texts = [_by_rank(state, schedule.num_ranks) for state in self._states]
        self._label = len(f"rank {max(schedule.num_ranks, len(self._states) - 1) - 1}") + 1  # as long as "step 9"
        carried = max(int(state.carried.max()) for state in self._states)
        self._carried = len(f" +{carried}") if carried else 0
        self._choose_layout(side_by_side)

    def print(self) -> None:
        """Prints the steps, up to a limit, and the meaning of the characters."""
        from rich.text import Text

        panels = [self._panel(state, texts) for state, texts in zip(self._states, self._texts, strict=True)]
        for first in range(0, len(panels), self._per_line):
            row = panels[first : first + self._per_line]
            for number in range(max(map(len, row))):
                line = Text()
                for panel in row:
                    line.pad_right(-len(line) % (self._panel_width + _GAP) if len(line) else 0)
                    line.append_text(panel[number] if number < len(panel) else Text(" "))
                if not self._coloured:  # with colours, blanks may have one and must stay
                    line.rstrip()
                self._console.print(line)
            self._console.print()
        missing = self._schedule.num_steps + 1 - len(self._states)
        if missing:
            self._console.print(f"... and {missing} more steps; --json has all\n")
        self._console.print(self._legend(), style="dim", markup=False)

    # The layout, the same for all steps.

    def _choose_layout(self, side_by_side: bool) -> None:
        """Chooses wide cells if they fit, else small ones, and texts beside the cells if they fit, else below."""
        digits = len(str(self._contents.total)) if self._contents.total > 1 and not self._contents.by_rank else 1
        wide = max(digits + 2, 1 + max(map(len, self._contents.titles)))
        num_columns, margin = len(self._contents.titles), self._label + self._carried + 2
        cells = [cell for cell in (wide, 1) if margin + num_columns * cell <= self._width] or [1]
        self._group = math.ceil(num_columns / max(8, self._width - margin))
        self._cell, self._room = next(
            ((cell, room) for cell in cells if (room := self._room_beside(cell))), (cells[0], 0)
        )
        self._panel_width = margin + math.ceil(num_columns / self._group) * self._cell + self._room
        num_fitting = (self._width + _GAP) // (self._panel_width + _GAP)
        self._per_line = max(1, min(num_fitting, len(self._states))) if side_by_side and self._room else 1

    def _room_beside(self, cell: int) -> int:
        """Returns the characters for texts beside cells of this width; 0 if the texts need too many lines there."""
        free = self._width - self._label - self._carried - 2 - len(self._contents.titles) * cell
        cells = [texts for state in self._texts for texts in state]
        room = min(free, max((len(", ".join(texts)) for texts in cells), default=0))
        if any(
            len(_wrapped(texts, room)) > _MAX_LINES_BESIDE or len(max(texts, key=len)) > room
            for texts in cells
            if texts
        ):
            return 0
        return max(0, min(free, max(room, len("receives"))))

    def _panel(self, state: State, texts: list[list[str]]) -> "list[Text]":
        """Returns the lines of one step."""
        from rich.text import Text

        name = "start" if state.number is None else f"step {state.number}"
        receives = " " * self._carried + "  receives" if state.number is not None and self._room else ""
        lines = [Text.assemble((name.ljust(self._label), "bold"), (self._head(state) + receives, "dim"))]
        for rank in range(self._schedule.num_ranks):
            line = Text(f"rank {rank}".ljust(self._label))
            self._append_cells(line, state, rank)
            if self._carried:
                line.append((f"+{state.carried[rank]}" if state.carried[rank] else "").rjust(self._carried))
            margin = len(line) + 2
            wrapped = _wrapped(texts[rank], self._room) if self._room else []
            for number, text in enumerate(wrapped):
                if number:
                    lines.append(line)
                    line = Text(" " * margin)
                else:
                    line.append("  ")
                line.append(text)
            lines.append(line)
        if not self._room:
            for rank, cell in enumerate(texts):
                indent = f"  rank {rank}: "
                for number, text in enumerate(_wrapped(cell, max(self._width - len(indent), _MIN_TEXT))):
                    lines.append(Text((" " * len(indent) if number else indent) + text))
        return lines

    def _head(self, state: State) -> str:
        """Returns the titles of columns; above small cells only every eighth, at the start of its column."""
        titles = state.titles[:: self._group]
        if self._cell > 1:
            return "".join(title.center(self._cell) for title in titles)
        head = ""
        for number, title in enumerate(titles):
            if number % 8 == 0 and len(head) <= number and number + len(title) <= len(titles):
                head = head.ljust(number) + title
        return head.ljust(len(titles))

    def _append_cells(self, line: "Text", state: State, rank: int) -> None:
        cells = []
        levels, full, written, hues = (
            table[rank].tolist() for table in (state.level, state.full, state.written, state.hue)
        )
        for first in range(0, len(levels), self._group):
            column = slice(first, first + self._group)
            what = min(levels[column]), all(full[column]), any(written[column])
            cells.append((self._style(*what, self._colours[hues[first]]), self._cell_text(*what)))
        for style, run in groupby(cells, itemgetter(0)):  # few spans make joining texts fast
            line.append("".join(text for _, text in run), style)

    def _cell_text(self, level: int, full: bool, written: bool) -> str:
        """Returns the text of a cell, as wide as the cell. With colours, the colour shows whether it is full."""
        counts, signs = self._contents.total > 1 and not self._contents.by_rank, self._signs
        if level in _ODD:
            text = _ODD[level]
        elif level == 0:
            text = signs.nothing
        elif self._cell == 1 and self._coloured:
            text = signs.written if written else " "
        elif full and not self._coloured:
            text = signs.full
        elif not counts:
            text = " " if self._coloured else signs.some
        else:
            text = str(level) if self._cell > 1 else signs.of_part(level, self._contents.total)
        if self._cell == 1:
            return text
        text = text.rjust(self._cell - 2)
        return f"[{text}]" if written else f" {text} "

    def _style(self, level: int, full: bool, written: bool, colour: str) -> str:
        if level in (SPOILED, FOREIGN):
            return "bold white on red"
        if level <= 0:
            return "dim"
        if not self._coloured:
            return "bold" if written else ""
        part = 0.35 if self._contents.by_rank else 0.15 + 0.5 * level / self._contents.total
        background = mixed(_PALE, colour, 1 if full else part)
        return f"{ink_on(background)} on {background}" + (" bold" if written else "")

    def _legend(self) -> str:
        """Returns the meaning of the characters that occur."""
        contents, signs = self._contents, self._signs
        levels = {int(level) for state in self._states for level in np.unique(state.level)}
        full = "in full colour" if self._coloured else signs.full
        parts = ["after each step: "]
        if contents.by_rank:
            some = "in pale colour" if self._coloured else signs.some
            parts[0] += "whether the rank's chunk contains the contribution of rank 0 (r0), 1 (r1) ..."
            parts += [f"{some}: yes", f"{full}: it contains all"]
        elif contents.total > 1:
            parts[0] += "number of contributions in the rank's copy of the chunk"
            if self._cell == 1:
                parts.append(
                    "stronger colour: more" if self._coloured else f"from {signs.scale[0]} to {signs.scale[-1]}"
                )
            parts.append(f"{full}: all {contents.total}")
        else:
            parts[0] += "whether the rank has the chunk"
            parts.append(f"{full}: yes")
        if 0 in levels:
            parts.append(f"{signs.nothing}: no")
        if self._schedule.kind.blocks == "pair":
            parts[0] += " from rank 0 (o0), 1 (o1) ... for its output; start: those for rank 0 (i0), 1 (i1) ..."
        if self._cell > 1 or self._coloured:
            parts.append(f"{'[ ]' if self._cell > 1 else signs.written}: just written")
        parts += [f"{_ODD[level]}: {meaning}" for level, meaning in MEANINGS.items() if level in levels]
        if self._carried:
            parts.append("+3: 3 more chunks, in scratch memory or for other ranks")
        if self._group > 1:
            parts.append(f"each column stands for {self._group} chunks and shows the lowest value")
        return "; ".join(parts)


def _by_rank(state: State, num_ranks: int) -> list[list[str]]:
    """Returns what each rank receives in the step before a state."""
    texts: list[list[str]] = [[] for _ in range(num_ranks)]
    for rank, text in received(state.step) if state.step is not None else []:
        texts[rank].append(text)
    return texts


def _wrapped(texts: list[str], width: int) -> list[str]:
    """Returns texts joined by commas, wrapped there or before a plus sign, and cut after _MAX_LINES lines."""
    lines: list[str] = []
    for word in ", ".join(texts).replace(", ", ",\n").replace(" + ", "\n+ ").splitlines():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        elif len(lines) == _MAX_LINES:
            lines[-1] = "... and more; --json has all"[:width]
            break
        else:
            lines.append(word)
    return lines
