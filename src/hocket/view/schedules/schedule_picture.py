"""Draws the steps of a schedule as one SVG: a panel per step, bars of what ranks hold, transfers as arrows."""

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

import numpy as np

from hocket.view.schedules.chunk_colours import NEUTRAL, chunk_colours, mixed
from hocket.view.schedules.chunk_contents import ABSENT, FOREIGN, SPOILED, ChunkContents, State
from hocket.view.schedules.rank_layout import RADIUS, Curve, Curves, Labels, Point, RankLayout, on_circle, on_grid
from hocket.view.schedules.schedule_text import details, headline, idea
from hocket.view.schedules.transfer_texts import BUFFER_LETTERS
from hocket.view.svg import add, document, pair, written
from hocket.view.words import name_counts

if TYPE_CHECKING:
    from hocket.schedule import Schedule

MAX_RANKS, MAX_STEPS = 64, 64
_MAX_STRIPS = 32  # in one bar
_MAX_STRANDS = 4  # in one arrow
_MAX_LABEL = 9  # characters beside an arrow
_MAX_LABELLED = 32  # ranks
_MAX_NAMED = 16  # chunks in the legend
_DASHES = "7 4"
_BAR_HEIGHT = 22.0
_TITLE_HEIGHT = 26.0
_PADDING, _GAP = 20.0, 14.0
_MIN_WIDTH, _MAX_WIDTH = 760.0, 1000.0  # documents shrink wider pictures
_AROUND = 9.0  # pixels between the rim of a rank and that of its group
_CHARACTER = 6.9  # an upper estimate of the width of a character of 13 pixels

_INK, _QUIET, _FRAME, _TRACK, _PAPER, _WRONG = "#1b1f23", "#57606a", "#d0d7de", "#e8ebee", "#ffffff", "#cf222e"
_SHADE = "#dceaf7"  # of a group

_Sign = Callable[[Element, float, float], None]


@dataclass(frozen=True)
class _Moved:
    """One chunk that moves: its source and target in letters, its colour, and whether it is folded with others."""

    source: str
    target: str
    hue: int
    folded: bool


def draw_schedule(schedule: "Schedule", facts: dict[str, Any], doc: str) -> str:
    """Returns the SVG of a schedule, ending in a newline; equal arguments give equal text.

    `facts` are those of `hocket show --json`, `doc` is the algorithm's docstring. Ranks are on a circle, each group on
    a shade, or on a grid if the facts have dims. Raises ValueError above MAX_RANKS or MAX_STEPS.
    """
    for noun, most, found in (("ranks", MAX_RANKS, schedule.num_ranks), ("steps", MAX_STEPS, schedule.num_steps)):
        if found > most:
            raise ValueError(
                f"--svg: expected at most {most} {noun}, because more are not readable; found {found}: use fewer ranks"
            )
    return _Picture(schedule, facts["groups"], facts["dims"]).draw(facts, doc)


