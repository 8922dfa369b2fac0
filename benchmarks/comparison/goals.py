"""The goals as data, and the check whether a run reaches them.

Ratios are against the best MPI of each cell: medians over rounds of the touched protocol; float32 unless stated.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from comparison.results import Row, geometric_mean

KIB, MIB = 1 << 10, 1 << 20
REDUCING = ("all_reduce", "reduce_scatter", "reduce", "broadcast")
MOVING = ("all_gather", "all_to_all", "send_recv")
MESSAGES = REDUCING + MOVING
ALL = (*MESSAGES, "barrier")
ANY = 1 << 60


@dataclass(frozen=True)
class Cells:
    """The rows that a goal is about; sizes from `least` to `most` bytes."""

    ranks: tuple[int, ...]
    operations: tuple[str, ...] = MESSAGES
    least: int = 0
    most: int = ANY
    sizes: tuple[int, ...] = ()
    dtype: str = "float32"

    def has(self, row: Row) -> bool:
        """Returns whether the goal is about this cell."""
        if row.num_ranks not in self.ranks or row.operation not in self.operations or row.dtype != self.dtype:
            return False
        return row.num_bytes in self.sizes if self.sizes else self.least <= row.num_bytes <= self.most


@dataclass(frozen=True)
class Faster:
    """How many times faster `ours` is than `peer`, or else the best MPI."""

    ours: str
    peer: str | None = None

    def __call__(self, row: Row) -> float | None:
        """Returns the measured value, or None."""
        return row.ratio(self.ours, self.peer)

    def at_most(self, row: Row) -> float | None:
        """Returns the highest known value of this cell: that of hand-written code, of `ours` or of the best MPI.

        The best MPI does not count for "no cma", because it may attach to the memory of other ranks.
        """
        measured, bound = self(row), row.at_most(self.ours, self.peer)
        reached = 1.0 if self.peer is None and self.ours != "no cma" else 0.0
        return bound if bound is None or measured is None else max(measured, bound, reached)


@dataclass(frozen=True)
class Over:
    """The time of `ours` over that of `floor`, in the same rounds."""

    ours: str
    floor: str

    def __call__(self, row: Row) -> float | None:
        """Returns the measured value, or None."""
        return row.ratio(self.floor, self.ours)


@dataclass(frozen=True)
class Seconds:
    """The seconds of a call of `ours`."""

    ours: str

    def __call__(self, row: Row) -> float | None:
        """Returns the measured value, or None."""
        return row.typical(self.ours)


class Value(Protocol):
    """What a goal is about, in a cell. ours: the contender without whose time there is no value."""

    @property
    def ours(self) -> str:
        """A name of CONTENDERS."""

    def __call__(self, row: Row) -> float | None:
        """Returns the measured value, or None."""


@dataclass(frozen=True)
class Goal:
    """The "worst" or "mean" (`aggregate`) of `value` over the cells must be at least, or `at_most`, the limit.

    Without cells, `value` names one of the costs that `outcome` gets.
    """

    name: str
    value: Value | str
    limit: float
    cells: Cells | None = None
    aggregate: str = "worst"
    at_most: bool = False
    unit: str = "x"
    scale: float = 1.0  # printed value / value


@dataclass(frozen=True)
class Outcome:
    """The result of a goal. value: None if it was not measured in all cells."""

    goal: Goal
    value: float | None
    worst: str
    beyond: str = ""  # which part of a missed goal is out of reach

    @property
    def reached(self) -> bool:
        """Whether the goal is reached; it is not if it was not measured."""
        if self.value is None:
            return False
        return self.value <= self.goal.limit if self.goal.at_most else self.value >= self.goal.limit


PRIVATE, REGISTERED, STAGED = Faster("hocket"), Faster("registered"), Faster("no cma")
LARGE = (MIB, 16 * MIB, 64 * MIB)
GOALS = [
    Goal("2 ranks, private, to 1 KiB, every operation", PRIVATE, 2.5, Cells((2,), most=KIB)),
    Goal("2 ranks, barrier", PRIVATE, 1.5, Cells((2,), ("barrier",))),
    Goal(
        "2 ranks, all_reduce of 8 B",
        Seconds("hocket"),
        0.5e-6,
        Cells((2,), ("all_reduce",), sizes=(8,)),
        at_most=True,
        unit="us",
        scale=1e6,
    ),
    Goal("2 ranks, private, from 8 KiB, reducing or broadcast", PRIVATE, 1.6, Cells((2,), REDUCING, 8 * KIB), "mean"),
    Goal("2 ranks, private, from 8 KiB, reducing or broadcast, each", PRIVATE, 1.2, Cells((2,), REDUCING, 8 * KIB)),
    Goal("2 ranks, private, from 8 KiB, moving", PRIVATE, 1.2, Cells((2,), MOVING, 8 * KIB), "mean"),
    Goal("2 ranks, private, from 8 KiB, moving, each", PRIVATE, 1.0, Cells((2,), MOVING, 8 * KIB)),
    Goal(
        "2 ranks, registered, all_reduce and reduce_scatter",
        REGISTERED,
        3.0,
        Cells((2,), ("all_reduce", "reduce_scatter"), sizes=LARGE),
    ),
    Goal(
        "2 ranks, registered, the others",
        REGISTERED,
        1.3,
        Cells((2,), ("reduce", "broadcast", *MOVING), sizes=LARGE),
    ),
    Goal(
        "2 ranks, registered, all_reduce over the zero-copy floor",
        Over("registered", "floor registered"),
        1.3,
        Cells((2,), ("all_reduce",), sizes=LARGE),
        at_most=True,
    ),
    Goal(
        "4 ranks, private, to 64 KiB, all_reduce, all_gather, reduce_scatter",
        PRIVATE,
        2.0,
        Cells((4,), ("all_reduce", "all_gather", "reduce_scatter"), most=64 * KIB),
    ),
    Goal("4 ranks, private, all_reduce above 64 KiB", PRIVATE, 1.6, Cells((4,), ("all_reduce",), 64 * KIB + 1)),
    Goal("4 ranks, private, each", PRIVATE, 1.0, Cells((4,), ALL)),
    Goal("8 ranks, private, 8 B", PRIVATE, 3.0, Cells((8,), sizes=(8,))),
    Goal("8 ranks, private, 64 KiB", PRIVATE, 1.5, Cells((8,), sizes=(64 * KIB,))),
    Goal("8 ranks, private, above 64 KiB, each", PRIVATE, 1.0, Cells((8,), least=64 * KIB + 1)),
    Goal("8 ranks, registered, all_reduce of 64 MiB", REGISTERED, 2.0, Cells((8,), ("all_reduce",), sizes=(64 * MIB,))),
    Goal("without cross-memory attach, each", STAGED, 0.85, Cells((2, 4, 8), ALL)),
    Goal("Gloo, 8 B", Faster("hocket", "gloo"), 100.0, Cells((2, 4, 8), sizes=(8,))),
    Goal("Gloo, 64 MiB", Faster("hocket", "gloo"), 6.0, Cells((2, 4, 8), sizes=(64 * MIB,))),
    Goal("4 ranks, registered, 64 MiB: reduce_scatter over all_reduce", "reduce_scatter", 0.65, at_most=True),
    Goal("64 MiB, all_reduce: bfloat16's element rate over float32's, least of all ranks", "bfloat16", 1.8),
    Goal("CPU burnt while a peer is late", "late", 0.03, at_most=True, unit="% of a core", scale=100.0),
    Goal("8 ranks: from hocket.init to the end of the first all_reduce", "first", 0.05, None, "worst", True, "ms", 1e3),
    Goal("8 ranks: staging memory of a rank", "staging", 2.0 * MIB, None, "worst", True, "MiB", 1 / MIB),
    Goal("all protections of a call of 8 B", "protections", 100e-9, None, "worst", True, "ns", 1e9),
    Goal("all protections of a call of 1 MiB", "protections of bandwidth", 0.01, None, "worst", True, "%", 100.0),
]


def across_rows(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the values that compare two cells round by round, if both were measured in every round.

    `reduce_scatter`: its seconds over those of all_reduce, 4 ranks, registered. `bfloat16`: elements per second of
    all_reduce over those of float32, the minimum over the rank counts that have both.
    """

    def times(operation: str, num_ranks: int, contender: str, dtype: str = "float32") -> list[float] | None:
        """Returns the seconds by round; empty if a round is missing, None if there is no such cell."""
        for row in rows:
            if (row.operation, row.num_bytes, row.num_ranks, row.dtype) == (operation, 64 * MIB, num_ranks, dtype):
                return [] if row.lacks(contender) else row.times(contender)
        return None

    scatter, reduce = times("reduce_scatter", 4, "registered"), times("all_reduce", 4, "registered")
    values = {}
    if ratios := [one / other for one, other in zip(scatter or (), reduce or (), strict=False)]:
        values["reduce_scatter"] = statistics.median(ratios)
    rates = []
    for num_ranks in (2, 4, 8):
        floats, halves = (times("all_reduce", num_ranks, "hocket", dtype) for dtype in ("float32", "bfloat16"))
        if floats is not None and halves is not None:
            rates.append([2 * one / other for one, other in zip(floats, halves, strict=False)])  # twice the elements
    if rates and all(rates):
        values["bfloat16"] = min(map(statistics.median, rates))
    return values


