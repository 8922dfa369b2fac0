"""The cases of the matrix: how each collective is called, and which of all combinations are tried."""

import functools
import itertools
import random
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from hocket.algorithms import ALGORITHMS
from hocket.runtime import DTYPES, OPS
from hocket.schedule import COLLECTIVES
from tests.matrix.definition import ORDERED, dtype_of, has_meaning
from tests.matrix.pairwise import Pair, pairs_of, pairwise

RANKS = (1, 2, 3, 4, 5, 7, 8)
LARGE = -1  # stands for blocks of more than one piece of 128 KiB
SIZES = (0, 1, 7, 1000, LARGE)
COMPLETE_DTYPES = ("float32", "bfloat16", "int64")
CHOSEN = "by choice"  # no algorithm= is passed
PIECE_BYTES = 140_000  # a little more than one
SEEDS = 4  # how many times every pair is covered
CALLS = ("send, recv", "isend, irecv", "sendrecv", "batch", "recv from ANY_SOURCE")
MEMORIES = (
    "of the process",
    "mixed",
    "registered",
)  # the memory of a case's arrays; mixed: registered on every second rank


class Cell(NamedTuple):
    """One collective call of all ranks. Without a reduction, op is "" and order "fast"; without a root, root is 0."""

    collective: str
    algorithm: str
    num_ranks: int
    root: int
    op: str
    order: str
    dtype: str
    size: int
    in_place: bool

    @property
    def refused(self) -> bool:
        """Returns whether the call must be refused, because the reduction has no meaning for the type."""
        return bool(self.op) and not has_meaning(self.op, self.dtype)


class Exchange(NamedTuple):
    """One round of point-to-point calls among all ranks."""

    call: str
    num_ranks: int
    dtype: str
    size: int


def memory_of(case: Cell | Exchange) -> str:
    """Returns one of MEMORIES, drawn from the case itself; also for a barrier, which has no arrays."""
    return MEMORIES[zlib.crc32(repr(case).encode()) % len(MEMORIES)]


def is_registered(case: Cell | Exchange, rank: int) -> bool:
    """Returns whether this rank's arrays come from hocket.empty, which other ranks can reach without a copy."""
    memory = memory_of(case)
    return memory == "registered" or (memory == "mixed" and rank % 2 == 0)


def elements(size: int, dtype: str, blocks: int = 1) -> int:
    """Returns the elements of a block of this size; a large one may be cut in as many parts as `blocks`."""
    return blocks * PIECE_BYTES // dtype_of(dtype).itemsize + 1 if size == LARGE else size


def lengths(cell: Cell) -> list[list[int]]:
    """Returns how many elements rank i has for rank j. Uneven numbers include zeros, and differ from each other.

    In an all_to_all_v in place, two ranks exchange equally many elements in both directions, as they must.
    """
    p = cell.num_ranks
    kind = COLLECTIVES[cell.collective]
    block = elements(cell.size, cell.dtype, p if kind.num_blocks(p) == 1 else 1)
    if not kind.uneven:
        return [[block] * p for _ in range(p)]
    extra = min(block, 3)
    if cell.collective == "all_to_all_v":
        pairs = [[sorted((i, j)) if cell.in_place else (i, j) for j in range(p)] for i in range(p)]
        return [[0 if (i + 2 * j) % 3 == 1 else block + (3 * i + j) % 4 * extra for i, j in row] for row in pairs]
    row = [0 if (rank + cell.root) % 3 == 1 else block + rank * extra for rank in range(p)]
    return [row] * p


def algorithms(collective: str, num_ranks: int, order: str) -> list[str]:
    """Returns the algorithms that can be requested by name with this order and rank count."""
    label = ORDERED.get(order)
    return [
        name
        for (of, name), algorithm in ALGORITHMS.items()
        if of == collective and algorithm.allows(num_ranks) and (label is None or label in algorithm.labels)
    ]


def roots(collective: str, num_ranks: int) -> Sequence[int]:
    """Returns every root up to 4 ranks, else two roots."""
    if not COLLECTIVES[collective].rooted:
        return (0,)
    return range(num_ranks) if num_ranks <= 4 else (0, num_ranks - 2)


def reduces(collective: str) -> bool:
    return COLLECTIVES[collective].reduces and collective != "barrier"


