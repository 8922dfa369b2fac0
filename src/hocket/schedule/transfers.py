"""A schedule flattened into single-chunk transfers with what an executor must know of each: the first half of lowering.

Steps are streamed: for one rank, only that rank's own transfers are kept, so no rank ever holds the global table. What
is left out: where a chunk lies in memory (lower.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.schedule.ir import Block, Buffer, Schedule, Step

_SLAB = 1 << 18
"""Transfers held at once while streaming a repeated step."""

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Transfers:
    """Single-chunk rows, in schedule order; equal-length columns.

    order is the row's index in its expanded step; source and target are *places*, ``chunk * 4 + buffer``; chunk is the
    size class. The row that opens a row group says for all of it whether the old content is the first operand (keeps)
    and whether the result is the first to hold all contributions (completes).
    """

    step: Ints
    order: Ints
    src: Ints
    dst: Ints
    source: Ints
    target: Ints
    chunk: Ints
    opens: Bools
    keeps: Bools
    completes: Bools

    def take(self, rows: NDArray[Any]) -> "Transfers":
        """The transfers of these row numbers, in their order."""
        return Transfers(*(getattr(self, column.name)[rows] for column in fields(self)))


def transfers(schedule: Schedule, rank: int | None = None) -> Transfers:
    """All transfers of a schedule, or only those that this rank takes part in."""
    parts = list(_stream(schedule, rank))
    if not parts:
        none, no = np.zeros(0, np.int64), np.zeros(0, bool)
        return Transfers(none, none, none, none, none, none, none, no, no, no)
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
    state = _State(schedule)
    step = 0
    for block in schedule.blocks:
        rows = block.step.expanded()  # the groups of a repetition are those of the first, shifted
        slab = max(1, _SLAB // max(1, len(rows)))
        for begin in range(0, block.repeat, slab):
            repetitions = np.arange(begin, min(begin + slab, block.repeat))
            if len(rows):
                yield _expand(schedule, state, block, rows, repetitions, step, rank)
        step += block.repeat


def _expand(
    schedule: Schedule, state: "_State", block: Block, rows: Step, repetitions: Ints, step: int, rank: int | None
) -> Transfers:
    size = len(rows)
    src, dst = rows.src.astype(np.int64), rows.dst.astype(np.int64)
    assert rows.group is not None
    opens = np.ones(size, bool)
    opens[1:] = rows.group[1:] != rows.group[:-1]
    shift = block.shift * repetitions
    source = _places(rows.src_buffer, rows.src_chunk, shift, schedule.num_chunks)
    target = _places(rows.dst_buffer, rows.dst_chunk, shift, schedule.num_chunks)
    keeps = opens & rows.reduce
    completes = state.completes(src, dst, source, target, opens, keeps)
    chunk = state.size_classes(src, dst, source, target)
    order = np.arange(size)
    if rank is not None:
        order = np.flatnonzero((src == rank) | (dst == rank))
        source, target, completes, chunk = source[:, order], target[:, order], completes[:, order], chunk[:, order]
        src, dst, opens, keeps = src[order], dst[order], opens[order], keeps[order]
    count = len(repetitions)
    steps = np.repeat(step + repetitions, len(order))
    order, src, dst, opens, keeps = (np.tile(column, count) for column in (order, src, dst, opens, keeps))
    source, target, chunk, completes = source.ravel(), target.ravel(), chunk.ravel(), completes.ravel()
    return Transfers(steps, order, src, dst, source, target, chunk, opens, keeps, completes)


def _places(buffer: NDArray[np.uint8], chunk: NDArray[Any], shift: Ints, num_chunks: int) -> Ints:
    """Places of one column in each repetition: int64[repetitions, rows]."""
    moved = (chunk + shift[:, None]) % num_chunks
    if buffer.any():
        moved = np.where(buffer == Buffer.DATA, moved, chunk)
    return (moved * 4 + buffer).astype(np.int64, copy=False)


class _State:
    """What all ranks' places hold while the steps pass: how many contributions, and of scratch the size class."""

    def __init__(self, schedule: Schedule) -> None:
        self.num_ranks = schedule.num_ranks
        self.chunks_per_block = k = schedule.chunks_per_block
        self.width = 4 * max(schedule.num_chunks, schedule.num_scratch)
        kind = schedule.kind
        self.counts = kind.reduces and kind.exactly_once
        self.has_scratch = schedule.num_scratch > 0
        held = np.zeros((self.num_ranks, self.width), np.int32) if self.counts else np.zeros((0, 0), np.int32)
        for rank in range(self.num_ranks if self.counts else 0):
            blocks = kind.input_blocks(rank, self.num_ranks, schedule.root)
            begin, end = blocks.start * k, blocks.stop * k
            held[rank, 4 * begin + Buffer.DATA : 4 * end : 4] = 1
            held[rank, Buffer.INPUT : 4 * (end - begin) : 4] = 1
        self.held = held.ravel()
        self.classes = np.zeros(self.num_ranks * self.width if self.has_scratch else 0, np.int64)

    def completes(self, src: Ints, dst: Ints, source: Ints, target: Ints, opens: Bools, keeps: Bools) -> Bools:
        """Whether the group that a row opens is the one that gathers the last contribution; repetitions x rows."""
        result = np.zeros(source.shape, bool)
        if not self.counts:
            return result
        first = np.flatnonzero(opens)
        operands = np.diff(first, append=len(opens)) + keeps[first]
        single = len(first) == len(opens)
        keeping = keeps[first]
        source_row, target_row = src * self.width, (dst * self.width)[first]
        for i in range(len(source)):  # every repetition reads what the one before it wrote
            total = self.held[source_row + source[i]]
            if not single:
                total = np.add.reduceat(total, first)
            written = target_row + target[i, first]
            total = total + self.held[written] * keeping
            self.held[written] = total
            result[i, first] = (total == self.num_ranks) & (operands > 1)
        return result

    def size_classes(self, src: Ints, dst: Ints, source: Ints, target: Ints) -> Ints:
        """The size class of what each row moves; scratch has that of what it was given last."""
        k = self.chunks_per_block
        result = (source >> 2) % k
        if not self.has_scratch:
            return result
        for i in range(len(source)):
            from_scratch, to_scratch = source[i] & 3 == Buffer.SCRATCH, target[i] & 3 == Buffer.SCRATCH
            known = np.where(to_scratch, self.classes[src * self.width + source[i]], (target[i] >> 2) % k)
            result[i] = np.where(from_scratch, known, result[i])
            self.classes[(dst * self.width + target[i])[to_scratch]] = result[i][to_scratch]
        return result
