"""Law 1: the form that a row must have to mean anything. The builder checks every step, `verify` whole schedules."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.errors import ScheduleError, VerifyError
from hocket.schedule.capacity import require_memory
from hocket.schedule.collective import Collective
from hocket.schedule.ir import COLUMNS, Bools, Buffer, Repeat, Schedule, Step

Sizes = npt.NDArray[np.integer[Any]]
CHUNKS_BELOW = 1 << 31  # columns of a step have 32 bits
_UNKNOWN = -1  # the size class of an empty slot of scratch


@dataclass(frozen=True)
class Fault:
    """What is wrong with one row of a step: its index, the rank and chunk concerned, and what was expected instead."""

    row: int
    rank: int
    chunk: int
    message: str
    expected: str
    found: str

    def __str__(self) -> str:
        place = f"rank {self.rank}, chunk {self.chunk}"
        return f"{self.message} ({place}): expected {self.expected}, found {self.found}"


class Shape:
    """How many chunks each buffer of each rank has, and which chunks have equal lengths.

    Without num_scratch, scratch is as large as the rows need it (while a schedule is being built).
    """

    def __init__(
        self, kind: Collective, num_ranks: int, num_chunks: int, root: int, num_scratch: int | None = None
    ) -> None:
        if num_ranks < 1:
            raise ScheduleError(f"{kind.name}: expected at least 1 rank, found {num_ranks}")
        if not 0 <= root < num_ranks:
            raise ScheduleError(f"{kind.name} of {num_ranks} ranks: expected a root below {num_ranks}, found {root}")
        if num_chunks >= CHUNKS_BELOW:
            raise ScheduleError(
                f"{kind.name} of {num_ranks} ranks: expected fewer than 2**31 chunks, found {num_chunks}; cut `data` in"
                " fewer"
            )
        self.kind, self.num_ranks, self.num_chunks, self.root = kind, num_ranks, num_chunks, root
        self._key = kind.name, num_ranks, num_chunks, root
        self.chunks_per_block = kind.chunks_per_block(num_ranks, num_chunks)
        limits = np.empty((len(Buffer), num_ranks), np.int64)
        limits[Buffer.DATA] = num_chunks
        limits[Buffer.INPUT] = kind.num_input_blocks(num_ranks, root) * self.chunks_per_block
        limits[Buffer.OUTPUT] = kind.num_output_blocks(num_ranks, root) * self.chunks_per_block
        limits[Buffer.SCRATCH] = np.iinfo(np.int32).max if num_scratch is None else num_scratch
        self.limits = limits

    @classmethod
    def of(cls, schedule: Schedule) -> "Shape":
        """The shape of a finished schedule."""
        return cls(schedule.kind, schedule.num_ranks, schedule.num_chunks, schedule.root, schedule.num_scratch)

    def find_fault(self, step: Step) -> Fault | None:
        """The first thing that is wrong with a step by itself, or None."""
        if step.well_formed_for == self._key:
            return None
        return self.find_range_fault(step) or self.find_size_fault(step) or self._groups(step)

    def passed(self, step: Step) -> None:
        """Remember that find_fault found nothing in a step whose columns cannot be written any more."""
        columns = (getattr(step, name) for name in COLUMNS)
        scratch = (step.src_buffer == Buffer.SCRATCH) | (
            step.dst_buffer == Buffer.SCRATCH
        )  # The size of scratch is not known yet.
        if not scratch.any() and not any(column.flags.writeable for column in columns):
            object.__setattr__(step, "well_formed_for", self._key)

    def find_range_fault(self, step: Step) -> Fault | None:
        """The first row with a rank or chunk that does not exist, or None."""
        return self._ranks(step) or self._chunks(step)

    def find_size_fault(self, step: Step) -> Fault | None:
        """The first row between places of unequal length, or of a length that one end does not know, or None."""
        # In an even collective the first chunk speaks for its row; the content of scratch depends on earlier steps.
        single, rows = step.spread() if self.kind.uneven else (step, np.arange(len(step)))
        source = self.size_class(single.src, single.src_buffer, single.src_chunk)
        target = self.size_class(single.dst, single.dst_buffer, single.dst_chunk)
        from_scratch, to_scratch = single.src_buffer == Buffer.SCRATCH, single.dst_buffer == Buffer.SCRATCH
        fault = self.find_difference(single, source, target, ~from_scratch & ~to_scratch)
        moved = np.where(from_scratch, np.where(to_scratch, _UNKNOWN, target), source)
        fault = fault or self.find_unknown_size(single, moved)
        return fault and replace(fault, row=int(rows[fault.row]))

    def find_difference(self, step: Step, source: Sizes, target: Sizes, where: Bools) -> Fault | None:
        """The first of these rows whose source and destination have different size classes, or None."""
        expected = "places of one size class (chunk modulo chunks per block)"
        if self.kind.uneven:
            expected = "places of one chunk of data, as blocks differ in length"
        return _first(where & (source != target), step, "source and destination have different sizes", expected, source)

    def find_unknown_size(self, step: Step, moved: Sizes) -> Fault | None:
        """The first row with an end that does not know the length of the chunk that the row moves, or None.

        `moved` has each row's size class, or _UNKNOWN for rows that are not checked; count == 1 in every row.
        """
        if self.kind.known_by_all:
            return None
        block = moved // self.chunks_per_block
        for side, rank in (("source", step.src), ("destination", step.dst)):
            wrong = (moved != _UNKNOWN) & ~self.kind.knows(rank, block, self.num_ranks, self.root)
            if wrong.any():
                row = int(np.argmax(wrong))
                message = f"the {side} does not know how long the chunk is"
                expected = "a chunk of a block that its own input or output holds"
                return Fault(row, int(rank[row]), int(moved[row]), message, expected, describe(step, row))
        return None

    def size_class(self, rank: npt.NDArray[Any], buffer: npt.NDArray[Any], chunk: npt.NDArray[Any]) -> Sizes:
        """The size class of chunks of these ranks' buffers, except scratch. Chunks with one size class have equal
        lengths.

        It is the chunk modulo chunks per block; if blocks differ in length, it is the number of the chunk in `data`.
        """
        k = self.chunks_per_block
        if not self.kind.uneven:
            return chunk % k
        block, within = np.divmod(chunk.astype(np.int64), k)
        for one, block_at in ((Buffer.INPUT, self.kind.input_block), (Buffer.OUTPUT, self.kind.output_block)):
            explicit = buffer == one
            if explicit.any():
                block = np.where(explicit, block_at(rank, block, self.num_ranks), block)
        classes: Sizes = block * k + within
        return classes

    def _chunks(self, step: Step) -> Fault | None:
        for side, rank, buffer, first in (
            ("source", step.src, step.src_buffer, step.src_chunk),
            ("destination", step.dst, step.dst_buffer, step.dst_chunk),
        ):
            last = first.astype(np.int64) + (step.count.astype(np.int64) - 1) * step.stride
            limit = self.limits[buffer, rank]
            wrong = (first < 0) | (last >= limit)
            if wrong.any():
                row = int(np.argmax(wrong))
                name = Buffer(buffer[row]).name.lower()
                chunk = int(first[row] if first[row] < 0 else last[row])
                have = f"a chunk of {name} from 0 to {limit[row] - 1}" if limit[row] else f"no {name}, it is empty here"
                return Fault(row, int(rank[row]), chunk, f"the {side} does not exist", have, str(chunk))
        return None

    def _ranks(self, step: Step) -> Fault | None:
        for side, rank in (("src", step.src), ("dst", step.dst)):
            expected = f"a rank from 0 to {self.num_ranks - 1}"
            fault = _first((rank < 0) | (rank >= self.num_ranks), step, f"{side} is not a rank", expected, rank)
            if fault:
                return fault
        buffer = np.maximum(step.src_buffer, step.dst_buffer)
        return (
            _first(step.count < 1, step, "a row moves no chunk", "count >= 1", step.count)
            or _first(step.stride < 1, step, "a row does not advance", "stride >= 1", step.stride)
            or _first(buffer >= len(Buffer), step, "no such buffer", "0 to 3", buffer)
            or _first(step.dst_buffer == Buffer.INPUT, step, "a row writes the input", "input only read", None)
        )

    def _groups(self, step: Step) -> Fault | None:
        suspects = np.arange(len(step))
        for stride in (False, True):
            meeting = _may_meet(step, stride)
            if not meeting.any():
                return None
            suspects, step = suspects[meeting], step.take(meeting)
        single, rows = step.spread()
        _, first, inverse = np.unique(single.destinations(), return_index=True, return_inverse=True)
        leader = first[inverse]
        later_copy = ~single.reduce & (leader != np.arange(len(rows)))
        fault = _first(later_copy, single, "only the first row that writes a chunk in a step may copy", "reduce", None)
        if fault is None:
            lead = rows[leader]
            overlap = np.zeros(len(rows), bool)
            for column in (step.dst_chunk, step.count, step.stride):
                overlap |= column[lead] != column[rows]
            expected = "ranges that are the same or have no chunk in common"
            fault = _first(overlap, single, "rows of one step write partly overlapping ranges", expected, None)
        return fault and replace(fault, row=int(suspects[rows[fault.row]]))


def check(schedule: Schedule) -> None:
    """Law 1 for a whole schedule; VerifyError naming step, rank and chunk."""
    shape = Shape.of(schedule)
    uses_data = schedule.uses_data
    number = 0
    for repeat in schedule.repeats:
        if repeat.times < 1 or not len(repeat.step):
            raise VerifyError("an empty step", law=1, step=number, expected="rows", found="none")
        _refuse(shape.find_fault(repeat.step), number, repeat)
        mixed = (repeat.step.src_buffer == Buffer.DATA) | (repeat.step.dst_buffer == Buffer.DATA)
        fault = _first(mixed & (not uses_data), repeat.step, "data beside input and output", "one or the other", None)
        _refuse(fault, number, repeat)
        # A shifted range may run over the end, or into chunks whose length a rank does not know.
        if repeat.shift and ((repeat.step.count != 1).any() or not shape.kind.known_by_all):
            for i in range(1, repeat.times):
                step = repeat.step.shifted(repeat.shift * i, schedule.num_chunks)
                _refuse(shape.find_range_fault(step) or shape.find_size_fault(step), number + i, repeat)
        number += repeat.times
    if schedule.num_scratch and (shape.chunks_per_block > 1 or shape.kind.uneven):
        _check_scratch(schedule, shape)


def _check_scratch(schedule: Schedule, shape: Shape) -> None:
    """A scratch slot has the size of what was last written to it, which must be the size of where it goes."""
    number = 0
    what = f"following {schedule.num_scratch} slots of scratch of {schedule.num_ranks} ranks"
    require_memory(8 * schedule.num_ranks * schedule.num_scratch, what)
    slots = np.full((schedule.num_ranks, schedule.num_scratch), _UNKNOWN)
    for repeat in schedule.repeats:
        for i in range(repeat.times):
            step = repeat.step.shifted(repeat.shift * i, schedule.num_chunks).expanded()
            assert step.group is not None
            from_scratch, to_scratch = step.src_buffer == Buffer.SCRATCH, step.dst_buffer == Buffer.SCRATCH
            size = shape.size_class(step.src, step.src_buffer, step.src_chunk)
            size[from_scratch] = slots[step.src[from_scratch], step.src_chunk[from_scratch]]
            # The first operand of each group: the old content of scratch, if rows fold into it; else the first source.
            leader = np.flatnonzero(np.diff(step.group, prepend=-1))[step.group]
            goal = np.where(to_scratch, size[leader], shape.size_class(step.dst, step.dst_buffer, step.dst_chunk))
            kept = to_scratch & step.reduce[leader]
            goal[kept] = slots[step.dst[kept], step.dst_chunk[kept]]
            known = (size != _UNKNOWN) & (goal != _UNKNOWN)  # A row that reads an empty slot breaks law 2.
            fault = shape.find_difference(step, size, goal, known) or shape.find_unknown_size(step, size)
            _refuse(fault, number, repeat)
            slots[step.dst[to_scratch], step.dst_chunk[to_scratch]] = goal[to_scratch]
            number += 1


def _may_meet(step: Step, stride: bool) -> Bools:
    """Rows of every buffer with ranges that may overlap in part: ranges that are not seen, unexpanded, to be equal or
    disjoint.

    Ranges are disjoint if one ends before the other begins; or, with `stride`, if all ranges in the buffer have one
    stride and they begin at different places modulo the stride. A later row with an equal range is suspicious if it
    copies.
    """
    buffer = step.dst.astype(np.int64) * len(Buffer) + step.dst_buffer
    track, guilty = np.zeros(len(step), np.int64), np.zeros(len(step), bool)
    if stride:
        _, of_buffer = np.unique(buffer, return_inverse=True)
        common = np.ones(len(step), np.int64)
        np.maximum.at(common, of_buffer, np.where(step.count > 1, step.stride, 1))
        guilty = (step.count > 1) & (step.stride != common[of_buffer])
        track = step.dst_chunk % common[of_buffer]
    order = np.lexsort((step.dst_chunk, track, buffer))
    first, count, every = step.dst_chunk[order], step.count[order], step.stride[order]
    last = first + (count - 1) * every
    near = np.diff(buffer[order] * (int(track.max(initial=0)) + 1) + track[order]) == 0
    same = (np.diff(first) == 0) & (np.diff(count) == 0) & (np.diff(every) == 0)
    wrong = near & np.where(same, ~step.reduce[order[1:]], first[1:] <= last[:-1])
    guilty[order[1:][wrong]] = True
    return np.isin(buffer, buffer[guilty]) if guilty.any() else guilty


def _refuse(fault: Fault | None, step: int, repeat: Repeat) -> None:
    if fault is not None:
        message = fault.message + (f" ({repeat.site})" if repeat.site else "")
        raise VerifyError(
            message, law=1, step=step, rank=fault.rank, chunk=fault.chunk, expected=fault.expected, found=fault.found
        )


def describe(step: Step, row: int) -> str:
    """One row in words, as in errors and in `hocket show`."""
    src = f"rank {step.src[row]} {Buffer(step.src_buffer[row]).name.lower()}[{step.src_chunk[row]}]"
    dst = f"rank {step.dst[row]} {Buffer(step.dst_buffer[row]).name.lower()}[{step.dst_chunk[row]}]"
    many = f" x{step.count[row]} stride {step.stride[row]}" if step.count[row] != 1 else ""
    return f"{'reduce' if step.reduce[row] else 'copy'} {src} -> {dst}{many}"


def _first(wrong: Bools, step: Step, message: str, expected: str, values: npt.NDArray[Any] | None) -> Fault | None:
    if not wrong.any():
        return None
    row = int(np.argmax(wrong))
    found = describe(step, row) if values is None else str(values[row])
    return Fault(row, int(step.dst[row]), int(step.dst_chunk[row]), message, expected, found)
