"""Draws a network as SVG: its nodes and cables; after a simulation, how busy each link is.

A picture of many nodes has small marks without names, and says what is in each row. Above that it is a sentence.
"""

import math
from collections import Counter
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt

from hocket.view.svg import add, document, number, pair, written
from hocket.view.words import name_bandwidth, name_count, name_seconds

if TYPE_CHECKING:
    from hocket.network import LinkLoads, Topology

_MOST_NAMED = 80  # nodes with their names
_CLOSEST = 3.0  # pixels between the nearest nodes
_RADIUS = 6.0  # of a mark, in pixels, if there is room
_APART, _LEVEL, _MOST_WIDE = 76.0, 120.0, 1400.0  # pixels between near nodes, between levels, and of the picture
_MARGIN, _NAME, _TOP, _LEGEND = 44.0, 60.0, 56.0, 34.0  # pixels around, for the last name, the title and the legend
_BENT, _BENT_IN_ROW = 28.0, 50.0  # most pixels by which a bent link leaves the straight line: on a grid, in a row
_OF_NAME = 1000.0  # points of lines that are as bad to hide as a name
_ALIKE = 0.005  # difference of busy shares below which both directions of a cable are one line
_MOST_TESTED = 1 << 24  # pairs of a link and a node that it may pass
_INK, _GREY, _IDLE = "#24292f", "#6e7781", "#d0d7de"
_SCALE = ((255, 237, 160), (254, 178, 76), (240, 59, 32), (128, 0, 38))  # of busy links, from 0 to 1
_CLASSES = ("#0969da", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#57606a")

Floats = npt.NDArray[np.float64]


def draw_network(topology: "Topology", result: "LinkLoads | None" = None, title: str = "") -> str:
    """Returns the network as SVG. With a result, the busier a link, the thicker and redder it is.

    Each cable is one line; without a result, in the colour of its class. With one, it is two lines if its directions
    are not equally busy, each a little to the right of the middle.
    """
    has_levels, named = _has_levels(topology), topology.num_nodes <= _MOST_NAMED
    points = _in_pixels(positions(topology), has_levels=has_levels)
    apart = _apart(topology, points, has_levels=has_levels)
    name = f"{title} on {topology.name}" if title else topology.name
    if apart < _CLOSEST:
        return _too_many(topology, name)
    radius = min(_RADIUS, 0.42 * apart)
    rows = [] if named or not has_levels else _rows(topology, points)
    width, height = points.max(axis=0, initial=0.0) + _MARGIN
    cables = _cables(topology)
    about = _counts(topology)
    if result is None and topology.num_links == 2 * len(cables):
        about += ", one in each direction of a line"
    if not named:
        about += f"; to read names, point at a node in a browser, or draw a network of at most {_MOST_NAMED} nodes"
    costs = {name: _costs(topology, name) for name in dict.fromkeys(topology.link_class.tolist())}
    legend = 16 + sum(map(_legend_width, costs.values())) if result is None else 0.0
    beside = max([_NAME, *(24 + 6.6 * len(text) for _, text in rows)])
    width = max(float(width) + beside - _MARGIN, 360.0, 16 + 6.2 * len(about), legend)
    root = document(width, float(height) + _LEGEND, font_family="sans-serif", font_size=11)
    add(root, "rect", width="100%", height="100%", fill="white")
    add(root, "text", name, x=16.0, y=24.0, font_size=14, font_weight="bold", fill=_INK)
    add(root, "text", about, x=16.0, y=42.0, fill=_GREY)
    if result is None:
        ways = _draw_cables(root, topology, points, cables, costs, float(height))
    else:
        ways = _draw_busy(root, topology, points, result, float(height))
    _draw_nodes(root, topology, points, radius)
    if named:
        _draw_names(root, topology, points, ways)
    for y, text in rows:
        add(root, "text", text, x=float(points[:, 0].max()) + 16, y=y + 4, fill=_INK)
    return written(root)


def _counts(topology: "Topology") -> str:
    """Returns how many ranks, nodes and links there are; and the names of ranks that are not called so."""
    first, last = (str(topology.node_names[rank]) for rank in topology.ranks[[0, -1]].tolist())
    named = "" if first.startswith("rank") else f" ({first} to {last})"
    others = ((topology.num_nodes, "node"), (topology.num_links, "link"))
    return ", ".join(
        [name_count(topology.num_ranks, "rank") + named, *(name_count(number, noun) for number, noun in others)]
    )


def _too_many(topology: "Topology", name: str) -> str:
    """Returns a picture of one sentence, for a network whose marks would cover each other."""
    root = document(720, 84, font_family="sans-serif", font_size=11)
    add(root, "rect", width="100%", height="100%", fill="white")
    add(root, "text", name, x=16.0, y=24.0, font_size=14, font_weight="bold", fill=_INK)
    about = f"{_counts(topology)}: too many to draw."
    add(root, "text", about, x=16.0, y=44.0, fill=_INK)
    instead = "Draw fewer hosts or ranks of this kind; `hocket show topology` without --svg counts nodes and links."
    add(root, "text", instead, x=16.0, y=62.0, fill=_INK)
    return written(root)


def _apart(topology: "Topology", points: Floats, *, has_levels: bool) -> float:
    """Returns the pixels between the nearest nodes of a row, or on a grid or circle between neighbours."""
    if has_levels:
        rows = (np.sort(points[points[:, 1] == height, 0]) for height in np.unique(points[:, 1]))
        gaps = np.concatenate([np.diff(row) for row in rows])
    else:
        gaps = np.linalg.norm(points[topology.link_source] - points[topology.link_target], axis=1)
    return float(gaps.min(initial=np.inf))


def _rows(topology: "Topology", points: Floats) -> list[tuple[float, str]]:
    """Returns where each row of nodes is, and how many nodes of each kind it has."""
    found = []
    for height in np.unique(points[:, 1]).tolist():
        kinds = Counter(topology.node_kinds[points[:, 1] == height].tolist())
        found.append((height, ", ".join(f"{number} {kind}" for kind, number in kinds.items())))
    return found


def _cables(topology: "Topology") -> list[int]:
    """Returns one link of each cable."""
    ends = np.sort(np.stack((topology.link_source, topology.link_target), axis=1), axis=1)
    cables: list[int] = np.sort(np.unique(ends, axis=0, return_index=True)[1]).tolist()
    return cables


def _draw_cables(
    root: Element, topology: "Topology", points: Floats, cables: list[int], costs: dict[str, str], below: float
) -> Floats:
    """Draws each cable as one line, and a legend of their classes with `costs`. Returns the lines."""
    colour = {name: _CLASSES[i % len(_CLASSES)] for i, name in enumerate(costs)}
    ends = np.sort(np.stack((topology.link_source, topology.link_target), axis=1), axis=1)[cables]
    ways = _curves(topology, points, points[ends[:, 0]], points[ends[:, 1]])
    for link, way in zip(cables, ways, strict=True):
        _line(root, way, colour[str(topology.link_class[link])], 1.4)
    x = 16.0
    for name, text in costs.items():
        add(root, "line", x1=x, y1=below + 12, x2=x + 22, y2=below + 12, stroke=colour[name], stroke_width=3)
        add(root, "text", text, x=x + 28, y=below + 16, fill=_INK)
        x += _legend_width(text)
    return ways


def _legend_width(text: str) -> float:
    return 44 + 6.2 * len(text)


def _costs(topology: "Topology", name: str) -> str:
    """Returns a class of links with their bandwidth in one direction and latency, if all have the same."""
    here = topology.link_class == name
    costs = np.unique(np.stack((topology.bytes_per_second[here], topology.seconds[here]), axis=1), axis=0)
    if len(costs) > 1:
        return name
    [(bytes_per_second, seconds)] = costs.tolist()
    return f"{name}: {name_bandwidth(bytes_per_second)}, latency {name_seconds(seconds)}"


def _draw_busy(root: Element, topology: "Topology", points: Floats, result: "LinkLoads", below: float) -> Floats:
    """Draws each cable, or both its directions if they differ, and a legend of the colours. Returns the lines."""
    share = result.link_seconds / result.seconds if result.seconds else result.link_seconds
    ends = np.stack((topology.link_source, topology.link_target), axis=1)
    pairs, cable_of = np.unique(np.sort(ends, axis=1), axis=0, return_inverse=True)
    begin, end = points[pairs[:, 0]], points[pairs[:, 1]]
    ways = _curves(topology, points, begin, end)
    along = end - begin
    length = np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    aside = 3.0 * np.stack((-along[:, 1], along[:, 0]), axis=1) / length
    busiest: dict[tuple[int, bool], int] = {}  # the link that stands for parallel ones, by cable and direction
    for link in np.argsort(share, kind="stable").tolist():
        busiest[int(cable_of[link]), bool(ends[link, 0] < ends[link, 1])] = link
    lines: list[tuple[float, Floats, str]] = []
    for (cable, forward), link in busiest.items():
        other, busy = busiest.get((cable, not forward)), float(share[link])
        name, way, each = topology.link_names([link])[0], ways[cable], ""
        if other is not None and abs(busy - share[other]) < _ALIKE:
            if not forward:
                continue
            name, each = name.replace("->", "<->"), " in each direction"
        elif other is not None:
            way = way + aside[cable] * (1 if forward else -1)
        lines.append((busy, way, f"{name}: busy for {busy:.0%} of the time{each}"))
    lines.sort(key=lambda line: line[0])
    for busy, way, text in lines:
        line = _line(root, way, colour_of(busy) if busy else _IDLE, 0.8 + 3.4 * busy)
        add(line, "title", text)
    add(root, "text", "busy share of the time", x=16.0, y=below + 16, fill=_INK)
    for i in range(21):
        add(root, "rect", x=156.0 + 6 * i, y=below + 6, width=6.2, height=10, fill=colour_of(i / 20))
    for text, x in (("0", 146.0), ("1", 286.0)):
        add(root, "text", text, x=x, y=below + 16, fill=_INK)
    return np.stack([way for _, way, _ in lines]) if lines else ways


def _draw_nodes(root: Element, topology: "Topology", points: Floats, radius: float) -> None:
    is_rank = np.zeros(topology.num_nodes, bool)
    is_rank[topology.ranks] = True
    side = radius * 11 / 6
    for node, (x, y) in enumerate(points.tolist()):
        if is_rank[node]:
            shape = add(root, "circle", cx=x, cy=y, r=radius, fill=_INK)
        else:
            shape = add(root, "rect", x=x - side / 2, y=y - side / 2, width=side, height=side, fill=_GREY, rx=2)
        add(shape, "title", str(topology.node_names[node]))


def _draw_names(root: Element, topology: "Topology", points: Floats, ways: Floats) -> None:
    """Draws the name of each node beside it, where it hides the least, on a light box that keeps it legible."""
    passed = [np.concatenate([way[:-1] + part * np.diff(way, axis=0) for part in np.arange(0, 1, 0.1)]) for way in ways]
    drawn = np.concatenate([*passed, points])
    taken: list[tuple[float, float, float]] = []  # by earlier names: the left end, the upper one, the width
    for node, (x, y) in enumerate(points.tolist()):
        name = str(topology.node_names[node])
        width, height = 5.8 * len(name) + 2, 12.0
        best, least = (x + 8, y - 18), math.inf
        for left, top in (best, (x + 8, y + 6), (x - 8 - width, y - 18), (x - 8 - width, y + 6)):
            middle, half = (left + width / 2, top + height / 2), (width / 2, height / 2)
            hidden = float((np.abs(drawn - middle) < half).all(axis=1).sum())
            for begin, above, wide in taken:
                if begin - width - 6 < left < begin + wide + 6 and abs(above - top) < height:
                    hidden += _OF_NAME
            if left > 0 and hidden < least:
                best, least = (left, top), hidden
        left, top = best
        taken.append((left, top, width))
        add(root, "rect", x=left, y=top, width=width, height=height, fill="white", fill_opacity=0.8)
        add(root, "text", name, x=left + 1, y=top + 10, fill=_INK)


def _line(root: Element, way: Floats, colour: str, width: float) -> Element:
    bent = not np.allclose(way[len(way) // 2], (way[0] + way[-1]) / 2)
    stops = [tuple(point) for point in (way if bent else way[[0, -1]]).tolist()]
    path = "M" + " L".join(map(pair, stops))
    return add(root, "path", d=path, fill="none", stroke=colour, stroke_width=number(width))


def colour_of(share: float) -> str:
    """Returns the colour of a link that is busy for this share of the time, as #rrggbb."""
    at = min(max(share, 0.0), 1.0) * (len(_SCALE) - 1)
    low = min(int(at), len(_SCALE) - 2)
    mixed = (round(a + (b - a) * (at - low)) for a, b in zip(_SCALE[low], _SCALE[low + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _in_pixels(points: Floats, *, has_levels: bool) -> Floats:
    """Returns the points from the upper left corner, y downwards."""
    points = np.stack((points[:, 0], -points[:, 1]), axis=1)
    points = points - points.min(axis=0, initial=np.inf)
    rows = [points[points[:, 1] == height, 0] for height in np.unique(points[:, 1])] if has_levels else [points[:, 0]]
    scales = np.array([_scale(points[:, 0], min(map(_step, rows))), _scale(points[:, 1], _step(points[:, 1]))])
    if has_levels and scales[0] < _APART / min(map(_step, rows)):  # less steep lines would be hard to tell apart
        scales[1] = _LEVEL / _step(points[:, 1])
    elif not has_levels:
        scales[:] = scales.min()
    shifted: Floats = points * scales + np.array([_MARGIN, _MARGIN + _TOP])
    return shifted


def _scale(along: Floats, step: float) -> float:
    """Returns pixels per unit, so that nodes with this step are apart and the picture is not too wide."""
    spread = float(along.max(initial=0.0))
    most = (_MOST_WIDE - 2 * _MARGIN) / spread if spread else np.inf
    return min(_APART / step, most)


def _step(along: Floats) -> float:
    steps = np.diff(np.unique(np.round(along, 6)))
    return float(steps[steps > 1e-3].min(initial=np.inf)) if (steps > 1e-3).any() else 1.0


def _curves(topology: "Topology", points: Floats, begin: Floats, end: Floats) -> Floats:
    """Returns each link as a line of points; a link that would pass over another node is bent."""
    along = end - begin
    length = np.maximum(np.linalg.norm(along, axis=1), 1e-9)
    bent, most = np.zeros(len(begin)), _BENT_IN_ROW if _has_levels(topology) else _BENT
    if len(begin) * len(points) <= _MOST_TESTED:
        for link in range(len(begin)):
            away = points - begin[link]
            share = away @ along[link] / length[link] ** 2
            aside = np.abs(away[:, 0] * along[link, 1] - away[:, 1] * along[link, 0]) / length[link]
            above, below = sorted((begin[link, 1], end[link, 1]))
            between = (below - above < _RADIUS) | ((points[:, 1] > above + _RADIUS) & (points[:, 1] < below - _RADIUS))
            if ((share > 0.02) & (share < 0.98) & (aside < 5) & between).any():
                bent[link] = min(0.12, most / length[link])
    way = np.linspace(0, 1, 13)[None, :, None]
    normal = np.stack((along[:, 1], -along[:, 0]), axis=1)[:, None, :]
    curves: Floats = begin[:, None, :] + way * along[:, None, :] + bent[:, None, None] * 4 * way * (1 - way) * normal
    return curves


def _has_levels(network: "Topology") -> bool:
    """Returns whether a network is drawn with its switches above its ranks."""
    from hocket.network import DimensionOrder

    return not isinstance(network.routing, DimensionOrder) and network.num_nodes != network.num_ranks


def positions(network: Any) -> Any:
    """Returns where nodes are drawn: float64[num_nodes, 2].

    Nodes of a grid are drawn on it: the last axis along rows, the one before downwards, further ones as slanted
    offsets. Other networks are drawn on a circle, or, if they have switches, as a row of ranks with each switch above
    the middle of the nodes below it.
    """
    from hocket.network import DimensionOrder

    points = np.zeros((network.num_nodes, 2))
    is_grid = isinstance(network.routing, DimensionOrder)
    ranks = network.ranks
    if is_grid and len(network.routing.shape) >= 2:
        steps = np.array([[1.0, 0.0], [0.0, -1.0], [0.37, 0.28], [0.19, -0.31]])
        at = np.unravel_index(np.arange(network.num_nodes), network.routing.shape)[::-1]
        return sum(np.outer(column, steps[axis % 4]) for axis, column in enumerate(at))
    if not _has_levels(network):
        angle = 2 * math.pi * np.arange(network.num_nodes) / network.num_nodes
        return np.stack((np.sin(angle), np.cos(angle)), axis=1)
    level = _levels(network)
    points[ranks, 0] = np.arange(network.num_ranks)
    for height in range(1, int(level.max()) + 1):
        here = np.flatnonzero(level == height)
        below = level[network.link_target] == height - 1
        for node in here:
            under = network.link_target[below & (network.link_source == node)]
            points[node, 0] = points[under, 0].mean() if len(under) else 0.0
        order = here[np.argsort(points[here, 0], kind="stable")]
        spread = np.linspace(-0.5, network.num_ranks - 0.5, 2 * len(order) + 1)[1::2]
        points[order, 0] = spread if height > 1 else 0.5 * (spread + points[order, 0])
    points[:, 1] = level * max(1.0, network.num_ranks / 5)
    return points


def _levels(network: Any) -> Any:
    """Returns the number of links between each node and the nearest rank."""
    level = np.full(network.num_nodes, -1)
    level[network.ranks] = 0
    reached = 0
    while (level < 0).any():
        new = network.link_target[level[network.link_source] == reached]
        new = new[level[new] < 0]
        if not len(new):
            break
        reached += 1
        level[new] = reached
    level[level < 0] = reached + 1
    return level
