"""What every rank does while algorithms are timed. All ranks take the same decisions, as all have the same times.

A round gives each algorithm one batch of calls, one after the other, so that what else the machine does hits all alike.
The time of a batch is that of its slowest rank. An algorithm that falls behind is dropped: first by what it took at
other sizes, then by a few calls, then by a few rounds; only the last few and the default are timed to the end.
"""

import contextlib
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from hocket.runtime.communicator.communicator import Communicator, init
from hocket.schedule import find_collective

ITEM_BYTES = 4  # float32
TIMEOUT_SECONDS = 60.0  # of one call: far above any that is right

_PIVOT = 4 << 20  # all algorithms are tried at the smallest size and here: what they take elsewhere lies between
_FAR_BEHIND, _BEHIND, _CLOSE = 3.0, 1.6, 1.25  # times the best: by estimate, by a few calls, by a few rounds
_SCREENING_ROUNDS, _MIDDLE_ROUNDS, _LEAST_ROUNDS, _MOST_ROUNDS = 2, 2, 3, 12
_SCREENING_SECONDS, _BATCH_SECONDS = 0.0005, 0.003
_MOST_CALLS, _GROWTH = 2000, 16
_FINALISTS = 3

Rounds = dict[str, list[float]]
"""Seconds per call of every round, by algorithm. Finalists have equally many, round by round side by side."""


@dataclass(frozen=True)
class Job:
    """Times wanted of one collective: at these sizes, of these algorithms; defaults has one for each size."""

    collective: str
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    defaults: tuple[str, ...]


def measure(jobs: Sequence[Job], seconds: float, screen: bool = True) -> dict[tuple[str, int], Rounds]:
    """Rounds by collective and size, the same on all ranks; what the seconds do not suffice for is not there.

    Without `screen` all algorithms of a job are timed to the end. To be called by every rank of a new group.
    """
    with init() as comm:
        comm.configure(timeout=TIMEOUT_SECONDS)
        clock = _Clock(comm, seconds)
        calls = _Calls(comm, max((size for job in jobs for size in job.sizes), default=0))
        found: dict[tuple[str, int], Rounds] = {}
        cells = _cells(jobs)
        for number, (job, size, default) in enumerate(cells):
            before = {at: found[job.collective, at] for at in job.sizes if (job.collective, at) in found}
            names = _worth_trying(job.names, default, size, before) if screen and len(before) > 1 else job.names
            cell = _Cell(clock, {name: calls.of(job.collective, name, size) for name in names}, default)
            if _least_seconds(names, size, before) < clock.left:
                share = _weight(size) / sum(_weight(one) for _, one, _ in cells[number:])
                with contextlib.suppress(_OutOfTime):
                    found[job.collective, size] = cell.times(clock.left * share, screen)
        return found


