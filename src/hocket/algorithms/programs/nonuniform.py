"""Nonuniform trees of HCCL: logarithmic steps and least traffic for any rank count, most of it between near ranks.

A chunk goes to far ranks first, and is collected from them last: single chunks travel far, and half of all chunks
travel between neighbours. What is sent over the distance 2**k arrives 2**k, 3 * 2**k, 5 * 2**k ... ranks from its
owner.

HCCL has two algorithms of this kind. In its source, reduce_scatter of the nonuniform hierarchical ring (NHR) sends to
rank - 2**k and that of nonuniform Bruck (NB) to rank + 2**k: they are mirror images. NHR also renumbers chunks where it
is free to do so, so that what is sent at once lies together; NB leaves chunks in place.
"""

import numpy as np
import numpy.typing as npt

from hocket.algorithms.programs.rounds import rounds
from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder

_Ints = npt.NDArray[np.int64]

_UP, _DOWN = 1, -1


def _spread(schedule: Builder, direction: int) -> None:
    """Each rank sends the chunks that the rank 2**k further on lacks to that rank; far ranks first."""
    p, rank = schedule.num_ranks, schedule.ranks
    for k in reversed(range(rounds(p))):
        count, stride = (p - 1 + 2**k) >> k + 1, 2 ** (k + 1)
        first = rank if direction == _DOWN else rank - (count - 1) * stride
        with schedule.step():
            schedule.copy(src=rank, dst=(rank + direction * 2**k) % p, chunk=first % p, count=count, stride=stride)


def _scatter(schedule: Builder, direction: int) -> None:
    """A rank that holds chunks sends every second one of them to the rank 2**k further on; near ranks first."""
    p, root = schedule.num_ranks, schedule.root
    for k in range(rounds(p)):
        goal = np.arange(2**k, min(2 ** (k + 1), p))  # The ranks that get their part now, counted from the root.
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
    chunks="P",
    steps="ceil(log2(P))",
    sent="(P - 1) / P",
)
def hierarchical_ring_all_gather(schedule: Builder) -> None:
    """P trees, one for each block, each one rank further on than the last. The distance halves with every step: a
    single block goes far away, and half of all blocks go to the next rank, where links are fast.

    Best: small and medium N, many ranks (no power of two is needed), and where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NHR (nonuniform hierarchical ring), and its AllGatherNHR

    Blocks have fixed places, so a message consists of every 2**k-th block.
    """
    _spread(schedule, _UP)


hierarchical_ring_reduce_scatter = algorithm(
    "reduce_scatter",
    name="nonuniform_hierarchical_ring",
    steps="ceil(log2(P))",
    sent="(P - 1) / P",
    labels=("same_on_all_ranks",),
    doc="""The all_gather of this name run backwards: half of all blocks are folded with those of the next rank, then a
    quarter with those of the rank two further on, and at last one block with that of a rank far away.

    Best: small and medium N, many ranks (no power of two is needed), and where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NHR (nonuniform hierarchical ring), and its ReduceScatterNHR
    """,
)(hierarchical_ring_all_gather.reversed())


