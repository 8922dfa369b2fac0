"""Nonuniform trees of HCCL: logarithmic steps and least traffic for any rank count, most of it between near ranks.

A chunk goes to far ranks first, and is collected from them last: single chunks travel far, half of all of them between
neighbours. What goes 2**k ranks on gets to 2**k, 3 * 2**k, 5 * 2**k ... ranks from where it belongs.

HCCL has two algorithms of this kind. In its source reduce_scatter of the nonuniform hierarchical ring (NHR) sends to
rank - 2**k and that of nonuniform Bruck (NB) to rank + 2**k: they are mirror images. What sets NHR apart is that chunks
are renumbered where their places are free, so that what is sent at once lies together; NB leaves them in place.
"""

import numpy as np
import numpy.typing as npt

from hocket.algorithms.programs.rounds import rounds
from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder

_Ints = npt.NDArray[np.int64]

_UP, _DOWN = 1, -1


def _spread(schedule: Builder, direction: int) -> None:
    """Each rank gives the chunks it holds 2**k ranks further on, if they are not there yet; far ranks first."""
    p, rank = schedule.num_ranks, schedule.ranks
    for k in reversed(range(rounds(p))):
        count, stride = (p - 1 + 2**k) >> k + 1, 2 ** (k + 1)
        first = rank if direction == _DOWN else rank - (count - 1) * stride
        with schedule.step():
            schedule.copy(src=rank, dst=(rank + direction * 2**k) % p, chunk=first % p, count=count, stride=stride)


def _scatter(schedule: Builder, direction: int) -> None:
    """Who holds chunks gives half of them to the rank 2**k further on: every second that it holds; near ranks first."""
    p, root = schedule.num_ranks, schedule.root
    for k in range(rounds(p)):
        goal = np.arange(2**k, min(2 ** (k + 1), p))  # Who gets its part now. Counted from the root.
        count, stride = (p - 1 - goal >> k + 1) + 1, 2 ** (k + 1)
        first = goal if direction == _UP else -(goal + (count - 1) * stride)
        with schedule.step():
            schedule.copy(
                src=(root + direction * (goal - 2**k)) % p,
                dst=(root + direction * goal) % p,
                chunk=(root + first) % p,
                count=count,
                stride=stride,
            )


@algorithm(
    "all_gather",
    name="nonuniform_hierarchical_ring",
    chunks=lambda p: p,
    steps=rounds,
    sent=lambda p: (p - 1) / p,
)
def hierarchical_ring_all_gather(schedule: Builder) -> None:
    """P trees, one for each block, moved on by a rank each. The distance halves with every step: a single block goes
    far away, and half of all blocks go to the next rank, where links are fast.

    Steps: ceil(log2(P))
    Sent: (P - 1) / P * N
    Best: small and medium N, many ranks, also where they are no power of two, and where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NHR (nonuniform hierarchical ring), and its AllGatherNHR

    Blocks have their places, so that a message is made of every 2**k-th block.
    """
    _spread(schedule, _UP)


