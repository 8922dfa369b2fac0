"""Draws measured times and their predictions over sizes, both axes logarithmic, as SVG."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from hocket.view import svg
from hocket.view.words import name_bytes, name_count, name_seconds

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 28, 40, 48
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
_MOST_TICKS = 12


def draw_measured(calls: Sequence[dict[str, Any]]) -> str:
    """Returns the picture: points are measured, lines predicted, dashed lines the lower bound where calls have one.

    calls: with log, collective, num_ranks, num_bytes, measured_seconds, predicted_seconds, and perhaps bound_seconds.
    """
    sizes = [math.log2(call["num_bytes"]) for call in calls]
    times = [
        math.log10(call[name])
        for call in calls
        for name in ("measured_seconds", "predicted_seconds", "bound_seconds")
        if call.get(name)
    ]
    least, most = math.floor(min(sizes)), max(math.ceil(max(sizes)), math.floor(min(sizes)) + 1)
    fastest, slowest = math.floor(min(times)), max(math.ceil(max(times)), math.floor(min(times)) + 1)

    def point(num_bytes: int, seconds: float) -> tuple[float, float]:
        across = (math.log2(num_bytes) - least) / (most - least)
        up = (math.log10(seconds) - fastest) / (slowest - fastest)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    root = svg.document(_WIDTH, _HEIGHT, font_family="sans-serif", font_size=11)
    svg.add(root, "rect", width=_WIDTH, height=_HEIGHT, fill="white")
    every = -(-(most - least) // _MOST_TICKS)
    for power in range(least, most + 1, every):
        x, _ = point(1 << power, 10.0**fastest)
        svg.add(root, "line", x1=x, x2=x, y1=_TOP, y2=_HEIGHT - _BOTTOM, stroke="#ddd")
        svg.add(root, "text", name_bytes(1 << power), x=x, y=_HEIGHT - _BOTTOM + 18, text_anchor="middle")
    for power in range(fastest, slowest + 1):
        _, y = point(1 << least, 10.0**power)
        svg.add(root, "line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, stroke="#ddd")
        svg.add(root, "text", name_seconds(10.0**power, 1), x=_LEFT - 6, y=y + 4, text_anchor="end")
    text = "points: measured; line: predicted" + ("; dashed: lower bound" if "bound_seconds" in calls[0] else "")
    svg.add(root, "text", text, x=_LEFT, y=_HEIGHT - 10, fill="#555")
    series = groupby(calls, key=lambda call: (call["log"], call["collective"], call["num_ranks"]))
    for number, ((log, collective, num_ranks), group) in enumerate(series):
        colour, those = _COLOURS[number % len(_COLOURS)], list(group)
        title = f"{log}: {collective}, {name_count(num_ranks, 'rank')}"
        svg.add(root, "text", title, x=_LEFT + 8, y=_TOP - 20 + 14 * (number + 1), fill=colour)
        for name, dashes in (("predicted_seconds", None), ("bound_seconds", "4 3")):
            path = [svg.pair(point(call["num_bytes"], call[name])) for call in those if call.get(name)]
            if len(path) > 1:
                svg.add(root, "path", d=f"M {' L '.join(path)}", fill="none", stroke=colour, stroke_dasharray=dashes)
        for call in those:
            x, y = point(call["num_bytes"], call["measured_seconds"])
            svg.add(root, "circle", cx=x, cy=y, r=3, fill=colour)
    return svg.written(root)
