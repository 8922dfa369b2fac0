"""Recursive multiplying: groups of k ranks exchange all that they have, so that every rank has k times as much.

This is recursive doubling with another radix. It is registered as knomial, like the trees of that radix.
"""

import numpy as np

from hocket.algorithms.programs.rounds import rounds
from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder

_RADIX = 4


def _full_levels(p: int) -> int:
    """floor(log p) to the base of the radix."""
    return rounds(p + 1, _RADIX) - 1


@algorithm(
    "all_reduce",
    name="knomial",
    chunks="1",
    steps="floor(log2(P) / 2) + 2 * (ceil(log2(P) / 2) - floor(log2(P) / 2))",
    sent="3 * floor(log2(P) / 2) + (P - 1) // 4**floor(log2(P) / 2)",
    labels=("same_on_all_ranks", "size_invariant"),
)
def knomial_all_reduce(schedule: Builder) -> None:
    """In round i the four ranks that differ in digit i of their numbers (in base 4) send each other whole vectors. A
    rank beyond the largest power of 4 sends its vector to a rank below it first, and gets the result at the end.

    Best: small N where several messages go out together: shared memory, many ports
    Ranks: any
    Reference: MPICH, recursive multiplying; UCC, k-nomial all_reduce

    All ranks of a group fold in the order of their numbers, so that all have the same bits.
    """
    depth = _full_levels(schedule.num_ranks)
    full = _RADIX**depth
    inner, outer = schedule.ranks[:full], schedule.ranks[full:]
    with schedule.step():
        schedule.reduce(src=outer, dst=outer % full, chunk=0)
    for level in range(depth):
        width = _RADIX**level
        first = inner - inner // width % _RADIX * width
        with schedule.step():
            schedule.copy(src=first, dst=inner, chunk=0)
            schedule.reduce(src=first + np.arange(1, _RADIX)[:, None] * width, dst=inner, chunk=0)
    with schedule.step():
        schedule.copy(src=outer % full, dst=outer, chunk=0)


@algorithm(
    "all_gather",
    name="knomial",
    chunks="P",
    steps="ceil(log2(P) / 2)",
    sent="(P - 1) / P",
)
def knomial_all_gather(schedule: Builder) -> None:
    """In round i every rank takes at once the blocks of the ranks 4**i, 2 * 4**i and 3 * 4**i further on.

    Best: small N where several messages go out together
    Ranks: any
    Reference: MPICH, Bruck's algorithm of radix k (k-brucks); Bruck et al. 1997
    """
    p, rank = schedule.num_ranks, schedule.ranks
    for level in range(rounds(p, _RADIX)):
        width = _RADIX**level
        with schedule.step():
            for distance in range(width, min(_RADIX * width, p), width):
                giver = (rank + distance) % p
                schedule.copy(src=giver, dst=rank, chunk=giver, count=min(width, p - distance))


knomial_reduce_scatter = algorithm(
    "reduce_scatter",
    name="knomial",
    steps="ceil(log2(P) / 2)",
    sent="(P - 1) / P",
    labels=("same_on_all_ranks",),
    doc="""The all_gather run backwards: far ranks first, three messages of partial sums to and from each rank.

    Best: small N where several messages go out together
    Ranks: any
    Reference: MPICH, Bruck's algorithm of radix k (k-brucks), backwards
    """,
)(knomial_all_gather.reversed())
