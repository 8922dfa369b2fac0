"""A schedule flattened into single-chunk transfers with what an executor must know of each: the first half of lowering.

Steps are streamed: for one rank, only that rank's own transfers are kept, so no rank ever holds the global table, and
of a large symmetric schedule only the ranks are followed that stand for all. What is left out: where a chunk lies in
memory (lower.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.schedule import symmetry
from hocket.schedule.capacity import require_memory
from hocket.schedule.ir import Block, Buffer, Schedule, Step
from hocket.schedule.shape import Shape

_SLAB = 1 << 18
"""Transfers held at once while streaming a repeated step."""

_PLAIN_TO = 1 << 16
"""Places of all ranks up to which looking for a symmetry costs more than following them all."""

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Transfers:
    """Single-chunk rows, in schedule order; equal-length columns.

    order is the row's index in its expanded step; source and target are *places*, ``chunk * 4 + buffer``; chunk is the
    size class; raw says that the source holds its rank's untouched contribution. The row that opens a row group says
    for all of it whether the old content is the first operand (keeps), whether that is raw (keeps_raw), and whether the
    result is the first to hold all contributions (completes). Transfers of one rank say so of that rank's groups only.
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
        """The transfers of these row numbers, in their order."""
        return Transfers(*(getattr(self, column.name)[rows] for column in fields(self)))


def transfers(schedule: Schedule, rank: int | None = None) -> Transfers:
    """All transfers of a schedule, or only those that this rank takes part in."""
    parts = list(_stream(schedule, rank))
    if not parts:
        none, no = np.zeros(0, np.int64), np.zeros(0, bool)
        return Transfers(none, none, none, none, none, none, none, no, no, no, no, no)
    if len(parts) == 1:
        return parts[0]
    return Transfers(*(np.concatenate([getattr(part, c.name) for part in parts]) for c in fields(Transfers)))


def by_rank(all_transfers: Transfers, num_ranks: int) -> Iterator[Transfers]:
    """Cut all transfers into those that each rank takes part in, one rank after the other."""
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
    for block in schedule.blocks:
        rows, order, opens = state.followed(block.step)  # the groups of a repetition are those of the first, shifted
        slab = max(1, _SLAB // max(1, len(rows)))
        for begin in range(0, block.repeat, slab):
            repetitions = np.arange(begin, min(begin + slab, block.repeat))
            if len(rows):
                yield _expand(schedule, state, block, rows, (order, opens), repetitions, step, rank)
        step += block.repeat


def _expand(
    schedule: Schedule,
    state: "_State",
    block: Block,
    rows: Step,
    numbers: tuple[Ints, Bools],
    repetitions: Ints,
    step: int,
    rank: int | None,
) -> Transfers:
    order, opens = numbers
    src, dst = rows.src.astype(np.int64), rows.dst.astype(np.int64)
    shift = block.shift * repetitions
    source = _places(rows.src_buffer, rows.src_chunk, shift, schedule.num_chunks)
    target = _places(rows.dst_buffer, rows.dst_chunk, shift, schedule.num_chunks)
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


def _places(buffer: NDArray[np.uint8], chunk: NDArray[Any], shift: Ints, num_chunks: int) -> Ints:
    """Places of one column in each repetition: int64[repetitions, rows]."""
    moved = (chunk + shift[:, None]) % num_chunks
    if buffer.any():
        moved = np.where(buffer == Buffer.DATA, moved, chunk)
    return (moved * 4 + buffer).astype(np.int64, copy=False)


class _State:
    """What places hold while the steps pass: how many contributions, an untouched one or not; of scratch, how long.

    All ranks are followed, `period` of them from rank `first` on, or none: for one rank's transfers, those that stand
    for all if the schedule is symmetric, or none if nothing has to be known.
    """

    def __init__(self, schedule: Schedule, rank: int | None) -> None:
        self.shape = Shape.of(schedule)
        self.rank, self.num_ranks = rank, schedule.num_ranks
        self.counts = schedule.kind.counts_contributions
        # Where all chunks are equally long, so is what scratch holds.
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
        if self.counts:  # All of these have whole vectors for input.
            held[:, Buffer.DATA : 4 * schedule.num_chunks : 4] = 1
            held[:, Buffer.INPUT : 4 * schedule.num_chunks : 4] = 1
        self.held = held.ravel()
        self.untouched = self.held > 0
        self.classes = np.zeros(self.period * self.num_slots, np.int64)

    def followed(self, step: Step) -> tuple[Step, Ints, Bools]:
        """Rows of the expanded step into ranks that are followed, and those of the rank itself.

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
        """Transfers' raw, keeps_raw and completes, each repetitions x rows; False for ranks that are not followed."""
        raw, keeps_raw, completes = (np.zeros(source.shape, bool) for _ in range(3))
        if not self.counts:
            return raw, keeps_raw, completes
        known = np.flatnonzero(self.follows(dst))
        begins = np.flatnonzero(opens[known])
        first = known[begins]
        operands = np.diff(begins, append=len(known)) + keeps[first]
        single = len(begins) == len(known)
        keeping = keeps[first]
        turns, row = np.divmod(src[known] - self.first, self.period)
        row, target_row = row * self.width, (dst[first] - self.first) * self.width
        for i in range(len(source)):  # every repetition reads what the one before it wrote
            place = source[i, known]
            if self.symmetry:
                place = self.symmetry.turned(place & 3, place >> 2, -turns) * 4 + (place & 3)
            read, written = row + place, target_row + target[i, first]
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
        """The size class of what each row moves; scratch has that of what it was given last."""
        result = self.shape.size_class(src, source & 3, source >> 2).astype(np.int64, copy=False)
        if not self.num_slots:
            return result
        followed = self.follows(dst)
        turns, row = np.divmod(src - self.first, self.period)
        for i in range(len(source)):
            reads = np.flatnonzero(source[i] & 3 == Buffer.SCRATCH)
            writes = np.flatnonzero((target[i] & 3 == Buffer.SCRATCH) & followed)
            held = self.classes[row[reads] * self.num_slots + (source[i, reads] >> 2)]
            if self.symmetry:
                held = self.symmetry.turned(Buffer.DATA, held, turns[reads])
                held = held if self.shape.kind.uneven else held % self.shape.chunks_per_block
            result[i, reads] = held
            self.classes[(dst[writes] - self.first) * self.num_slots + (target[i, writes] >> 2)] = result[i, writes]
        return result