def outcome(goal: Goal, rows: Sequence[Row], costs: Mapping[str, Any]) -> Outcome:
    """Returns the result of the goal: no value if `ours` is missing in a cell. costs: values of goals without cells."""
    if goal.cells is None:
        value = costs.get(str(goal.value))
        return Outcome(goal, value, "" if value is not None else "not measured")
    assert not isinstance(goal.value, str)
    cells = [row for row in rows if goal.cells.has(row)]
    if lacking := [row.name() for row in cells if row.lacks(goal.value.ours)]:
        where = f"{len(lacking)} of {len(cells)}: {lacking[0]}"
        return Outcome(goal, None, f"{goal.value.ours} not measured to the end in {where}")
    found = [(value, row.name()) for row in cells if (value := goal.value(row)) is not None]
    if not found:
        return Outcome(goal, None, "not measured")
    worst, name = (max if goal.at_most else min)(found)
    value = worst if goal.aggregate == "worst" else geometric_mean(each for each, _ in found)
    return Outcome(
        goal, value, f"worst {worst * goal.scale:.3g} {goal.unit}: {name}, of {len(found)}", beyond(goal, cells)
    )


def beyond(goal: Goal, cells: Sequence[Row]) -> str:
    """Returns in words which part of the goal even hand-written code misses; empty if the goal is reached.

    For a "worst" goal: how many of the cells below the limit. For a "mean" goal: the mean of hand-written code.
    """
    if not isinstance(goal.value, Faster):
        return ""
    found = [(goal.value(row), goal.value.at_most(row)) for row in cells]
    known = [(value, bound) for value, bound in found if value is not None and bound is not None]
    if goal.aggregate == "mean":
        if not known or geometric_mean(value for value, _ in known) >= goal.limit:
            return ""
        mean = geometric_mean(bound for _, bound in known)
        word = "out of reach: " if mean < goal.limit else ""
        return f"{word}the floor has a mean of {mean:.2f} in {len(known)} cells"
    below = [bound for value, bound in known if value < goal.limit]
    outside = [bound for bound in below if bound < goal.limit]
    if not below:
        return ""
    if not outside:
        return f"out of reach: none of {len(below)} cells, where the floor reaches {min(below):.2f} or more"
    most = f"where the floor reaches at most {max(outside):.2f}"
    return f"out of reach: {len(outside)} of {len(below)} cells, {most}"