class _Picture:
    def __init__(self, schedule: "Schedule", groups: Sequence[int] | None, dims: Sequence[int] | None) -> None:
        self._schedule = schedule
        self._contents = ChunkContents(schedule)
        self._colours = chunk_colours(self._contents.num_hues)
        num_columns = len(self._contents.titles)
        self._group = math.ceil(num_columns / _MAX_STRIPS)
        self._num_strips = math.ceil(num_columns / self._group)
        self._strip = max(2.0, min(9.0, 72 / self._num_strips))
        self._bar = bar = (self._num_strips * self._strip, _BAR_HEIGHT + 4)
        grid = dims is not None and len(dims) > 1 and max(dims) < schedule.num_ranks
        self._layout: RankLayout = on_grid(dims, bar) if grid and dims else on_circle(schedule.num_ranks, bar, groups)
        has_groups = groups is not None and len(groups) > 1 and not grid
        self._group_of_rank = np.repeat(np.arange(len(groups)), groups).tolist() if groups and has_groups else []
        self._curves = Curves(self._layout)
        self._verbs: set[bool] = set()  # the values of _Moved.folded that occur

    def draw(self, facts: dict[str, Any], doc: str) -> str:
        """Returns the SVG; see the function `draw`."""
        num_panels = self._schedule.num_steps + 1
        across, down = self._layout.width + _GAP, self._layout.height + _TITLE_HEIGHT + _GAP
        num_rows = math.ceil(num_panels / max(2, int((_MAX_WIDTH - 2 * _PADDING + _GAP) / across)))
        per_row = math.ceil(num_panels / num_rows)
        width = max(_MIN_WIDTH, per_row * across - _GAP + 2 * _PADDING)
        left = (width - per_row * across + _GAP) / 2
        content = Element("g")
        top = self._draw_head(content, facts, doc, width)
        for number, state in enumerate(self._contents.states()):
            row, column = divmod(number, per_row)
            self._draw_panel(content, state, (left + column * across, top + row * down))
        height = self._draw_legend(content, top + num_rows * down + 14, width)
        svg = document(width, height, font_family="Helvetica, Arial, sans-serif", fill=_INK)
        add(svg, "title", headline(self._schedule, facts))
        add(svg, "rect", width=width, height=height, fill=_PAPER)
        svg.extend(content)
        return written(svg)

    def _draw_head(self, svg: Element, facts: dict[str, Any], doc: str, width: float) -> float:
        """Draws the title and the facts; returns the y coordinate of their end."""
        y = _PADDING + 18
        add(svg, "text", headline(self._schedule, facts), x=_PADDING, y=y, font_size=20, font_weight="bold")
        lines = [(line, _QUIET) for line in self._wrapped(idea(doc), width)]
        lines += [(line, _INK) for text in details(self._schedule, facts) for line in self._wrapped(text, width)]
        lines += [(line, _WRONG) for line in self._wrapped(facts["breach"] or "", width)]
        for line, colour in lines:
            y += 19
            add(svg, "text", line, x=_PADDING, y=y + 4, font_size=13, fill=colour)
        return y + 22

    def _wrapped(self, text: str, width: float) -> list[str]:
        return textwrap.wrap(text, int((width - 2 * _PADDING) / _CHARACTER))

    def _draw_panel(self, svg: Element, state: State, at: Point) -> None:
        title = "start" if state.number is None else f"step {state.number}"
        panel = add(svg, "g", kind=title.partition(" ")[0], transform=f"translate({pair(at)})")
        layout = self._layout
        add(panel, "rect", width=layout.width, height=layout.height + _TITLE_HEIGHT, rx=8, fill="none", stroke=_FRAME)
        add(panel, "text", title, x=12, y=21, font_size=14, font_weight="bold")
        inner = add(panel, "g", transform=f"translate(0 {_TITLE_HEIGHT})")
        arrows = self._arrows(state)
        if self._group_of_rank:
            self._draw_groups(inner, are_named=state.step is None)
            where = _where({self._group_of_rank[src] == self._group_of_rank[dst] for src, dst in arrows})
            add(panel, "text", where, x=20 + 8.2 * len(title), y=21, font_size=13, fill=_QUIET)
        crowded = len(arrows) > 4 * self._schedule.num_ranks
        lines = [self._draw_arrow(inner, state, *ends, moved, crowded) for ends, moved in arrows.items()]
        for rank in range(self._schedule.num_ranks):
            self._draw_rank(inner, state, rank)
        if self._has_labels(len(arrows)):
            labels = Labels(layout, self._bar, lines)
            for number, moved in enumerate(arrows.values()):
                _draw_label(inner, labels, number, _label(moved))

    def _draw_groups(self, panel: Element, *, are_named: bool) -> None:
        """Draws a shade behind the ranks of each group; its name is beside it, towards the middle."""
        middle = np.array((self._layout.width / 2, self._layout.height / 2))
        for group in range(self._group_of_rank[-1] + 1):
            points = np.array(self._layout.ranks)[np.equal(self._group_of_rank, group)]
            stops = map(pair, [*points.tolist(), points[-1].tolist()])  # a line, also of one rank
            add(
                add(panel, "g", kind="group"),
                "path",
                d=f"M{' L'.join(stops)}",
                fill="none",
                stroke=_SHADE,
                stroke_width=2 * (RADIUS + _AROUND),
                stroke_linecap="round",
                stroke_linejoin="round",
            )
            if are_named:
                name = f"group {group}"
                inwards = middle - points.mean(axis=0)
                inwards /= np.linalg.norm(inwards)
                x, y = points.mean(axis=0) + inwards * (RADIUS + _AROUND + 10 + abs(inwards[0]) * 3.2 * len(name))
                add(panel, "text", name, x=float(x), y=float(y) + 4, font_size=12, text_anchor="middle", fill=_QUIET)

    def _has_labels(self, num_arrows: int) -> bool:
        """Returns whether arrows get labels: not if they would hide each other, be too small, or all be equal."""
        num_ranks = self._schedule.num_ranks
        return num_ranks <= _MAX_LABELLED and num_arrows <= max(12, 2 * num_ranks) and self._schedule.num_chunks > 1

    def _arrows(self, state: State) -> dict[tuple[int, int], list[_Moved]]:
        """Returns the transfers between ranks in the step before a state."""
        arrows: dict[tuple[int, int], list[_Moved]] = {}
        if state.step is None:
            return arrows
        step = state.step.expanded()
        assert step.group is not None
        folded = step.reduce | (np.bincount(step.group)[step.group] > 1)
        place = self._contents.place(step.dst, step.dst_buffer, step.dst_chunk)
        hues = state.hue_of_place[place]
        for row in np.flatnonzero(step.src != step.dst).tolist():
            source = f"{BUFFER_LETTERS[step.src_buffer[row]]}{step.src_chunk[row]}"
            target = f"{BUFFER_LETTERS[step.dst_buffer[row]]}{step.dst_chunk[row]}"
            moved = _Moved(source, target, int(hues[row]), bool(folded[row]))
            arrows.setdefault((int(step.src[row]), int(step.dst[row])), []).append(moved)
        return arrows

    def _draw_arrow(
        self, panel: Element, state: State, src: int, dst: int, moved: list[_Moved], crowded: bool
    ) -> Curve:
        """Draws one arrow for all chunks from one rank to another; a few chunks get a strand each."""
        arrow = add(panel, "g", kind="arrow", fill="none")
        add(arrow, "title", f"step {state.number}: rank {src} -> rank {dst}, {_words(moved)}")
        hues = sorted({one.hue for one in moved})
        colours = [self._colours[hue] for hue in hues] if len(hues) <= _MAX_STRANDS else [NEUTRAL]
        folded = any(one.folded for one in moved)
        self._verbs.add(folded)
        stroke = 1.2 if crowded else 1.7 if len(colours) > 1 else 2.2 if len(hues) == 1 else 3.4
        line = self._curves.between(src, dst, 6 if crowded else 9 if len(hues) == 1 else 11)
        for number, colour in enumerate(colours):
            start, control, end = line.strand(((len(colours) - 1) / 2 - number) * 2.3)
            path = f"M{pair(start)} Q{pair(control)} {pair(end)}"
            add(arrow, "path", d=path, stroke=colour, stroke_width=stroke, stroke_dasharray=None if folded else _DASHES)
        colour = colours[0] if len(colours) == 1 else NEUTRAL
        add(arrow, "polygon", points=" ".join(map(pair, line.head)), fill=colour)
        return line

    def _draw_rank(self, panel: Element, state: State, rank: int) -> None:
        x, y = self._layout.ranks[rank]
        node = add(panel, "g", kind="rank")
        add(node, "title", f"rank {rank} {self._holding(state, rank)}")
        add(node, "circle", cx=x, cy=y, r=RADIUS, fill=_PAPER, stroke=_INK, stroke_width=1.5)
        add(node, "text", str(rank), x=x, y=y + 4.5, font_size=13, font_weight="bold", text_anchor="middle")
        x, y = self._layout.bars[rank]
        left, top = x - self._num_strips * self._strip / 2, y - _BAR_HEIGHT / 2 - 2
        self._draw_bar(node, state, rank, left, top)
        if state.carried[rank]:
            add(node, "text", f"+{state.carried[rank]}", x=left, y=top - 3, font_size=10, fill=_QUIET)

    def _draw_bar(self, node: Element, state: State, rank: int, left: float, top: float) -> None:
        """Draws a strip for each column, as high as the rank's share of it, underlined if just written."""
        add(node, "rect", x=left, y=top, width=self._num_strips * self._strip, height=_BAR_HEIGHT, fill=_TRACK)
        width = self._strip - (1 if self._strip > 4 else 0)
        for strip, first in enumerate(range(0, state.level.shape[1], self._group)):
            x = left + strip * self._strip
            columns = slice(first, first + self._group)
            level, full = int(state.level[rank, columns].min()), bool(state.full[rank, columns].all())
            colour = self._colours[int(state.hue[rank, first])]
            height = _BAR_HEIGHT
            if level in (FOREIGN, SPOILED):
                colour = _WRONG
            elif level == ABSENT:
                colour = _PAPER
            elif not full:
                colour = mixed(_PAPER, colour, 0.6)
                height *= level if self._contents.by_rank else max(level, 0) / self._contents.total
            if height > 0:
                add(node, "rect", x=x, y=top + _BAR_HEIGHT - height, width=width, height=height, fill=colour)
            if state.written[rank, columns].any():
                add(node, "rect", x=x, y=top + _BAR_HEIGHT + 1.5, width=width, height=2.5, fill=_INK)

    def _holding(self, state: State, rank: int) -> str:
        """Returns the contents of a rank in words."""
        levels, titles = state.level[rank].tolist(), state.titles
        if self._contents.total == 1 or self._contents.by_rank:
            held = [title for title, level in zip(titles, levels, strict=True) if level > 0]
            return f"has {', '.join(held) or 'nothing'}"
        parts = [f"{title} {level}" for title, level in zip(titles, levels, strict=True) if level > 0]
        return f"contributions: {', '.join(parts) or 'none'}"

    def _draw_legend(self, svg: Element, top: float, width: float) -> float:
        """Draws the meaning of colours, arrows and bars; returns the height of the whole picture."""
        legend = add(svg, "g", kind="legend", font_size=12)
        x, y = _PADDING, top
        for draw_sign, size, text in self._signs():
            needed = size + 8 + len(text) * _CHARACTER * 12 / 13 + 16
            if x > _PADDING and x + needed > width - _PADDING:
                x, y = _PADDING, y + 26
            draw_sign(legend, x, y)
            add(legend, "text", text, x=x + size + 8, y=y + 4.5)
            x += needed
        return y + 26

    def _signs(self) -> Iterator[tuple[_Sign, float, str]]:
        """Yields the entries of the legend: a function that draws the sign, its width, its meaning."""
        count, noun = self._contents.num_hues, "from rank" if self._schedule.kind.blocks == "pair" else "chunk"
        if count <= _MAX_NAMED:
            for number, colour in enumerate(self._colours):
                yield partial(_draw_swatch, [colour]), 14, f"{noun} {number}"
        else:
            yield partial(_draw_swatch, self._colours), 4 * count, f"{noun} 0 to {count - 1}"
        if True in self._verbs:
            yield partial(_draw_line, None), 34, "+ reduced: combined with the old content or with other sources"
        if False in self._verbs:
            yield partial(_draw_line, _DASHES), 34, "copied"
        if self._group_of_rank:
            yield partial(_draw_swatch, [_SHADE]), 14, "group of ranks"
        strips = f"{self._group} chunks" if self._group > 1 else "chunk"
        if self._contents.by_rank:
            meaning = "a strip for each rank whose contribution is in the chunk, dark if all are"
        elif self._contents.total > 1:
            meaning = f"a strip for each {strips}; height: contributions in it, dark: all of them"
        else:
            meaning = f"a strip for each {strips} that the rank has"
        yield (
            partial(_draw_strips, self._contents.total > 1 and not self._contents.by_rank),
            27,
            f"{meaning}; underlined: just written",
        )


