"""Parameter server: each chunk has one rank that sums it for all. Everyone pushes to it, and pulls the sum."""

import numpy as np

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder


def _num_servers(p: int) -> int:
    return max(p // 4, 1)


@algorithm(
    "all_reduce",
    name="parameter_server",
    chunks=_num_servers,
    steps=lambda p: 2 * min(p - 1, 1),
    sent=lambda p: (_num_servers(p) + p - 2) / _num_servers(p),
    labels=("same_on_all_ranks", "rank_order", "size_invariant"),
)
def parameter_server_all_reduce(schedule: Builder) -> None:
    """Every fourth rank is a server of one chunk: all push it there, the server folds in rank order, and all pull it.

    Steps: 2 * min(P - 1, 1)
    Sent: (max(P // 4, 1) + P - 2) / max(P // 4, 1) * N by a server; at most N by other ranks
    Best: where some ranks have links that are several times as fast as those of the others; medium N in shared memory
      where ranks share cores, as few messages go round
    Ranks: any
    Reference: Li et al., "Scaling distributed machine learning with the parameter server", 2014; Jiang et al., "A
      unified architecture for accelerating distributed DNN training in heterogeneous GPU/CPU clusters" (BytePS), 2020

    Servers are ranks here, which contribute like all others; BytePS has machines of their own for them.
    """
    p, rank, chunk = schedule.num_ranks, schedule.ranks, np.arange(schedule.num_chunks)
    server = chunk * p // schedule.num_chunks  # Spread evenly, so that consecutive ranks share one.
    if p > 1:
        with schedule.step():
            schedule.copy(src=0, dst=server, chunk=chunk)
            schedule.reduce(src=rank[1:, None], dst=server, chunk=chunk)
        with schedule.step():
            schedule.copy(src=server, dst=(server + rank[1:, None]) % p, chunk=chunk)
