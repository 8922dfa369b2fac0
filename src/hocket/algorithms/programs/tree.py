"""Trees of radix k: after every step k times as many ranks have the data (broadcast), or 1 / k of them (reduce,
gather).

Binomial trees have radix 2. If the k - 1 messages of a rank can go out together, a larger radix takes fewer steps.
"""

import numpy as np
import numpy.typing as npt

from hocket.algorithms.programs.rounds import rounds
from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder

Ranks = npt.NDArray[np.int64]

_BITS = ("same_on_all_ranks", "balanced_tree", "size_invariant")
_RADIX = 4  # of knomial


def _children(p: int) -> int:
    """1 for each child of the root of a tree of radix 4: up to 3 * ceil(log2(P) / 2)"""
    return sum(min(_RADIX - 1, (p - 1) // _RADIX**level) for level in range(rounds(p, _RADIX)))


def largest_subtree(p: int, radix: int = 2) -> int:
    """The most ranks in a subtree below the root."""
    width = radix ** (rounds(p, radix) - 1) if p > 1 else 0
    return max(min(width, p - width), width // radix) if p > 1 else 0


def _share_of_subtree(p: int) -> float:
    """the largest subtree below the root: up to 1 / 2"""
    return largest_subtree(p) / p


def _share_of_subtree_4(p: int) -> float:
    """the largest subtree below the root: up to 1 / 2"""
    return largest_subtree(p, _RADIX) / p


def _broadcast(schedule: Builder, radix: int) -> None:
    p, root = schedule.num_ranks, schedule.root
    for level in reversed(range(rounds(p, radix))):
        width = radix**level
        giver = np.arange(0, p, width * radix)  # Counted from the root.
        with schedule.step():
            for child in range(1, radix):
                one = giver[giver + child * width < p]
                schedule.copy(src=(one + root) % p, dst=(one + child * width + root) % p, chunk=0)


def _reduce(schedule: Builder, radix: int) -> None:
    for level in range(rounds(schedule.num_ranks, radix)):
        with schedule.step():
            _join(schedule, level, radix, schedule.root, chunk=0)


def _gather(schedule: Builder, radix: int) -> None:
    p, root = schedule.num_ranks, schedule.root
    for level in range(rounds(p, radix)):
        width = radix**level
        group = np.arange(0, p, width)  # The first rank of each group, counted from the root.
        giver = group[group // width % radix > 0]
        taker, first = giver - giver % (width * radix), (giver + root) % p
        with schedule.step():
            schedule.copy(src=first, dst=(taker + root) % p, chunk=first, count=np.minimum(width, p - giver))


def _join(schedule: Builder, level: int, radix: int, root: int | Ranks, chunk: int | Ranks) -> None:
    """Groups of radix**level ranks join, radix at a time; one reduction folds their sums of a chunk in rank order.

    The sum of a group lies at its first rank, or at the root if the root is in the group. With a column of roots and of
    chunks, there are as many trees at once.
    """
    p, width = schedule.num_ranks, radix**level
    first = np.arange(0, p, width * radix)
    taker = np.where(first // (width * radix) == root // (width * radix), root, first)
    for i in range(radix):
        group = first + i * width
        giver = np.where(group // width == root // width, root, group)
        rows = (group < p) & (
            (i > 0) | (giver != taker)
        )  # What the taker itself holds is already there if it comes first.
        add = schedule.reduce if i else schedule.copy
        add(src=giver[rows], dst=taker[rows], chunk=np.broadcast_to(chunk, rows.shape)[rows])


# --- radix 2 -------------------------------------------------------------------------------------------------------


@algorithm("broadcast", name="binomial", chunks="1", steps="ceil(log2(P))", sent="ceil(log2(P))")
def binomial_broadcast(schedule: Builder) -> None:
    """Each rank that has the vector sends it to one that has not: far ranks first, so that the halves then work on
    their own.

    Best: small N
    Ranks: any
    Reference: folklore; Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
      2005
    """
    _broadcast(schedule, 2)


@algorithm("reduce", name="binomial", chunks="1", steps="ceil(log2(P))", sent="min(P - 1, 1)", labels=_BITS)
def binomial_reduce(schedule: Builder) -> None:
    """Neighbouring groups of 1, 2, 4 ... ranks join; the first rank of a group holds its sum, or the root does.

    Best: small N
    Ranks: any
    Reference: folklore; Thakur, Rabenseifner and Gropp 2005

    The bits do not depend on root or size: lower ranks are always the left operand, so the tree is the balanced one
    over rank numbers.
    """
    _reduce(schedule, 2)


@algorithm(
    "reduce_scatter",
    "reduce_scatter_v",
    name="tree",
    chunks="P",
    steps="ceil(log2(P))",
    sent="(P - 1) / P",
    labels=_BITS,
)
def tree_reduce_scatter(schedule: Builder) -> None:
    """The tree of binomial reduce for each rank's block, with that rank as its root; all trees at once.

    Best: small N, and where bits must be those of the balanced tree
    Ranks: any
    Reference: binomial reduce, as above

    No algorithm sends less in total, but in the first step some ranks send nearly all of it.
    """
    root = schedule.ranks[:, None]
    for level in range(rounds(schedule.num_ranks)):
        with schedule.step():
            _join(schedule, level, 2, root, chunk=root)


tree_all_reduce = algorithm(
    "all_reduce",
    name="tree",
    steps="2 * ceil(log2(P))",
    sent="ceil(log2(P))",
    labels=_BITS,
    doc="""Up the binomial tree and down again: reduce to rank 0, then broadcast from it.

    Best: small N, which it never cuts into chunks
    Ranks: any
    Reference: folklore; Thakur, Rabenseifner and Gropp 2005

    The bits are those of the balanced tree, on all ranks and for any size.
    """,
)(binomial_reduce.then(binomial_broadcast))


@algorithm("gather", name="binomial", chunks="P", steps="ceil(log2(P))", sent=_share_of_subtree)
def binomial_gather(schedule: Builder) -> None:
    """Neighbouring groups of 1, 2, 4 ... ranks, counted from the root, join: the first rank takes all blocks of both.

    Best: small N and many ranks, because the root receives from ceil(log2 P) ranks only
    Ranks: any
    Reference: folklore; Thakur, Rabenseifner and Gropp 2005

    Even blocks only, because ranks on the way hold blocks whose sizes they would not know.
    """
    _gather(schedule, 2)


binomial_scatter = algorithm(
    "scatter",
    name="binomial",
    steps="ceil(log2(P))",
    sent="(P - 1) / P",
    doc="""Binomial gather run backwards: the first rank of a group sends half of the blocks to the first rank of the
    other half.

    Best: small N and many ranks, because the root sends to ceil(log2 P) ranks only
    Ranks: any
    Reference: folklore; Thakur, Rabenseifner and Gropp 2005

    Even blocks only, as for gather.
    """,
)(binomial_gather.reversed())


# --- radix 4 -------------------------------------------------------------------------------------------------------


@algorithm("broadcast", name="knomial", chunks="1", steps="ceil(log2(P) / 2)", sent=_children)
def knomial_broadcast(schedule: Builder) -> None:
    """Each rank that has the vector sends it to three that have not, at once: a tree of radix 4.

    Best: small N where several messages go out together: shared memory, many ports
    Ranks: any
    Reference: UCC and MPICH, k-nomial trees
    """
    _broadcast(schedule, _RADIX)


@algorithm(
    "reduce",
    name="knomial",
    chunks="1",
    steps="ceil(log2(P) / 2)",
    sent="min(P - 1, 1)",
    labels=("same_on_all_ranks", "size_invariant"),
)
def knomial_reduce(schedule: Builder) -> None:
    """Neighbouring groups of 1, 4, 16 ... ranks join by fours; the first rank holds the sum, or the root does.

    Best: small N where several messages come in together: shared memory, many ports
    Ranks: any
    Reference: UCC and MPICH, k-nomial trees

    Four sums are folded in the order of ranks and rounded once, so the bits do not depend on root or size.
    """
    _reduce(schedule, _RADIX)


@algorithm(
    "gather",
    name="knomial",
    chunks="P",
    steps="ceil(log2(P) / 2)",
    sent=_share_of_subtree_4,
)
def knomial_gather(schedule: Builder) -> None:
    """Groups of 1, 4, 16 ... ranks, counted from the root, join by fours: the first rank takes all blocks of the
    others.

    Best: small N and many ranks, where several messages come in together
    Ranks: any
    Reference: UCC and MPICH, k-nomial trees

    Even blocks only, because ranks on the way hold blocks whose sizes they would not know.
    """
    _gather(schedule, _RADIX)


knomial_scatter = algorithm(
    "scatter",
    name="knomial",
    steps="ceil(log2(P) / 2)",
    sent="(P - 1) / P",
    doc="""The gather run backwards: the first rank of a group sends the first ranks of its quarters their blocks.

    Best: small N and many ranks, where several messages go out together
    Ranks: any
    Reference: UCC and MPICH, k-nomial trees

    Even blocks only, as for gather.
    """,
)(knomial_gather.reversed())
