"""Pairwise: one message at a time to and from each rank, so that no link carries two; spread out: a few at a time."""

from collections.abc import Sequence

import numpy as np

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder

_WINDOW = 8  # Messages of a rank that are under way at once, where they are spread out.


@algorithm(
    "all_to_all",
    "all_to_all_v",
    name="pairwise",
    chunks=lambda p: p * p,
    steps=lambda p: max(p - 1, 1),
    sent=lambda p: (p - 1) / p**2,
)
def pairwise_all_to_all(schedule: Builder) -> None:
    """In step d everyone gives the rank d further on the block for it, and so gets one from the rank d before.

    Steps: max(P - 1, 1)
    Sent: (P - 1) / P * N
    Best: large blocks on networks, where messages that arrive together get in each other's way
    Ranks: any
    Reference: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005

    No algorithm sends less.
    """
    _exchange(schedule, range(2, schedule.num_ranks))


@algorithm(
    "all_to_all",
    "all_to_all_v",
    name="spread_out",
    chunks=lambda p: p * p,
    steps=lambda p: max(-(-(p - 1) // _WINDOW), 1),
    sent=lambda p: (p - 1) / p**2,
)
def spread_out_all_to_all(schedule: Builder) -> None:
    """As pairwise, with windows of 8 distances in one step.

    Steps: max(ceil((P - 1) / 8), 1)
    Sent: (P - 1) / P * N
    Best: medium blocks, and networks with flow control of their own
    Ranks: any
    Reference: MPICH, its alltoall "scattered"
    """
    _exchange(schedule, range(_WINDOW + 1, schedule.num_ranks, _WINDOW))


def _exchange(schedule: Builder, windows: Sequence[int]) -> None:
    """Distances from 0 on, those from each of `windows` in a step of their own."""
    p, rank = schedule.num_ranks, schedule.ranks
    for distance in np.split(np.arange(p), windows):  # One's own block, at distance 0, moves with the first step.
        peer = (rank + distance[:, None]) % p
        with schedule.step():
            schedule.copy(src=rank, dst=peer, src_buffer="input", src_chunk=peer, dst_buffer="output", dst_chunk=rank)


@algorithm(
    "all_gather",
    name="pairwise",
    chunks=lambda p: p,
    steps=lambda p: p - 1,
    sent=lambda p: (p - 1) / p,
)
def pairwise_all_gather(schedule: Builder) -> None:
    """In step d everyone gives its own block to the rank d further on. No rank passes anything on.

    Steps: P - 1
    Sent: (P - 1) / P * N
    Best: large blocks on networks where all pairs of ranks are equally near
    Ranks: any
    Reference: HCCL, documentation of Pairwise; Thakur, Rabenseifner and Gropp 2005
    """
    p, rank = schedule.num_ranks, schedule.ranks
    for distance in range(1, p):
        with schedule.step():
            schedule.copy(src=rank, dst=(rank + distance) % p, chunk=rank)


pairwise_reduce_scatter = algorithm(
    "reduce_scatter",
    name="pairwise",
    steps=lambda p: p - 1,
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""The all_gather of this name run backwards: a rank's block comes in from one rank after the other, whose own
    contribution it is, and is folded there.

    Steps: P - 1
    Sent: (P - 1) / P * N
    Best: large blocks on networks where all pairs of ranks are equally near
    Ranks: any
    Reference: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005
    """,
)(pairwise_all_gather.reversed())
