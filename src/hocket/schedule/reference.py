"""What a schedule computes, to the bit: the living definition, in NumPy, one row group at a time.

The native executor is tested against this, and so is every plan. It is slow and plain on purpose.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from hocket.errors import ScheduleError
from hocket.schedule.collective import chunk_bounds
from hocket.schedule.ir import Schedule
from hocket.schedule.places import Places
from hocket.schedule.reduction import Array, check_reduction, fold


def run(schedule: Schedule, inputs: Sequence[Array | None], reduction: str = "sum") -> list[Array | None]:
    """The output of every rank, in new one-dimensional arrays; None where a rank has none.

    `inputs` has an array for each rank, of one dtype and C-contiguous; None where the collective gives a rank no input
    (then anything there is ignored). Lengths: all the same, and for reduce_scatter a multiple of the rank count.
    A barrier folds its token with max, whatever `reduction` says. ScheduleError if a row reads what nothing wrote.
    """
    places, kind, p = Places(schedule), schedule.kind, schedule.num_ranks
    if len(inputs) != p:
        raise ValueError(f"expected {p} inputs, one for each rank; found {len(inputs)}")
    held: list[Array | None] = [None] * places.count
    contributions = [0] * places.count
    given = [
        np.asarray(array).reshape(-1) if kind.input_blocks(rank, p, schedule.root) else None
        for rank, array in enumerate(inputs)
    ]
    known = [array for array in given if array is not None]
    dtype, length = known[0].dtype, known[0].size
    if any(array.dtype != dtype or array.size != length for array in known):
        raise ValueError(f"expected inputs of one dtype and length, found {[(str(a.dtype), a.size) for a in known]}")
    num_input_blocks = p if kind.block_per_rank and kind.input != "own" else 1
    if length % num_input_blocks:
        raise ValueError(f"{kind.name}: expected a multiple of {num_input_blocks} elements, found {length}")
    bounds = chunk_bounds(length // num_input_blocks, schedule.chunks_per_block)
    if kind.name == "barrier":
        reduction = "max"
    elif kind.reduces:
        check_reduction(reduction, dtype)

    cuts = {rank: _cut(array, num_input_blocks, bounds) for rank, array in enumerate(given) if array is not None}
    following = {rank: iter(pieces) for rank, pieces in cuts.items()}
    for place, rank, _ in zip(*(column.tolist() for column in places.inputs()), strict=True):
        held[place] = next(following[rank])
        contributions[place] = 1

    for step in places.folds():
        results = []
        for start, count, place in zip(
            step.pattern.starts.tolist(), step.pattern.counts.tolist(), step.writes.tolist(), strict=True
        ):
            reads = step.reads[start : start + count].tolist()
            operands = [operand for read in reads if (operand := held[read]) is not None]
            if len(operands) < count:
                raise ScheduleError(
                    f"step {step.number}: a row reads a place that holds nothing: {step.describe(start)}"
                )
            total = sum(contributions[read] for read in reads)
            completes = kind.reduces and count > 1 and total == p
            results.append((place, fold(operands, reduction, dtype, completes, p) if count > 1 else operands[0], total))
        for place, result, total in results:
            held[place], contributions[place] = result, total

    outputs: list[list[Array | None]] = [[] for _ in range(p)]
    for place, rank, _ in zip(*(column.tolist() for column in places.outputs()), strict=True):
        outputs[rank].append(held[place])
    return [_joined(rank, pieces) for rank, pieces in enumerate(outputs)]


def _cut(array: Array, num_blocks: int, bounds: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> list[Array]:
    blocks = np.split(array, num_blocks)
    return [block[begin:end] for block in blocks for begin, end in pairwise(bounds.tolist())]


def _joined(rank: int, pieces: list[Array | None]) -> Array | None:
    if not pieces:
        return None
    full = [piece for piece in pieces if piece is not None]
    if len(full) < len(pieces):
        raise ScheduleError(f"rank {rank}: {len(pieces) - len(full)} chunk(s) of the output were never written")
    return np.concatenate(full)
