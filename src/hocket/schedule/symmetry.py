"""Which ranks of a schedule do the same, so that a few ranks stand for all.

A *rotation* moves rank r to rank r + g (modulo the rank count p), and every chunk with the rank that owns it. A
schedule is symmetric with period g, a divisor of p, if a rotation maps every step onto itself and keeps the order of
the operands in each row group. Then, after any step, the content of
a place of rank r follows from the content of one place of rank r % g: r // g rotations take that place, and the
contributions in it, to the place of rank r. Rings, Bruck's algorithms and hierarchies of equal groups are symmetric;
trees and algorithms with a root are not.

Chunks move with their owners, and no chunk of `data` stays where it is:

- Where blocks belong to ranks, block b becomes block b + g. Where blocks belong to pairs of ranks, block (i, j) becomes
  (i + g, j + g), and position j of an explicit input or output becomes j + g.
- Where there is one block, its chunks belong to the ranks that receive them in the first step that writes each chunk
  once and the same number of chunks at each rank (for example, the last step of a reduce_scatter). The i-th chunk of
  rank r becomes the i-th chunk of rank r + g.
- The block of an input or output that holds only the rank's own block stays as it is, and so does scratch.

Rows are compared as ranges, not chunk by chunk. For each rank and step, a sum of random numbers is formed, one number
for each single chunk that a row moves and for what the row does with it. A second sum is formed of the same rows after
a rotation; it must equal the first sum of rank r + g. A chunk is written once by each operand of its row group, so no
number comes twice in a sum, and ranks whose rows differ have equal sums with a probability of about 2**-59. (The
difference is a sum of products of two independent 64-bit numbers, modulo 2**64; it is 0 too often only because even
numbers have no inverse.) Everything is done with two independent sums, so a schedule that is not symmetric is accepted
with a probability below 2**-110.
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
"""Places of the ranks that stand for all; above this number, a symmetry saves nothing."""

_BYTES = 200
"""Bytes for each place of a rank, at least: random numbers and their sums, in sixteen tables."""

_MOST_ROWS = 1 << 25
"""Single chunks that are compared at once where ranges cannot be compared: about a gigabyte."""

_MOST_TABLES = 64
_SLAB = 1 << 15
"""Rows whose numbers are made at once: few enough to stay in the cache."""

Wide = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class ChunkOwners:
    """The rank that owns each chunk of a buffer. chunks[rank, i] is the rank's i-th chunk; no chunk is missing."""

    def __init__(self, chunks: npt.NDArray[Any]) -> None:
        self.chunks = chunks.astype(np.int64)
        self.rank, self.index = (np.empty(chunks.size, np.int64) for _ in range(2))
        self.rank[chunks] = np.arange(len(chunks))[:, None]
        self.index[chunks] = np.arange(chunks.shape[1])


@dataclass(frozen=True, eq=False)
class Symmetry:
    """Period g of num_ranks ranks, and for each Buffer the owners of its chunks; None where chunks stay as they are."""

    period: int
    num_ranks: int
    owners: tuple[ChunkOwners | None, ...]

    def rotated(self, buffer: npt.ArrayLike, chunk: npt.NDArray[Any], times: npt.ArrayLike) -> Wide:
        """Where this many rotations, possibly below 0, take chunks of a buffer. Arguments broadcast.

        Chunks must exist in the buffer; a chunk below 0 stays as it is.
        """
        buffers, chunks, rotations = np.broadcast_arrays(np.asarray(buffer), np.asarray(chunk, np.int64), times)
        moved: Wide = chunks
        for one, owners in enumerate(self.owners):
            rotating = np.flatnonzero((buffers == one) & (chunks >= 0)) if owners else ()
            if owners is None or not len(rotating):
                continue
            everything = len(rotating) == moved.size and moved.ndim == 1
            at, by = (chunks, rotations) if everything else (chunks.ravel()[rotating], rotations.ravel()[rotating])
            there: Wide = owners.chunks[(owners.rank[at] + by * self.period) % self.num_ranks, owners.index[at]]
            if everything:
                return there
            moved = moved.copy()
            moved.reshape(-1)[rotating] = there
        return moved

    def orbit(self, chunk: npt.NDArray[Any]) -> Wide:
        """The chunk of `data` that stands for all chunks that rotations take to one another; shaped like chunk."""
        owners = self.owners[Buffer.DATA]
        assert owners is not None
        found: Wide = owners.chunks[owners.rank[chunk] % self.period, owners.index[chunk]]
        return found


_known: WeakKeyDictionary[Schedule, "Symmetry | None"] = WeakKeyDictionary()


def of(schedule: Schedule) -> Symmetry | None:
    """The symmetry of this schedule, found once and remembered; see find."""
    if schedule not in _known:
        _known[schedule] = find(schedule)
    return _known[schedule]


