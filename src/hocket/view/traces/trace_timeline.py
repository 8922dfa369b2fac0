"""A trace as lanes of slices with arrows between them. All commands about traces use this form."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from hocket.runtime.traces import trace_file

Interval = tuple[float, float]


@dataclass
class Slice:
    """One activity of a lane; times are in seconds since the trace began."""

    name: str
    category: str
    begin: float
    end: float
    said: dict[str, Any]
    depth: int = 0  # how many slices enclose it
    inside: list[Interval] = field(default_factory=list)  # the slices directly inside it

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.end - self.begin


@dataclass
class Lane:
    """One row of a rank. Its slices are ordered by time; those that overlap are nested."""

    rank: int
    number: int
    title: str = ""
    position: int = 0
    slices: list[Slice] = field(default_factory=list)

    @property
    def is_thread(self) -> bool:
        """Whether the lane is a thread of the program, not a stream or a communicator."""
        return self.position < trace_file.LANES_OF_A_KIND


@dataclass
class Arrow:
    """An arrow from a moment of one lane to a moment of another; a lane is given by (rank, number)."""

    name: str
    start: tuple[int, int]
    start_time: float
    end: tuple[int, int]
    end_time: float


@dataclass
class Timeline:
    """The lanes of all ranks in display order, and the arrows that have both ends recorded."""

    lanes: list[Lane]
    arrows: list[Arrow]
    ranks: dict[int, dict[str, Any]]
    seconds: float

    @classmethod
    def read(cls, file: Path) -> Self:
        """Returns the timeline in a file written by Hocket. Raises ValueError for other and missing files."""
        traced = trace_file.read(file)
        lanes: dict[tuple[int, int], Lane] = {}
        first = min((event["ts"] for event in traced.events if event["ph"] == "X"), default=0.0)
        ends: dict[Any, dict[str, trace_file.Event]] = defaultdict(dict)
        for event in traced.events:
            position = (event["pid"], event["tid"])
            phase = event["ph"]
            if phase in "sf":
                ends[event["id"]][phase] = event
                continue
            lane = lanes.setdefault(position, Lane(*position))
            if phase == "X":
                begin = (event["ts"] - first) / 1e6
                end = begin + event["dur"] / 1e6
                lane.slices.append(Slice(event["name"], event["cat"], begin, end, event.get("args", {})))
            elif event["name"] == "thread_name":
                lane.title = event["args"]["name"]
            elif event["name"] == "thread_sort_index":
                lane.position = event["args"]["sort_index"]
        shown = sorted(
            (one for one in lanes.values() if one.slices), key=lambda one: (one.rank, one.position, one.number)
        )
        for lane in shown:
            _nest(lane)
        arrows = [
            Arrow(
                one["s"]["name"],
                (one["s"]["pid"], one["s"]["tid"]),
                (one["s"]["ts"] - first) / 1e6,
                (one["f"]["pid"], one["f"]["tid"]),
                (one["f"]["ts"] - first) / 1e6,
            )
            for one in ends.values()
            if len(one) == 2
        ]
        last = max((one.end for lane in shown for one in lane.slices), default=0.0)
        return cls(shown, arrows, dict(sorted(traced.ranks.items())), last)

    def of_rank(self, rank: int) -> list[Lane]:
        """Returns the lanes of one rank."""
        return [lane for lane in self.lanes if lane.rank == rank]

    def computing(self, rank: int) -> list[Interval]:
        """Returns when a lane of this rank was inside a span or an item of a stream, without waiting there."""
        return union(
            interval
            for lane in self.of_rank(rank)
            for interval in without(_of(lane, {"compute"}), _of(lane, {"wait", "blocking"}))
        )

    def communicating(self, rank: int) -> list[Interval]:
        """Returns when a collective or a message of this rank was in progress."""
        return union(interval for lane in self.of_rank(rank) for interval in _of(lane, {"communication"}))


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the same moments as disjoint intervals, ascending."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def without(whole: list[Interval], parts: list[Interval]) -> list[Interval]:
    """Returns the moments of `whole` outside all `parts`. Arguments and result are disjoint and ascending."""
    left: list[Interval] = []
    position = 0
    for begin, end in whole:
        while position < len(parts) and parts[position][1] <= begin:
            position += 1
        at = position
        while at < len(parts) and parts[at][0] < end:
            if parts[at][0] > begin:
                left.append((begin, parts[at][0]))
            begin = max(begin, parts[at][1])
            at += 1
        if begin < end:
            left.append((begin, end))
    return left


def length(intervals: list[Interval]) -> float:
    """Returns the total seconds of disjoint intervals."""
    return sum(end - begin for begin, end in intervals)


def _of(lane: Lane, categories: set[str]) -> list[Interval]:
    return union((one.begin, one.end) for one in lane.slices if one.category in categories)


def _nest(lane: Lane) -> None:
    """Orders the slices of a lane and sets the depth and the inner slices of each."""
    lane.slices.sort(key=lambda one: (one.begin, -one.end))
    around: list[Slice] = []
    for one in lane.slices:
        while around and around[-1].end <= one.begin:
            around.pop()
        if around:
            around[-1].inside.append((one.begin, one.end))
        one.depth = len(around)
        around.append(one)
