"""Writes what core_tests runs: plans of all built-in algorithms, as the core gets them, and the expected results.

The reference interpreter computes the expected results, to the bit; the file has a digest of each rank's output. Inputs
are a formula of (rank, index) that fixtures.cpp repeats. The format is plain text, read by fixtures.cpp:

    schedule COLLECTIVE ALGORITHM num_ranks root in_place chunks_per_block uneven only_copies id
    rank num_input_chunks num_output_chunks num_scratch memory_blocks input_block output_block, the lengths of six
        tables, and the tables: instructions (6 columns), sources (4), destinations (3), dependencies, input_blocks,
        output_blocks   (one line for each rank; memory_blocks are those of the one memory of a call in place,
        input_block and output_block the positions in it where input and output begin; -1: this rank has no such)
    case dtype op factor block_length num_lengths lengths digests   (factor: of premul_sum, else 1; num_lengths: 0, or
        where uneven the number of blocks of data, whose lengths follow; one digest for each rank; 0: no output)
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.algorithms import ALGORITHMS
from hocket.schedule import (
    DTYPES,
    REDUCTIONS,
    Collective,
    Plan,
    Schedule,
    in_place_offset,
    lower_all,
    premul_sum,
    reference,
)

Words = npt.NDArray[np.uint64]

RANK_COUNTS = (1, 2, 3, 4, 5, 7, 8)
OPS = ("sum", "prod", "min", "max", "premul_sum", "avg")  # avg last: integers have none
FACTOR = 3
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(words: Words) -> Words:
    """The finaliser of splitmix64: every bit of the result depends on all bits of the word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def input_of(rank: int, count: int, dtype: str) -> npt.NDArray[Any]:
    """Elements that encode their origin; floats are exact, so that only the order of a sum can round, and hold -0."""
    words = mix(np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN + np.uint64(rank << 40))
    if not dtype.startswith("float"):
        return words.astype(dtype)
    magnitude = (words >> np.uint64(41)).astype(np.int64) - (1 << 22)
    values = magnitude.astype(dtype) / np.dtype(dtype).type(1024)
    zeros = np.where(words & np.uint64(8), -0.0, 0.0).astype(dtype)
    return np.where(words & np.uint64(7), values, zeros).astype(dtype)


def digest(array: npt.NDArray[Any] | None) -> int:
    """64 bits of the bytes and their positions; padded with zeros to whole words."""
    if array is None:
        return 0
    raw = array.tobytes()
    words = np.frombuffer(raw + bytes(-len(raw) % 8), np.uint64)
    places = np.arange(1, len(words) + 1, dtype=np.uint64) * _GOLDEN
    return (int(np.add.reduce(mix(words + places), dtype=np.uint64)) + len(raw) + 1) % (1 << 64)


def cases(collective: Collective, number: int, num_ranks: int) -> Iterator[tuple[str, str, int]]:
    """Returns (dtype, op, block length) of the runs of one schedule; rare types take turns among schedules."""
    if not collective.exactly_once:
        yield "uint8", "max", 1
        return
    for length in (0, 1, 7, 1000):
        yield "int64", "sum", length
    yield "float32", OPS[number % 6], 1000 + number % 17
    yield ("float64", OPS[(number + 2) % 6], 130) if number % 2 else ("uint8", OPS[number % 5], 4099)
    yield "int32", OPS[(number + 1) % 5], 11
    if not collective.num_blocks(num_ranks) > 1 and number % 3 == 0:
        yield "int64", "sum", 100003 if num_ranks < 5 else 40009
    if number % 8 == 0:
        yield "float32", "avg", 40009


def uneven_lengths(collective: Collective, num_ranks: int, length: int) -> npt.NDArray[np.int64]:
    """Returns the elements of every block, 0 to 2 * length; equal in both directions, for exchanges in place."""
    block = np.arange(collective.num_blocks(num_ranks))
    if collective.blocks == "pair":
        block = block // num_ranks * (block % num_ranks) + block // num_ranks + block % num_ranks
    return (block + 1) * 7919 % (2 * length + 1) * (block % 3 != 1)


def in_place_layout(plan: Plan) -> tuple[int, int, int]:
    """Returns the blocks of the one memory of a call in place, and where input and output begin; -1: it has none."""
    held, wanted = plan.input_blocks.tolist(), plan.output_blocks.tolist()
    begins = [0 if blocks else -1 for blocks in (held, wanted)]
    if held and wanted:
        begins[len(held) > len(wanted)] = in_place_offset(held, wanted)
    return max(len(held), len(wanted)), begins[0], begins[1]


def lines_of(number: int, name: str, schedule: Schedule, in_place: bool) -> Iterator[str]:
    """Returns the text of one schedule in one alias mode."""
    kind, size, root = schedule.kind, schedule.num_ranks, schedule.root
    identity = int(schedule.digest[:16], 16)
    flags = f"{int(kind.uneven)} {int(not kind.reduces)}"
    shape = f"{size} {root} {int(in_place)} {schedule.chunks_per_block} {flags} {identity}"
    yield f"schedule {kind.name} {name} {shape}"
    for plan in lower_all(schedule, in_place):
        tables = (plan.instructions, plan.sources, plan.destinations, plan.dependencies)
        tables += (plan.input_blocks, plan.output_blocks)
        counts = (plan.num_input_chunks, plan.num_output_chunks, plan.num_scratch)
        values = np.concatenate([table.ravel() for table in tables]).tolist()
        hears_all = int(kind.hears_all(plan.output_blocks))
        numbers = (*counts, hears_all, *in_place_layout(plan), *(table.size for table in tables), *values)
        yield " ".join(map(str, ("rank", *numbers)))
    for dtype, op, length in cases(kind, number, size):
        lengths = uneven_lengths(kind, size, length) if kind.uneven else np.full(kind.num_blocks(size), length)
        held = [kind.input_blocks(rank, size, root) for rank in range(size)]
        inputs = [input_of(rank, int(lengths[has].sum()), dtype) if has else None for rank, has in enumerate(held)]
        factor = FACTOR if op == "premul_sum" else 1
        reduction = premul_sum(FACTOR) if op == "premul_sum" else op
        outputs = reference.run(schedule, inputs, reduction, block_lengths=lengths if kind.uneven else None)
        given = [len(lengths), *lengths.tolist()] if kind.uneven else [0]
        head = ("case", DTYPES.index(dtype), REDUCTIONS.index(op), factor, length, *given)
        yield " ".join(map(str, (*head, *map(digest, outputs))))


def main(path: str) -> None:
    """Writes all fixtures to this file."""
    lines: list[str] = []
    number = 0
    for (_, name), algorithm in sorted(ALGORITHMS.items()):
        for num_ranks in filter(algorithm.allows, RANK_COUNTS):
            rooted = algorithm.build(num_ranks).kind.rooted
            for root in sorted({0, num_ranks // 2, num_ranks - 1}) if rooted else (0,):
                schedule = algorithm.build(num_ranks, root)
                for in_place in (False, True):
                    lines += lines_of(number, name, schedule, in_place)
                    number += 1
    Path(path).write_text("\n".join(lines) + "\n", encoding="ascii")
    print(f"{number} lowered schedules, {len(lines)} lines, in {path}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} OUTFILE")
    main(sys.argv[1])
