"""The traffic of a schedule on a network: the messages of each step, and the local work of ranks.

All rows of a step from one rank to another are one message. Steps with equal messages are one pattern, and repetitions
of a step stay one repeat: a ring over any number of ranks is one pattern. The chunks of a message are not kept, only
their number: a rank sends only data that it had or received in an earlier step, so a simulator in which each rank goes
through its steps in order never sends missing data. (A test compares this with the dependencies of plans.)
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hocket.schedule import Schedule, Step

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TrafficPattern:
    """The messages of one step and the work of ranks, in chunks. Messages are sorted as by `pair_numbers`.

    source, target, chunks: int64[n], of messages between different ranks. reduced, copied: int64[num_ranks], the chunks
    that each rank reduces, and those that it copies within its own memory.
    """

    source: Ints
    target: Ints
    chunks: Ints
    reduced: Ints
    copied: Ints


@dataclass(frozen=True, eq=False)
class Traffic:
    """The traffic of one schedule. repeats: pairs of a pattern's number and its repetitions, in order.

    chunks_per_vector: the number of chunks in num_bytes, the size of a call; see chunk_bytes.
    """

    num_ranks: int
    patterns: tuple[TrafficPattern, ...]
    repeats: tuple[tuple[int, int], ...]
    chunks_per_vector: int

    @property
    def num_steps(self) -> int:
        """The number of steps, with all repetitions."""
        return sum(times for _, times in self.repeats)

    def chunk_bytes(self, num_bytes: float) -> float:
        """Returns the bytes of one chunk if the largest input or output of a rank has num_bytes; all are equal."""
        return num_bytes / self.chunks_per_vector

    def occurrences(self) -> Ints:
        """Returns the number of occurrences of each pattern: int64[len(patterns)]."""
        pattern, times = np.array(self.repeats, np.int64).reshape(-1, 2).T
        return np.bincount(pattern, times, len(self.patterns)).astype(np.int64)


def traffic_of(schedule: Schedule) -> Traffic:
    """Returns the traffic of a well-formed schedule; blocks of an uneven collective count as equal."""
    patterns: list[TrafficPattern] = []
    known: dict[tuple[bytes, ...], int] = {}
    repeats: list[tuple[int, int]] = []
    for repeat in schedule.repeats:
        pattern = _pattern_of(repeat.step, schedule.num_ranks)
        key = tuple(getattr(pattern, column).tobytes() for column in TrafficPattern.__dataclass_fields__)
        number = known.setdefault(key, len(patterns))
        if number == len(patterns):
            patterns.append(pattern)
        repeats.append((number, repeat.times))
    return Traffic(schedule.num_ranks, tuple(patterns), tuple(repeats), schedule.vector_chunks)


def _pattern_of(step: Step, num_ranks: int) -> TrafficPattern:
    away = step.src != step.dst
    ends = pair_numbers(step.src[away].astype(np.int64), step.dst[away].astype(np.int64), num_ranks)
    counts = step.count[away].astype(np.int64)
    pairs, chunks = ends, counts
    if (np.diff(ends) <= 0).any():
        pairs, number = np.unique(ends, return_inverse=True)
        chunks = np.bincount(number, counts).astype(np.int64)
    copies = ~away & ~step.reduce
    reduced, copied = (
        np.bincount(step.dst[rows], step.count[rows], num_ranks).astype(np.int64) for rows in (step.reduce, copies)
    )
    source, distance = np.divmod(pairs, num_ranks)
    return TrafficPattern(source, (source + distance) % num_ranks, chunks, reduced, copied)


def pair_numbers(source: Ints, target: Ints, num_ranks: int) -> Ints:
    """Returns a number for each pair of ranks, ordered by source, then by the distance (target - source) mod ranks."""
    return source * num_ranks + (target - source) % num_ranks
