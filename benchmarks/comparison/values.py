"""What ranks give, and what must come out: small whole numbers, exact in bfloat16, however they are added.

An input is a table repeated without end; its length is no power of two, so that a block in a wrong place is noticed.
"""

from typing import NamedTuple

import numpy as np

TABLE_BYTES = 65 * 64  # of a table: in the first-level cache
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
MOST_RANKS = 64  # as many as floor.cpp takes
LONGEST_BUFFER = 64 << 20  # as in floor/memory.h
MOST_RANKS_OF_BFLOAT16 = 9  # more, and sums are not exact: see `numbers`
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
    """Elements that a rank gives and gets; `in_place`: both are the same memory."""

    given: int
    got: int
    in_place: bool


class Block(NamedTuple):
    """A part of what a rank gets: `count` elements from `start` on are `table`, repeated, from element `offset` on."""

    start: int
    count: int
    table: np.ndarray
    offset: int


def shape(operation: str, num_bytes: int, dtype: str, num_ranks: int) -> Shape:
    """num_bytes is the size of the larger buffer, as in nccl-tests, rounded up to whole elements for every rank."""
    if operation == "barrier":
        return Shape(0, 0, True)
    count = num_bytes // ITEM_BYTES[dtype]
    if operation in ("all_reduce", "broadcast", "reduce", "send_recv"):
        return Shape(count, count, operation != "send_recv")
    part = max(1, -(-count // num_ranks))
    whole = part * num_ranks
    return Shape(part if operation == "all_gather" else whole, part if operation == "reduce_scatter" else whole, False)


def undefined(operation: str, dtype: str, num_ranks: int) -> str:
    """Why there is no such cell; nothing if there is."""
    if operation == "send_recv" and num_ranks % 2:
        return "the last rank has no peer"
    if dtype == "bfloat16" and num_ranks > MOST_RANKS_OF_BFLOAT16:
        return "sums of so many ranks would not be exact"
    return ""


def ways(operation: str) -> int:
    """Of a call's time what part counts: half of a message there and one back, else all."""
    return 2 if operation == "send_recv" else 1


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """Small whole numbers as float32, or as the upper half of it, which is bfloat16."""
    floats = values.astype(np.float32)
    return floats if dtype == "float32" else (floats.view(np.uint32) >> 16).astype(np.uint16)


def numbers(rank: int, dtype: str) -> np.ndarray:
    """The table of a rank, as integers: at most 22 + rank, so that sums of 9 ranks stay below 256."""
    length = TABLE_BYTES // ITEM_BYTES[dtype]
    return np.random.default_rng(7).integers(0, 23, length) + rank


def table(rank: int, dtype: str) -> np.ndarray:
    return encode(numbers(rank, dtype), dtype)


def expected(operation: str, shape: Shape, dtype: str, rank: int, num_ranks: int) -> list[Block]:
    """What the rank must have got; empty if it gets nothing."""
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
