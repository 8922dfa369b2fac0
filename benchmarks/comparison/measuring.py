"""Defines the order of measurements, and what counts as the time of a call.

**One batch** is several thousand calls (fewer for large messages), started together after a barrier, in two ways.
*touched*: between two calls every rank reads its last result, one word of each cache line, and rewrites its input, as a
program would. The same loop without the calls is also timed, on all ranks at once with the same buffers, and
subtracted. So the touching does not count, but the effect of a library on the caches does: if it leaves a line with
another core, the next touch must fetch that line. The slowest rank counts, before the subtraction, because a
synchronising call waits for it. Before the touched loop comes one call, and before the touching alone comes one touch;
neither counts. Otherwise, in batches of one call, the touching alone would pay for what the call left. *untouched*:
calls alone.

**One round** visits all cells, and in each cell all contenders, in rotating order. A value is the median of its
batches. So each ratio compares times within the same second, and its spread shows how the machine changed.

A call of send_recv is a message there and one back; half of its time is reported.

**The floor** of two ranks is the best hand-written code for the cell (floor.cpp, the same protocol), plus calls of
functions that do nothing, bound and counted like Hocket's, because all libraries are called from Python. No library can
be faster than this sum. For more ranks, the floor is such code for private memory, and a bound for registered memory
(see results.py); its ways are chosen in the first round. If the best way for private memory uses the kernel, the best
way without the kernel is measured too, for contenders without cross-memory attach.

Every result is checked: each call by a checksum over its cache lines, each batch bit for bit.
"""

import itertools
import math
import statistics
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import peers
from load import Load

from comparison import contenders, floor, on_hosts, results, values
from comparison.contenders import CONTENDERS, Contender, Setting
from comparison.groups import Failed, Group, Unsupported
from comparison.results import Row, Run

MOST_CALLS = 20_000
MOST_TRIES = 3
EMPTY_BATCHES = 3
FIRST_BATCHES = 3  # their median determines how many calls a batch has
LEAST_BATCHES = 2  # one batch of one call is noise if ranks share cores
TRIAL = [(operation, size) for operation in ("all_reduce", "all_gather") for size in (8, 64 << 10, 1 << 20, 16 << 20)]


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int
    batches: int
    batch_seconds: float
    cell_seconds: float  # of a contender in a round: long calls get fewer batches
    untouched_rounds: int
    long_seconds: float  # a cell that took longer in a round is visited in two rounds only
    long_trial_seconds: float  # a floor that took longer keeps its ways, and with more than two ranks its time
    hopeless: float  # an MPI this many times slower than the best one is not measured in that cell again

    def with_rounds(self, rounds: int) -> "Effort":
        """Returns the same effort with another number of rounds."""
        return replace(self, rounds=rounds)


QUICK = Effort(3, 3, 0.006, 0.08, untouched_rounds=1, long_seconds=2.0, long_trial_seconds=0.5, hopeless=2.5)
FULL = Effort(5, 5, 0.02, 0.5, untouched_rounds=5, long_seconds=60.0, long_trial_seconds=10.0, hopeless=math.inf)
TRIAL_EFFORT = replace(QUICK, rounds=1, batch_seconds=0.004, cell_seconds=0.04, untouched_rounds=0)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Batches(NamedTuple):
    """The calls and batches that a rank is asked for."""

    num_calls: int
    num_batches: int


def values_of(group: Group, row: Row, memory: str, most: int, batches: Batches, untouched: bool) -> dict[str, float]:
    """Returns the seconds of a call in each protocol; "loop": of a call with its touching."""
    for _ in range(MOST_TRIES):
        found = slowest_of(group, row, memory, most, batches, untouched)
        loop = statistics.median(found["touched"])
        call = statistics.median(both - alone for both, alone in zip(found["touched"], found["touch"], strict=True))
        if call > loop / 100:
            break  # otherwise the touching alone was disturbed, or the call is too short to measure
    seconds = {"touched": max(call, loop / 100)}
    if untouched:
        seconds["untouched"] = statistics.median(found["untouched"])
    return {name: each / values.ways(row.operation) for name, each in seconds.items()} | {"loop": loop}