@algorithm(
    "all_reduce",
    name="nonuniform_hierarchical_ring",
    chunks="P",
    steps="2 * ceil(log2(P))",
    sent="2 * (P - 1) / P",
    labels=("same_on_all_ranks",),
)
def hierarchical_ring_all_reduce(schedule: Builder) -> None:
    """The reduce_scatter, then the all_gather of this name, with renumbered chunks: those of even ranks come before
    those of odd ranks, and so on in each half, as long as halves are equal. So what is sent at once lies together.

    Best: small and medium N, many ranks (no power of two is needed), and where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NHR (nonuniform hierarchical ring), and its AllReduceNHR

    For a power of two, every message is one range of chunks. If P is an odd number times 2**a, the messages over
    distances up to 2**a, at least half of the data, are one range each, or two at the end of a part; the others consist
    of every second chunk, every fourth chunk ... of a part. For small messages HCCL uses a single tree; see `tree`.
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
    if 2**k < parts:  # All parts of the ranks that are equal modulo 2**(k + 1).
        together = parts >> k + 1
        return goal, part // together * together * size, np.full_like(goal, together * size), 1
    count, stride = (p - 1 + 2**k) >> k + 1, 2**k // parts
    last = goal // parts * ((size + 1) // 2) % size  # (size + 1) / 2 is 1 / 2 modulo the size, which is odd.
    upper = np.minimum(count, last // stride + 1)  # So many chunks, counted down from the last, until the part begins.
    lower = count - upper  # The other chunks, at the end of the part.
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
    chunks="P",
    steps="ceil(log2(P))",
    sent="(P - 1) / P",
)
def hierarchical_ring_scatter(schedule: Builder) -> None:
    """The tree of one root: it sends every second block to the rank before it, then both send every fourth block two
    ranks back, and so on until each rank has one block left, its own.

    Best: small N and many ranks, where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NHR (nonuniform hierarchical ring), and its ScatterNHR
    """
    _scatter(schedule, _DOWN)


hierarchical_ring_broadcast = algorithm(
    "broadcast",
    name="nonuniform_hierarchical_ring",
    steps="2 * ceil(log2(P))",
    sent="2 * (P - 1) / P",
    doc="""The scatter, then the all_gather of this name.

    Best: medium and large N, many ranks (no power of two is needed)
    Ranks: any
    Reference: HCCL, documentation of NHR (nonuniform hierarchical ring)

    HCCL renumbers chunks in this collective too.
    """,
)(hierarchical_ring_scatter.then(hierarchical_ring_all_gather))


@algorithm(
    "all_gather",
    name="nonuniform_bruck",
    chunks="P",
    steps="ceil(log2(P))",
    sent="(P - 1) / P",
)
def nonuniform_bruck_all_gather(schedule: Builder) -> None:
    """The reduce_scatter of this name run backwards. Unlike Bruck's algorithm, it starts with far ranks: the distance
    halves with every step while the number of blocks grows, from one to half of them all.

    Best: small and medium N, many ranks (no power of two is needed), and where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NB (nonuniform Bruck)

    The documentation says that distances fall, as they do here; the source of AllGatherNB starts with near ranks, which
    is `bruck`.
    """
    _spread(schedule, _DOWN)


nonuniform_bruck_reduce_scatter = algorithm(
    "reduce_scatter",
    name="nonuniform_bruck",
    steps="ceil(log2(P))",
    sent="(P - 1) / P",
    labels=("same_on_all_ranks",),
    doc="""For k from 0, each rank sends floor((P - 1 + 2**k) / 2**(k + 1)) blocks over the distance 2**k: those whose
    owner is an odd number of times 2**k ranks on. Half of all blocks go to the next rank, a single one far away.

    Best: small and medium N, many ranks (no power of two is needed), and where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NB (nonuniform Bruck), and its ReduceScatterNB
    """,
)(nonuniform_bruck_all_gather.reversed())


nonuniform_bruck_all_reduce = algorithm(
    "all_reduce",
    name="nonuniform_bruck",
    steps="2 * ceil(log2(P))",
    sent="2 * (P - 1) / P",
    labels=("same_on_all_ranks",),
    doc="""The reduce_scatter, then the all_gather of this name.

    Best: small and medium N, many ranks (no power of two is needed), and where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NB (nonuniform Bruck)
    """,
)(nonuniform_bruck_reduce_scatter.then(nonuniform_bruck_all_gather))


@algorithm(
    "scatter",
    name="nonuniform_bruck",
    chunks="P",
    steps="ceil(log2(P))",
    sent="(P - 1) / P",
)
def nonuniform_bruck_scatter(schedule: Builder) -> None:
    """The tree of one root: it sends every second block to the rank after it, then both send every fourth block two
    ranks on, and so on until each rank has one block left, its own.

    Best: small N and many ranks, where near ranks have faster links
    Ranks: any
    Reference: HCCL, documentation of NB (nonuniform Bruck), and its ScatterNB
    """
    _scatter(schedule, _UP)


nonuniform_bruck_broadcast = algorithm(
    "broadcast",
    name="nonuniform_bruck",
    steps="2 * ceil(log2(P))",
    sent="2 * (P - 1) / P",
    doc="""The scatter, then the all_gather of this name.

    Best: medium and large N, many ranks (no power of two is needed)
    Ranks: any
    Reference: HCCL, documentation of NB (nonuniform Bruck)
    """,
)(nonuniform_bruck_scatter.then(nonuniform_bruck_all_gather))
