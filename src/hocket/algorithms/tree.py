"""Binomial trees: the number of ranks that know doubles with every step (broadcast), or halves (reduce, gather)."""

import numpy as np

from hocket.algorithms.registry import algorithm
from hocket.schedule.builder import Builder

_BITS = ("same_on_all_ranks", "balanced_tree", "size_invariant")


def _log2_ceil(p: int) -> int:
    return (p - 1).bit_length()


def _largest_subtree(p: int) -> int:
    """Most ranks below one that is not the root of a binomial tree, itself included."""
    half = 2 ** _log2_ceil(p) // 2
    return max(p - half, half // 2) if p > 1 else 0


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
    labels=_BITS,
)
def binomial_reduce(schedule: Builder) -> None:
    """Neighbouring groups of 1, 2, 4 ... ranks join; the sum of a group is held by its first rank, or by the root.

    ceil(log2 P) steps; N bytes per rank. Best for small N. Any rank count. The bits do not depend on root or size:
    lower ranks are always the left operand, so the tree is the balanced one over rank numbers. Folklore, as above.
    """
    for k in range(_log2_ceil(schedule.num_ranks)):
        with schedule.step():
            _join(schedule, k, schedule.root, chunk=0)


@algorithm(
    "reduce_scatter",
    "reduce_scatter_v",
    name="tree",
    chunks=lambda p: p,
    steps=_log2_ceil,
    sent=lambda p: (p - 1) / p,
    labels=_BITS,
)
def tree_reduce_scatter(schedule: Builder) -> None:
    """For each rank's block the tree of binomial reduce with that rank as its root, all of them at once.

    ceil(log2 P) steps; (P - 1) / P * N bytes per rank: no algorithm sends less. Best for small N, and where bits must
    be those of the balanced tree. Any rank count. Bits as for reduce.
    """
    for k in range(_log2_ceil(schedule.num_ranks)):
        with schedule.step():
            for root in range(schedule.num_ranks):
                _join(schedule, k, root, chunk=root)


def _join(schedule: Builder, k: int, root: int, chunk: int) -> None:
    """Groups of 2**k ranks join in pairs; the sum of each is held by its first rank, or by the root if it is in it."""
    p = schedule.num_ranks
    low = np.arange(0, p - 2**k, 2 ** (k + 1))
    low, high = (np.where(group >> k == root >> k, root, group) for group in (low, low + 2**k))
    up, down = high == root, high != root
    schedule.reduce(src=high[down], dst=low[down], chunk=chunk)
    schedule.copy(src=low[up], dst=root, chunk=chunk)
    schedule.reduce(src=high[up], dst=root, chunk=chunk)


tree_all_reduce = algorithm(
    "all_reduce",
    name="tree",
    steps=lambda p: 2 * _log2_ceil(p),
    sent=_log2_ceil,
    labels=_BITS,
    doc="""Up the binomial tree and down again: reduce to rank 0, then broadcast from it.

    2 ceil(log2 P) steps; up to ceil(log2 P) * N bytes per rank. Best for small N, which it never cuts into chunks. Any
    rank count. Bits are those of the balanced tree, on all ranks and for any size. Folklore, as above.
    """,
)(binomial_reduce.then(binomial_broadcast))


@algorithm("gather", name="binomial", chunks=lambda p: p, steps=_log2_ceil, sent=lambda p: _largest_subtree(p) / p)
def binomial_gather(schedule: Builder) -> None:
    """Neighbouring groups of 1, 2, 4 ... ranks, counted from the root, join: the first rank takes all blocks of both.

    ceil(log2 P) steps; up to N / 2 bytes per rank, N the gathered vector; the root hears from ceil(log2 P) ranks only.
    Best for small N and many ranks. Any rank count; even blocks only, as ranks on the way hold blocks whose sizes they
    would not know. Folklore; Thakur, Rabenseifner and Gropp 2005.
    """
    p, root = schedule.num_ranks, schedule.root
    for k in range(_log2_ceil(p)):
        owner = schedule.ranks[schedule.ranks >> k & 1 == 1]  # Of blocks that move. Counted from the root.
        giver = owner >> k << k
        with schedule.step():
            schedule.copy(src=(giver + root) % p, dst=(giver - 2**k + root) % p, chunk=(owner + root) % p)


binomial_scatter = algorithm(
    "scatter",
    name="binomial",
    steps=_log2_ceil,
    sent=lambda p: (p - 1) / p,
    doc="""Binomial gather run backwards: the first of a group gives half of the blocks to the first of that half.

    ceil(log2 P) steps; the root sends (P - 1) / P * N bytes, N the whole vector, but to ceil(log2 P) ranks only. Best
    for small N and many ranks. Any rank count; even blocks only, as for gather. Folklore, as above.
    """,
)(binomial_gather.reversed())
