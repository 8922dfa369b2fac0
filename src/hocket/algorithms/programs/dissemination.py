"""Dissemination: in round k everybody tells the rank 2**k further on all that it has heard."""

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder


@algorithm(
    "barrier",
    name="dissemination",
    chunks=lambda p: 1,
    steps=lambda p: (p - 1).bit_length(),
    sent=lambda p: (p - 1).bit_length(),
)
def dissemination_barrier(schedule: Builder) -> None:
    """After round k each rank has heard from the 2**(k + 1) - 1 before it, so that after the last from all.

    Steps: ceil(log2(P))
    Sent: ceil(log2(P)) * N
    Best: any number of ranks; no barrier takes fewer steps
    Ranks: any
    Reference: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988

    N is one token of one byte. Some ranks are heard of twice, which a barrier may.
    """
    p, rank = schedule.num_ranks, schedule.ranks
    for k in range((p - 1).bit_length()):
        with schedule.step():
            schedule.reduce(src=rank, dst=(rank + 2**k) % p, chunk=0)
