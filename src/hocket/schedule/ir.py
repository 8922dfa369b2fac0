"""The schedule: steps as columns, one row for each transfer.

All sources of a step are read before any of its destinations is written. Rows of one step that write the same chunk
form a row group: one n-ary reduction, folded in row order and rounded once. A schedule is a sequence of repeats. A
repeat is one step, done a number of times with its chunks shifted, so a ring over any number of ranks needs only a few
rows.

Nothing is checked here: `shape` says which schedules are well formed, and `verify` which are correct.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.errors import name_count
from hocket.schedule.collective import Collective, find_collective, name_call

Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]


class Buffer(IntEnum):
    """What a row reads or writes. A schedule uses DATA, or INPUT and OUTPUT; both kinds may use SCRATCH too."""

    DATA = 0
    INPUT = 1
    OUTPUT = 2
    SCRATCH = 3


@dataclass(frozen=True, eq=False)
class Step:
    """Transfers that may happen together: columns of equal length, one row for each transfer.

    Row r moves chunks src_chunk + i * stride of src's src_buffer to chunks dst_chunk + i * stride of dst's dst_buffer,
    for i < count. They are added to what is there (`reduce`), or replace it. A row with src == dst is local. `group`
    numbers the row groups; only an expanded step has it.
    """

    src: Ints
    dst: Ints
    src_buffer: Bytes
    dst_buffer: Bytes
    src_chunk: Ints
    dst_chunk: Ints
    count: Ints
    stride: Ints
    reduce: Bools
    group: Ints | None = None
    _pattern: "tuple[Step, int, int] | None" = field(default=None, init=False, repr=False)  # replace() drops it
    well_formed_for: "tuple[str, int, int, int] | None" = field(
        default=None, init=False, repr=False
    )  # see Shape.passed

    def __len__(self) -> int:
        return len(self.src)

    def take(self, rows: npt.NDArray[Any]) -> "Step":
        """The step with these rows only: indices in the wanted order, or a mask."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        return Step(**columns, group=None if self.group is None else self.group[rows])

    def shifted(self, amount: int, num_chunks: int) -> "Step":
        """This step with every chunk of DATA, and no other chunk, moved on by amount, modulo num_chunks."""
        moved = replace(
            self,
            src_chunk=_shift(self.src_chunk, self.src_buffer, amount, num_chunks),
            dst_chunk=_shift(self.dst_chunk, self.dst_buffer, amount, num_chunks),
        )
        object.__setattr__(moved, "_pattern", (self, amount, num_chunks))
        return moved

    def expanded(self) -> "Step":
        """The same step with count == 1 in every row, the rows of a row group side by side, and `group` filled in.

        Groups are numbered by the first appearance of (dst, dst_buffer, dst_chunk) in row order; rows keep their order
        inside a group. The index of a row in this order is the number by which both ends of a channel know the row.
        """
        return self._expanded

    @cached_property
    def _expanded(self) -> "Step":
        if self.group is not None:
            return self
        if self._pattern is not None:  # A shift does not change the groups, so the groups of the pattern serve for all.
            pattern, amount, num_chunks = self._pattern
            return pattern.expanded().shifted(amount, num_chunks)
        step, _ = self.spread()
        group = _number_by_appearance(step.destinations())
        return replace(step, group=group).take(np.argsort(group, kind="stable"))

    def spread(self) -> "tuple[Step, npt.NDArray[np.int64]]":
        """The same step with count == 1 in every row, in row order, and for each of its rows the row that it comes
        from.
        """
        rows = np.repeat(np.arange(len(self)), self.count)
        if len(rows) == len(self):
            return self, rows
        step = self.take(rows)
        index = np.arange(len(rows)) - np.repeat(np.cumsum(self.count) - self.count, self.count)
        ahead = (index * step.stride).astype(np.int32)
        ones = np.ones_like(ahead)
        src_chunk, dst_chunk = step.src_chunk + ahead, step.dst_chunk + ahead
        return replace(step, src_chunk=src_chunk, dst_chunk=dst_chunk, count=ones, stride=ones), rows

    def row_groups(self) -> "tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]":
        """For every row: its number among the rows with its range, how many such rows there are, and the first of them.

        Nothing is expanded, so the step must hold law 1: ranges with a common chunk are equal.
        """
        size = len(self)
        index, sizes, leader = np.zeros(size, np.int64), np.ones(size, np.int64), np.arange(size)
        if not self.reduce.any():  # Only the first row of a group may copy.
            return index, sizes, leader
        keys = self.destinations()
        order = np.argsort(keys, kind="stable")
        begins = np.flatnonzero(np.diff(keys[order], prepend=-1))
        if len(begins) < size:
            lengths = np.diff(begins, append=size)
            index[order] = np.arange(size) - np.repeat(begins, lengths)
            sizes[order] = np.repeat(lengths, lengths)
            leader[order] = np.repeat(order[begins], lengths)
        return index, sizes, leader

    def part(self, rows: npt.NDArray[np.int64]) -> "tuple[Step, npt.NDArray[np.int64], Bools]":
        """What these rows become in the expanded step, without expanding the others; the step must hold law 1.

        Also the index of each row in the expanded step, and whether the row is the first of its row group.
        """
        index, sizes, leader = self.row_groups()
        places = np.where(index == 0, sizes * self.count, 0)
        first = (np.cumsum(places) - places)[leader] + index
        part, origin = self.take(rows).spread()
        origin = rows[origin]
        ahead = (part.dst_chunk - self.dst_chunk[origin]) // self.stride[origin]
        number = first[origin] + ahead * sizes[origin]
        order = np.argsort(number)
        return part.take(order), number[order], index[origin[order]] == 0

    def destinations(self) -> npt.NDArray[np.int64]:
        """One number for each row, equal exactly if (dst, dst_buffer, dst_chunk) are equal."""
        span = int(self.dst_chunk.max(initial=0)) + 1
        return (self.dst.astype(np.int64) * len(Buffer) + self.dst_buffer) * span + self.dst_chunk