def slowest_of(
    group: Group, row: Row, memory: str, most: int, batches: Batches, untouched: bool
) -> dict[str, list[float]]:
    """Returns the seconds of a call on the slowest rank, by loop and batch."""
    ranks = group.ask(
        "measure",
        operation=row.operation,
        num_bytes=row.num_bytes,
        dtype=row.dtype,
        memory=memory,
        most=most,
        num_calls=batches.num_calls,
        num_batches=batches.num_batches,
        untouched=untouched,
    )
    return {
        name: [max(of_ranks) / batches.num_calls for of_ranks in zip(*(rank[name] for rank in ranks), strict=True)]
        for name in ranks[0]
    }


def seconds_of_empty_calls(group: Group, operation: str) -> float:
    """Returns Python's seconds of a call: the median over batches of the fastest rank, because no call takes less."""
    found = group.ask("empty_calls", operation=operation, num_calls=MOST_CALLS, num_batches=EMPTY_BATCHES)
    quickest = [min(of_ranks) / MOST_CALLS for of_ranks in zip(*found, strict=True)]
    return max(0.0, statistics.median(quickest)) / values.ways(operation)


def batches_for(group: Group, row: Row, memory: str, most: int, effort: Effort) -> Batches:
    """Returns how many calls give a batch the intended length, and the number of batches."""
    num_calls = 1
    for num_batches in (1, FIRST_BATCHES, FIRST_BATCHES):
        seconds = values_of(group, row, memory, most, Batches(num_calls, num_batches), untouched=False)["loop"]
        if num_calls > 1 or seconds > effort.batch_seconds:
            break
        # The first call may have waited for a sleeping rank. With batches of few calls, every round would measure such
        # waits.
        if seconds * 20 < effort.batch_seconds:
            num_calls = 50
    num_calls = max(1, min(MOST_CALLS, round(effort.batch_seconds / seconds)))
    num_batches = min(effort.batches, int(effort.cell_seconds / (num_calls * seconds)))
    return Batches(num_calls, max(LEAST_BATCHES, num_batches))


