"""Binomial trees: the number of ranks that know doubles with every step (broadcast), or halves (reduce)."""

import numpy as np

from hocket.algorithms.registry import algorithm
from hocket.schedule.builder import Builder


def _log2_ceil(p: int) -> int:
    return (p - 1).bit_length()


@algorithm("broadcast", name="binomial", chunks=lambda p: 1, steps=_log2_ceil, sent=_log2_ceil)
def binomial_broadcast(schedule: Builder) -> None:
    """Whoever has the vector gives it to one who has not: far away first, so that the halves then work on their own.

    ceil(log2 P) steps; the root sends ceil(log2 P) * N bytes, others less. Best for small N. Any rank count.
    Folklore; Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
    """
    p = schedule.num_ranks
    for k in reversed(range(_log2_ceil(p))):
        giver = np.arange(0, p - 2**k, 2 ** (k + 1))  # Counted from the root.
        with schedule.step():
            schedule.copy(src=(giver + schedule.root) % p, dst=(giver + 2**k + schedule.root) % p, chunk=0)


@algorithm(
    "reduce",
    name="binomial",
    chunks=lambda p: 1,
    steps=_log2_ceil,
    sent=lambda p: min(p - 1, 1),
    labels=("same_on_all_ranks", "balanced_tree", "size_invariant"),
)
def binomial_reduce(schedule: Builder) -> None:
    """Neighbouring groups of 1, 2, 4 ... ranks join; the sum of a group is held by its first rank, or by the root.

    ceil(log2 P) steps; N bytes per rank. Best for small N. Any rank count. The bits do not depend on root or size:
    lower ranks are always the left operand, so the tree is the balanced one over rank numbers. Folklore, as above.
    """
    p, root = schedule.num_ranks, schedule.root
    for k in range(_log2_ceil(p)):
        low = np.arange(0, p - 2**k, 2 ** (k + 1))
        low, high = (np.where(group >> k == root >> k, root, group) for group in (low, low + 2**k))
        up, down = high == root, high != root
        with schedule.step():
            schedule.reduce(src=high[down], dst=low[down], chunk=0)
            schedule.copy(src=low[up], dst=root, chunk=0)
            schedule.reduce(src=high[up], dst=root, chunk=0)