def complete() -> list[Cell]:
    """Every collective, without algorithm=, with every rank count, size and place, and three dtypes; reductions sum."""
    cells = []
    for collective, p in itertools.product(COLLECTIVES, RANKS):
        op = "sum" if reduces(collective) else ""
        if collective == "barrier":
            cells.append(Cell(collective, CHOSEN, p, 0, op, "fast", "uint8", 1, False))
            continue
        free = (roots(collective, p), COMPLETE_DTYPES, SIZES, (False, True))
        for root, dtype, size, in_place in itertools.product(*free):
            cells.append(Cell(collective, CHOSEN, p, root, op, "fast", dtype, size, in_place))
    return cells


def every_algorithm() -> list[Cell]:
    """Every algorithm by name, with every rank count that it takes, size and place, three dtypes; roots take turns."""
    return [
        Cell(collective, name, p, roots(collective, p)[number % len(roots(collective, p))], op, "fast", *free)
        for (collective, name), algorithm in ALGORITHMS.items()
        if collective != "barrier"
        for op in ("sum" if reduces(collective) else "",)
        for p in RANKS
        if algorithm.allows(p)
        for number, free in enumerate(itertools.product(COMPLETE_DTYPES, SIZES, (False, True)))
    ]


def ordered() -> list[Cell]:
    """Every order that fixes the bits, with every type, rank count and size: the promises to the last bit."""
    return [
        Cell(
            collective,
            CHOSEN,
            p,
            number % p if collective == "reduce" else 0,
            "sum",
            order,
            dtype,
            size,
            number % 2 > 0,
        )
        for number, (collective, order, p, dtype, size) in enumerate(
            itertools.product(filter(reduces, COLLECTIVES), ORDERED, RANKS, DTYPES, SIZES)
        )
    ]


def pairwise_cells(seed: int = 0) -> list[Cell]:
    """Every pair of values of two parameters occurs in a case that is not refused; each seed finds other cases."""
    shapes: list[tuple[str, str, int, int, str, str]] = []
    for collective, p in itertools.product(COLLECTIVES, RANKS):
        if collective == "barrier":
            continue
        orders = ("fast", *ORDERED) if reduces(collective) else ("fast",)
        for order, root in itertools.product(orders, roots(collective, p)):
            for algorithm in (CHOSEN, *algorithms(collective, p, order)):
                for op in OPS if reduces(collective) else ("",):
                    if op != "custom" or _keeps_rank_order(collective, algorithm, order):
                        shapes.append((collective, f"{collective} {algorithm}", p, root, op, order))

    def covered(case: tuple[object, ...]) -> set[Pair]:
        _, _, _, _, op, _, dtype, *_ = case
        if op and not has_meaning(str(op), str(dtype)):
            return {(4, op, 6, dtype)}  # covers only the refusal
        return pairs_of(case)  # type: ignore[arg-type]

    found = pairwise(shapes, (DTYPES, SIZES, (False, True)), covered_by=covered, seed=seed)
    return [Cell(*case)._replace(algorithm=str(case[1]).partition(" ")[2]) for case in found]  # type: ignore[arg-type]


def _keeps_rank_order(collective: str, algorithm: str, order: str) -> bool:
    """A user's own reduction runs only on rank-ordered schedules."""
    if algorithm == CHOSEN:
        return order != "invariant"
    return "rank_order" in ALGORITHMS[collective, algorithm].labels and order != "invariant"


def exchanges() -> list[Exchange]:
    """Every call with every dtype, size and rank count; a single rank can only talk to itself."""
    return [Exchange(*values) for values in itertools.product(CALLS, RANKS, DTYPES, SIZES)]


@functools.cache
def everything() -> tuple[Cell | Exchange, ...]:
    """All cases, each once."""
    pairs = itertools.chain.from_iterable(pairwise_cells(seed) for seed in range(SEEDS))
    return tuple(dict.fromkeys((*complete(), *every_algorithm(), *ordered(), *pairs, *exchanges())))


def sample(cases: Sequence[Cell | Exchange], count: int, seed: int) -> list[Cell | Exchange]:
    """Returns a seeded choice of about `count` cases, with every collective, point-to-point call and rank count."""
    choose = random.Random(seed)
    groups: dict[tuple[str, int], list[Cell | Exchange]] = {}
    for case in cases:
        groups.setdefault((case[0], case.num_ranks), []).append(case)
    each = max(1, count // len(groups))
    return [case for group in groups.values() for case in choose.sample(group, min(each, len(group)))]
