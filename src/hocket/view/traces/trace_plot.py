"""Draws the timeline of a trace: the threads and streams of each rank, and below them their communication.

Above a lane are its moments: what a thread does to an event, and when a stream reaches it.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

from hocket.view.saving import writing
from hocket.view.traces.trace_timeline import Instant, Lane, Place, Slice, Timeline

_COLOURS = {
    "compute": "#0072b2",
    "communication": "#e69f00",
    "blocking": "#f6d59b",
    "wait": "#b8bec5",
    "launch": "#009e73",
}
_MOMENT = "#b5179e"
_ROW_INCHES, _WIDTH_INCHES = 0.24, 8.5  # a page of a document shows this width without making it smaller
_GAP = 0.5  # height of the gap between lanes, in rows
_LETTER = 0.0084  # share of the width that each letter of a name needs
_MOST_ARROWS = 300
_MOST_NAMES = 4  # of moments above each other; a lane that needs more shows none
_MOMENT_ROW = 0.75  # height of a row of moments, in rows
_FORMATS = (".svg", ".png", ".pdf")


def plot(timeline: Timeline, output: Path) -> Path:
    """Draws the timeline in the format of the file's ending (.svg, .png, .pdf) and returns the file.

    Lanes of steps are left out, and so are the moments of a lane that has too many at once. Raises ValueError without
    matplotlib (the extra `plot`), for another format, or if the file cannot be written.
    """
    if output.suffix not in _FORMATS:
        raise ValueError(f"expected a name that ends in {', '.join(_FORMATS)}; found {str(output)!r}")
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise ValueError('hocket trace plot needs matplotlib: pip install "hocket[plot]"') from None
    lanes = [lane for lane in timeline.lanes if lane.slices and lane.slices[0].category != "step"]
    span = max((_span(one) for lane in lanes for one in lane.instants), default=0.0)
    span = max(span, timeline.seconds)
    moments = {lane.place: _in_rows(lane, span) for lane in lanes}
    tops: dict[Place, float] = {}
    height = 0.0
    for lane in lanes:
        height += _MOMENT_ROW * _num_rows(moments[lane.place])
        tops[lane.place] = height
        height += max(one.depth for one in lane.slices) + 1 + _GAP
    figure = Figure((_WIDTH_INCHES, 1.2 + _ROW_INCHES * max(height, 3.0)), layout="constrained")
    axes: Any = figure.subplots()
    unit, scale = ("s", 1.0) if timeline.seconds >= 1 else ("ms", 1e3) if timeline.seconds >= 1e-3 else ("us", 1e6)
    for lane in lanes:
        top = tops[lane.place]
        for one in lane.slices:
            left, width, middle = one.begin * scale, one.seconds * scale, top + one.depth + 0.5
            axes.barh(middle, width, 0.9, left, color=_COLOURS.get(one.category, "#8c8c8c"))
            name = _name(one)
            if one.seconds > _LETTER * (len(name) + 1) * span:  # else it would not fit
                ink = "white" if one.category in ("compute", "launch") else "#1b1f23"
                axes.text(left + width / 2, middle, name, ha="center", va="center", fontsize=7, color=ink)
        for row, moment in moments[lane.place]:
            _draw_moment(axes, moment, scale, top, _MOMENT_ROW * (row + 0.5))
    shown = [arrow for arrow in timeline.arrows if arrow.start in tops and arrow.end in tops]
    for arrow in shown[:_MOST_ARROWS]:
        start = (arrow.start_time * scale, tops[arrow.start] + 0.5)
        end = (arrow.end_time * scale, tops[arrow.end] + 0.5)
        style = {"arrowstyle": "->", "color": "#57606a", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", end, start, arrowprops=style)
    names = [f"{timeline.processes[lane.process]}: {lane.title}" for lane in lanes]
    axes.set_yticks([top + 0.5 for top in tops.values()], names, fontsize=8)
    for before, lane in pairwise(lanes):
        if lane.process != before.process:
            above = _MOMENT_ROW * _num_rows(moments[lane.place])
            axes.axhline(tops[lane.place] - above - _GAP / 2, color="#d0d7de", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlim(0, span * scale)
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    found = {one.category for lane in lanes for one in lane.slices}
    patches = [Patch(color=colour, label=category) for category, colour in _COLOURS.items() if category in found]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches) or 1, frameon=False, fontsize=8)
    with writing(output):
        figure.savefig(output)
    return output


def _in_rows(lane: Lane, span: float) -> list[tuple[int, Instant]]:
    """Returns the moments of a lane, the last first, each with the row of its name: 0 is the lowest.

    A name is above those of moments that come before it ends, so no name and no line of another moment crosses it.
    """
    found: list[tuple[int, Instant]] = []
    for moment in sorted(lane.instants, key=lambda one: -one.seconds):
        end = moment.seconds + _share(moment) * span
        row = max((1 + row for row, later in found if later.seconds < end), default=0)
        found.append((row, moment))
    return found if _num_rows(found) <= _MOST_NAMES else []


def _num_rows(moments: list[tuple[int, Instant]]) -> int:
    return 1 + max((row for row, _ in moments), default=-1)


def _draw_moment(axes: Any, moment: Instant, scale: float, top: float, above: float) -> None:
    """Draws a line from a lane upwards, and the name of the moment at its end."""
    at = moment.seconds * scale
    axes.plot([at, at], [top + 1, top - above], color=_MOMENT, linewidth=0.8)
    axes.text(at, top - above, f" {_name(moment)}", ha="left", va="center", fontsize=7, color=_MOMENT)


def _name(one: Instant | Slice) -> str:
    event = one.said.get("event")
    return one.name.replace("event", f"event {event}", 1) if event else one.name


def _share(moment: Instant) -> float:
    """Returns the share of the picture's width that the name needs."""
    return _LETTER * (len(_name(moment)) + 2)


def _span(moment: Instant) -> float:
    """Returns the seconds that the picture must show for the name to end in it."""
    return moment.seconds / max(1 - _share(moment), 0.5)
