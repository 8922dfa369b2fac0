"""Recursive halving and doubling over binary blocks: logarithmic, near bandwidth optimal, for any rank count."""

import numpy as np

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder


def _sent(p: int) -> float:
    largest = 1 << p.bit_length() - 1
    return {1: 2 - 2 / p, 2: 2 - 1 / largest}.get(p.bit_count(), 2.0)


@algorithm(
    "all_reduce",
    name="halving_doubling",
    chunks=lambda p: 2 ** (p.bit_length() - 1),
    steps=lambda p: 2 * (p - 1).bit_length(),
    sent=_sent,
    labels=("same_on_all_ranks", "balanced_tree", "size_invariant"),
)
def halving_doubling(schedule: Builder) -> None:
    """Ranks form blocks of falling powers of two (7 = 4 + 2 + 1). In a block partners 1, 2, 4 ... apart halve between
    them what they still sum; a finished block adds its chunks to those of the next larger one. Then all of it back.

    Steps: 2 * ceil(log2(P))
    Sent: 2 * (P - 1) / P * N for a power of two; (2 - 1 / B) * N for a sum of two, of which B is the larger; else 2 * N
    Best: medium N
    Ranks: any
    Reference: Rabenseifner, "Optimization of collective reduction operations", 2004; binary blocks: Thakur,
      Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005

    The left operand is always that of the lower ranks, so that bits are those of the balanced tree, on all ranks and
    for any size.
    """
    p, rank, chunks = schedule.num_ranks, schedule.ranks, schedule.num_chunks
    block = 2 ** np.array([int(bits).bit_length() - 1 for bits in p ^ rank])  # The size of each rank's block.
    index = rank % block
    smaller = rank - index + block  # First rank of the next smaller block, if there is one.
    partner = smaller + index % block[np.minimum(smaller, p - 1)]
    rounds = range((p - 1).bit_length())
    halves = [chunks >> (k + 1) for k in rounds]
    first = np.zeros((len(rounds) + 1, p), int)  # First chunk that each rank still sums, before each round.
    for k in rounds:
        first[k + 1] = first[k] + (index >> k & 1) * halves[k]

    for k in rounds:
        low = rank[(block > 2**k) & (rank >> k & 1 == 0)]
        high, kept, given = low + 2**k, first[k][low], first[k][low] + halves[k]
        ready = rank[(block == 2**k) & (smaller < p)]
        with schedule.step():
            schedule.reduce(src=high, dst=low, chunk=kept, count=halves[k])
            schedule.copy(src=low, dst=high, chunk=given, count=halves[k])
            schedule.reduce(src=high, dst=high, chunk=given, count=halves[k])
            schedule.reduce(src=partner[ready], dst=ready, chunk=first[k][ready], count=chunks >> k)
    for k in reversed(rounds):
        low = rank[(block > 2**k) & (rank >> k & 1 == 0)]
        high, kept, given = low + 2**k, first[k][low], first[k][low] + halves[k]
        ready = rank[(block == 2**k) & (smaller < p)]
        with schedule.step():
            schedule.copy(src=ready, dst=partner[ready], chunk=first[k][ready], count=chunks >> k)
            schedule.copy(src=low, dst=high, chunk=kept, count=halves[k])
            schedule.copy(src=high, dst=low, chunk=given, count=halves[k])


@algorithm(
    "reduce_scatter",
    name="halving_doubling",
    chunks=lambda p: p,
    steps=lambda p: p.bit_length() - 1,
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks", "balanced_tree", "size_invariant"),
    ranks=("a power of two", lambda p: p.bit_count() == 1, "tree"),
)
def halving_reduce_scatter(schedule: Builder) -> None:
    """Partners 1, 2, 4 ... apart halve between them the blocks that they still sum: a rank keeps those whose numbers
    have the same last bits as its own.

    Steps: log2(P)
    Sent: (P - 1) / P * N
    Best: small and medium N; the largest messages go to the nearest ranks
    Ranks: a power of two; tree takes any number
    Reference: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005

    The left operand is always that of the lower ranks, so that bits are those of the balanced tree.
    """
    p, rank = schedule.num_ranks, schedule.ranks
    for k in range(p.bit_length() - 1):
        low, stride = rank[rank >> k & 1 == 0], 2 ** (k + 1)
        high, count = low + 2**k, p // stride
        with schedule.step():
            schedule.reduce(src=high, dst=low, chunk=low % stride, count=count, stride=stride)
            schedule.copy(src=low, dst=high, chunk=high % stride, count=count, stride=stride)
            schedule.reduce(src=high, dst=high, chunk=high % stride, count=count, stride=stride)


doubling_all_gather = algorithm(
    "all_gather",
    name="halving_doubling",
    steps=lambda p: p.bit_length() - 1,
    sent=lambda p: (p - 1) / p,
    doc="""The reduce_scatter of this name run backwards: a single block goes farthest, half of all to the nearest rank.

    Steps: log2(P)
    Sent: (P - 1) / P * N
    Best: small and medium N, where near ranks have faster links; `recursive_doubling` has near ranks first
    Ranks: a power of two; bruck takes any number
    Reference: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005
    """,
    ranks=("a power of two", lambda p: p.bit_count() == 1, "bruck"),
)(halving_reduce_scatter.reversed())
