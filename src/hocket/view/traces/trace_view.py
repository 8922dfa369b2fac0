"""Writes a trace as one HTML page that any browser shows offline: a timeline to zoom and to click."""

import json
from importlib.resources import files
from pathlib import Path

from hocket.view.saving import write
from hocket.view.traces.trace_summary import HIDDEN_IS_A_LIMIT, summarise
from hocket.view.traces.trace_timeline import Timeline

_PLACE = "@DATA@"


def write_page(timeline: Timeline, output: Path) -> Path:
    """Writes the page and returns the file. Raises ValueError if it cannot be written."""
    page = files("hocket.view.traces").joinpath("trace_view.html").read_text(encoding="utf-8")
    # Escape "<": inside a script element, "</" would end it and "<!--" would begin a comment.
    data = json.dumps(_data(timeline), separators=(",", ":")).replace("<", "\\u003c")
    write(output, page.replace(_PLACE, data))
    return output


def _data(timeline: Timeline) -> dict[str, object]:
    names: dict[str, int] = {}
    categories: dict[str, int] = {}
    positions = {lane.place: position for position, lane in enumerate(timeline.lanes)}
    processes = list(dict.fromkeys(lane.process for lane in timeline.lanes))
    lanes = []
    for lane in timeline.lanes:
        slices = [
            [
                round(one.begin, 9),
                round(one.end, 9),
                names.setdefault(one.name, len(names)),
                categories.setdefault(one.category, len(categories)),
                one.depth,
                one.said,
            ]
            for one in lane.slices
        ]
        instants = [
            [
                round(one.seconds, 9),
                round(one.seconds, 9),
                names.setdefault(one.name, len(names)),
                categories.setdefault(one.category, len(categories)),
                0,
                one.said,
            ]
            for one in lane.instants
        ]
        process = processes.index(lane.process)
        lanes.append({"process": process, "title": lane.title, "slices": slices, "instants": instants})
    arrows = [
        [positions[one.start], round(one.start_time, 9), positions[one.end], round(one.end_time, 9)]
        for one in timeline.arrows
        if one.start in positions and one.end in positions
    ]
    return {
        "seconds": timeline.seconds,
        "processes": [timeline.processes[process] for process in processes],
        "names": list(names),
        "categories": list(categories),
        "lanes": lanes,
        "arrows": arrows,
        "ranks": summarise(timeline)["ranks"],
        "limit": HIDDEN_IS_A_LIMIT,
    }
