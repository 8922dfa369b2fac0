"""What a schedule sends over a network: the messages of each step, and what ranks work on beside.

All rows of a step from one rank to another are one message. Steps that send the same are one pattern, and repetitions
of a step stay one block: a ring over any number of ranks is one pattern. Which chunks a message carries is not kept:
a rank can only send what it had, or has received in an earlier step, so a simulator in which each rank goes through its
steps in order never sends what is not there yet. (A test compares this with the dependencies of plans.)
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hocket.schedule import Schedule, Step

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pattern:
    """The messages of one step, by source and of each to the next rank first, and the work of ranks: in chunks.

    source, target, chunks: int64[n], of messages between different ranks. reduced, copied: int64[num_ranks], what each
    rank adds to something, and what it moves within its own memory.
    """

    source: Ints
    target: Ints
    chunks: Ints
    reduced: Ints
    copied: Ints


@dataclass(frozen=True, eq=False)
class Traffic:
    """What one schedule sends. blocks: the number of a pattern, and how often it is repeated, in order.

    chunks_per_vector: of so many chunks is the size by which a call is measured, for which see chunk_bytes.
    """

    num_ranks: int
    patterns: tuple[Pattern, ...]
    blocks: tuple[tuple[int, int], ...]
    chunks_per_vector: int

    @property
    def num_steps(self) -> int:
        """Steps, every repetition counted."""
        return sum(repeat for _, repeat in self.blocks)

    def chunk_bytes(self, num_bytes: float) -> float:
        """Bytes of one chunk, where the largest input or output of a rank has num_bytes; all are taken as equal."""
        return num_bytes / self.chunks_per_vector

    def repeats(self) -> Ints:
        """How often each pattern happens: int64[len(patterns)]."""
        pattern, repeat = np.array(self.blocks, np.int64).reshape(-1, 2).T
        return np.bincount(pattern, repeat, len(self.patterns)).astype(np.int64)


def traffic_of(schedule: Schedule) -> Traffic:
    """The traffic of a well-formed schedule; blocks of an uneven collective are taken as equally long."""
    patterns: list[Pattern] = []
    known: dict[tuple[bytes, ...], int] = {}
    blocks: list[tuple[int, int]] = []
    for block in schedule.blocks:
        pattern = _pattern_of(block.step, schedule.num_ranks)
        key = tuple(getattr(pattern, column).tobytes() for column in Pattern.__dataclass_fields__)
        number = known.setdefault(key, len(patterns))
        if number == len(patterns):
            patterns.append(pattern)
        blocks.append((number, block.repeat))
    per_vector = schedule.num_chunks // (schedule.num_ranks if schedule.kind.blocks == "pair" else 1)
    return Traffic(schedule.num_ranks, tuple(patterns), tuple(blocks), per_vector)


def _pattern_of(step: Step, num_ranks: int) -> Pattern:
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
    return Pattern(source, (source + distance) % num_ranks, chunks, reduced, copied)


def pair_numbers(source: Ints, target: Ints, num_ranks: int) -> Ints:
    """One number for each pair of ranks: first by source, then by how far on the target is, round the last rank."""
    return source * num_ranks + (target - source) % num_ranks
