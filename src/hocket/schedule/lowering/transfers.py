"""The first half of lowering: a schedule as single-chunk transfers, with what an executor must know about each.

Steps are streamed. For one rank, only that rank's own transfers are kept, so no rank ever holds the global table. In a
large symmetric schedule, only the ranks that stand for all others are followed. Where a chunk lies in memory is decided
later (lower.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.schedule import symmetry
from hocket.schedule.capacity import require_memory
from hocket.schedule.ir import Buffer, Repeat, Schedule, Step
from hocket.schedule.shape import Shape

_SLAB = 1 << 18
"""Transfers that are held at once while a repeated step is streamed."""

_PLAIN_TO = 1 << 16
"""Up to this many spots of all ranks, following all ranks is cheaper than looking for a symmetry."""

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Transfers:
    """Single-chunk rows, in schedule order; equal-length columns.

    order is the row's index in its expanded step. source and target are *spots*, ``chunk * 4 + buffer``. chunk is the
    size class. raw: the source holds its rank's untouched contribution. The row that opens a row group says for the
    whole group whether the old content is the first operand (keeps), whether that content is raw (keeps_raw), and
    whether the result is the first to hold all contributions (completes). In the transfers of one rank, this is known
    for that rank's groups only.
    """

    step: Ints
    order: Ints
    src: Ints
    dst: Ints
    source: Ints
    target: Ints
    chunk: Ints
    raw: Bools
    opens: Bools
    keeps: Bools
    keeps_raw: Bools
    completes: Bools

    def take(self, rows: NDArray[Any]) -> "Transfers":
        """The transfers with these row numbers, in their order."""
        return Transfers(*(getattr(self, column.name)[rows] for column in fields(self)))


def transfers(schedule: Schedule, rank: int | None = None) -> Transfers:
    """All transfers of a schedule, or only those in which this rank takes part."""
    parts = list(_stream(schedule, rank))
    if not parts:
        none, no = np.zeros(0, np.int64), np.zeros(0, bool)
        return Transfers(none, none, none, none, none, none, none, no, no, no, no, no)
    if len(parts) == 1:
        return parts[0]
    return Transfers(*(np.concatenate([getattr(part, c.name) for part in parts]) for c in fields(Transfers)))


def by_rank(all_transfers: Transfers, num_ranks: int) -> Iterator[Transfers]:
    """Split all transfers into those in which each rank takes part, one rank after the other."""
    remote = np.flatnonzero(all_transfers.src != all_transfers.dst)
    rank = np.concatenate((all_transfers.src, all_transfers.dst[remote]))
    row = np.concatenate((np.arange(len(all_transfers.src)), remote))
    order = np.lexsort((row, rank))
    ends = np.searchsorted(rank[order], np.arange(num_ranks + 1))
    for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        yield all_transfers.take(row[order[begin:end]])


def _stream(schedule: Schedule, rank: int | None) -> Iterator[Transfers]:
    state = _State(schedule, rank)
    step = 0
    for repeat in schedule.repeats:
        rows, order, opens = state.followed(repeat.step)  # the groups of a repetition are those of the first, shifted
        slab = max(1, _SLAB // max(1, len(rows)))
        for begin in range(0, repeat.times, slab):
            repetitions = np.arange(begin, min(begin + slab, repeat.times))
            if len(rows):
                yield _expand(schedule, state, repeat, rows, (order, opens), repetitions, step, rank)
        step += repeat.times


def _expand(
    schedule: Schedule,
    state: "_State",
    repeat: Repeat,
    rows: Step,
    numbers: tuple[Ints, Bools],
    repetitions: Ints,
    step: int,
    rank: int | None,
) -> Transfers:
    order, opens = numbers
    src, dst = rows.src.astype(np.int64), rows.dst.astype(np.int64)
    shift = repeat.shift * repetitions
    source = _spots(rows.src_buffer, rows.src_chunk, shift, schedule.num_chunks)
    target = _spots(rows.dst_buffer, rows.dst_chunk, shift, schedule.num_chunks)
    keeps = opens & rows.reduce
    raw, keeps_raw, completes = state.contributions(src, dst, source, target, opens, keeps)
    chunk = state.size_classes(src, dst, source, target)
    if rank is not None:
        own = np.flatnonzero((src == rank) | (dst == rank))
        source, target, chunk = source[:, own], target[:, own], chunk[:, own]
        raw, keeps_raw, completes = raw[:, own], keeps_raw[:, own], completes[:, own]
        src, dst, order = src[own], dst[own], order[own]
        opens, keeps = opens[own], keeps[own]
    count = len(repetitions)
    steps = np.repeat(step + repetitions, len(order))
    order, src, dst = (np.tile(column, count) for column in (order, src, dst))
    opens, keeps = np.tile(opens, count), np.tile(keeps, count)
    source, target, chunk = source.ravel(), target.ravel(), chunk.ravel()
    raw, keeps_raw, completes = raw.ravel(), keeps_raw.ravel(), completes.ravel()
    return Transfers(steps, order, src, dst, source, target, chunk, raw, opens, keeps, keeps_raw, completes)


def _spots(buffer: NDArray[np.uint8], chunk: NDArray[Any], shift: Ints, num_chunks: int) -> Ints:
    """Spots of one column in each repetition: int64[repetitions, rows]."""
    moved = (chunk + shift[:, None]) % num_chunks
    if buffer.any():
        moved = np.where(buffer == Buffer.DATA, moved, chunk)
    return (moved * 4 + buffer).astype(np.int64, copy=False)


class _State:
    """What spots hold while the steps pass: the number of contributions, and whether it is one untouched contribution.
    For scratch also the size class.

    The ranks from `first` on, `period` of them, are followed: all ranks; or, for the transfers of one rank, the ranks
    that stand for all others if the schedule is symmetric; or none if nothing has to be known.
    """

    def __init__(self, schedule: Schedule, rank: int | None) -> None:
        self.shape = Shape.of(schedule)
        self.rank, self.num_ranks = rank, schedule.num_ranks
        self.counts = schedule.kind.counts_contributions
        # If all chunks are equally long, scratch needs no size classes.
        self.num_slots = schedule.num_scratch if schedule.chunks_per_block > 1 or schedule.kind.uneven else 0
        self.width = 4 * max(schedule.num_chunks, schedule.num_scratch) if self.counts else 0
        size = self.num_ranks * max(self.width, self.num_slots)
        self.symmetry = symmetry.of(schedule) if rank is not None and size > _PLAIN_TO else None
        self.period = self.symmetry.period if self.symmetry else self.num_ranks
        if rank is not None and not size:
            self.period = 0
        self.first = (rank or 0) // self.period * self.period if self.period else 0
        size = self.period * (5 * self.width + 8 * self.num_slots)
        require_memory(size, f"following {self.period} ranks of {schedule.collective} in {schedule.num_chunks} chunks")
        held = np.zeros((self.period, self.width), np.int32)
        if self.counts:  # The input of each of these collectives is a whole vector.
            held[:, Buffer.DATA : 4 * schedule.num_chunks : 4] = 1
            held[:, Buffer.INPUT : 4 * schedule.num_chunks : 4] = 1
        self.held = held.ravel()
        self.untouched = self.held > 0
        self.classes = np.zeros(self.period * self.num_slots, np.int64)

    def followed(self, step: Step) -> tuple[Step, Ints, Bools]:
        """Rows of the expanded step that write to followed ranks, and rows of the rank itself.

        Also their indices in the expanded step, and which of them open a row group.
        """
        if self.period == self.num_ranks:
            rows = step.expanded()
            assert rows.group is not None
            return rows, np.arange(len(rows)), np.diff(rows.group, prepend=-1) != 0
        return step.part(np.flatnonzero(self.follows(step.dst) | (step.src == self.rank) | (step.dst == self.rank)))

    def follows(self, rank: NDArray[Any]) -> Bools:
        """Which of these ranks are followed."""
        followed: Bools = (rank >= self.first) & (rank < self.first + self.period)
        return followed

    def contributions(
        self, src: Ints, dst: Ints, source: Ints, target: Ints, opens: Bools, keeps: Bools
    ) -> tuple[Bools, Bools, Bools]:
        """The columns raw, keeps_raw and completes, each repetitions x rows; False for ranks that are not followed."""
        raw, keeps_raw, completes = (np.zeros(source.shape, bool) for _ in range(3))
        if not self.counts:
            return raw, keeps_raw, completes
        known = np.flatnonzero(self.follows(dst))
        begins = np.flatnonzero(opens[known])
        first = known[begins]
        operands = np.diff(begins, append=len(known)) + keeps[first]
        single = len(begins) == len(known)
        keeping = keeps[first]
        rotations, row = np.divmod(src[known] - self.first, self.period)
        row, target_row = row * self.width, (dst[first] - self.first) * self.width
        for i in range(len(source)):  # every repetition reads what the one before it wrote
            spot = source[i, known]
            if self.symmetry:
                spot = self.symmetry.rotated(spot & 3, spot >> 2, -rotations) * 4 + (spot & 3)
            read, written = row + spot, target_row + target[i, first]
            raw[i, known] = self.untouched[read]
            keeps_raw[i, first] = self.untouched[written] & keeping
            total = self.held[read]
            if not single:
                total = np.add.reduceat(total, begins)
            total = total + self.held[written] * keeping
            self.held[written] = total
            self.untouched[written] = False
            completes[i, first] = (total == self.num_ranks) & (operands > 1)
        return raw, keeps_raw, completes

    def size_classes(self, src: Ints, dst: Ints, source: Ints, target: Ints) -> Ints:
        """The size class of what each row moves; scratch has the size class of what was last written to it."""
        result = self.shape.size_class(src, source & 3, source >> 2).astype(np.int64, copy=False)
        if not self.num_slots:
            return result
        followed = self.follows(dst)
        rotations, row = np.divmod(src - self.first, self.period)
        for i in range(len(source)):
            reads = np.flatnonzero(source[i] & 3 == Buffer.SCRATCH)
            writes = np.flatnonzero((target[i] & 3 == Buffer.SCRATCH) & followed)
            held = self.classes[row[reads] * self.num_slots + (source[i, reads] >> 2)]
            if self.symmetry:
                held = self.symmetry.rotated(Buffer.DATA, held, rotations[reads])
                held = held if self.shape.kind.uneven else held % self.shape.chunks_per_block
            result[i, reads] = held
            self.classes[(dst[writes] - self.first) * self.num_slots + (target[i, writes] >> 2)] = result[i, writes]
        return result
