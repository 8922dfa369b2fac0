"""Places ranks in a picture, and arrows between them. Lengths are in pixels; y grows downwards."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RADIUS = 16.0  # of the circle of a rank
_BAR_GAP = 6.0  # between a rank and its bar
_MARGIN = 10.0
_MIN_CIRCLE = 78.0
_BEND, _MAX_BEND = 0.13, 40.0  # bend of an arrow: as a share of its length, and at most in pixels
# Bends to try, in multiples of the normal bend to the left, the best first: for an arrow whose left side is outwards,
# and for the opposite arrow. The two never meet, because they bend to different sides.
_OUTER_BENDS = (1.0, 0.0, -2.0, 3.0, -4.0)
_INNER_BENDS = (1.0, -0.5, 2.5, -2.0, 3.5)
_PARTS = (
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
)  # points along an arrow at which its distance to ranks is checked
_LABEL_PARTS = (0.5, 0.42, 0.58, 0.35, 0.65, 0.27, 0.73, 0.2, 0.8, 0.13, 0.87)  # points that a text may be beside
_CLEARLY = 14.0  # pixels by which a text should be nearer to its own arrow than to others
_PER_PIXEL = 100.0  # square pixels of hidden things that are as bad as one pixel too near to another arrow
_ENOUGH = 6.0  # pixels between an arrow and a rank that it passes; more is not better

Point = tuple[float, float]


@dataclass(frozen=True)
class RankLayout:
    """The centres of all ranks and of their bars, in a box of the given width and height."""

    width: float
    height: float
    ranks: list[Point]
    bars: list[Point]


def on_circle(num_ranks: int, bar: Point, groups: Sequence[int] | None = None) -> RankLayout:
    """Returns a layout with ranks on a circle, clockwise from the top, and their bars outside.

    `bar` is the width and height of a bar. `groups` are sizes of groups of consecutive ranks, separated by a gap.
    """
    gap = 0.6 if groups is not None and len(groups) > 1 else 0.0
    slots, at = [], 0.0
    for size in groups or [num_ranks]:
        slots += [at + number for number in range(size)]
        at += size + gap
    turn = 0.75 if num_ranks != 2 else 0.5
    spacing = max(2 * RADIUS + 40, bar[0] + 12)
    radius = max(_MIN_CIRCLE, spacing / (2 * math.sin(math.pi / at))) if num_ranks > 1 else 0.0
    outwards = [_direction(turn + slot / at) for slot in slots]
    across = [abs(x) * bar[0] / 2 + abs(y) * bar[1] / 2 for x, y in outwards]
    half_width = max(radius * abs(x) for x, _ in outwards) + RADIUS + _BAR_GAP + bar[0] + _MARGIN
    half_height = max(radius * abs(y) for _, y in outwards) + RADIUS + _BAR_GAP + bar[1] + _MARGIN
    reach = [radius + RADIUS + _BAR_GAP + length for length in across]
    return RankLayout(
        2 * half_width,
        2 * half_height,
        [(half_width + x * radius, half_height + y * radius) for x, y in outwards],
        [(half_width + x * far, half_height + y * far) for (x, y), far in zip(outwards, reach, strict=True)],
    )


def on_grid(dims: Sequence[int], bar: Point) -> RankLayout:
    """Returns a layout with ranks in rows and columns, the last of dims along a row; above two dims, several grids.

    Bars are above and to the right of their ranks, where no arrow along a row or column passes.
    """
    rows, columns = dims[-2], dims[-1]
    num_grids = math.prod(dims[:-2])
    across, down = bar[0] + 60, 2 * RADIUS + bar[1] + 54
    grid = columns * across + 30
    left, top = RADIUS + _MAX_BEND + _MARGIN, bar[1] + RADIUS + _MARGIN
    ranks = [
        (left + number * grid + column * across, top + row * down)
        for number in range(num_grids)
        for row in range(rows)
        for column in range(columns)
    ]
    width, height = left + num_grids * grid - 60, top + (rows - 1) * down + _MAX_BEND + 2 * _MARGIN
    aside = (RADIUS + 6 + bar[0] / 2, -(RADIUS + 6 + bar[1] / 2))
    return RankLayout(width, height, ranks, [(x + aside[0], y + aside[1]) for x, y in ranks])


@dataclass(frozen=True)
class Curve:
    """The shaft of an arrow (a quadratic curve), its head (a triangle), and the direction to its left."""

    start: Point
    control: Point
    end: Point
    head: tuple[Point, Point, Point]
    left: Point

    def strand(self, aside: float) -> tuple[Point, Point, Point]:
        """Returns start, control point and end of the shaft, moved `aside` pixels to the left."""
        start, control, end = (_moved(point, self.left, aside) for point in (self.start, self.control, self.end))
        return start, control, end

    def point(self, part: float) -> Point:
        """Returns a point of the shaft: its start for part=0, its end for part=1."""
        weights = ((1 - part) ** 2, 2 * part * (1 - part), part**2)
        ends = (self.start, self.control, self.end)
        x, y = (sum(weight * end[axis] for weight, end in zip(weights, ends, strict=True)) for axis in (0, 1))
        return x, y


class Labels:
    """Positions texts beside arrows, each nearer to its own arrow than to any other, where it hides the least."""

    def __init__(self, layout: RankLayout, bar: Point, curves: Sequence[Curve]) -> None:
        self._boxes = [(x, y, 2 * RADIUS, 2 * RADIUS) for x, y in layout.ranks]
        self._boxes += [(x, y, *bar) for x, y in layout.bars]
        parts = np.linspace(0, 1, 41)
        self._shafts = np.array([[*map(curve.point, parts), curve.head[0]] for curve in curves])
        self._curves = curves

    def position(self, number: int, width: float, height: float) -> Point:
        """Returns the centre for a text of this size beside the curve of this number; later texts stay away from it."""
        curve = self._curves[number]
        away = 2 + abs(curve.left[0]) * width / 2 + abs(curve.left[1]) * height / 2
        best, least = curve.point(0.5), math.inf
        for part in _LABEL_PARTS:
            for side in (1, -1):
                at = _moved(curve.point(part), curve.left, side * away)
                cost = self._hidden(at, width, height) + _PER_PIXEL * self._too_near(number, at)
                if cost < least:
                    best, least = at, cost
        self._boxes.append((*best, width, height))
        return best

    def _hidden(self, at: Point, width: float, height: float) -> float:
        """Returns the area of ranks, bars and earlier texts that a text hides."""
        return sum(
            max(0.0, (width + w) / 2 - abs(at[0] - x)) * max(0.0, (height + h) / 2 - abs(at[1] - y))
            for x, y, w, h in self._boxes
        )

    def _too_near(self, number: int, at: Point) -> float:
        """Returns by how many pixels another arrow should be farther away than the arrow of this number."""
        apart = np.linalg.norm(self._shafts - at, axis=2).min(axis=1)
        others = float(np.delete(apart, number).min(initial=math.inf))
        return max(0.0, float(apart[number]) + _CLEARLY - others)


class Curves:
    """Arrows between the ranks of a layout, bent so that opposite arrows do not meet and none crosses a rank."""

    def __init__(self, layout: RankLayout) -> None:
        self._ranks = layout.ranks
        self._at = np.array(layout.ranks)
        self._middle = self._at.mean(axis=0)
        self._bends: dict[tuple[int, int], float] = {}

    def between(self, src: int, dst: int, head: float) -> Curve:
        """Returns the arrow from the rim of one rank to that of another; `head` is the length of its head."""
        if (src, dst) not in self._bends:
            bends = _OUTER_BENDS if self._left_is_outwards(src, dst) else _INNER_BENDS
            self._bends[src, dst] = max(
                bends, key=lambda bend: self._clearance(self._curve(src, dst, bend, 8), src, dst)
            )
        return self._curve(src, dst, self._bends[src, dst], head)

    def _left_is_outwards(self, src: int, dst: int) -> bool:
        """Returns whether the left of an arrow points away from the middle; true for one of two opposite arrows."""
        along, outwards = self._at[dst] - self._at[src], (self._at[dst] + self._at[src]) / 2 - self._middle
        turn = float(along[1] * outwards[0] - along[0] * outwards[1])
        return turn > 0 if abs(turn) > 1e-6 else src < dst

    def _clearance(self, curve: Curve, src: int, dst: int) -> float:
        """Returns the distance between an arrow and other ranks, at most _ENOUGH."""
        others = np.delete(self._at, (src, dst), axis=0)
        points = np.array([curve.point(part) for part in _PARTS])
        apart = np.linalg.norm(points[:, None] - others, axis=2)
        return min(_ENOUGH, float(apart.min(initial=math.inf)) - RADIUS)

    def _curve(self, src: int, dst: int, bend: float, head: float) -> Curve:
        begin, goal = self._ranks[src], self._ranks[dst]
        length = math.hypot(goal[0] - begin[0], goal[1] - begin[1])
        along = _towards(begin, goal)
        left = (along[1], -along[0])
        middle = ((begin[0] + goal[0]) / 2, (begin[1] + goal[1]) / 2)
        control = _moved(middle, left, 2 * bend * min(_BEND * length, _MAX_BEND))
        arrival = _towards(goal, control)
        tip = _moved(goal, arrival, RADIUS + 2)
        base, side = _moved(tip, arrival, head), (arrival[1], -arrival[0])
        return Curve(
            start=_moved(begin, _towards(begin, control), RADIUS + 1),
            control=control,
            end=base,
            head=(tip, _moved(base, side, head / 2), _moved(base, side, -head / 2)),
            left=left,
        )


def _direction(turns: float) -> Point:
    angle = 2 * math.pi * turns
    return round(math.cos(angle), 9), round(math.sin(angle), 9)


def _towards(start: Point, goal: Point) -> Point:
    length = math.hypot(goal[0] - start[0], goal[1] - start[1])
    return (goal[0] - start[0]) / length, (goal[1] - start[1]) / length


def _moved(point: Point, direction: Point, by: float) -> Point:
    return point[0] + direction[0] * by, point[1] + direction[1] * by
