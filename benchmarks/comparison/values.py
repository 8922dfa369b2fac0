"""Inputs and expected outputs of ranks: small whole numbers, whose sums are exact in bfloat16 in any order.

An input repeats a table. Its length is not a power of two, so that a block in a wrong place is noticed.
"""

from typing import NamedTuple

import numpy as np

TABLE_BYTES = 65 * 64  # of a table: fits in the first-level cache
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
MOST_RANKS = 64  # the limit of floor.cpp
LONGEST_BUFFER = 64 << 20  # as in floor/memory.h
MOST_RANKS_OF_BFLOAT16 = 9  # with more ranks, sums are not exact: see `numbers`
OPERATIONS = (
    "all_reduce",
    "reduce_scatter",
    "reduce",
    "broadcast",
    "all_gather",
    "all_to_all",
    "send_recv",
    "barrier",
)


class Shape(NamedTuple):
    """Number of input and output elements of a rank; `in_place`: both are the same memory."""

    given: int
    got: int
    in_place: bool


class Block(NamedTuple):
    """A part of an output: `count` elements from `start` on repeat `table`, beginning at its element `offset`."""

    start: int
    count: int
    table: np.ndarray
    offset: int


def shape(operation: str, num_bytes: int, dtype: str, num_ranks: int) -> Shape:
    """Returns the shape. num_bytes: of the larger buffer, as in nccl-tests; rounded up to elements for every rank."""
    if operation == "barrier":
        return Shape(0, 0, True)
    count = num_bytes // ITEM_BYTES[dtype]
    if operation in ("all_reduce", "broadcast", "reduce", "send_recv"):
        return Shape(count, count, operation != "send_recv")
    part = max(1, -(-count // num_ranks))
    whole = part * num_ranks
    return Shape(part if operation == "all_gather" else whole, part if operation == "reduce_scatter" else whole, False)


def undefined(operation: str, dtype: str, num_ranks: int) -> str:
    """Returns why there is no such cell; empty if there is."""
    if operation == "send_recv" and num_ranks % 2:
        return "the last rank has no peer"
    if dtype == "bfloat16" and num_ranks > MOST_RANKS_OF_BFLOAT16:
        return "sums of so many ranks would not be exact"
    return ""


def ways(operation: str) -> int:
    """Returns by what a call's time is divided: 2 for a message there and one back, else 1."""
    return 2 if operation == "send_recv" else 1


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """Returns small whole numbers as float32, or as its upper half, which is bfloat16."""
    floats = values.astype(np.float32)
    return floats if dtype == "float32" else (floats.view(np.uint32) >> 16).astype(np.uint16)


def numbers(rank: int, dtype: str) -> np.ndarray:
    """Returns the table of a rank as integers: at most 22 + rank, so that sums of 9 ranks stay below 256."""
    length = TABLE_BYTES // ITEM_BYTES[dtype]
    return np.random.default_rng(7).integers(0, 23, length) + rank


def table(rank: int, dtype: str) -> np.ndarray:
    return encode(numbers(rank, dtype), dtype)


def expected(operation: str, shape: Shape, dtype: str, rank: int, num_ranks: int) -> list[Block]:
    """Returns what the rank must receive; empty if it receives nothing."""
    total = encode(sum(numbers(each, dtype) for each in range(num_ranks)), dtype)
    tables = [table(each, dtype) for each in range(num_ranks)]
    part = shape.got // num_ranks
    match operation:
        case "all_reduce":
            return [Block(0, shape.got, total, 0)]
        case "reduce":
            return [Block(0, shape.got, total, 0)] if rank == 0 else []
        case "broadcast":
            return [Block(0, shape.got, tables[0], 0)] if rank else []
        case "send_recv":
            return [Block(0, shape.got, tables[rank ^ 1], 0)]
        case "reduce_scatter":
            return [Block(0, shape.got, total, rank * shape.got)]
        case "all_gather":
            return [Block(source * part, part, tables[source], 0) for source in range(num_ranks)]
        case "all_to_all":
            return [Block(source * part, part, tables[source], rank * part) for source in range(num_ranks)]
    return []