class Comparison:
    """The contenders of one rank count, alive from the choice of their settings to the last round."""

    def __init__(
        self,
        run: Run,
        names: Sequence[str],
        num_ranks: int,
        most: int,
        effort: Effort,
        build: Path,
        floor_program: Path | None = None,
        tried: Collection[str] = (),
        lab: on_hosts.Lab | None = None,
    ) -> None:
        """names: of CONTENDERS; most: bytes of the largest message; tried: names of settings, empty for all.

        lab: the hosts on which ranks run, None for this one.
        """
        self._run, self._num_ranks, self._most, self._effort, self._build = run, num_ranks, most, effort, build
        self._floor, self._tried, self._lab = floor_program, tried, lab
        self.groups: dict[str, Group] = {}
        self._contenders = [CONTENDERS[name] for name in names]
        self._batches: dict[tuple[str, str], Batches] = {}
        self._spent: dict[str, float] = {}  # seconds of each row's contenders in the last round
        self._empty_calls: dict[str, float] = {}  # seconds by operation, in this round
        self._ways: dict[tuple[str, str], list[str]] = {}  # ways of the floor, by row and memory
        self._ended_floors: set[tuple[str, str]] = set()  # not measured again: too long, or none exists

    def __enter__(self) -> "Comparison":
        try:
            for name in dict.fromkeys(each.group for each in self._contenders):
                if name not in self._run.absent:
                    self._begin(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for group in self.groups.values():
            group.close()
        self.groups.clear()

    def _begin(self, name: str) -> None:
        """Starts the group with its best setting."""
        try:
            contenders.interpreter(name)
        except peers.Absent as error:
            self._run.absent[name] = str(error)
            return
        best, least, reasons = None, float("inf"), []
        settings = contenders.settings(name, self._tried)
        for setting in settings:
            group = None
            try:
                group = Group(name, setting, self._num_ranks, self._build, self._lab)
                score = self._trial(group) if len(settings) > 1 else 0.0
            except Failed as error:
                reasons.append(str(error))
                say(f"  {error}")
                continue
            except BaseException:
                if group:
                    group.kill()
                if best:
                    best.kill()
                raise
            if score < least:
                best, group, least = group, best, score
            if group:
                group.close()
            if len(settings) > 1:
                say(f"  {name}, {self._num_ranks} ranks, {setting.name}: {score * 1e6:.1f} us")
        if best is None:
            self._run.absent[f"{name}, {self._num_ranks} ranks"] = reasons[0]
            return
        self.groups[name] = best
        self._run.settings.setdefault(self._num_ranks, {})[name] = best.setting.name

    def _trial(self, group: Group) -> float:
        """Returns the geometric mean of the times of some calls."""
        times = []
        for operation, size in TRIAL:
            row = Row(operation, min(size, self._most), "float32", self._num_ranks)
            batches = batches_for(group, row, "private", self._most, TRIAL_EFFORT)
            times.append(values_of(group, row, "private", self._most, batches, untouched=False)["loop"])
        return results.geometric_mean(times)

    def round(self, number: int, rows: Sequence[Row]) -> None:
        """Measures every cell once more."""
        self._empty_calls.clear()
        for place, row in enumerate(rows):
            if number > 1 and self._spent.get(row.name(), 0.0) > self._effort.long_seconds:
                continue
            began, turn = time.monotonic(), number + place
            row.hops += floor.exchange(self._floor) if self._floor else []
            load = Load(itertools.chain.from_iterable(group.processes for group in self.groups.values()))
            order = self._contenders[turn % len(self._contenders) :] + self._contenders[: turn % len(self._contenders)]
            for contender in order:
                is_left_out = contender.name in row.left_out or row.trails(contender.name, self._effort.hopeless)
                if contender.group in self.groups and not is_left_out:
                    self._measure(row, contender, untouched=number < self._effort.untouched_rounds)
            found = load.since()
            row.loads.append(found["other_load"] + found["stolen"])
            self._spent[row.name()] = time.monotonic() - began
            self._measure_floor(row)

    def _measure(self, row: Row, contender: Contender, untouched: bool) -> None:
        key, group = (contender.name, row.name()), self.groups[contender.group]
        kind = f"{contender.name}: {row.operation} of {row.dtype}"
        if kind in self._run.absent or f"{contender.name}: {row.name()}" in self._run.absent:
            return
        try:
            if key not in self._batches:
                self._batches[key] = batches_for(group, row, contender.memory, self._most, self._effort)
            found = values_of(group, row, contender.memory, self._most, self._batches[key], untouched)
        except Unsupported as error:
            self._run.absent[kind] = f"it has no {error}"
            return
        except Failed as error:
            say(f"  {row.name()}: {error}")
            self._run.absent[f"{contender.name}: {row.name()}"] = str(error)
            del self.groups[contender.group]
            self._restart(contender.group, group.setting)
            return
        for protocol in results.PROTOCOLS:
            if protocol in found:
                row.note(contender.name, protocol, found[protocol])

    def _measure_floor(self, row: Row) -> None:
        if not self._floor or "hocket" not in self.groups:
            return
        is_pair = row.num_ranks == 2
        python = self._python(row)
        of_private: floor.Found | None = None
        for memory in floor.MEMORIES:
            if memory == "staged" and not (of_private and of_private.attaches()):
                found = of_private
            else:
                found = self._floor_of(self._floor, row, memory)
            if memory == "private":
                of_private = found
            for protocol, seconds in (found.seconds if found else {}).items():
                least = seconds
                if is_pair and memory == "registered" and of_private:  # every way for private memory works here
                    least = min(seconds, of_private.seconds[protocol])
                is_part = memory == "registered" and not is_pair  # of a bound, whose other part has Python's time
                row.note(f"floor {memory}", protocol, least if is_part else least + python)

    def _floor_of(self, program: Path, row: Row, memory: str) -> floor.Found | None:
        """Returns the measured floor; None if there is none, or if it is not measured again."""
        key, began = (row.name(), memory), time.monotonic()
        if not floor.has(row, memory) or key in self._ended_floors:
            return None
        batch_seconds = self._effort.batch_seconds / 2  # for each of two or three variants
        known = self._ways.get(key, [])
        found = floor.measure(program, row, memory, batch_seconds, self._effort.batches, known)
        is_long = time.monotonic() - began > self._effort.long_trial_seconds
        if found and (is_long or row.num_ranks > 2):
            self._ways[key] = found.variants
        if not found or (is_long and row.num_ranks > 2):
            self._ended_floors.add(key)
        return found

    def _python(self, row: Row) -> float:
        """Returns Python's own seconds of a call, and notes them in the row."""
        if row.operation not in self._empty_calls:
            self._empty_calls[row.operation] = seconds_of_empty_calls(self.groups["hocket"], row.operation)
        row.note("empty calls", "touched", self._empty_calls[row.operation])
        return self._empty_calls[row.operation]

    def _restart(self, name: str, setting: Setting) -> None:
        try:
            self.groups[name] = Group(name, setting, self._num_ranks, self._build, self._lab)
        except Failed as error:
            self._run.absent[f"{name}, {self._num_ranks} ranks"] = str(error)
