"""Which ranks of a schedule do the same, so that few of them stand for all.

A schedule is symmetric with period g, a divisor of the rank count p, if *turning* it takes every step onto itself: rank
r becomes rank r + g (modulo p), every chunk moves on with it, and the operands of each row group keep their order. Then
what rank r holds in a place, after any step, is what rank r % g holds in the place that r // g turns take there, its
contributions turned likewise. Rings, Bruck's algorithms and hierarchies of equal groups are of this kind; trees and
algorithms with a root are not.

Chunks move with the ranks that they belong to, and none stays where it is:

- of blocks that belong to ranks, block b becomes block b + g; of pairs, block (i, j) becomes (i + g, j + g), and
  position j of an explicit input or output j + g;
- where there is one block, chunks belong to the ranks that receive them in the first step that writes each chunk once
  and at each rank equally many: the last of a reduce_scatter, say. A rank's i-th becomes the i-th of rank r + g;
- the rank's own block and scratch stay as they are.

Rows are compared unexpanded. Of each rank's rows in a step a sum of random numbers is made, one for each single chunk
that a row moves and what it does with it; and another of the same rows turned, which must be the sum of rank r + g. A
chunk is written once by each operand of its row group, so no number comes twice in a sum, and ranks whose rows differ
have equal sums with a probability of about 2**-59. (The difference is a sum of products of two independent 64-bit
numbers, modulo 2**64; it is 0 too often only because even numbers have no inverse.) All is done with two independent
sums, so a schedule that is not symmetric is taken for one with a probability below 2**-110.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from hocket.schedule.capacity import require_memory
from hocket.schedule.hashing import mix
from hocket.schedule.ir import Buffer, Schedule, Step
from hocket.schedule.shape import Shape

_MOST_PLACES = 1 << 25
"""Places of the ranks that stand for all, above which a symmetry helps nobody."""

_BYTES = 200
"""For each place of a rank, at least: random numbers for it and their sums, in sixteen tables."""

_MOST_ROWS = 1 << 25
"""Single chunks that are compared at once, where ranges cannot be: a gigabyte or so."""

_MOST_TABLES = 64
_SLAB = 1 << 15
"""Rows whose numbers are made at once: few enough to stay in cache."""

Wide = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class Homes:
    """To which rank each chunk of a buffer belongs: homes[rank, i] is the rank's i-th chunk, and every chunk is one."""

    def __init__(self, homes: npt.NDArray[Any]) -> None:
        self.homes = homes.astype(np.int64)
        self.rank, self.index = (np.empty(homes.size, np.int64) for _ in range(2))
        self.rank[homes] = np.arange(len(homes))[:, None]
        self.index[homes] = np.arange(homes.shape[1])


@dataclass(frozen=True, eq=False)
class Symmetry:
    """Period g, of num_ranks ranks, and for each Buffer to which ranks its chunks belong; None: they stay."""

    period: int
    num_ranks: int
    homes: tuple[Homes | None, ...]

    def turned(self, buffer: npt.ArrayLike, chunk: npt.NDArray[Any], times: npt.ArrayLike) -> Wide:
        """Where this many turns, possibly below 0, take chunks of a buffer; arguments broadcast. Chunks below 0 stay.

        Chunks must exist in the buffer.
        """
        buffers, chunks, turns = np.broadcast_arrays(np.asarray(buffer), np.asarray(chunk, np.int64), times)
        moved: Wide = chunks
        for one, homes in enumerate(self.homes):
            turning = np.flatnonzero((buffers == one) & (chunks >= 0)) if homes else ()
            if homes is None or not len(turning):
                continue
            everything = len(turning) == moved.size and moved.ndim == 1
            at, by = (chunks, turns) if everything else (chunks.ravel()[turning], turns.ravel()[turning])
            there: Wide = homes.homes[(homes.rank[at] + by * self.period) % self.num_ranks, homes.index[at]]
            if everything:
                return there
            moved = moved.copy()
            moved.reshape(-1)[turning] = there
        return moved

    def orbit(self, chunk: npt.NDArray[Any]) -> Wide:
        """Of the chunks of `data` that turns take to one another, the one that stands for all: shaped like chunk."""
        homes = self.homes[Buffer.DATA]
        assert homes is not None
        found: Wide = homes.homes[homes.rank[chunk] % self.period, homes.index[chunk]]
        return found


_known: WeakKeyDictionary[Schedule, "Symmetry | None"] = WeakKeyDictionary()


def of(schedule: Schedule) -> Symmetry | None:
    """The symmetry of this schedule, found once; see find."""
    if schedule not in _known:
        _known[schedule] = find(schedule)
    return _known[schedule]


