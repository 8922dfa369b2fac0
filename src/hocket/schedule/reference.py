"""What a schedule computes, to the bit: the living definition, in NumPy, one row group at a time.

The native executor and every plan are tested against this. It is slow and plain on purpose.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hocket.errors import ScheduleError
from hocket.schedule.collective import Ints, chunk_bounds
from hocket.schedule.ir import Schedule
from hocket.schedule.places import Fold, Places
from hocket.schedule.reduction import Array, Reduction, check_reduction, fold


def run(
    schedule: Schedule,
    inputs: Sequence[Array | None],
    reduction: str | Reduction = "sum",
    *,
    block_lengths: Ints | None = None,
) -> list[Array | None]:
    """The output of every rank, in new one-dimensional arrays; None for a rank without output.

    `inputs` has an array for each rank, all of one dtype and C-contiguous; None for a rank to which the collective
    gives no input (anything else there is ignored). An array is as long as the blocks that the rank's input holds.
    Blocks have equal lengths, or in an uneven collective those of block_lengths (elements of every block of `data`). A
    barrier folds its token with max, whatever `reduction` says. ScheduleError if a row reads a place that was never
    written.
    """
    kind = schedule.kind
    given = _inputs(schedule, inputs)
    lengths = _block_lengths(schedule, given, block_lengths)
    dtype = next(array.dtype for array in given if array is not None)
    if kind.name == "barrier":
        reduction = "max"
    elif kind.reduces:
        check_reduction(reduction, dtype)
    contents = _Contents(schedule, given, lengths, reduction, dtype)
    for step in contents.places.folds():
        contents.apply(step)
    return contents.outputs()


class _Contents:
    """What places hold, how many contributions are in it, and whether it is a rank's own, as yet unread by a row."""

    def __init__(
        self,
        schedule: Schedule,
        inputs: Sequence[Array | None],
        lengths: Ints,
        reduction: str | Reduction,
        dtype: np.dtype[Any],
    ) -> None:
        self.schedule, self.lengths, self.reduction, self.dtype = schedule, lengths, reduction, dtype
        self.places, self.counts = Places(schedule), schedule.kind.counts_contributions
        self.held: list[Array | None] = [None] * self.places.count
        self.contributions = [0] * self.places.count
        self.raw = [False] * self.places.count
        cuts = {rank: iter(_cut(schedule, rank, array, lengths)) for rank, array in enumerate(inputs)}
        for place, rank, _ in zip(*(column.tolist() for column in self.places.inputs()), strict=True):
            self.held[place], self.contributions[place], self.raw[place] = next(cuts[rank]), 1, self.counts

    def apply(self, step: Fold) -> None:
        """Carry out one step: everything is read before anything is written."""
        p, results = self.schedule.num_ranks, []
        pattern = step.pattern
        for start, count, place in zip(
            pattern.starts.tolist(), pattern.counts.tolist(), step.writes.tolist(), strict=True
        ):
            reads = step.reads[start : start + count].tolist()
            operands = [operand for read in reads if (operand := self.held[read]) is not None]
            if len(operands) < count:
                raise ScheduleError(
                    f"step {step.number}: a row reads a place that holds nothing: {step.describe(start)}"
                )
            total = sum(self.contributions[read] for read in reads)
            raw = [self.raw[read] for read in reads]
            completes = self.counts and count > 1 and total == p
            results.append((place, self.fold(operands, raw, completes), total))
        for place, result, total in results:
            self.held[place], self.contributions[place], self.raw[place] = result, total, False

    def fold(self, operands: list[Array], raw: list[bool], completes: bool = False) -> Array:
        """A row group; one operand is copied, unless it is raw."""
        if len(operands) == 1 and not raw[0]:
            return operands[0]
        return fold(operands, self.reduction, self.dtype, completes, self.schedule.num_ranks, raw)

    def outputs(self) -> list[Array | None]:
        """Every rank's output. The only rank's is read from its input here, where no row has done it."""
        p = self.schedule.num_ranks
        parts: list[list[Array | None]] = [[] for _ in range(p)]
        for place, rank, _ in zip(*(column.tolist() for column in self.places.outputs()), strict=True):
            value = self.held[place]
            parts[rank].append(value if value is None else self.fold([value], [self.raw[place] and p == 1]))
        return [_joined(rank, pieces) for rank, pieces in enumerate(parts)]


def _inputs(schedule: Schedule, inputs: Sequence[Array | None]) -> list[Array | None]:
    """One-dimensional, and None where there is none; ValueError unless there is one for each rank, all of one dtype."""
    has_input = schedule.kind.num_input_blocks(schedule.num_ranks, schedule.root) > 0
    if len(inputs) != schedule.num_ranks:
        raise ValueError(f"expected {schedule.num_ranks} inputs, one for each rank; found {len(inputs)}")
    given = [np.asarray(array).reshape(-1) if has else None for array, has in zip(inputs, has_input, strict=True)]
    dtypes = [str(array.dtype) for array in given if array is not None]
    if len(set(dtypes)) != 1:
        raise ValueError(f"expected inputs of one dtype and length, found {dtypes}")
    return given


def _block_lengths(schedule: Schedule, given: Sequence[Array | None], block_lengths: Ints | None) -> Ints:
    """Elements of every block of data; ValueError where the inputs are not as long as they should be."""
    kind, p = schedule.kind, schedule.num_ranks
    held = [kind.input_blocks(rank, p, schedule.root) for rank in range(p)]
    sizes = [0 if array is None else array.size for array in given]
    if kind.uneven:
        if block_lengths is None or len(block_lengths) != kind.num_blocks(p):
            raise ValueError(f"{kind.name}: expected the lengths of {kind.num_blocks(p)} blocks, found {block_lengths}")
        lengths = np.asarray(block_lengths, np.int64)
        expected = [int(lengths[blocks].sum()) for blocks in held]
        if sizes != expected:
            raise ValueError(f"{kind.name}: expected inputs of {expected} elements, found {sizes}")
        return lengths
    if block_lengths is not None:
        raise ValueError(f"{kind.name}: expected no block_lengths, as blocks are equally long; found {block_lengths}")
    known = {(size, len(blocks)) for size, blocks in zip(sizes, held, strict=True) if blocks}
    size, num_held = known.pop()
    if known:
        raise ValueError(f"expected inputs of one dtype and length, found {sizes}")
    if size % num_held:
        raise ValueError(f"{kind.name}: expected a multiple of {num_held} elements, found {size}")
    return np.full(kind.num_blocks(p), size // num_held, np.int64)


def _cut(schedule: Schedule, rank: int, array: Array | None, lengths: Ints) -> list[Array]:
    """The chunks of a rank's input."""
    pieces: list[Array] = []
    if array is None:
        return pieces
    begin = 0
    for block in schedule.kind.input_blocks(rank, schedule.num_ranks, schedule.root):
        bounds = (begin + chunk_bounds(int(lengths[block]), schedule.chunks_per_block)).tolist()
        pieces += [array[first:last] for first, last in pairwise(bounds)]
        begin = bounds[-1]
    return pieces


def _joined(rank: int, pieces: list[Array | None]) -> Array | None:
    if not pieces:
        return None
    full = [piece for piece in pieces if piece is not None]
    if len(full) < len(pieces):
        raise ScheduleError(f"rank {rank}: {len(pieces) - len(full)} chunk(s) of the output were never written")
    return np.concatenate(full)
