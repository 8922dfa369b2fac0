"""Bruck: the number of blocks in a message doubles with every step, from near ranks to far ones, for any rank count.

Chunks are numbered so that the rotations before and after, which MPI libraries need, do not exist.
"""

import numpy as np

from hocket.algorithms.programs.rounds import rounds
from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder


@algorithm("all_gather", name="bruck", chunks="P", steps="ceil(log2(P))", sent="(P - 1) / P")
def bruck_all_gather(schedule: Builder) -> None:
    """In round k each rank sends the 2**k blocks that it has (its own and those of the ranks after it) to the rank 2**k
    before it. In the last round it sends only the blocks that are still missing there.

    Best: small N, any number of ranks; the largest messages go farthest, which `pat` avoids
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
    steps="ceil(log2(P))",
    sent="(P - 1) / P",
    labels=("same_on_all_ranks",),
    doc="""Bruck's all_gather run backwards: far ranks first, and half as many blocks with every step.

    Best: small N, any number of ranks, each message one range of blocks
    Ranks: any
    Reference: Bruck and Ho, "Efficient global combine operations in multi-port message-passing systems", 1993
    """,
)(bruck_all_gather.reversed())


bruck_all_reduce = algorithm(
    "all_reduce",
    name="bruck",
    steps="2 * ceil(log2(P))",
    sent="2 * (P - 1) / P",
    labels=("same_on_all_ranks",),
    doc="""Bruck's reduce_scatter, then Bruck's all_gather.

    Best: small and medium N, any number of ranks, each message one range of chunks
    Ranks: any
    Reference: Bruck and Ho, "Efficient global combine operations in multi-port message-passing systems", 1993
    """,
)(bruck_reduce_scatter.then(bruck_all_gather))


def _sent_to_all(p: int) -> float:
    """1 / P for each bit that is set in 1, 2 ... P - 1: about log2(P) / 2"""
    return sum(distance.bit_count() for distance in range(p)) / p


@algorithm(
    "all_to_all",
    name="bruck",
    chunks="P * P",
    steps="max(ceil(log2(P)), 1)",
    sent=_sent_to_all,
)
def bruck_all_to_all(schedule: Builder) -> None:
    """A block whose destination is d ranks away moves on by 2**k ranks in round k if bit k of d is set.

    Best: blocks so small that the number of messages decides
    Ranks: any
    Reference: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
      multiport message-passing systems", 1997

    Even blocks only, because ranks on the way do not know the sizes of other blocks. Blocks on the way wait in scratch
    slot d.
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
