"""Recursive multiplying: groups of k ranks exchange all that they have, so that everybody knows k times as much.

Recursive doubling with another radix, registered as knomial like the trees of that radix.
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
    chunks=lambda p: 1,
    steps=lambda p: _full_levels(p) + 2 * (p != _RADIX ** _full_levels(p)),
    sent=lambda p: (_RADIX - 1) * _full_levels(p) + (p - 1) // _RADIX ** _full_levels(p),
    labels=("same_on_all_ranks", "size_invariant"),
)
def knomial_all_reduce(schedule: Builder) -> None:
    """In round i the four ranks that differ in digit i of their numbers (to the base 4) give each other whole vectors.

    Ranks beyond the largest power of 4 give theirs to one below it before, and get the result after.

    Steps: floor(log4 P), and 2 more if P is no power of 4
    Sent: N for each message, up to 3 floor(log4 P) + 3
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
    chunks=lambda p: p,
    steps=lambda p: rounds(p, _RADIX),
    sent=lambda p: (p - 1) / p,
)
def knomial_all_gather(schedule: Builder) -> None:
    """In round i everybody takes the blocks that the ranks 4**i, 2 * 4**i and 3 * 4**i further on have, at once.

    Steps: ceil(log2(P) / 2)
    Sent: (P - 1) / P * N
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
    steps=lambda p: rounds(p, _RADIX),
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""The all_gather run backwards: far away first, three messages of partial sums to and from each rank.

    Steps: ceil(log2(P) / 2)
    Sent: (P - 1) / P * N
    Best: small N where several messages go out together
    Ranks: any
    Reference: MPICH, Bruck's algorithm of radix k (k-brucks), backwards
    """,
)(knomial_all_gather.reversed())
