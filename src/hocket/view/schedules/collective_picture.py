"""Draws what a collective does as one SVG: two panels, before and after, with a row of blocks for each rank."""

from typing import Any
from xml.etree.ElementTree import Element

from hocket.view.schedules.chunk_colours import chunk_colours, ink_on, mixed
from hocket.view.schedules.collective_text import collective_headline, notation
from hocket.view.svg import add, document, pair, written

_MAX_LABELLED = 8  # blocks in a row
_RADIUS, _ROW, _CELL_HEIGHT = 13.0, 36.0, 26.0
_PADDING, _BETWEEN, _TITLE, _HEAD = 16.0, 56.0, 30.0, 36.0
_CHARACTER = 7.2  # an upper estimate of the width of a character of 12 pixels
_INK, _QUIET, _FRAME, _PAPER = "#1b1f23", "#57606a", "#d0d7de", "#ffffff"

Blocks = list[dict[str, Any]]


def draw_collective(facts: dict[str, Any]) -> str:
    """Returns the SVG of a collective, ending in a newline; `facts` are those of `hocket show --json`.

    A block has the colour of the rank that gave it; a block that several ranks gave to has the colours of all. The
    circle of the root is dark.
    """
    rows = [*facts["before"], *facts["after"]]
    labelled = max(map(len, rows)) <= _MAX_LABELLED
    longest = max(len(one["label"]) for held in rows for one in held)
    cell = max(34.0, longest * _CHARACTER + 10) if labelled else 14.0
    num_columns = 1 + max(_column(one, place, facts) for held in rows for place, one in enumerate(held))
    across = 2 * _RADIUS + 3 * 10 + max(num_columns * cell, 60.0)
    down = _TITLE + facts["num_ranks"] * _ROW + 4
    notes = notation(facts)
    needed = max(len(line) for line in (*notes, collective_headline(facts) + " " * 12)) * _CHARACTER
    width = max(2 * across + _BETWEEN, needed) + 2 * _PADDING
    height = _HEAD + down + 12 + 18.0 * len(notes) + 8
    svg = document(width, height, font_family="Helvetica, Arial, sans-serif", fill=_INK)
    add(svg, "title", collective_headline(facts))
    add(svg, "rect", width=width, height=height, fill=_PAPER)
    add(svg, "text", collective_headline(facts), x=_PADDING, y=24.0, font_size=17, font_weight="bold")
    left = (width - 2 * across - _BETWEEN) / 2
    for title, x in (("before", left), ("after", left + across + _BETWEEN)):
        panel = add(svg, "g", kind=title, transform=f"translate({pair((x, _HEAD))})")
        add(panel, "rect", width=across, height=down, rx=8, fill="none", stroke=_FRAME)
        add(panel, "text", title, x=12.0, y=20.0, font_size=13, font_weight="bold")
        for rank, held in enumerate(facts[title]):
            _draw_rank(panel, facts, rank, held, cell if labelled else -cell)
    _draw_arrow(svg, left + across + 10, _HEAD + down / 2)
    for number, line in enumerate(notes):
        add(svg, "text", line, x=_PADDING, y=_HEAD + down + 24 + 18.0 * number, font_size=12, fill=_QUIET)
    return written(svg)


def _column(one: dict[str, Any], place: int, facts: dict[str, Any]) -> int:
    """Returns the column of a block: its number in the vector, or its place in memory if each pair has a block."""
    from hocket.schedule import find_collective

    return place if find_collective(facts["collective"]).blocks == "pair" else int(one["block"])


def _draw_rank(panel: Element, facts: dict[str, Any], rank: int, held: Blocks, cell: float) -> None:
    """Draws a rank and its blocks; a negative width of a cell means no labels."""
    x, y = 10 + _RADIUS, _TITLE + (rank + 0.5) * _ROW
    node = add(panel, "g", kind="rank")
    add(node, "title", f"rank {rank} has {', '.join(one['label'] for one in held) or 'nothing'}")
    is_root = rank == facts["root"]
    add(node, "circle", cx=x, cy=y, r=_RADIUS, fill=_INK if is_root else _PAPER, stroke=_INK, stroke_width=1.5)
    ink = _PAPER if is_root else _INK
    add(node, "text", str(rank), x=x, y=y + 4.5, font_size=12, font_weight="bold", text_anchor="middle", fill=ink)
    begin, top = x + _RADIUS + 10, y - _CELL_HEIGHT / 2
    if not held:
        add(node, "text", "nothing", x=begin + 4, y=y + 4.5, font_size=12, fill=_QUIET)
    colours = chunk_colours(facts["num_ranks"])
    for place, one in enumerate(held):
        at, whole = begin + _column(one, place, facts) * abs(cell), abs(cell) - 2
        several = len(one["ranks"]) > 1
        fills = [mixed(_PAPER, colours[giver], 0.5) if several else colours[giver] for giver in one["ranks"]]
        for number, fill in enumerate(fills):
            part = whole / len(fills)
            add(node, "rect", x=at + number * part, y=top, width=part, height=_CELL_HEIGHT, fill=fill)
        if cell > 0:
            ink = _INK if several else ink_on(fills[0])
            middle = at + whole / 2
            add(node, "text", one["label"], x=middle, y=y + 4.5, font_size=12, text_anchor="middle", fill=ink)


def _draw_arrow(svg: Element, x: float, y: float) -> None:
    end = x + _BETWEEN - 20
    add(svg, "path", d=f"M{pair((x, y))} H{end - 8}", stroke=_INK, stroke_width=2.2)
    add(svg, "polygon", points=" ".join(map(pair, ((end, y), (end - 9, y - 5), (end - 9, y + 5)))), fill=_INK)
