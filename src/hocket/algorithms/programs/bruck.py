"""Bruck: blocks double with every step, from near ranks to far ones, for any rank count.

Chunks have numbers of their own here, so that the rotations before and after, which MPI libraries need, do not exist.
"""

import numpy as np

from hocket.algorithms.programs.rounds import rounds
from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder


@algorithm("all_gather", name="bruck", chunks=lambda p: p, steps=rounds, sent=lambda p: (p - 1) / p)
def bruck_all_gather(schedule: Builder) -> None:
    """In round k each rank gives the 2**k blocks that it has to the rank 2**k before it: its own and those of the ranks
    that follow. In the last round it gives what is still missing there.

    Steps: ceil(log2(P))
    Sent: (P - 1) / P * N
    Best: small N, any number of ranks; the largest messages go farthest, against which there is `pat`
    Ranks: any
    Reference: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
      multiport message-passing systems", 1997
    """
    p, rank = schedule.num_ranks, schedule.ranks
    for k in range(rounds(p)):
        with schedule.step():
            schedule.copy(src=rank, dst=(rank - 2**k) % p, chunk=rank, count=min(2**k, p - 2**k))


bruck_reduce_scatter = algorithm(
    "reduce_scatter",
    name="bruck",
    steps=rounds,
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""Bruck's all_gather run backwards: far ranks first, and half as many blocks with every step.

    Steps: ceil(log2(P))
    Sent: (P - 1) / P * N
    Best: small N, any number of ranks, each message one range of blocks
    Ranks: any
    Reference: Bruck and Ho, "Efficient global combine operations in multi-port message-passing systems", 1993
    """,
)(bruck_all_gather.reversed())


bruck_all_reduce = algorithm(
    "all_reduce",
    name="bruck",
    steps=lambda p: 2 * rounds(p),
    sent=lambda p: 2 * (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""Reduce_scatter, then all_gather of Bruck.

    Steps: 2 * ceil(log2(P))
    Sent: 2 * (P - 1) / P * N
    Best: small and medium N, any number of ranks, each message one range of chunks
    Ranks: any
    Reference: Bruck and Ho, "Efficient global combine operations in multi-port message-passing systems", 1993
    """,
)(bruck_reduce_scatter.then(bruck_all_gather))


@algorithm(
    "all_to_all",
    name="bruck",
    chunks=lambda p: p * p,
    steps=lambda p: max(rounds(p), 1),
    sent=lambda p: sum(distance.bit_count() for distance in range(p)) / p**2,
)
def bruck_all_to_all(schedule: Builder) -> None:
    """A block that is d ranks from home goes 2**k ranks on in round k if bit k of d is set.

    Steps: max(ceil(log2(P)), 1)
    Sent: N / P for each bit that is set in 1, 2 ... P - 1: about N / 2 * log2(P)
    Best: blocks so small that the number of messages is what counts
    Ranks: any
    Reference: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
      multiport message-passing systems", 1997

    Even blocks only, as ranks on the way would not know the sizes of others. Blocks on the way wait in scratch slot d.
    """
    p, rank = schedule.num_ranks, schedule.ranks
    for k in range(max(rounds(p), 1)):
        distance = np.arange(p)
        distance = distance[distance >> k & 1 == 1]
        begins, ends = distance % 2**k == 0, distance < 2 ** (k + 1)  # Whether this is the first hop, the last one.
        with schedule.step():
            if k == 0:
                schedule.copy(src=rank, dst=rank, chunk=rank, src_buffer="input", dst_buffer="output")
            for first, last in ((True, True), (True, False), (False, True), (False, False)):
                d = distance[(begins == first) & (ends == last)][:, None]
                schedule.copy(
                    src=rank,
                    dst=(rank + 2**k) % p,
                    src_buffer="input" if first else "scratch",
                    src_chunk=(rank + d) % p if first else d,
                    dst_buffer="output" if last else "scratch",
                    dst_chunk=(rank + 2**k - d) % p if last else d,
                )
