"""The measured times of a run, and their ratios."""

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
    """One cell. seconds: of a call, by contender and protocol, one value per round."""

    operation: str
    num_bytes: int
    dtype: str
    num_ranks: int
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    loads: list[float] = field(
        default_factory=list
    )  # fraction of all cores that others used or the host stole, by round
    hops: list[float] = field(default_factory=list)  # seconds in which two cores exchange a cache line, by round
    left_out: list[str] = field(default_factory=list)  # contenders that are not measured in this cell

    def note(self, contender: str, protocol: str, seconds: float) -> None:
        """Adds the seconds of one more round."""
        self.seconds.setdefault(contender, {}).setdefault(protocol, []).append(seconds)

    def times(self, contender: str, protocol: str = "touched") -> list[float]:
        """Returns the seconds by round; empty if this contender was not measured."""
        return self.seconds.get(contender, {}).get(protocol, [])

    def lacks(self, contender: str) -> bool:
        """Returns whether rounds of the contender are missing: it failed, or no round reached this cell."""
        rounds = max(1, len(self.loads), *(len(self.times(name)) for name in self.seconds))
        return contender not in self.left_out and len(self.times(contender)) < rounds

    def load(self) -> float:
        """Returns the fraction of all cores that others used: the median over rounds."""
        return statistics.median(self.loads) if self.loads else 0.0

    def is_busy(self) -> bool:
        """Returns whether others used so much that the row is marked."""
        return self.load() > QUIET

    def best(self, names: Iterable[str], protocol: str = "touched") -> str | None:
        """Returns the one of these contenders with the smallest median; None if none was measured."""
        present = [name for name in names if self.times(name, protocol)]
        return min(present, key=lambda name: statistics.median(self.times(name, protocol)), default=None)

    def best_mpi(self, protocol: str = "touched") -> str | None:
        """Returns the MPI with the smallest median."""
        return self.best(peers.MPIS, protocol)

    def trails(self, contender: str, factor: float) -> bool:
        """Returns whether this is an MPI that took over `factor` times as long as the best MPI in the first round."""
        first = {name: times[0] for name in peers.MPIS if (times := self.times(name))}
        return contender in first and first[contender] > factor * min(first.values())

    def ratios(self, ours: str, peer: str | None, protocol: str = "touched") -> list[float]:
        """Returns how many times faster `ours` was than `peer`, by round."""
        theirs = self.times(peer, protocol) if peer else []
        return [their / our for their, our in zip(theirs, self.times(ours, protocol), strict=False)]

    def ratio(self, ours: str, peer: str | None = None, protocol: str = "touched") -> float | None:
        """Returns the median ratio over rounds, against `peer`, or else the best MPI."""
        found = self.ratios(ours, peer or self.best_mpi(protocol), protocol)
        return statistics.median(found) if found else None

    def floor(self, contender: str) -> list[float]:
        """Returns the seconds by round that no known code beats; empty if they were not measured.

        For two ranks, and for private memory of more ranks: hand-written code for that memory ("no cma": code without
        cross-memory attach), plus empty calls from Python. Otherwise a bound: taking turns, if all ranks wait for all,
        plus the copies and additions in shared memory, because both need the cores; but at most the time of private
        memory.
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
        """Returns how many times faster than `peer`, or else the best MPI, the floor is: the median over rounds."""
        peer = peer or self.best_mpi()
        theirs = self.times(peer) if peer else []
        found = [their / least for their, least in zip(theirs, self.floor(contender), strict=False)]
        return statistics.median(found) if found else None

    def typical_round(self) -> int:
        """Returns the round with the median ratio; of two, the one with the lower ratio.

        Times of one round belong together. Medians of times over rounds would mix the modes of the machine.
        """
        found = self.ratios("hocket", self.best_mpi()) or self.times("hocket")
        return found.index(statistics.median_low(found)) if found else 0

    def typical(self, contender: str) -> float | None:
        """Returns the seconds in the typical round."""
        return next(iter(self.times(contender)[self.typical_round() :]), None)

    def name(self) -> str:
        """Returns the cell in words."""
        text = f"{self.operation} {size_name(self.num_bytes)}" if self.num_bytes else self.operation
        return f"{text} {self.num_ranks} ranks" + ("" if self.dtype == "float32" else f" {self.dtype}")


@dataclass
class Run:
    """All results of one run."""

    machine: str = ""
    rows: list[Row] = field(default_factory=list)
    settings: dict[int, dict[str, str]] = field(default_factory=dict)  # rank count -> group -> name of its setting
    absent: dict[str, str] = field(default_factory=dict)  # group, or group and cell -> why
    costs: dict[str, Any] = field(default_factory=dict)  # from costs.measure


def together(runs: Iterable[Run]) -> Run:
    """Returns several runs as one; a cell that is in two runs stays two rows."""
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
    """Returns the geometric mean of positive values, at least one."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))