def find(schedule: Schedule) -> Symmetry | None:
    """The symmetry with the shortest period, or None. The schedule must hold law 1. `of` remembers."""
    keys = np.random.default_rng(int(schedule.digest[:32], 16)).integers(0, 1 << 64, (2, 2), np.uint64)
    return next((one for one in _candidates(schedule) if _holds(schedule, one, keys)), None)


def _candidates(schedule: Schedule) -> Iterator[Symmetry]:
    """What may be a symmetry of this schedule, as far as its collective and its size say, shortest period first."""
    kind, p, k = schedule.kind, schedule.num_ranks, schedule.chunks_per_block
    width = p * k if kind.blocks == "pair" and not schedule.uses_data else schedule.num_chunks
    width += schedule.num_scratch
    periods = [period for period in range(1, p // 2 + 1) if p % period == 0 and period * width <= _MOST_PLACES]
    if kind.rooted or not periods:
        return
    require_memory(_BYTES * width, f"comparing {p} ranks of {kind.name} in {schedule.num_chunks} chunks")
    data = _homes(schedule)
    if data is None:
        return
    own = Homes(np.arange(p * k).reshape(p, k)) if kind.blocks == "pair" else None
    ends = (data if extent == "whole" else own for extent in (kind.input, kind.output))
    homes = (data, *ends, None)
    for period in periods:
        yield Symmetry(period, p, homes)


def _homes(schedule: Schedule) -> Homes | None:
    """To which rank each chunk of `data` belongs; None if that cannot be said."""
    p, k, num_chunks = schedule.num_ranks, schedule.chunks_per_block, schedule.num_chunks
    if schedule.kind.blocks == "rank":
        return Homes(np.arange(num_chunks).reshape(p, k))
    if schedule.kind.blocks == "pair":
        rank = np.arange(p)[:, None]
        blocks = rank * p + (rank + np.arange(p)) % p
        return Homes((blocks[:, :, None] * k + np.arange(k)).reshape(p, p * k))
    for block in schedule.blocks:
        if num_chunks % p == 0 and block.step.count.sum() == num_chunks:
            step, _ = block.step.spread()
            order = np.argsort(step.dst, kind="stable")
            chunk = step.dst_chunk[order]
            alike = (step.dst[order] == np.arange(num_chunks) // (num_chunks // p)).all()
            if alike and (step.dst_buffer != Buffer.SCRATCH).all() and len(np.unique(chunk)) == num_chunks:
                return Homes(chunk.reshape(p, -1))
    return None


def _holds(schedule: Schedule, symmetry: Symmetry, keys: Words) -> bool:
    sums = _Sums(schedule, symmetry, keys)
    num_chunks = schedule.num_chunks
    for block in schedule.blocks:  # Most of what is not symmetric is known by two ranks.
        rows = np.flatnonzero((block.step.dst == 0) | (block.step.dst == symmetry.period))
        if len(rows) and not sums.agree(block.step.take(rows), of_rank_0=True):
            return False
    turned = symmetry.turned(Buffer.DATA, np.arange(num_chunks), 1)
    for block in schedule.blocks:
        # Where moving on and turning are not the same in either order, a repetition says nothing of the next.
        apart = block.shift and (np.roll(turned, -block.shift) != (turned + block.shift) % num_chunks).any()
        for i in range(block.repeat if apart else 1):
            step = block.step.shifted(block.shift * i, num_chunks) if i else block.step
            if not sums.agree(step):
                return False
    return True


class _Sums:
    """Every rank's sums of random numbers for the rows of a step, as they are and turned."""

    def __init__(self, schedule: Schedule, symmetry: Symmetry, keys: Words) -> None:
        self.symmetry, self.row_keys = symmetry, keys[:, 1].tolist()
        self.tables: dict[tuple[int, int, int], Words] = {}  # By turns, key and buffer: a number for every chunk.
        limits = Shape.of(schedule).limits.max(axis=1).tolist()
        for key, seed in enumerate(keys[:, 0].tolist()):
            table = np.random.default_rng(seed).integers(0, 1 << 64, max(limits), np.uint64)
            for buffer, size in enumerate(limits):
                for turns in (0, 1):
                    self.tables[turns, key, buffer] = table[symmetry.turned(buffer, np.arange(size), turns)]
        self.up_to: dict[tuple[int, ...], Words] = {}  # And by stride: sums of the numbers so far.

    def agree(self, step: Step, *, of_rank_0: bool = False) -> bool:
        """Whether every rank's rows in this step, or rank 0's, turned, are those of the rank a period further on."""
        index, homes = step.row_groups()[0], self.symmetry.homes
        ahead = step.src_chunk.astype(np.int64) - step.dst_chunk
        # Where both ends of a range turn alike, one end says where the other is.
        whole = np.zeros(len(step), bool)
        for one in np.unique(step.dst_buffer).tolist():
            alike = [other for other in Buffer if homes[other] is homes[one]]
            near = True if homes[one] is None else ahead == 0
            whole |= (step.dst_buffer == one) & np.isin(step.src_buffer, alike) & near
        if whole.all():
            sums = self.of(step, index, ahead - ahead.min(), None)
        else:
            part, rest = step.take(whole), step.take(~whole)
            if int(rest.count.sum()) > _MOST_ROWS:
                return False
            single, rows = rest.spread()
            turned = self.symmetry.turned(single.src_buffer, single.src_chunk, 1)
            sums = self.of(single, index[~whole][rows], single.src_chunk, turned)
            if len(part):
                sums += self.of(part, index[whole], ahead[whole] - ahead[whole].min(), None)
        same = np.roll(sums[1], self.symmetry.period, axis=-1) == sums[0]
        return bool(same[:, self.symmetry.period].all() if of_rank_0 else same.all())

    def of(self, step: Step, index: Wide, source: npt.NDArray[Any], turned: Wide | None) -> Words:
        """Sums of these rows as they are [0] and turned [1], by key and rank.

        `index` has the numbers of rows in their groups; `source` says where each row's source is, and `turned` where it
        is turned, if that is not the same.
        """
        num_ranks, period = self.symmetry.num_ranks, self.symmetry.period
        sums = np.zeros((2, len(self.row_keys), num_ranks), np.uint64)
        stride = np.where(step.count == 1, 1, step.stride)
        last = step.dst_chunk + (step.count - 1) * stride
        what = step.src_buffer + 4 * step.dst_buffer + 16 * step.reduce
        sources = source, source if turned is None else turned
        limits = (32, int(index.max()) + 1, num_ranks, max(int(one.max()) for one in sources) + 1)
        for begin in range(0, len(step), _SLAB):
            slab = slice(begin, begin + _SLAB)
            first, end, dst = step.dst_chunk[slab], last[slab], step.dst[slab]
            kinds = _kinds(step.dst_buffer[slab], stride[slab])
            for turns in (0, 1):
                src = (step.src[slab] + turns * period) % num_ranks
                packed = _packed((what[slab], index[slab], src, sources[turns][slab]), limits)
                for key, row_key in enumerate(self.row_keys):
                    factor = np.full(len(src), row_key ^ (turned is None), np.uint64)  # Two kinds, two ways to pack.
                    for words in packed:
                        factor = mix(factor * np.uint64(0xD1342543DE82EF95) + words)
                    for rows, buffer, every in kinds:
                        up_to = self.sums_up_to(turns, key, buffer, every)
                        ranges = up_to[end[rows] + every] - up_to[first[rows]]
                        np.add.at(sums[turns, key], dst[rows], factor[rows] * ranges)
        return sums

    def sums_up_to(self, turns: int, key: int, buffer: int, stride: int) -> Words:
        """At chunk + stride: the sum, modulo 2**64, of the numbers of this chunk and all those strides before it."""
        found = self.up_to.get((turns, key, buffer, stride))
        if found is None:
            table = self.tables[turns, key, buffer]
            padded = np.zeros(stride + -(-len(table) // stride) * stride, np.uint64)
            padded[stride : stride + len(table)] = table
            found = np.cumsum(padded.reshape(-1, stride), axis=0, dtype=np.uint64).ravel()
            if len(self.up_to) == _MOST_TABLES:
                self.up_to.clear()
            self.up_to[turns, key, buffer, stride] = found
        return found


def _kinds(buffer: npt.NDArray[np.uint8], stride: npt.NDArray[Any]) -> list[tuple[Any, int, int]]:
    """Rows by buffer and stride: (which rows, buffer, stride)."""
    kind = stride.astype(np.int64) * len(Buffer) + buffer
    if (kind == kind[0]).all():
        return [(slice(None), int(buffer[0]), int(stride[0]))]
    return [(np.flatnonzero(kind == one), one % len(Buffer), one // len(Buffer)) for one in np.unique(kind).tolist()]


def _packed(columns: tuple[npt.NDArray[Any], ...], limits: tuple[int, ...]) -> list[Words]:
    """The same as fewer columns, different where they are: numbers below their limits, side by side while they fit."""
    packed: list[Words] = []
    room = 1
    for column, limit in zip(columns, limits, strict=True):
        if packed and room * limit < 1 << 62:
            packed[-1] = packed[-1] * np.uint64(limit) + column.astype(np.uint64)
            room *= limit
        else:
            packed.append(column.astype(np.uint64))
            room = limit
    return packed