hierarchical_ring_reduce_scatter = algorithm(
    "reduce_scatter",
    name="nonuniform_hierarchical_ring",
    steps=rounds,
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""The all_gather of this name run backwards: half of all blocks are folded with the next rank's, then a quarter
    with those two ranks away, at last one block with that of a rank far away.

    Steps: ceil(log2(P))
    Sent: (P - 1) / P * N
    Best: small and medium N, many ranks, also where they are no power of two, and where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NHR (nonuniform hierarchical ring), and its ReduceScatterNHR
    """,
)(hierarchical_ring_all_gather.reversed())


@algorithm(
    "all_reduce",
    name="nonuniform_hierarchical_ring",
    chunks=lambda p: p,
    steps=lambda p: 2 * rounds(p),
    sent=lambda p: 2 * (p - 1) / p,
    labels=("same_on_all_ranks",),
)
def hierarchical_ring_all_reduce(schedule: Builder) -> None:
    """Reduce_scatter, then all_gather of this name, with chunks renumbered: those of even ranks before those of odd
    ones, and so on in each half, as long as halves are equal. So what is sent at once lies together.

    Steps: 2 * ceil(log2(P))
    Sent: 2 * (P - 1) / P * N
    Best: small and medium N, many ranks, also where they are no power of two, and where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NHR (nonuniform hierarchical ring), and its AllReduceNHR

    For a power of two every message is one range of chunks. Where P is an odd number times 2**a, those of distances to
    2**a, at least half of the data, are one range each, or two at the end of a part; the others are made of every
    second chunk, every fourth ... of a part. For small messages HCCL takes a single tree; see `tree` for one.
    """
    p, rank = schedule.num_ranks, schedule.ranks
    moves = [(2**k, *_lying_together(p, (rank - 2**k) % p, k)) for k in range(rounds(p))]
    for distance, goal, chunk, count, stride in moves:
        with schedule.step():
            schedule.reduce(src=(goal + distance) % p, dst=goal, chunk=chunk, count=count, stride=stride)
    for distance, goal, chunk, count, stride in reversed(moves):
        with schedule.step():
            schedule.copy(src=goal, dst=(goal + distance) % p, chunk=chunk, count=count, stride=stride)


def _lying_together(p: int, goal: _Ints, k: int) -> tuple[_Ints, _Ints, _Ints, int]:
    """Rows (goal, chunk, count, stride) of the renumbered chunks that each goal gets over the distance 2**k.

    Chunks of ranks that are equal modulo 2**a, the largest power of two in p, are a part. Parts are in bit-reversed
    order, and in a part chunks follow each other 2 * 2**a ranks apart.
    """
    parts = p & -p
    size = p // parts
    part = np.zeros_like(goal)
    for bit in range(parts.bit_length() - 1):
        part = 2 * part + (goal >> bit & 1)
    if 2**k < parts:  # All parts of ranks that are equal modulo 2**(k + 1).
        together = parts >> k + 1
        return goal, part // together * together * size, np.full_like(goal, together * size), 1
    count, stride = (p - 1 + 2**k) >> k + 1, 2**k // parts
    last = goal // parts * ((size + 1) // 2) % size  # (size + 1) / 2 is 1 / 2 modulo the size, which is odd.
    upper = np.minimum(count, last // stride + 1)  # As many, counted down from the last, until the part begins.
    lower = count - upper  # The others, at the end of the part.
    begin, cut = part * size + last - (upper - 1) * stride, lower > 0
    begin_lower = begin + size - lower * stride
    return (
        np.concatenate([goal, goal[cut]]),
        np.concatenate([begin, begin_lower[cut]]),
        np.concatenate([upper, lower[cut]]),
        stride,
    )


@algorithm(
    "scatter",
    name="nonuniform_hierarchical_ring",
    chunks=lambda p: p,
    steps=rounds,
    sent=lambda p: (p - 1) / p,
)
def hierarchical_ring_scatter(schedule: Builder) -> None:
    """The tree of one root: it gives every second block to the rank before it, then both every fourth two ranks back,
    until each has one block left, its own.

    Steps: ceil(log2(P))
    Sent: (P - 1) / P * N
    Best: small N and many ranks, where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NHR (nonuniform hierarchical ring), and its ScatterNHR
    """
    _scatter(schedule, _DOWN)


hierarchical_ring_broadcast = algorithm(
    "broadcast",
    name="nonuniform_hierarchical_ring",
    steps=lambda p: 2 * rounds(p),
    sent=lambda p: 2 * (p - 1) / p,
    doc="""Scatter, then all_gather of this name.

    Steps: 2 * ceil(log2(P))
    Sent: 2 * (P - 1) / P * N
    Best: medium and large N, many ranks, also where they are no power of two
    Ranks: any
    Reference: HCCL, documentation of NHR (nonuniform hierarchical ring)

    HCCL renumbers chunks here too.
    """,
)(hierarchical_ring_scatter.then(hierarchical_ring_all_gather))


@algorithm(
    "all_gather",
    name="nonuniform_bruck",
    chunks=lambda p: p,
    steps=rounds,
    sent=lambda p: (p - 1) / p,
)
def nonuniform_bruck_all_gather(schedule: Builder) -> None:
    """Reduce_scatter of this name run backwards. Unlike Bruck's, far ranks are first: the distance halves with every
    step while the number of blocks grows, from one to half of them all.

    Steps: ceil(log2(P))
    Sent: (P - 1) / P * N
    Best: small and medium N, many ranks, also where they are no power of two, and where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NB (nonuniform Bruck)

    The documentation has distances fall as well; the source of AllGatherNB has near ranks first, which is `bruck`.
    """
    _spread(schedule, _DOWN)


nonuniform_bruck_reduce_scatter = algorithm(
    "reduce_scatter",
    name="nonuniform_bruck",
    steps=rounds,
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""For k from 0, each rank sends floor((P - 1 + 2**k) / 2**(k + 1)) blocks over the distance 2**k, those that
    belong an odd number of times 2**k ranks on: half of all blocks to the next rank, a single one far away.

    Steps: ceil(log2(P))
    Sent: (P - 1) / P * N
    Best: small and medium N, many ranks, also where they are no power of two, and where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NB (nonuniform Bruck), and its ReduceScatterNB
    """,
)(nonuniform_bruck_all_gather.reversed())


nonuniform_bruck_all_reduce = algorithm(
    "all_reduce",
    name="nonuniform_bruck",
    steps=lambda p: 2 * rounds(p),
    sent=lambda p: 2 * (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""Reduce_scatter, then all_gather of this name.

    Steps: 2 * ceil(log2(P))
    Sent: 2 * (P - 1) / P * N
    Best: small and medium N, many ranks, also where they are no power of two, and where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NB (nonuniform Bruck)
    """,
)(nonuniform_bruck_reduce_scatter.then(nonuniform_bruck_all_gather))


@algorithm(
    "scatter",
    name="nonuniform_bruck",
    chunks=lambda p: p,
    steps=rounds,
    sent=lambda p: (p - 1) / p,
)
def nonuniform_bruck_scatter(schedule: Builder) -> None:
    """The tree of one root: it gives every second block to the rank after it, then both every fourth two ranks on,
    until each has one block left, its own.

    Steps: ceil(log2(P))
    Sent: (P - 1) / P * N
    Best: small N and many ranks, where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NB (nonuniform Bruck), and its ScatterNB
    """
    _scatter(schedule, _UP)


nonuniform_bruck_broadcast = algorithm(
    "broadcast",
    name="nonuniform_bruck",
    steps=lambda p: 2 * rounds(p),
    sent=lambda p: 2 * (p - 1) / p,
    doc="""Scatter, then all_gather of this name.

    Steps: 2 * ceil(log2(P))
    Sent: 2 * (P - 1) / P * N
    Best: medium and large N, many ranks, also where they are no power of two
    Ranks: any
    Reference: HCCL, documentation of NB (nonuniform Bruck)
    """,
)(nonuniform_bruck_scatter.then(nonuniform_bruck_all_gather))
