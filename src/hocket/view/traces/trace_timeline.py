"""A trace as lanes of slices with arrows between them. All commands about traces use this form."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from hocket.runtime.traces import trace_file

Interval = tuple[float, float]
Key = int | str
"""What a trace calls a process (in traces of Hocket, the number of a rank), or a lane of it."""
Place = tuple[Key, Key]
"""A lane: its process and its own key."""


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
class Instant:
    """A moment of a lane, for example one at which a stream has reached an event."""

    name: str
    category: str
    seconds: float  # since the trace began
    said: dict[str, Any]


@dataclass
class Lane:
    """One row of a process. Its slices are ordered by time; those that overlap are nested."""

    process: Key
    key: Key
    title: str = ""
    position: float = 0
    slices: list[Slice] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """What arrows call the lane."""
        return self.process, self.key

    @property
    def is_thread(self) -> bool:
        """Whether the lane of a rank is a thread of the program, not a stream or a communicator."""
        return self.position < trace_file.LANES_OF_A_KIND


@dataclass
class Arrow:
    """An arrow from a moment of one lane to a moment of another."""

    name: str
    start: Place
    start_time: float
    end: Place
    end_time: float


@dataclass
class Timeline:
    """The lanes of all processes in display order, and the arrows that have both ends recorded.

    processes: their titles; ranks: what the ranks of Hocket say of themselves, empty for a trace of another program.
    """

    lanes: list[Lane]
    arrows: list[Arrow]
    processes: dict[Key, str]
    ranks: dict[int, dict[str, Any]]
    seconds: float

    @classmethod
    def read(cls, file: Path) -> Self:
        """Returns the timeline in a trace, also in one of another program. Raises ValueError like trace_file.read."""
        traced = trace_file.read(file)
        lanes: dict[Place, Lane] = {}
        ends: dict[tuple[str, Key], dict[str, tuple[Place, float, str]]] = defaultdict(dict)
        about: dict[Key | Place, dict[str, Any]] = defaultdict(dict)
        first = min((event["ts"] for event in traced.events if event["ph"] in ("X", "i")), default=0.0)
        for event in traced.events:
            phase, name, said = event["ph"], str(event.get("name", "unnamed")), event.get("args") or {}
            if phase == "M":
                if name in ("process_name", "process_labels", "process_sort_index"):
                    about[event["pid"]] |= said
                elif name in ("thread_name", "thread_sort_index") and "tid" in event:
                    about[event["pid"], event["tid"]] |= said
                continue
            if phase not in ("X", "i", "s", "f") or event.get("s") == "g":  # "g": an instant of no lane
                continue
            place, time = (event["pid"], event["tid"]), (event["ts"] - first) / 1e6
            category = str(event.get("cat", "other"))
            if phase in ("s", "f"):
                ends[category, event["id"]][phase] = (place, time, name)
                continue
            lane = lanes.setdefault(place, Lane(*place))
            if phase == "i":
                lane.instants.append(Instant(name, category, time, said))
            else:
                end = time + max(event.get("dur") or 0.0, 0.0) / 1e6
                lane.slices.append(Slice(name, category, time, end, said))
        for place, lane in lanes.items():
            lane.title = str(about[place].get("name", f"thread {lane.key}"))
            lane.position = _number(about[place].get("sort_index"), 0)
            _nest(lane)
        order = {process: _number(about[process].get("sort_index"), _number(process, 0)) for process, _ in lanes}
        shown = sorted(
            lanes.values(),
            key=lambda lane: (order[lane.process], str(lane.process), lane.position, _number(lane.key, 0)),
        )
        arrows = [
            Arrow(start[2], *start[:2], *end[:2])
            for start, end in ((one["s"], one["f"]) for one in ends.values() if len(one) == 2)
        ]
        processes = {lane.process: _title(lane.process, about[lane.process]) for lane in shown}
        times = [one.end for lane in shown for one in lane.slices]
        times += [one.seconds for lane in shown for one in lane.instants]
        ranks = dict(sorted(traced.ranks.items()))
        processes |= {rank: f"rank {rank}" for rank in ranks}
        return cls(shown, arrows, processes, ranks, max(times, default=0.0))

    def of_rank(self, rank: int) -> list[Lane]:
        """Returns the lanes of one rank."""
        return [lane for lane in self.lanes if lane.process == rank]

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


def _number(found: Any, default: float) -> float:
    return found if isinstance(found, int | float) else default


def _title(process: Key, about: dict[str, Any]) -> str:
    words = (about.get("name", f"process {process}"), about.get("labels", ""))
    return " ".join(str(word) for word in words if word)


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