def _where(is_inside: set[bool]) -> str:
    """Returns where the arrows of a step lead, from whether each of them stays inside a group."""
    if len(is_inside) == 2:
        return "inside and between groups"
    return "inside the groups" if True in is_inside else "between the groups" if is_inside else ""


def _draw_label(parent: Element, labels: Labels, arrow: int, text: str) -> None:
    """Draws a text beside the arrow of this number, on a light box so that crossing arrows do not hide it."""
    width, height = 6.2 * len(text) + 2, 13.0
    x, y = labels.position(arrow, width, height)
    label = add(parent, "g", kind="label")
    box = {"x": x - width / 2, "y": y - height / 2, "width": width, "height": height}
    add(label, "rect", **box, rx=3, fill=_PAPER, fill_opacity=0.8)
    add(label, "text", text, x=x, y=y + 4, font_size=11, text_anchor="middle")


def _draw_swatch(colours: list[str], parent: Element, x: float, y: float) -> None:
    width = 14 if len(colours) == 1 else 4
    for number, colour in enumerate(colours):
        add(parent, "rect", x=x + number * width, y=y - 7, width=width, height=14, fill=colour)


def _draw_line(dashes: str | None, parent: Element, x: float, y: float) -> None:
    add(parent, "path", d=f"M{pair((x, y))} H{x + 26}", stroke=_INK, stroke_width=2.2, stroke_dasharray=dashes)
    add(parent, "polygon", points=" ".join(map(pair, ((x + 34, y), (x + 25, y - 4.5), (x + 25, y + 4.5)))))


