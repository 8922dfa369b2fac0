"""Pairwise: one message at a time to and from each rank, so that no link carries two; spread out: a few at a time."""

from collections.abc import Sequence

import numpy as np

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder

_WINDOW = 8  # The number of messages of a rank that are under way at once in spread_out.


@algorithm(
    "all_to_all",
    "all_to_all_v",
    name="pairwise",
    chunks="P * P",
    steps="max(P - 1, 1)",
    sent="(P - 1) / P",
)
def pairwise_all_to_all(schedule: Builder) -> None:
    """In step d every rank sends to the rank d further on its block, and receives one from the rank d before.

    Best: large blocks on networks, where messages that arrive together slow each other down
    Ranks: any
    Reference: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005

    No algorithm sends less.
    """
    _exchange(schedule, range(2, schedule.num_ranks))


@algorithm(
    "all_to_all",
    "all_to_all_v",
    name="spread_out",
    chunks="P * P",
    steps="max(ceil((P - 1) / 8), 1)",
    sent="(P - 1) / P",
)
def spread_out_all_to_all(schedule: Builder) -> None:
    """Like pairwise, with 8 distances in one step.

    Best: medium blocks, and networks with flow control of their own
    Ranks: any
    Reference: MPICH, its alltoall "scattered"
    """
    _exchange(schedule, range(_WINDOW + 1, schedule.num_ranks, _WINDOW))


def _exchange(schedule: Builder, windows: Sequence[int]) -> None:
    """Distances from 0 upwards; those from each entry of `windows` on are a step of their own."""
    p, rank = schedule.num_ranks, schedule.ranks
    for distance in np.split(np.arange(p), windows):  # A rank's own block, at distance 0, moves in the first step.
        peer = (rank + distance[:, None]) % p
        with schedule.step():
            schedule.copy(src=rank, dst=peer, src_buffer="input", src_chunk=peer, dst_buffer="output", dst_chunk=rank)


@algorithm(
    "all_gather",
    name="pairwise",
    chunks="P",
    steps="P - 1",
    sent="(P - 1) / P",
)
def pairwise_all_gather(schedule: Builder) -> None:
    """In step d every rank sends its own block to the rank d further on. No rank passes anything on.

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
    steps="P - 1",
    sent="(P - 1) / P",
    labels=("same_on_all_ranks",),
    doc="""The all_gather of this name run backwards: each rank receives the contributions to its block from one rank
    after the other, and folds them.

    Best: large blocks on networks where all pairs of ranks are equally near
    Ranks: any
    Reference: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005
    """,
)(pairwise_all_gather.reversed())
