"""Law 2: every contribution reaches every output exactly once (in a barrier: at least once).

To 64 ranks, and for barriers of any size, each place carries the set of ranks whose contributions it holds. Above, the
schedule is run on random integers modulo the prime 2**61 - 1, and contributions are counted: a wrong one passes with a
probability below 2**-60. Of a symmetric schedule, only the ranks are run that stand for all others.

Counting is what makes that bound true of every schedule: modulo the prime, a contribution that is there 2**61 times, as
after 61 steps that double it, is there once.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from hocket.errors import VerifyError
from hocket.schedule import symmetry
from hocket.schedule.ir import Buffer
from hocket.schedule.places import Fold, Pattern, Places

_SYMBOLIC_TO = 64
_PRIME = (1 << 61) - 1
_EMPTY = -1
_MIXED = -2
_PER_WORD = 24  # bytes of each place for 64 ranks of a set: what it holds, what is read of it, what that makes

Words = npt.NDArray[np.uint64]


class Contents(Protocol):
    """What places hold, step by step."""

    method: str
    places: Places

    def apply(self, fold: Fold) -> None:
        """Carry out one step; VerifyError if a row reads what is not there."""

    def finish(self) -> None:
        """VerifyError unless every output place holds what the collective promises."""


def contents(places: Places) -> Contents:
    """Contents before the first step, by the method that suits the schedule; of fewer places, if it is symmetric."""
    schedule = places.schedule
    if schedule.num_ranks <= _SYMBOLIC_TO or not schedule.kind.exactly_once:
        return Symbolic(places)
    found = symmetry.of(schedule)
    return Symmetric(Places(schedule, found)) if found else Modular(places)


class Symbolic:
    """Contents as sets of contributing ranks (bits), and the chunk of `data` that they are about.

    A fold that adds a contribution twice, or data of another chunk, spoils its result; that is an error where it
    reaches an output, and none where it goes nowhere.
    """

    method = "symbolic"

    def __init__(self, places: Places) -> None:
        self.places, self.kind = places, places.schedule.kind
        num_words = -(-places.schedule.num_ranks // 64)
        places.require_memory(_PER_WORD * num_words)
        place, rank, chunk = places.inputs()
        self.sets = np.zeros((places.count, num_words), np.uint64)
        self.chunk = np.full(places.count, _EMPTY, np.int64)  # Or _EMPTY, or _EMPTY - 1 - i where spoiled by fault i.
        self.faults: list[VerifyError] = []
        self.sets[place] = _singles(rank, num_words)
        self.chunk[place] = chunk

    def apply(self, fold: Fold) -> None:
        """See Contents."""
        held, chunk, pattern = self.sets[fold.reads], self.chunk[fold.reads], fold.pattern
        least = chunk.min()
        if least < 0 and (chunk == _EMPTY).any():
            _refuse_empty(fold, int(np.argmax(chunk == _EMPTY)))
        total = held
        if pattern.max_count > 1:
            total = np.bitwise_or.reduceat(held, pattern.starts, axis=0)
            wrong = chunk != np.repeat(chunk[pattern.starts], pattern.counts)
            wrong_groups = np.logical_or.reduceat(wrong, pattern.starts)
            if self.kind.exactly_once:
                wrong_groups |= _overlap(held, total, pattern.starts)
            if least < 0 or wrong_groups.any():
                goal = np.minimum.reduceat(chunk, pattern.starts)  # What is spoiled spoils what it is folded into.
                spoiled = np.flatnonzero(wrong_groups & (goal >= 0))
                if len(spoiled):
                    self.faults.append(_fault(fold, int(spoiled[0]), held, chunk))
                    goal[spoiled] = _EMPTY - len(self.faults)
                chunk = goal
            else:
                chunk = chunk[pattern.starts]
        self.sets[fold.writes] = total
        self.chunk[fold.writes] = chunk

    def finish(self) -> None:
        """See Contents."""
        place, rank, chunk = self.places.outputs()
        schedule, kind = self.places.schedule, self.kind
        if kind.reduces:
            every = _singles(np.arange(schedule.num_ranks), self.sets.shape[1])
            wanted = np.broadcast_to(np.bitwise_or.reduce(every, axis=0), (len(place), self.sets.shape[1]))
        else:
            wanted = _singles(_owners(self.places, chunk), self.sets.shape[1])
        wrong = (self.chunk[place] != chunk) | (self.sets[place] != wanted).any(axis=1)
        if wrong.any():
            at = int(np.argmax(wrong))
            held = int(self.chunk[place[at]])
            if held < _EMPTY:
                raise self.faults[_EMPTY - 1 - held]
            found = f"that of {_ranks(self.sets[place[at]])}" if held >= 0 else "nothing"
            raise VerifyError(
                "the output is not what the collective promises",
                law=2,
                rank=int(rank[at]),
                chunk=int(chunk[at]),
                expected=f"the contribution of {_ranks(wanted[at])}",
                found=found + (f", of chunk {held}" if held not in (_EMPTY, chunk[at]) else ""),
            )


class Modular:
    """Contents as random integers modulo 2**61 - 1, one for each contribution: how many there are, and their sum."""

    method = "modular"

    def __init__(self, places: Places) -> None:
        self.places = places
        place, _, chunk = places.inputs()
        self.values = np.zeros(places.count, np.uint64)
        self.counts = np.zeros(places.count, np.int64)
        random = np.random.default_rng(int(places.schedule.digest[:32], 16))
        contributions = random.integers(0, _PRIME, len(place), np.uint64)
        self.values[place] = contributions
        self.counts[place] = 1
        self.wanted = np.zeros(places.schedule.num_chunks, np.uint64)
        if places.schedule.kind.reduces:
            order = np.argsort(chunk, kind="stable")  # By chunk, of which every one has contributions.
            starts = np.flatnonzero(np.diff(chunk[order], prepend=-1))
            self.wanted[:] = _sum_modulo(contributions[order], starts, places.schedule.num_ranks)
        else:
            self.wanted[chunk] = contributions

    def apply(self, fold: Fold) -> None:
        """See Contents."""
        counts, pattern = self.counts[fold.reads], fold.pattern
        if not counts.all():
            _refuse_empty(fold, int(np.argmin(counts)))
        self.values[fold.writes] = _sum_modulo(self.values[fold.reads], pattern.starts, pattern.max_count)
        self.counts[fold.writes] = _counted(counts, pattern, self.places.schedule.num_ranks)

    def finish(self) -> None:
        """See Contents."""
        place, rank, chunk = self.places.outputs()
        wrong = (self.counts[place] != _wanted_count(self.places)) | (self.values[place] != self.wanted[chunk])
        if wrong.any():
            at = int(np.argmax(wrong))
            found = "another sum" if self.counts[place[at]] else "nothing"
            raise _refuse_sum(int(rank[at]), int(chunk[at]), found)


class Symmetric:
    """Contents, in a schedule with a symmetry, of the ranks that stand for all: as in Modular, and chunks.

    Turning takes a contribution, of rank i to chunk c, to another, and a place's content to that of the turned place.
    All contributions that turns take to one another have the same random integer, so a place's sum is that of every
    place it stands for. That alone would take them for one another; but each place also carries the very chunk of
    `data` that it is about, which turns with what is read, and a fold of unlike chunks is spoiled for good, as in
    Symbolic. No turn but the identity leaves a chunk where it is; so contributions to one chunk have integers chosen
    independently, and Modular's bound holds for every output of the ranks that are run, hence for all.
    """

    method = "modular, by symmetry"

    def __init__(self, places: Places) -> None:
        assert places.symmetry is not None
        self.places, self.symmetry = places, places.symmetry
        place, _, chunk = places.inputs()
        self.values = np.zeros(places.count, np.uint64)
        self.counts = np.zeros(places.count, np.int64)
        self.chunk = np.full(places.count, _EMPTY, np.int64)
        random = np.random.default_rng(int(places.schedule.digest[:32], 16))
        contributions = random.integers(0, _PRIME, len(place), np.uint64)
        self.values[place] = contributions
        self.counts[place] = 1
        self.chunk[place] = chunk
        orbit = self.symmetry.orbit(chunk)
        order = np.argsort(orbit, kind="stable")
        self.orbits, starts, counts = np.unique(orbit[order], return_index=True, return_counts=True)
        self.wanted = _sum_modulo(contributions[order], starts, int(counts.max()))

    def apply(self, fold: Fold) -> None:
        """See Contents."""
        held, pattern = self.chunk[fold.reads], fold.pattern
        if (held == _EMPTY).any():
            _refuse_empty(fold, int(np.argmax(held == _EMPTY)))
        chunk = self.symmetry.turned(Buffer.DATA, held, pattern.read_turns)
        goal = chunk[pattern.starts]
        if pattern.max_count > 1:
            unlike = chunk != np.repeat(goal, pattern.counts)
            goal[np.logical_or.reduceat(unlike, pattern.starts)] = _MIXED
        self.values[fold.writes] = _sum_modulo(self.values[fold.reads], pattern.starts, pattern.max_count)
        self.counts[fold.writes] = _counted(self.counts[fold.reads], pattern, self.places.schedule.num_ranks)
        self.chunk[fold.writes] = goal

    def finish(self) -> None:
        """See Contents."""
        place, rank, chunk = self.places.outputs()
        wanted = self.wanted[np.searchsorted(self.orbits, self.symmetry.orbit(chunk))]
        wrong = (self.chunk[place] != chunk) | (self.values[place] != wanted)
        wrong |= self.counts[place] != _wanted_count(self.places)
        if wrong.any():
            at = int(np.argmax(wrong))
            held = int(self.chunk[place[at]])
            found = {_EMPTY: "nothing", _MIXED: "a sum of several chunks", int(chunk[at]): "another sum"}
            raise _refuse_sum(int(rank[at]), int(chunk[at]), found.get(held, f"a sum of chunk {held}"))


def _refuse_sum(rank: int, chunk: int, found: str) -> VerifyError:
    return VerifyError(
        "the output is not what the collective promises (found by running on random integers;"
        f" to {_SYMBOLIC_TO} ranks the contributions are named)",
        law=2,
        rank=rank,
        chunk=chunk,
        expected="every contribution exactly once",
        found=found,
    )


def _counted(counts: npt.NDArray[np.int64], pattern: Pattern, num_ranks: int) -> npt.NDArray[np.int64]:
    """How many contributions folds of so many have, up to one more than any result may."""
    if pattern.max_count == 1:
        return counts
    total: npt.NDArray[np.int64] = np.add.reduceat(counts, pattern.starts)
    return np.minimum(total, num_ranks + 1)


def _wanted_count(places: Places) -> int:
    return places.schedule.num_ranks if places.schedule.kind.reduces else 1


def _sum_modulo(values: Words, starts: npt.NDArray[np.int64], max_count: int) -> Words:
    """Sums of the groups that begin at starts, modulo the prime; values lie below it."""
    if max_count == 1:
        return values
    if max_count <= 7:  # That many values below 2**61 do not overflow.
        return np.add.reduceat(values, starts) % np.uint64(_PRIME)
    high = np.add.reduceat(values >> np.uint64(32), starts)
    low = np.add.reduceat(values & np.uint64(0xFFFFFFFF), starts)
    # high * 2**32 = a * 2**61 + b * 2**32 with high = a * 2**29 + b, and 2**61 is 1 modulo the prime.
    carried = (high >> np.uint64(29)) + ((high & np.uint64((1 << 29) - 1)) << np.uint64(32))
    return (carried + low) % np.uint64(_PRIME)


def _overlap(sets: Words, union: Words, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which groups have a member in more than one of their sets: those whose sum is not their union."""
    twice = np.zeros(len(starts), bool)
    mask = np.uint64(0xFFFFFFFF)
    for half in (np.uint64(0), np.uint64(32)):  # Halves of words, whose sums cannot overflow.
        twice |= (np.add.reduceat(sets >> half & mask, starts, axis=0) != (union >> half & mask)).any(axis=1)
    return twice


