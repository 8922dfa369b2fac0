"""What was measured, and the ratios in it."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import peers
from load import QUIET

PROTOCOLS = ("touched", "untouched")
WAIT_FOR_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


@dataclass
class Row:
    """One cell: by contender and protocol, seconds of a call, one value a round."""

    operation: str
    num_bytes: int
    dtype: str
    num_ranks: int
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)  # of all cores, what others used and the host stole, by round
    hops: list[float] = field(default_factory=list)  # seconds in which two cores exchange a line, by round
    left_out: list[str] = field(default_factory=list)  # contenders that are not to be measured here

    def note(self, contender: str, protocol: str, seconds: float) -> None:
        """Of one more round."""
        self.seconds.setdefault(contender, {}).setdefault(protocol, []).append(seconds)

    def times(self, contender: str, protocol: str = "touched") -> list[float]:
        """Seconds by round; empty where this contender was not measured."""
        return self.seconds.get(contender, {}).get(protocol, [])

    def lacks(self, contender: str) -> bool:
        """Whether it was to be measured and was not, or not in every round: it failed, or no round came here."""
        rounds = max(1, len(self.loads), *(len(self.times(name)) for name in self.seconds))
        return contender not in self.left_out and len(self.times(contender)) < rounds

    def load(self) -> float:
        """Of all cores' time what went elsewhere, the median over rounds."""
        return statistics.median(self.loads) if self.loads else 0.0

    def is_busy(self) -> bool:
        """Whether that is so much that the row is marked."""
        return self.load() > QUIET

    def best_mpi(self, protocol: str = "touched") -> str | None:
        """The MPI with the least median."""
        present = [name for name in peers.MPIS if self.times(name, protocol)]
        return min(present, key=lambda name: statistics.median(self.times(name, protocol)), default=None)

    def trails(self, contender: str, factor: float) -> bool:
        """Whether it is an MPI that took more than `factor` times as long in the first round as the best one there."""
        first = {name: times[0] for name in peers.MPIS if (times := self.times(name))}
        return contender in first and first[contender] > factor * min(first.values())

    def ratios(self, ours: str, peer: str | None, protocol: str = "touched") -> list[float]:
        """How many times faster ours was than the peer, by round."""
        theirs = self.times(peer, protocol) if peer else []
        return [their / our for their, our in zip(theirs, self.times(ours, protocol), strict=False)]

    def ratio(self, ours: str, peer: str | None = None, protocol: str = "touched") -> float | None:
        """The median over rounds, against the best MPI unless a peer is given."""
        found = self.ratios(ours, peer or self.best_mpi(protocol), protocol)
        return statistics.median(found) if found else None

    def floor(self, contender: str) -> list[float]:
        """Seconds by round below which no code is known to get; empty where that was not measured.

        Of two ranks, hand-written code for the contender's memory, or for what it may do with it, and calls from
        Python that do nothing. Of more, such code and calls for private memory. For registered memory, and where there
        is no such code, a bound: what taking turns takes where all wait for all, and what copies and additions in
        shared memory do. Both take the cores' time, so that is their sum, but no more than private memory needs.
        """
        private, shared = self.times("floor private"), self.times("floor registered")
        if contender == "no cma" and (staged := self.times("floor staged")):
            return staged
        if self.num_ranks == 2:
            return shared if contender == "registered" else private
        if private and contender != "registered":
            return private
        parts = filter(None, (self.times("floor turns"), shared))
        bounds = [sum(of_round) for of_round in zip(*parts, strict=False)]
        return [min(of_round) for of_round in zip(*filter(None, (bounds, private)), strict=False)]

    def at_most(self, contender: str, peer: str | None = None) -> float | None:
        """How many times faster than the best MPI, or the peer, the floor is: the median over rounds."""
        peer = peer or self.best_mpi()
        theirs = self.times(peer) if peer else []
        found = [their / least for their, least in zip(theirs, self.floor(contender), strict=False)]
        return statistics.median(found) if found else None

    def typical_round(self) -> int:
        """The round with the median ratio, of two the one with the lower.

        What it measured belongs together, while a median of times over rounds would mix the modes of the machine.
        """
        found = self.ratios("hocket", self.best_mpi()) or self.times("hocket")
        return found.index(statistics.median_low(found)) if found else 0

    def typical(self, contender: str) -> float | None:
        """Seconds in that round."""
        return next(iter(self.times(contender)[self.typical_round() :]), None)

    def name(self) -> str:
        """The cell in words."""
        text = f"{self.operation} {size_name(self.num_bytes)}" if self.num_bytes else self.operation
        return f"{text} {self.num_ranks} ranks" + ("" if self.dtype == "float32" else f" {self.dtype}")


@dataclass
class Run:
    """All that one run found out."""

    machine: str = ""
    rows: list[Row] = field(default_factory=list)
    settings: dict[int, dict[str, str]] = field(default_factory=dict)  # rank count -> group -> name of its setting
    absent: dict[str, str] = field(default_factory=dict)  # group, or group and cell -> why
    costs: dict[str, Any] = field(default_factory=dict)  # of costs.measure


def together(runs: Iterable[Run]) -> Run:
    """Several runs as one; a cell that is in two of them stays two rows."""
    all_of = Run()
    for run in runs:
        all_of.machine = "; ".join(filter(None, [all_of.machine, run.machine]))
        all_of.rows += run.rows
        all_of.settings |= run.settings
        all_of.absent |= run.absent
        all_of.costs |= run.costs
    return all_of


def size_name(num_bytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= unit and num_bytes % unit == 0:
            return f"{num_bytes // unit} {name}"
    return f"{num_bytes} B"


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive values; at least one."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))