def price_without_cma(rows: Sequence[Row]) -> dict[int, list[tuple[float, str]]]:
    """Returns by rank count how many times longer calls take without cross-memory attach; the worst cell is last."""
    prices: dict[int, list[tuple[float, str]]] = {}
    for row in rows:
        if (price := row.ratio("hocket", "no cma")) is not None:
            prices.setdefault(row.num_ranks, []).append((price, row.name()))
    return {num_ranks: sorted(found) for num_ranks, found in prices.items()}


def summary(rows: Sequence[Row]) -> str:
    """Returns the last line: private memory against the best MPI of each cell. A failed cell is not ahead."""
    found, lacking = [], []
    for row in rows:
        if row.lacks("hocket"):
            lacking.append(row.name())
        elif (ratio := row.ratio("hocket")) is not None:
            found.append((ratio, row.name()))
    words = [f"cells ahead {sum(ratio > 1 for ratio, _ in found)} of {len(found) + len(lacking)}"]
    if found:
        worst, name = min(found)
        words += [f"geometric mean {geometric_mean(ratio for ratio, _ in found):.2f}", f"worst {worst:.2f} ({name})"]
    if lacking:
        words.append(f"hocket not measured to the end in {len(lacking)} ({lacking[0]})")
    return ", ".join(words)