def _fault(fold: Fold, group: int, held: Words, chunk: npt.NDArray[np.int64]) -> VerifyError:
    """What is wrong with a fold of which something is."""
    first = int(fold.pattern.starts[group])
    seen = np.zeros_like(held[first])
    for read in range(first, first + int(fold.pattern.counts[group])):
        again = seen & held[read]
        if chunk[read] != chunk[first] or again.any():
            break
        seen |= held[read]
    if chunk[read] != chunk[first]:
        what, expected, found = "data of another chunk is folded", f"chunk {chunk[first]}", f"chunk {chunk[read]}"
    else:
        what, expected = "a contribution is added twice", "every contribution once"
        found = f"once more that of {_ranks(again)}"
    return VerifyError(f"{what}: {fold.describe(read)}", law=2, **fold.where(read), expected=expected, found=found)


def _owners(places: Places, chunk: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    schedule = places.schedule
    return schedule.kind.owner(chunk // schedule.chunks_per_block, schedule.num_ranks, schedule.root)


def _singles(ranks: npt.NDArray[np.int64], num_words: int) -> Words:
    sets = np.zeros((len(ranks), num_words), np.uint64)
    sets[np.arange(len(ranks)), ranks // 64] = np.uint64(1) << (ranks % 64).astype(np.uint64)
    return sets


def _ranks(words: Words) -> str:
    """A set of ranks in words, like "ranks 0-2, 5"."""
    members = [64 * w + b for w, word in enumerate(words.tolist()) for b in range(64) if word >> b & 1]
    runs: list[list[int]] = []
    for rank in members:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    text = ", ".join("-".join(str(end) for end in run) for run in runs)
    return f"rank{'s' if len(members) != 1 else ''} {text or 'none'}"


def _refuse_empty(fold: Fold, read: int) -> None:
    raise VerifyError(
        f"a row reads a place that holds nothing: {fold.describe(read)}",
        law=2,
        **fold.where(read),
        expected="a place with data",
        found="an empty one",
    )