def exact_bytes(collective: str, num_bytes: int, num_ranks: int) -> int:
    """The size nearest below that all ranks can share out evenly in float32, at least an element each."""
    if collective == "barrier":
        return 1
    unit = ITEM_BYTES * (1 if find_collective(collective).blocks == "one" else num_ranks)
    return max(1, num_bytes // unit) * unit


def _cells(jobs: Sequence[Job]) -> list[tuple[Job, int, str]]:
    """The smallest size first, then the one at which all algorithms are tried, then upwards, collective by turns."""

    def order(job: Job, size: int) -> tuple[int, int]:
        pivot = max((one for one in job.sizes if one <= _PIVOT), default=0)
        return (0 if size == job.sizes[0] else 1 if size == pivot else 2, size)

    cells = [(job, size, default) for job in jobs for size, default in zip(job.sizes, job.defaults, strict=True)]
    return sorted(cells, key=lambda cell: order(cell[0], cell[1]))


def _weight(num_bytes: int) -> float:
    """How much of the time a size deserves beside others: a long call needs more of it, but is less noisy."""
    return math.sqrt(max(1.0, num_bytes / (1 << 20)))


class _OutOfTime(Exception):
    """All ranks agree that there is no time left."""


class _Clock:
    """The time that is left, as all ranks agreed on it last."""

    def __init__(self, comm: Communicator, seconds: float) -> None:
        self.comm, self.seconds = comm, seconds
        self.began = perf_counter()
        self.left = seconds

    def agree(self, times: Sequence[float]) -> list[float]:
        """The largest of each time over all ranks."""
        said = np.array([*times, perf_counter() - self.began])
        heard: list[float] = self.comm.all_reduce(said, op="max", algorithm="direct").tolist()
        self.left = self.seconds - heard.pop()
        return heard


class _Calls:
    """Calls of collectives on memory that all share. It holds zeros, which stay zeros however often they are summed."""

    def __init__(self, comm: Communicator, most_bytes: int) -> None:
        self.comm = comm
        self.input, self.output = (np.empty(most_bytes // ITEM_BYTES + 1, np.float32) for _ in range(2))
        for memory in (self.input, self.output):
            memory.fill(0)  # touches every page

    def of(self, collective: str, name: str, num_bytes: int) -> Callable[[], Any]:
        """One call, with the root at rank 0 where there is one; all_reduce, broadcast and reduce are in place."""
        comm, count = self.comm, num_bytes // ITEM_BYTES
        each = count // comm.size
        x, out = self.input[:count], self.output[:count]
        method: Callable[..., Any] = getattr(comm, collective)
        match collective:
            case "barrier":
                return lambda: method(algorithm=name)
            case "all_gather" | "gather":
                x = x[:each]
            case "reduce_scatter" | "scatter":
                out = out[:each]
            case "all_reduce" | "broadcast" | "reduce":
                return lambda: method(x, algorithm=name)
        return lambda: method(x, out=out, algorithm=name)


class _Cell:
    """One collective at one size. _OutOfTime ends it where it is."""

    def __init__(self, clock: _Clock, calls: dict[str, Callable[[], Any]], default: str) -> None:
        self.clock, self.calls, self.default = clock, calls, default
        self.found: Rounds = {}
        self._num_calls = dict.fromkeys(calls, 0)  # of the last batch
        self._last = dict.fromkeys(calls, float("inf"))  # what one call took there

    def times(self, seconds: float, screen: bool) -> Rounds:
        """Goes on for so many seconds if that brings more rounds, and at least for the fewest rounds that will do."""
        until, names = self.clock.left - seconds, list(self.calls)
        for call in self.calls.values():
            call()  # the first call makes the plan
        screening = [self._round(names, _SCREENING_SECONDS) for _ in range(_SCREENING_ROUNDS)]
        if screen:
            self._keep(screening)
            names = self._closest(screening, min, _BEHIND, len(names))
        rounds = [self._round(names, _BATCH_SECONDS) for _ in range(_MIDDLE_ROUNDS)]
        if screen:
            self._keep(rounds)
            names = self._closest(rounds, statistics.median, _CLOSE, _FINALISTS)
        for turn in range(_MOST_ROUNDS):
            if turn >= _LEAST_ROUNDS and self.clock.left <= until:
                break
            rounds.append(self._round(names, _BATCH_SECONDS, turn))
        return self.found | {name: [times[name] for times in rounds] for name in names}

    def _keep(self, rounds: Sequence[dict[str, float]]) -> None:
        """Of an algorithm that is dropped, the last rounds count in which it took part."""
        for name in rounds[0]:
            self.found[name] = [times[name] for times in rounds]

    def _closest(
        self, rounds: Sequence[dict[str, float]], value: Callable[[list[float]], float], factor: float, most: int
    ) -> list[str]:
        """The quickest that are within the factor of the best; the default, without which nothing is compared."""
        times = {name: value([one[name] for one in rounds]) for name in rounds[0]}
        limit = factor * min(times.values())
        kept = [name for name in sorted(times, key=lambda name: times[name])[:most] if times[name] <= limit]
        return kept if self.default in kept else [*kept, self.default]

    def _round(self, names: Sequence[str], batch: float, turn: int = 0) -> dict[str, float]:
        """Seconds per call of each, in batches of about so many seconds; the first round is one call each."""
        if self.clock.left <= 0:
            raise _OutOfTime
        comm, times = self.clock.comm, dict[str, float]()
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            # One lucky call says little: batches grow step by step.
            most = min(_MOST_CALLS, _GROWTH * self._num_calls[name])
            number = self._num_calls[name] = max(1, min(most, round(batch / self._last[name])))
            call = self.calls[name]
            comm.barrier(algorithm="dissemination")
            began = perf_counter()
            for _ in range(number):
                call()
            times[name] = (perf_counter() - began) / number
        agreed = dict(zip(times, self.clock.agree(list(times.values())), strict=True))
        self._last |= agreed
        return agreed


def _worth_trying(names: Sequence[str], default: str, size: int, before: dict[int, Rounds]) -> list[str]:
    """Those that are not far behind by what they took at other sizes. The default is always worth it."""
    estimates = {name: _estimate(name, size, before) for name in names}
    limit = (_FAR_BEHIND if size < max(before) else _BEHIND) * min(estimates.values())
    return [name for name in names if estimates[name] <= limit or name == default]


def _least_seconds(names: Sequence[str], size: int, before: dict[int, Rounds]) -> float:
    """What the fewest calls that a cell needs would take."""
    if len(before) < 2:  # the second size is far above the first: nothing is known of it
        return 0.0
    estimates = sorted(_estimate(name, size, before) for name in names)
    few = _LEAST_ROUNDS + _MIDDLE_ROUNDS
    return (1 + _SCREENING_ROUNDS) * sum(estimates) + few * sum(estimates[: _FINALISTS + 1])


def _estimate(name: str, size: int, before: dict[int, Rounds]) -> float:
    """Seconds between two sizes by a straight line, above the largest in proportion; infinite if it was never timed."""
    known = {at: statistics.median(rounds[name]) for at, rounds in before.items() if rounds.get(name)}
    if not known:
        return float("inf")
    largest = max(known)
    if size > largest:
        return known[largest] * size / largest
    return float(np.interp(size, sorted(known), [known[at] for at in sorted(known)]))
