"""The picture of a mesh: a node is a box, a device a cell with its rank and its coordinates, a stage a colour.

It follows the figures of the papers on pipeline, data and tensor parallelism. The groups of the last axis have a heavy
frame. Two frames or boxes that are neighbours along another axis are linked where they stand side by side; so not every
group shows, and the table beside the picture has to be complete.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from hocket.runtime import Cartesian

if TYPE_CHECKING:
    from rich.console import Console

_MAX_DRAWN = 64  # ranks; above, the first ones stand for all
_MAX_FRAME_COLUMNS = 8
_COLOURS = ("#9ecae1", "#fdae6b", "#a1d99b", "#bcbddc", "#fa9fb5", "#fee391", "#99d8c9", "#d9d9d9")


class _Canvas:
    """Characters with styles, row by row; grows as it is written to."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], tuple[str, str]] = {}

    def write(self, row: int, column: int, text: str, style: str = "") -> None:
        for offset, character in enumerate(text):
            self._cells[row, column + offset] = (character, style)

    def print(self, console: "Console") -> None:
        from rich.text import Text

        num_rows = 1 + max(row for row, _ in self._cells)
        for row in range(num_rows):
            width = 1 + max((column for at, column in self._cells if at == row), default=-1)
            line = Text(no_wrap=True)
            for style, run in groupby((self._cells.get((row, column), (" ", "")) for column in range(width)), _style):
                line.append("".join(character for character, _ in run), style)
            console.print(line, overflow="ignore", crop=False)


def _style(cell: tuple[str, str]) -> str:
    return cell[1]


