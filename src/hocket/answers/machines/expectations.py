"""hocket.expect: each time in a log beside its prediction and its bound, with verdicts and what may be the cause."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from hocket.answers.answer import Answer
from hocket.answers.machines.calibrations import tables_of

if TYPE_CHECKING:
    from hocket.network import Machine, MeasuredTable, PlacedRanks, SlowCause
    from hocket.view import Terminal

_SLOW, _FAST = 0.85, 1.18  # measured speed over the predicted one; between them, a call is as predicted
_BELOW_BOUND = 0.98  # of the bound; a measured time below it contradicts the machine
_FEWEST = 2  # calls of a range; a single one between two that are alike belongs to them
_MOST_CAUSES = 3


@dataclass(frozen=True)
class ExpectedCall:
    """A measured call, its prediction, and the lower bound of any algorithm: bytes of the whole vector, seconds.

    ratio: the measured speed over the predicted one. latency_share: the share of the prediction in which no data moves.
    algorithm, protocol: what the library runs, by the prediction.
    """

    where: str
    num_bytes: int
    measured_seconds: float
    predicted_seconds: float
    bound_seconds: float
    ratio: float
    latency_share: float
    algorithm: str
    protocol: str

    @property
    def kind(self) -> str:
        """Returns "impossible", "slow start", "slow", "fast" or "as predicted"."""
        if self.measured_seconds < _BELOW_BOUND * self.bound_seconds:
            return "impossible"
        if self.ratio < _SLOW:
            return "slow start" if self.latency_share > 0.5 else "slow"
        return "fast" if self.ratio > _FAST else "as predicted"


@dataclass(frozen=True)
class SizeVerdict:
    """The verdict on calls from first_bytes to last_bytes. ratio: their median. causes: the best match first.

    kind: as of ExpectedCall. later_seconds: the median of measured times minus predicted ones.
    """

    first_bytes: int
    last_bytes: int
    kind: str
    ratio: float
    later_seconds: float
    causes: "tuple[SlowCause, ...]"


@dataclass(frozen=True)
class ExpectedTable:
    """One table of the log."""

    log: str
    collective: str
    num_ranks: int
    num_hosts: int
    calls: tuple[ExpectedCall, ...]
    verdicts: tuple[SizeVerdict, ...]


@dataclass(frozen=True, repr=False)
class Expectation(Answer):
    """What a machine predicts for the calls of a log, and a verdict for each range of sizes."""

    machine: str
    title: str
    tables: tuple[ExpectedTable, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket expect --json` does."""
        return asdict(self)

    def _print(self, console: "Terminal") -> None:
        """Prints each table, and the verdicts below it."""
        from hocket.view import print_expectation

        print_expectation(console, self.as_json())

    def svg(self) -> str:
        """Returns measured times, predictions and bounds over sizes as SVG."""
        from hocket.view import draw_measured

        return draw_measured(
            [
                asdict(call) | {"log": table.log, "collective": table.collective, "num_ranks": table.num_ranks}
                for table in self.tables
                for call in table.calls
            ]
        )


def expect(log: str | Path, *, machine: str, ranks: int | None = None, hosts: int | None = None) -> Expectation:
    """Compares the times of a log with what a machine predicts, and says which link or setting may slow calls down.

    log: of nccl-tests, OSU, or `hocket bench`. machine: a name such as "h100", or a machine file. ranks, hosts: for
    logs that do not say them. Raises ValueError with the line of a log that is damaged, TopologyError for an unknown
    machine.
    """
    from hocket.network import load_machine

    found = load_machine(machine)
    tables = tables_of(log, machine, ranks, hosts)
    return Expectation(machine, found.title, tuple(_expected(found, table) for table in tables))


def _expected(machine: "Machine", table: "MeasuredTable") -> ExpectedTable:
    from hocket.network import fastest_call, lower_bound, placed_as

    placed = placed_as(machine, table.ranks_per_host)
    calls = []
    for one in table.calls:
        time = fastest_call(machine, placed, table.collective, one.num_bytes)
        calls.append(
            ExpectedCall(
                one.where,
                one.num_bytes,
                one.seconds,
                time.seconds,
                lower_bound(placed.network, table.collective, one.num_bytes).seconds,
                time.seconds / one.seconds,
                time.parts.latency / time.seconds,
                time.algorithm,
                time.protocol,
            )
        )
    verdicts = tuple(_verdict(machine, placed, table.collective, group) for group in _grouped(calls))
    hosts = len(table.ranks_per_host)
    return ExpectedTable(table.source, table.collective, table.num_ranks, hosts, tuple(calls), verdicts)


def _grouped(calls: Sequence[ExpectedCall]) -> list[list[ExpectedCall]]:
    """Returns the calls in ranges of one kind. A range that is too short belongs to the one before or behind it."""
    groups = [list(group) for _, group in groupby(calls, key=lambda one: one.kind)]
    kept: list[list[ExpectedCall]] = []
    for group in groups:
        alike = len(kept) > 0 and _kind(kept[-1]) == _kind(group)
        if kept and (alike or len(group) < _FEWEST or len(kept[-1]) < _FEWEST):
            kept[-1] += group
        else:
            kept.append(group)
    return kept


def _kind(group: Sequence[ExpectedCall]) -> str:
    kinds = [one.kind for one in group]
    return max(kinds, key=kinds.count)


def _verdict(machine: "Machine", placed: "PlacedRanks", collective: str, group: Sequence[ExpectedCall]) -> SizeVerdict:
    from hocket.network import slow_causes

    kind, causes = _kind(group), list["SlowCause"]()
    if kind in ("slow", "slow start"):
        times = [(one.num_bytes, one.measured_seconds) for one in group]
        found = slow_causes(machine, placed, collective, times, starting=kind == "slow start")
        causes = found[:_MOST_CAUSES]
    return SizeVerdict(
        group[0].num_bytes,
        group[-1].num_bytes,
        kind,
        median(one.ratio for one in group),
        median(one.measured_seconds - one.predicted_seconds for one in group),
        tuple(causes),
    )
