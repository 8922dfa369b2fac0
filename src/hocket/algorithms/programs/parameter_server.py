"""Parameter server: one rank sums each chunk for all. All ranks push their chunks to it, and pull the sum."""

import numpy as np

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder


@algorithm(
    "all_reduce",
    name="parameter_server",
    chunks="max(P // 4, 1)",
    steps="2 * min(P - 1, 1)",
    sent="(max(P // 4, 1) + P - 2) / max(P // 4, 1)",
    labels=("same_on_all_ranks", "rank_order", "size_invariant"),
)
def parameter_server_all_reduce(schedule: Builder) -> None:
    """Every fourth rank is the server of one chunk: all ranks push the chunk to it, the server folds in rank order, and
    all ranks pull the sum.

    Best: where some ranks have links that are several times as fast as those of the others; medium N in shared memory
      where ranks share cores, because there are few messages
    Ranks: any
    Reference: Li et al., "Scaling distributed machine learning with the parameter server", 2014; Jiang et al., "A
      unified architecture for accelerating distributed DNN training in heterogeneous GPU/CPU clusters" (BytePS), 2020

    Servers are ranks that contribute like all others; BytePS uses separate machines for them. A server sends the most;
    other ranks send at most N.
    """
    p, rank, chunk = schedule.num_ranks, schedule.ranks, np.arange(schedule.num_chunks)
    server = chunk * p // schedule.num_chunks  # Spread evenly, so that consecutive ranks share one.
    if p > 1:
        with schedule.step():
            schedule.copy(src=0, dst=server, chunk=chunk)
            schedule.reduce(src=rank[1:, None], dst=server, chunk=chunk)
        with schedule.step():
            schedule.copy(src=server, dst=(server + rank[1:, None]) % p, chunk=chunk)