def find(schedule: Schedule) -> Symmetry | None:
    """The symmetry with the shortest period, or None. The schedule must hold law 1. `of` remembers the answer."""
    keys = np.random.default_rng(int(schedule.digest[:32], 16)).integers(0, 1 << 64, (2, 2), np.uint64)
    return next((one for one in _candidates(schedule) if _holds(schedule, one, keys)), None)


def _candidates(schedule: Schedule) -> Iterator[Symmetry]:
    """Symmetries that the collective and the sizes of a schedule allow, shortest period first."""
    kind, p, k = schedule.kind, schedule.num_ranks, schedule.chunks_per_block
    width = p * k if kind.blocks == "pair" and not schedule.uses_data else schedule.num_chunks
    width += schedule.num_scratch
    periods = [period for period in range(1, p // 2 + 1) if p % period == 0 and period * width <= _MOST_PLACES]
    if kind.rooted or not periods:
        return
    require_memory(_BYTES * width, f"comparing {p} ranks of {kind.name} in {schedule.num_chunks} chunks")
    data = _owners_of_data(schedule)
    if data is None:
        return
    own = ChunkOwners(np.arange(p * k).reshape(p, k)) if kind.blocks == "pair" else None
    ends = (data if extent == "whole" else own for extent in (kind.input, kind.output))
    owners = (data, *ends, None)
    for period in periods:
        yield Symmetry(period, p, owners)


def _owners_of_data(schedule: Schedule) -> ChunkOwners | None:
    """The rank that each chunk of `data` belongs to; None if there is no answer."""
    p, k, num_chunks = schedule.num_ranks, schedule.chunks_per_block, schedule.num_chunks
    if schedule.kind.blocks == "rank":
        return ChunkOwners(np.arange(num_chunks).reshape(p, k))
    if schedule.kind.blocks == "pair":
        rank = np.arange(p)[:, None]
        blocks = rank * p + (rank + np.arange(p)) % p
        return ChunkOwners((blocks[:, :, None] * k + np.arange(k)).reshape(p, p * k))
    for repeat in schedule.repeats:
        if num_chunks % p == 0 and repeat.step.count.sum() == num_chunks:
            step, _ = repeat.step.spread()
            order = np.argsort(step.dst, kind="stable")
            chunk = step.dst_chunk[order]
            alike = (step.dst[order] == np.arange(num_chunks) // (num_chunks // p)).all()
            if alike and (step.dst_buffer != Buffer.SCRATCH).all() and len(np.unique(chunk)) == num_chunks:
                return ChunkOwners(chunk.reshape(p, -1))
    return None


def _holds(schedule: Schedule, symmetry: Symmetry, keys: Words) -> bool:
    sums = _Sums(schedule, symmetry, keys)
    num_chunks = schedule.num_chunks
    for repeat in schedule.repeats:  # Two ranks are enough to refuse most schedules without a symmetry.
        rows = np.flatnonzero((repeat.step.dst == 0) | (repeat.step.dst == symmetry.period))
        if len(rows) and not sums.agree(repeat.step.take(rows), of_rank_0=True):
            return False
    rotated = symmetry.rotated(Buffer.DATA, np.arange(num_chunks), 1)
    for repeat in schedule.repeats:
        # If a shift and a rotation do not commute, one repetition says nothing about the next one.
        apart = repeat.shift and (np.roll(rotated, -repeat.shift) != (rotated + repeat.shift) % num_chunks).any()
        for i in range(repeat.times if apart else 1):
            step = repeat.step.shifted(repeat.shift * i, num_chunks) if i else repeat.step
            if not sums.agree(step):
                return False
    return True


class _Sums:
    """Every rank's sums of random numbers for the rows of a step, as they are and after a rotation."""

    def __init__(self, schedule: Schedule, symmetry: Symmetry, keys: Words) -> None:
        self.symmetry, self.row_keys = symmetry, keys[:, 1].tolist()
        self.tables: dict[tuple[int, int, int], Words] = {}  # By rotations, key and buffer: a number for every chunk.
        limits = Shape.of(schedule).limits.max(axis=1).tolist()
        for key, seed in enumerate(keys[:, 0].tolist()):
            table = np.random.default_rng(seed).integers(0, 1 << 64, max(limits), np.uint64)
            for buffer, size in enumerate(limits):
                for rotations in (0, 1):
                    self.tables[rotations, key, buffer] = table[symmetry.rotated(buffer, np.arange(size), rotations)]
        self.up_to: dict[tuple[int, ...], Words] = {}  # By the same and stride: sums of the numbers so far.

    def agree(self, step: Step, *, of_rank_0: bool = False) -> bool:
        """Whether the rotated rows of every rank, or of rank 0 only, are the rows of the rank one period further on."""
        index, owners = step.row_groups()[0], self.symmetry.owners
        ahead = step.src_chunk.astype(np.int64) - step.dst_chunk
        # Where both ends of a range rotate in the same way, one end says where the other is.
        whole = np.zeros(len(step), bool)
        for one in np.unique(step.dst_buffer).tolist():
            alike = [other for other in Buffer if owners[other] is owners[one]]
            near = True if owners[one] is None else ahead == 0
            whole |= (step.dst_buffer == one) & np.isin(step.src_buffer, alike) & near
        if whole.all():
            sums = self.of(step, index, ahead - ahead.min(), None)
        else:
            part, rest = step.take(whole), step.take(~whole)
            if int(rest.count.sum()) > _MOST_ROWS:
                return False
            single, rows = rest.spread()
            rotated = self.symmetry.rotated(single.src_buffer, single.src_chunk, 1)
            sums = self.of(single, index[~whole][rows], single.src_chunk, rotated)
            if len(part):
                sums += self.of(part, index[whole], ahead[whole] - ahead[whole].min(), None)
        same = np.roll(sums[1], self.symmetry.period, axis=-1) == sums[0]
        return bool(same[:, self.symmetry.period].all() if of_rank_0 else same.all())

    def of(self, step: Step, index: Wide, source: npt.NDArray[Any], rotated: Wide | None) -> Words:
        """Sums of these rows as they are [0] and rotated [1], by key and rank.

        `index` has the numbers of rows in their groups. `source` says where each row's source is, and `rotated` where
        the source is after a rotation, if the two differ.
        """
        num_ranks, period = self.symmetry.num_ranks, self.symmetry.period
        sums = np.zeros((2, len(self.row_keys), num_ranks), np.uint64)
        stride = np.where(step.count == 1, 1, step.stride)
        last = step.dst_chunk + (step.count - 1) * stride
        what = step.src_buffer + 4 * step.dst_buffer + 16 * step.reduce
        sources = source, source if rotated is None else rotated
        limits = (32, int(index.max()) + 1, num_ranks, max(int(one.max()) for one in sources) + 1)
        for begin in range(0, len(step), _SLAB):
            slab = slice(begin, begin + _SLAB)
            first, end, dst = step.dst_chunk[slab], last[slab], step.dst[slab]
            kinds = _kinds(step.dst_buffer[slab], stride[slab])
            for rotations in (0, 1):
                src = (step.src[slab] + rotations * period) % num_ranks
                packed = _packed((what[slab], index[slab], src, sources[rotations][slab]), limits)
                for key, row_key in enumerate(self.row_keys):
                    # Two kinds of rows are packed in two ways, so they have two keys.
                    factor = np.full(len(src), row_key ^ (rotated is None), np.uint64)
                    for words in packed:
                        factor = mix(factor * np.uint64(0xD1342543DE82EF95) + words)
                    for rows, buffer, every in kinds:
                        up_to = self.sums_up_to(rotations, key, buffer, every)
                        ranges = up_to[end[rows] + every] - up_to[first[rows]]
                        np.add.at(sums[rotations, key], dst[rows], factor[rows] * ranges)
        return sums

    def sums_up_to(self, rotations: int, key: int, buffer: int, stride: int) -> Words:
        """At chunk + stride: the sum, modulo 2**64, of the numbers of this chunk and all those strides before it."""
        found = self.up_to.get((rotations, key, buffer, stride))
        if found is None:
            table = self.tables[rotations, key, buffer]
            padded = np.zeros(stride + -(-len(table) // stride) * stride, np.uint64)
            padded[stride : stride + len(table)] = table
            found = np.cumsum(padded.reshape(-1, stride), axis=0, dtype=np.uint64).ravel()
            if len(self.up_to) == _MOST_TABLES:
                self.up_to.clear()
            self.up_to[rotations, key, buffer, stride] = found
        return found


def _kinds(buffer: npt.NDArray[np.uint8], stride: npt.NDArray[Any]) -> list[tuple[Any, int, int]]:
    """Rows by buffer and stride: (which rows, buffer, stride)."""
    kind = stride.astype(np.int64) * len(Buffer) + buffer
    if (kind == kind[0]).all():
        return [(slice(None), int(buffer[0]), int(stride[0]))]
    return [(np.flatnonzero(kind == one), one % len(Buffer), one // len(Buffer)) for one in np.unique(kind).tolist()]


def _packed(columns: tuple[npt.NDArray[Any], ...], limits: tuple[int, ...]) -> list[Words]:
    """Columns joined into fewer columns of numbers; different rows stay different. Numbers lie below their limits."""
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