COLUMNS = tuple(column.name for column in fields(Step) if column.name not in ("group", "_pattern", "well_formed_for"))


def concatenate(steps: Sequence[Step]) -> Step:
    """One step with the rows of all these steps, in their order."""
    columns: dict[str, Any] = {name: np.concatenate([getattr(step, name) for step in steps]) for name in COLUMNS}
    return Step(**columns)


def _shift(chunk: Ints, buffer: Bytes, amount: int, num_chunks: int) -> Ints:
    moved: Ints = ((chunk + np.int64(amount)) % num_chunks).astype(np.int32)
    return moved if not buffer.any() else np.where(buffer == Buffer.DATA, moved, chunk)


def _number_by_appearance(keys: npt.NDArray[np.int64]) -> Ints:
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int32)
    number[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return number[inverse]


@dataclass(frozen=True, eq=False)
class Repeat:
    """One step, `times` times: repetition i has its chunks of DATA moved on by shift * i, modulo the chunk count.

    `site` is the "file:line" of the program that wrote the step, for messages; it does not belong to the schedule's
    content.
    """

    step: Step
    times: int = 1
    shift: int = 0
    site: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """All ranks' steps for one collective, rank count and root. It never changes; equal content has an equal digest."""

    collective: str
    num_ranks: int
    num_chunks: int
    root: int
    repeats: tuple[Repeat, ...]
    num_scratch: int = 0

    def __repr__(self) -> str:
        counts = [name_count(self.num_steps, "step"), name_count(self.num_rows, "row")]
        return f"<Schedule: {name_call(self.collective, self.num_ranks, self.root)}, {', '.join(counts)}>"

    @property
    def kind(self) -> Collective:
        """The collective itself."""
        return find_collective(self.collective)

    @property
    def chunks_per_block(self) -> int:
        """k: the number of chunks that each block of `data` is cut into."""
        return self.kind.chunks_per_block(self.num_ranks, self.num_chunks)

    @property
    def num_steps(self) -> int:
        """The number of steps, with every repetition counted."""
        return sum(repeat.times for repeat in self.repeats)

    @property
    def num_rows(self) -> int:
        """The number of single-chunk transfers, with every repetition counted."""
        return sum(repeat.times * int(repeat.step.count.sum()) for repeat in self.repeats)

    def sent(self) -> npt.NDArray[np.int64]:
        """The number of chunks that each rank sends to others: int64[num_ranks]."""
        sent = np.zeros(self.num_ranks, np.int64)
        for repeat in self.repeats:
            step = repeat.step
            away = step.src != step.dst
            chunks = np.bincount(step.src[away], step.count[away], self.num_ranks)
            sent += repeat.times * chunks.astype(np.int64)
        return sent

    @property
    def vector_chunks(self) -> int:
        """Chunks of the vector that sizes and promises count in: `data`, or for pairs of ranks what one rank gives."""
        return self.num_chunks // (self.num_ranks if self.kind.blocks == "pair" else 1)

    def most_sent(self) -> Fraction:
        """The most that a rank sends to others, in units of this vector."""
        return Fraction(int(self.sent().max()), self.vector_chunks)

    @cached_property
    def uses_data(self) -> bool:
        """False if rows name INPUT or OUTPUT explicitly."""
        return not any(
            ((buffer == Buffer.INPUT) | (buffer == Buffer.OUTPUT)).any()
            for repeat in self.repeats
            for buffer in (repeat.step.src_buffer, repeat.step.dst_buffer)
        )

    def steps(self) -> Iterator[Step]:
        """Every step in order, one at a time; a repetition is made when it is asked for."""
        for repeat in self.repeats:
            yield repeat.step
            for i in range(1, repeat.times):
                yield repeat.step.shifted(repeat.shift * i, self.num_chunks)

    def site(self, step: int) -> str:
        """Where this step was written, as "file:line"; empty if unknown."""
        for repeat in self.repeats:
            if step < repeat.times:
                return repeat.site
            step -= repeat.times
        return ""

    @cached_property
    def digest(self) -> str:
        """sha256, in hex, of everything that has meaning: the key of all caches of plans and proofs."""
        content = hashlib.sha256()
        head = (self.collective, self.num_ranks, self.num_chunks, self.root, self.num_scratch)
        content.update(f"hocket schedule 1 {head}".encode())
        for repeat in self.repeats:  # The text says "block", the former name: another would change all digests.
            content.update(f"block {repeat.times} {repeat.shift} {len(repeat.step)}".encode())
            for name in COLUMNS:
                content.update(getattr(repeat.step, name).tobytes())
        return content.hexdigest()
