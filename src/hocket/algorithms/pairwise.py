"""Pairwise: one message at a time to and from each rank, so that no link carries two."""

import numpy as np

from hocket.algorithms.registry import algorithm
from hocket.schedule.builder import Builder


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

    P - 1 steps; (P - 1) / P * N bytes per rank, N what a rank gives in all, its own block included: no algorithm sends
    less. Best for large blocks on networks, where messages that arrive together get in each other's way. Any rank
    count. Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
    """
    p, rank = schedule.num_ranks, schedule.ranks
    for distance in np.split(np.arange(p), range(2, p)):  # One's own block, at distance 0, moves with the first step.
        peer = (rank + distance[:, None]) % p
        with schedule.step():
            schedule.copy(src=rank, dst=peer, src_buffer="input", src_chunk=peer, dst_buffer="output", dst_chunk=rank)