class Picture:
    """The boxes of all nodes, as many side by side as the width allows, so that the whole is as low as possible."""

    def __init__(self, topology: Cartesian, num_nodes: int, max_width: int) -> None:
        self._topology, num_devices = topology, topology.size // num_nodes
        self._coords = [topology.coords(rank) for rank in range(min(topology.size, _MAX_DRAWN))]
        long_axes = [axis for axis, size in topology.dims.items() if size > 1] or [topology.axes[-1]]
        self.framed = long_axes[-1]
        stages = "pp" if "pp" in long_axes else long_axes[0]
        self._coloured = None if stages == self.framed else stages
        num_drawn = max(1, min(num_nodes, _MAX_DRAWN // num_devices))
        self._nodes = [self._frames_of(node, num_devices) for node in range(num_drawn)]
        ranks = [rank for frames in self._nodes for rank in _flat(frames)]
        self.num_ranks = len(ranks)

        names = max(len(axis) for axis in topology.axes)
        self._frame_gap, self._box_gap, self._max_width = names + 2, names + 5, max_width
        self._cell_width = max(7, 2 + max(len(self._cell_text(rank)) for rank in ranks))
        widest = max(len(frame) for frames in self._nodes for frame in frames)
        fitting = (max_width - 5) // (self._cell_width + 1)
        self._num_columns = max(1, min(widest, fitting, _MAX_FRAME_COLUMNS))
        self._frame_width = self._num_columns * (self._cell_width + 1) + 1
        self._frame_height = 1 + 3 * math.ceil(widest / self._num_columns)
        self._num_frames = max(len(frames) for frames in self._nodes)
        self._frames_per_row = min(self._row_lengths(long_axes), key=self._height)
        self._box_width, self._box_height, self._boxes_per_line = self._boxes(self._frames_per_row)

    def print(self, console: "Console") -> None:
        """Draws it, with the meaning of the colours below where there are any."""
        from rich.text import Text

        canvas = _Canvas()
        for node, frames in enumerate(self._nodes):
            row, column = self._box_at(node)
            _rectangle(canvas, row, column, self._box_height, self._box_width, "╭─╮│╰╯", f"node {node}")
            for number, frame in enumerate(frames):
                self._draw_frame(canvas, *self._frame_at(node, number), frame)
                self._link_down(canvas, node, number)
                self._link_right(canvas, node, number)
            self._link_boxes_down(canvas, node)
        canvas.print(console)
        if self._coloured is not None and console.color_system is not None:
            legend = Text(f"Colours: {self._coloured}")
            for along in range(min(self._topology.dims[self._coloured], len(_COLOURS))):
                legend.append(" ").append(f" {along} ", f"black on {_COLOURS[along]}")
            console.print(legend)

    # Sizes and places, in characters.

    def _row_lengths(self, long_axes: Sequence[str]) -> list[int]:
        """How many frames of a node may stand side by side, so that rows and columns each follow one axis."""
        if len({tuple(map(len, frames)) for frames in self._nodes}) > 1:
            return [1]  # groups of the framed axis end anywhere in a node
        lengths, inner = [1, self._num_frames], self._topology.dims[long_axes[-2]] if len(long_axes) > 1 else 1
        if 1 < inner < self._num_frames and self._num_frames % inner == 0:
            lengths = [inner]
        return [length for length in lengths if self._boxes(length)[0] <= self._max_width] or [1]

    def _boxes(self, frames_per_row: int) -> tuple[int, int, int]:
        """Width and height of a box, and how many of them fit side by side."""
        width = frames_per_row * (self._frame_width + self._frame_gap) - self._frame_gap + 4
        height = math.ceil(self._num_frames / frames_per_row) * (self._frame_height + 1) + 1
        num_fitting = (self._max_width + self._box_gap) // (width + self._box_gap)
        return width, height, max(1, min(len(self._nodes), num_fitting))

    def _height(self, frames_per_row: int) -> int:
        _, height, boxes_per_line = self._boxes(frames_per_row)
        return math.ceil(len(self._nodes) / boxes_per_line) * (height + 1)

    def _box_at(self, node: int) -> tuple[int, int]:
        line, place = divmod(node, self._boxes_per_line)
        return line * (self._box_height + 1), place * (self._box_width + self._box_gap)

    def _frame_at(self, node: int, frame: int) -> tuple[int, int]:
        row, column = self._box_at(node)
        line, place = divmod(frame, self._frames_per_row)
        return row + 1 + line * (self._frame_height + 1), column + 2 + place * (self._frame_width + self._frame_gap)

    # Frames and cells.

    def _frames_of(self, node: int, num_devices: int) -> list[list[int]]:
        """The ranks of a node, cut where one group of the framed axis ends and the next begins."""
        first = node * num_devices
        ranks = range(first, first + min(num_devices, _MAX_DRAWN))
        return [list(run) for _, run in groupby(ranks, lambda rank: self._others(rank))]

    def _others(self, rank: int) -> dict[str, int]:
        """Where a rank stands along the axes that have no frame."""
        return {axis: along for axis, along in self._coords[rank].items() if axis != self.framed}

    def _cell_text(self, rank: int) -> str:
        return ",".join(map(str, self._coords[rank].values()))

    def _fill(self, rank: int) -> str:
        if self._coloured is None:
            return ""
        return f"black on {_COLOURS[self._coords[rank][self._coloured] % len(_COLOURS)]}"

    def _title(self, frame: Sequence[int]) -> str:
        words = [f"{axis}{along}" for axis, along in self._others(frame[0]).items() if self._topology.dims[axis] > 1]
        if len(frame) < self._topology.dims[self.framed]:
            first, last = (self._coords[rank][self.framed] for rank in (frame[0], frame[-1]))
            words.append(f"{self.framed}{first}" + (f"-{last}" if last > first else ""))
        return " ".join(words)

    def _draw_frame(self, canvas: _Canvas, row: int, column: int, frame: Sequence[int]) -> None:
        num_columns, step = min(len(frame), self._num_columns), self._cell_width + 1
        num_rows = math.ceil(len(frame) / num_columns)
        _rectangle(canvas, row, column, 1 + 3 * num_rows, num_columns * step + 1, "┏━┓┃┗┛", self._title(frame))
        for place, rank in enumerate(frame):
            down, across = divmod(place, num_columns)
            top, left = row + 1 + 3 * down, column + 1 + across * step
            fill = self._fill(rank)
            canvas.write(top, left, str(rank).center(self._cell_width), f"bold {fill}".strip())
            canvas.write(top + 1, left, self._cell_text(rank).center(self._cell_width), fill)
            if across:
                for line in (top, top + 1):
                    canvas.write(line, left - 1, "│")
            elif down:
                canvas.write(top - 1, column, f"┠{'┼'.join(['─' * self._cell_width] * num_columns)}┨")

    # Links: only between neighbours along one axis that the picture has side by side.

    def _link(self, before: Sequence[int], after: Sequence[int]) -> str | None:
        """The axis along which each rank of `after` is next to its counterpart."""
        steps = {self._step(*pair) for pair in zip(before, after, strict=False)}
        return steps.pop() if len(before) == len(after) and len(steps) == 1 else None

    def _step(self, before: int, after: int) -> str | None:
        differing = [axis for axis, along in self._coords[after].items() if along != self._coords[before][axis]]
        if len(differing) == 1 and self._coords[after][differing[0]] == self._coords[before][differing[0]] + 1:
            return differing[0]
        return None

    def _link_down(self, canvas: _Canvas, node: int, number: int) -> None:
        """From each cell of a frame to the one below it in the same box."""
        frames, below = self._nodes[node], number + self._frames_per_row
        if below < len(frames) and (axis := self._link(frames[number], frames[below])):
            self._mark_down(canvas, self._frame_at(node, number)[0] + self._frame_height, node, number, axis)

    def _mark_down(self, canvas: _Canvas, row: int, node: int, number: int, axis: str) -> None:
        left = self._frame_at(node, number)[1] + 1 + (self._cell_width - 1) // 2
        for across in range(min(len(self._nodes[node][number]), self._num_columns)):
            canvas.write(row, left + across * (self._cell_width + 1), _vertical(axis, self._cell_width // 2))

    def _link_right(self, canvas: _Canvas, node: int, number: int) -> None:
        """From a frame to the one right of it; from the last in its row, to that row of the next box."""
        frames, row = self._nodes[node], self._frame_at(node, number)[0] + 1
        last_in_row = (number + 1) % self._frames_per_row == 0
        if not last_in_row and number + 1 < len(frames):
            if axis := self._link(frames[number], frames[number + 1]):
                column = self._frame_at(node, number + 1)[1] - self._frame_gap
                canvas.write(row, column, _horizontal(axis, self._frame_gap))
        elif last_in_row and node + 1 < len(self._nodes) and self._boxes_per_line > 1:
            one_row = slice(number + 1 - self._frames_per_row, number + 1)
            here, there = (_flat(self._nodes[one][one_row]) for one in (node, node + 1))
            axis = self._link(here, there) or (self._step(here[-1], there[0]) if there else None)
            column = self._box_at(node)[1] + self._box_width
            if axis and column + self._box_gap <= self._max_width:
                canvas.write(row, column, _horizontal(axis, self._box_gap))

    def _link_boxes_down(self, canvas: _Canvas, node: int) -> None:
        """From cell to cell where the boxes have one row of cells, else from box to box."""
        below = node + self._boxes_per_line
        if below >= len(self._nodes):
            return
        here, there = _flat(self._nodes[node]), _flat(self._nodes[below])
        row, column = self._box_at(node)
        axis = self._link(here, there)
        if axis and self._box_height == 2 + self._frame_height == 6:
            for number in range(len(self._nodes[node])):
                self._mark_down(canvas, row + self._box_height, node, number, axis)
        elif axis := axis or self._step(here[-1], there[0]):
            canvas.write(row + self._box_height, column + self._box_width // 2, _vertical(axis, self._box_width // 2))


def _flat(frames: Sequence[Sequence[int]]) -> list[int]:
    return [rank for frame in frames for rank in frame]


def _horizontal(axis: str, width: int) -> str:
    """A link that is read from left to right; the pipeline has a direction."""
    line = axis.center(width, "─")
    return line[:-1] + "▶" if axis == "pp" else line


def _vertical(axis: str, width: int) -> str:
    return (("▼" if axis == "pp" else "│") + axis)[:width]


def _rectangle(canvas: _Canvas, row: int, column: int, height: int, width: int, strokes: str, title: str) -> None:
    """A frame with its title in the upper edge, if that has room for it."""
    left_top, across, right_top, down, left_bottom, right_bottom = tuple(strokes)
    canvas.write(row, column, left_top + across * (width - 2) + right_top)
    for line in range(row + 1, row + height - 1):
        canvas.write(line, column, down)
        canvas.write(line, column + width - 1, down)
    canvas.write(row + height - 1, column, left_bottom + across * (width - 2) + right_bottom)
    if title and len(title) + 4 <= width:
        canvas.write(row, column + 1, f" {title} ", "bold")
