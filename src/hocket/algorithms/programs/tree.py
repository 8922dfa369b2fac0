"""Trees of radix k: those that know are k times as many after every step (broadcast), or as few (reduce, gather).

Binomial trees are those of radix 2; where the k - 1 messages of a rank can go out together, a larger radix takes fewer
steps.
"""

import numpy as np
import numpy.typing as npt

from hocket.algorithms.programs.rounds import rounds
from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder

Ranks = npt.NDArray[np.int64]

_BITS = ("same_on_all_ranks", "balanced_tree", "size_invariant")
_RADIX = 4  # of knomial


def _children(p: int, radix: int) -> int:
    """Of the root, which has most."""
    return sum(min(radix - 1, (p - 1) // radix**level) for level in range(rounds(p, radix)))


def largest_subtree(p: int, radix: int = 2) -> int:
    """Most ranks below one that is not the root, itself included."""
    width = radix ** (rounds(p, radix) - 1) if p > 1 else 0
    return max(min(width, p - width), width // radix) if p > 1 else 0


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
        group = np.arange(0, p, width)  # First ranks, counted from the root.
        giver = group[group // width % radix > 0]
        taker, first = giver - giver % (width * radix), (giver + root) % p
        with schedule.step():
            schedule.copy(src=first, dst=(taker + root) % p, chunk=first, count=np.minimum(width, p - giver))


def _join(schedule: Builder, level: int, radix: int, root: int | Ranks, chunk: int | Ranks) -> None:
    """Groups of radix**level ranks join, radix at a time; one reduction folds their sums of a chunk in rank order.

    The sum of a group is held by its first rank, or by the root if it is in it. A column of roots and of chunks: as
    many trees at once.
    """
    p, width = schedule.num_ranks, radix**level
    first = np.arange(0, p, width * radix)
    taker = np.where(first // (width * radix) == root // (width * radix), root, first)
    for i in range(radix):
        group = first + i * width
        giver = np.where(group // width == root // width, root, group)
        rows = (group < p) & ((i > 0) | (giver != taker))  # What the taker has itself is there if it comes first.
        add = schedule.reduce if i else schedule.copy
        add(src=giver[rows], dst=taker[rows], chunk=np.broadcast_to(chunk, rows.shape)[rows])


# --- radix 2 -------------------------------------------------------------------------------------------------------


@algorithm("broadcast", name="binomial", chunks=lambda p: 1, steps=rounds, sent=lambda p: rounds(p))
def binomial_broadcast(schedule: Builder) -> None:
    """Whoever has the vector gives it to one who has not: far away first, so that the halves then work on their own.

    Steps: ceil(log2(P))
    Sent: ceil(log2(P)) * N
    Best: small N
    Ranks: any
    Reference: folklore; Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
      2005
    """
    _broadcast(schedule, 2)


@algorithm("reduce", name="binomial", chunks=lambda p: 1, steps=rounds, sent=lambda p: min(p - 1, 1), labels=_BITS)
def binomial_reduce(schedule: Builder) -> None:
    """Neighbouring groups of 1, 2, 4 ... ranks join; the sum of a group is held by its first rank, or by the root.

    Steps: ceil(log2(P))
    Sent: min(P - 1, 1) * N
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
    chunks=lambda p: p,
    steps=rounds,
    sent=lambda p: (p - 1) / p,
    labels=_BITS,
)
def tree_reduce_scatter(schedule: Builder) -> None:
    """For each rank's block the tree of binomial reduce with that rank as its root, all of them at once.

    Steps: ceil(log2(P))
    Sent: (P - 1) / P * N
    Best: small N, and where bits must be those of the balanced tree
    Ranks: any
    Reference: binomial reduce, as above

    No algorithm sends less in all, but in the first step some ranks send nearly all of it.
    """
    root = schedule.ranks[:, None]
    for level in range(rounds(schedule.num_ranks)):
        with schedule.step():
            _join(schedule, level, 2, root, chunk=root)


tree_all_reduce = algorithm(
    "all_reduce",
    name="tree",
    steps=lambda p: 2 * rounds(p),
    sent=lambda p: rounds(p),
    labels=_BITS,
    doc="""Up the binomial tree and down again: reduce to rank 0, then broadcast from it.

    Steps: 2 * ceil(log2(P))
    Sent: ceil(log2(P)) * N
    Best: small N, which it never cuts into chunks
    Ranks: any
    Reference: folklore; Thakur, Rabenseifner and Gropp 2005

    Bits are those of the balanced tree, on all ranks and for any size.
    """,
)(binomial_reduce.then(binomial_broadcast))


@algorithm("gather", name="binomial", chunks=lambda p: p, steps=rounds, sent=lambda p: largest_subtree(p) / p)
def binomial_gather(schedule: Builder) -> None:
    """Neighbouring groups of 1, 2, 4 ... ranks, counted from the root, join: the first rank takes all blocks of both.

    Steps: ceil(log2(P))
    Sent: the largest subtree below the root, up to N / 2
    Best: small N and many ranks: the root hears from ceil(log2 P) ranks only
    Ranks: any
    Reference: folklore; Thakur, Rabenseifner and Gropp 2005

    Even blocks only, as ranks on the way hold blocks whose sizes they would not know.
    """
    _gather(schedule, 2)


binomial_scatter = algorithm(
    "scatter",
    name="binomial",
    steps=rounds,
    sent=lambda p: (p - 1) / p,
    doc="""Binomial gather run backwards: the first of a group gives half of the blocks to the first of that half.

    Steps: ceil(log2(P))
    Sent: (P - 1) / P * N
    Best: small N and many ranks: the root speaks to ceil(log2 P) ranks only
    Ranks: any
    Reference: folklore; Thakur, Rabenseifner and Gropp 2005

    Even blocks only, as for gather.
    """,
)(binomial_gather.reversed())


# --- radix 4 -------------------------------------------------------------------------------------------------------


def _quarter_rounds(p: int) -> int:
    return rounds(p, _RADIX)


@algorithm("broadcast", name="knomial", chunks=lambda p: 1, steps=_quarter_rounds, sent=lambda p: _children(p, _RADIX))
def knomial_broadcast(schedule: Builder) -> None:
    """Whoever has the vector gives it to three who have not, at once: a tree of radix 4.

    Steps: ceil(log2(P) / 2)
    Sent: N for each child of the root, up to 3 ceil(log4 P)
    Best: small N where several messages go out together: shared memory, many ports
    Ranks: any
    Reference: UCC and MPICH, k-nomial trees
    """
    _broadcast(schedule, _RADIX)


@algorithm(
    "reduce",
    name="knomial",
    chunks=lambda p: 1,
    steps=_quarter_rounds,
    sent=lambda p: min(p - 1, 1),
    labels=("same_on_all_ranks", "size_invariant"),
)
def knomial_reduce(schedule: Builder) -> None:
    """Neighbouring groups of 1, 4, 16 ... ranks join by fours; the sum is held by the first rank, or by the root.

    Steps: ceil(log2(P) / 2)
    Sent: min(P - 1, 1) * N
    Best: small N where several messages come in together: shared memory, many ports
    Ranks: any
    Reference: UCC and MPICH, k-nomial trees

    Four sums are folded in the order of ranks and rounded once, so the bits do not depend on root or size.
    """
    _reduce(schedule, _RADIX)


@algorithm(
    "gather",
    name="knomial",
    chunks=lambda p: p,
    steps=_quarter_rounds,
    sent=lambda p: largest_subtree(p, _RADIX) / p,
)
def knomial_gather(schedule: Builder) -> None:
    """Groups of 1, 4, 16 ... ranks, counted from the root, join by fours: the first takes all blocks of the others.

    Steps: ceil(log2(P) / 2)
    Sent: the largest subtree below the root, up to N / 2
    Best: small N and many ranks, where several messages come in together
    Ranks: any
    Reference: UCC and MPICH, k-nomial trees

    Even blocks only, as ranks on the way hold blocks whose sizes they would not know.
    """
    _gather(schedule, _RADIX)


knomial_scatter = algorithm(
    "scatter",
    name="knomial",
    steps=_quarter_rounds,
    sent=lambda p: (p - 1) / p,
    doc="""The gather run backwards: the first of a group gives the firsts of its quarters what is for them.

    Steps: ceil(log2(P) / 2)
    Sent: (P - 1) / P * N
    Best: small N and many ranks, where several messages go out together
    Ranks: any
    Reference: UCC and MPICH, k-nomial trees

    Even blocks only, as for gather.
    """,
)(knomial_gather.reversed())