def _draw_strips(counted: bool, parent: Element, x: float, y: float) -> None:
    for number, part in enumerate((0.35, 0.7, 1.0) if counted else (1.0, 0.0, 1.0)):
        left, height, colour = x + 9 * number, 18 * part, NEUTRAL if part == 1 else mixed(_PAPER, NEUTRAL, 0.6)
        add(parent, "rect", x=left, y=y - 10, width=8, height=18, fill=_TRACK)
        add(parent, "rect", x=left, y=y + 8 - height, width=8, height=height, fill=colour)
    add(parent, "rect", x=x + 18, y=y + 9.5, width=8, height=2.5, fill=_INK)


def _label(moved: list[_Moved]) -> str:
    """Returns what an arrow carries, in a few letters: "+c0-3"."""
    letter = moved[0].target[0]
    chunks = name_counts(sorted({int(one.target[1:]) for one in moved})).replace(" ", "")
    text = letter + chunks if len(chunks) < _MAX_LABEL else f"{len(moved)} chunks"
    return ("+" if any(one.folded for one in moved) else "") + text


def _words(moved: list[_Moved]) -> str:
    """Returns what an arrow carries: "chunks 0-3, reduce" or, if buffers are named, "i0 to o2, copy"."""
    parts = []
    for folded in (True, False):
        here = [one for one in moved if one.folded == folded]
        same = sorted({int(one.target[1:]) for one in here if one.source == one.target and one.target[0] == "c"})
        others = [f"{one.source} to {one.target}" for one in here if one.source != one.target or one.target[0] != "c"]
        named = [f"chunk{'s' if len(same) > 1 else ''} {name_counts(same)}"] if same else []
        if here:
            parts.append(f"{', '.join(named + others)}, {'reduce' if folded else 'copy'}")
    return "; ".join(parts)
