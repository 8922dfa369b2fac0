"""Draws a pipeline table as one SVG: a row for each rank, a bar for each operation, idle time between them."""

from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from hocket.view.pipelines.pipeline_bars import (
    PipelineBar,
    bars_of,
    pipeline_headline,
    pipeline_legend,
    pipeline_sums,
    ticks,
)
from hocket.view.schedules.chunk_colours import ink_on
from hocket.view.svg import add, document, written

if TYPE_CHECKING:
    from hocket.training import pipeline as tables

_PADDING, _ROW, _BAR, _LINE = 16.0, 34.0, 28.0, 19.0
_CHARACTER = 7.0  # an upper estimate of the width of a character of 12 pixels
_MIN_ACROSS, _MAX_ACROSS = 480.0, 24_000.0
_WIDEST = 160.0  # pixels of the longest operation, unless the picture is narrow
_TICK = 60.0
_FIRST, _COLUMN = 66.0, 64.0  # widths of the names of ranks and of a column of numbers
_INK, _QUIET, _TRACK, _PAPER, _WRONG = "#1b1f23", "#57606a", "#eef0f2", "#ffffff", "#cf222e"


def draw_pipeline(table: "tables.PipelineTable", timing: "tables.PipelineTiming | None", facts: dict[str, Any]) -> str:
    """Returns the SVG of a table, ending in a newline; equal arguments give equal text. `facts` are those of --json.

    The micro-batch gives a bar its colour, the kind its shade. At the right stand idle time and peak activations.
    """
    bars = bars_of(table, timing)
    end = max((bar.end for rank in bars for bar in rank), default=0.0)
    scale = _scale([bar for rank in bars for bar in rank], end)
    across = end * scale
    numbers = _numbers(facts)
    headline, sums, legend = pipeline_headline(facts), pipeline_sums(facts), pipeline_legend(table, timing)
    wrong = _wrapped(facts["breach"] or "", int((_FIRST + across + 2 * _COLUMN) / _CHARACTER))
    longest = max(len(headline) * 1.35, *(len(line) for line in (*sums, *legend, *wrong))) * _CHARACTER
    width = max(_FIRST + across + 10 + len(numbers) * _COLUMN, longest) + 2 * _PADDING
    top = _PADDING + 24 + _LINE * (len(sums) + len(wrong)) + 26
    bottom = top + len(bars) * _ROW
    height = bottom + 26 + _LINE * len(legend) + _PADDING
    svg = document(width, height, font_family="Helvetica, Arial, sans-serif", fill=_INK)
    add(svg, "title", headline)
    add(svg, "rect", width=width, height=height, fill=_PAPER)
    add(svg, "text", headline, x=_PADDING, y=_PADDING + 14, font_size=16, font_weight="bold")
    lines = [*((line, _INK) for line in sums), *((line, _WRONG) for line in wrong)]
    for number, (line, colour) in enumerate(lines, 1):
        add(svg, "text", line, x=_PADDING, y=_PADDING + 16 + _LINE * number, font_size=13, fill=colour)
    left = _PADDING + _FIRST
    for number, title in enumerate(numbers, 1):
        _number(svg, title, left + across + 10 + number * _COLUMN, top - 8, _QUIET)
    for rank, row in enumerate(bars):
        y = top + rank * _ROW
        group = add(svg, "g", kind="rank")
        add(group, "text", f"rank {rank}", x=_PADDING, y=y + _BAR / 2 + 4.5, font_size=12)
        add(group, "rect", x=left, y=y, width=across, height=_BAR, fill=_TRACK)
        for number, bar in enumerate(row):
            half = 2 if number + 1 < len(row) and row[number + 1].joined else 1 if not bar.joined else 3
            _draw_bar(group, bar, left, y, scale, half)
        for number, column in enumerate(numbers.values(), 1):
            _number(group, column[rank], left + across + 10 + number * _COLUMN, y + _BAR / 2 + 4.5, _INK)
    for time in ticks(end, int(across / _TICK)):
        x = left + time * scale
        add(svg, "path", d=f"M{x:.1f} {bottom - 4:.1f} v6", stroke=_QUIET)
        add(svg, "text", f"{time:g}", x=x, y=bottom + 14, font_size=11, text_anchor="middle", fill=_QUIET)
    for number, line in enumerate(legend, 1):
        add(svg, "text", line, x=_PADDING, y=bottom + 20 + _LINE * number, font_size=12, fill=_QUIET)
    return written(svg)


def _scale(bars: list[PipelineBar], end: float) -> float:
    """Returns the pixels of a unit of time: every label fits, unless the picture would be too wide."""
    lasting = [bar for bar in bars if bar.end > bar.start]
    needed = max(((len(bar.label) * _CHARACTER + 8) / (bar.end - bar.start) for bar in lasting), default=1.0)
    longest = max((bar.end - bar.start for bar in lasting), default=1.0)
    end = max(end, 1e-9)  # if nothing takes time
    return min(max(min(needed, _WIDEST / longest), _MIN_ACROSS / end), _MAX_ACROSS / end)


def _numbers(facts: dict[str, Any]) -> dict[str, list[str]]:
    """Returns the columns at the right of the picture: a text for each rank, by title."""
    columns = {"idle": facts["idle"], "peak": facts["peak_activations"], "until W": facts["peak_until_weight"]}
    return {title: [f"{one:g}" for one in column] for title, column in columns.items() if column is not None}


def _number(parent: Element, text: str, x: float, y: float, colour: str) -> None:
    add(parent, "text", text, x=x - 8, y=y, font_size=12, text_anchor="end", fill=colour)


def _draw_bar(parent: Element, bar: PipelineBar, left: float, y: float, scale: float, part: int) -> None:
    """Draws a bar; part: 1 for a whole one, 2 and 3 for the upper and the lower half of an overlapped pair."""
    x, width = left + bar.start * scale, (bar.end - bar.start) * scale
    height = _BAR if part == 1 else _BAR / 2
    top = y + _BAR / 2 if part == 3 else y
    if width <= 0:
        return
    group = add(parent, "g")
    add(group, "title", f"{bar.about}, from {bar.start:g} to {bar.end:g}")
    add(group, "rect", x=x, y=top, width=width, height=height, fill=bar.colour, stroke=_PAPER, stroke_width=1)
    if len(bar.label) * _CHARACTER <= width:
        baseline = top + height / 2 + 4
        size = 12 if part == 1 else 11
        ink = ink_on(bar.colour)
        add(group, "text", bar.label, x=x + width / 2, y=baseline, font_size=size, text_anchor="middle", fill=ink)


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, max(width, 60))
