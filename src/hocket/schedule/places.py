"""Numbers for all places of a schedule, and its steps as folds from places to places.

A *place* is one chunk of one buffer of one rank. `verify` keeps contributions and hashes for each place, and the
reference interpreter keeps values; all of them move by the same folds. In a symmetric schedule, the places and folds of
a few ranks stand for those of all ranks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hocket.schedule.capacity import require_memory
from hocket.schedule.ir import Buffer, Repeat, Schedule, Step
from hocket.schedule.shape import Shape, describe

if TYPE_CHECKING:
    from hocket.schedule.symmetry import Symmetry

Indices = npt.NDArray[np.int64]

_BYTES = 48
"""Bytes for each place, at least: its content, number, rank and chunk, and intermediate results."""

_KEPT, _MOST_KEPT_ROWS = 64, 1 << 14  # remembered schedules; most rows of one whose patterns are kept


@dataclass(frozen=True, eq=False)
class FoldPattern:
    """What all repetitions of a repeat share: how its row groups fold, and which places they read and write.

    Group g folds the operands from starts[g], counts[g] of them. The first operand is the old content of the written
    place, unless the first row of the group is a copy. A base is the place of chunk 0 of DATA, to which a moving chunk
    is added, or the place itself. read_rotations says how many rotations of the schedule's symmetry lead from the place
    that stands for a source to the source itself.
    """

    step: Step
    row_of_read: Indices
    starts: Indices
    counts: Indices
    max_count: int
    read_base: Indices
    read_chunk: Indices
    read_moves: npt.NDArray[np.bool_]
    read_rotations: Indices
    write_base: Indices
    write_chunk: Indices
    write_moves: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Fold:
    """One step: for every row group, the places that it reads, in order, and the place that it writes."""

    number: int
    reads: Indices
    writes: Indices
    pattern: FoldPattern
    repeat: Repeat
    offset: int
    num_chunks: int

    @property
    def step(self) -> Step:
        """The step with single chunks, for this repetition."""
        return self.pattern.step.shifted(self.offset, self.num_chunks)

    def describe(self, read: int) -> str:
        """The row behind an operand in words, and the line that wrote it."""
        row = int(self.pattern.row_of_read[read])
        return describe(self.step, row) + (f" ({self.repeat.site})" if self.repeat.site else "")

    def where(self, read: int) -> dict[str, int]:
        """Step, rank and chunk that an operand is folded into: arguments of VerifyError."""
        row, step = int(self.pattern.row_of_read[read]), self.step
        return {"step": self.number, "rank": int(step.dst[row]), "chunk": int(step.dst_chunk[row])}


class Places:
    """The places of a well-formed schedule: those of rank r begin at r * width.

    With a symmetry there are only places of the first `period` ranks, which stand for all others. The steps are then
    what these ranks write, and a read from another rank becomes a read of the place that stands for it.
    """

    def __init__(self, schedule: Schedule, symmetry: "Symmetry | None" = None) -> None:
        self.schedule, self.symmetry = schedule, symmetry
        self.num_ranks = symmetry.period if symmetry else schedule.num_ranks
        shape = Shape.of(schedule)
        if schedule.uses_data:
            sizes = [schedule.num_chunks, 0, 0, schedule.num_scratch]
        else:
            limits = shape.limits.max(axis=1)
            sizes = [0, int(limits[Buffer.INPUT]), int(limits[Buffer.OUTPUT]), schedule.num_scratch]
        self.begins = np.cumsum([0, *sizes[:-1]])
        self.width = max(sum(sizes), 1)
        self.count = self.width * self.num_ranks
        self._patterns: dict[int, FoldPattern] | None = {} if schedule.num_rows <= _MOST_KEPT_ROWS else None

    def require_memory(self, bytes_each: int) -> None:
        """ResourceError if this many bytes for every place are too many. Ask before any of them is allocated."""
        schedule = self.schedule
        scratch = f" and {schedule.num_scratch} slots of scratch" if schedule.num_scratch else ""
        what = f"following {self.num_ranks} ranks of {schedule.collective} in {schedule.num_chunks} chunks{scratch}"
        require_memory(bytes_each * self.count, what)

    def inputs(self) -> tuple[Indices, Indices, Indices]:
        """(place, rank, chunk of `data`) of everything that ranks hold before the first step. ResourceError if it is
        too much.
        """
        self.require_memory(_BYTES)
        blocks = self.schedule.kind.num_input_blocks(self.schedule.num_ranks, self.schedule.root)
        return self._ends(blocks, self.schedule.kind.input_block, Buffer.INPUT)

    def outputs(self) -> tuple[Indices, Indices, Indices]:
        """(place, rank, chunk of `data`) of everything that ranks must hold after the last step."""
        blocks = self.schedule.kind.num_output_blocks(self.schedule.num_ranks, self.schedule.root)
        return self._ends(blocks, self.schedule.kind.output_block, Buffer.OUTPUT)

    def folds(self) -> Iterator[Fold]:
        """Every step in order."""
        number, num_chunks = 0, self.schedule.num_chunks
        for index, repeat in enumerate(self.schedule.repeats):
            pattern = self._pattern_of(index, repeat.step)
            for i in range(repeat.times):
                offset = repeat.shift * i
                reads = self._reads(pattern, offset)
                writes = _moved(pattern.write_base, pattern.write_chunk, pattern.write_moves, offset, num_chunks)
                yield Fold(number, reads, writes, pattern, repeat, offset, num_chunks)
                number += 1

    def _reads(self, pattern: FoldPattern, offset: int) -> Indices:
        num_chunks, moves = self.schedule.num_chunks, pattern.read_moves
        if self.symmetry is None:
            return _moved(pattern.read_base, pattern.read_chunk, moves, offset, num_chunks)
        chunk = (pattern.read_chunk + offset * moves) % num_chunks
        return pattern.read_base + self.symmetry.rotated(Buffer.DATA, chunk, -pattern.read_rotations * moves)

    def _ends(
        self, num_blocks: Indices, block_at: Callable[[Indices, Indices, int], Indices], buffer: Buffer
    ) -> tuple[Indices, Indices, Indices]:
        k = self.schedule.chunks_per_block
        sizes = num_blocks[: self.num_ranks] * k
        rank = np.repeat(np.arange(len(sizes)), sizes)
        index = np.arange(len(rank)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        chunk = block_at(rank, index // k, self.schedule.num_ranks) * k + index % k
        uses_data = self.schedule.uses_data
        return rank * self.width + (chunk if uses_data else self.begins[buffer] + index), rank, chunk

    def _pattern_of(self, index: int, step: Step) -> FoldPattern:
        """The pattern of the repeat with this index; kept if the schedule is small."""
        found = self._patterns.get(index) if self._patterns is not None else None
        if found is None:
            symmetry = self.symmetry
            found = self._pattern((step.take(step.dst < symmetry.period) if symmetry else step).expanded())
            if self._patterns is not None:
                self._patterns[index] = found
        return found

    def _pattern(self, step: Step) -> FoldPattern:
        assert step.group is not None
        first = np.flatnonzero(np.diff(step.group, prepend=-1))
        old = step.reduce[first]  # Groups whose first operand is the old content of their place.
        sides = []
        for rank, buffer, chunk in (
            (step.src, step.src_buffer, step.src_chunk),
            (step.dst, step.dst_buffer, step.dst_chunk),
        ):
            moves = buffer == Buffer.DATA
            rotations = rank // self.num_ranks  # 0 if every rank stands for itself.
            still = self.symmetry.rotated(buffer, chunk, -rotations) if self.symmetry else chunk
            fixed = (rank % self.num_ranks).astype(np.int64) * self.width + self.begins[buffer]
            fixed += np.where(moves, 0, still)
            sides.append((fixed, np.where(moves, chunk, 0).astype(np.int64), moves, rotations.astype(np.int64)))
        (src, dst), at = sides, first[old]
        row_of_read = np.arange(len(step))
        if len(at):  # The first row of such a group comes twice: the first time it stands for the old content.
            row_of_read = np.repeat(row_of_read, 1 + np.bincount(at, minlength=len(step)))
        is_old = np.zeros(len(row_of_read), bool)
        is_old[at + np.arange(len(at))] = True

        def reads(of_source: npt.NDArray[Any], of_place: npt.NDArray[Any]) -> Any:
            return np.where(is_old, of_place[row_of_read], of_source[row_of_read]) if len(at) else of_source

        read_base, read_chunk, read_moves, read_rotations = map(reads, src, dst)
        starts = first + np.cumsum(old) - old
        counts = np.diff(starts, append=len(read_base))
        return FoldPattern(
            step=step,
            row_of_read=row_of_read,
            starts=starts,
            counts=counts,
            max_count=int(counts.max(initial=0)),
            read_base=read_base,
            read_chunk=read_chunk,
            read_moves=read_moves,
            read_rotations=read_rotations,
            write_base=dst[0][first],
            write_chunk=dst[1][first],
            write_moves=dst[2][first],
        )


@lru_cache(_KEPT)
def places_of(schedule: Schedule) -> Places:
    """The places of a schedule. Remembered for a while, because one proof asks several times."""
    return Places(schedule)


def _moved(base: Indices, chunk: Indices, moves: npt.NDArray[np.bool_], offset: int, num_chunks: int) -> Indices:
    places: Indices = base + (chunk + offset * moves) % num_chunks if offset else base + chunk
    return places
