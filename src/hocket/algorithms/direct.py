"""Direct: everyone exchanges with everyone in one step, and each sum is folded in rank order."""

import numpy as np

from hocket.algorithms.registry import algorithm
from hocket.schedule.builder import Builder

_BITS = ("same_on_all_ranks", "rank_order", "size_invariant")


@algorithm(
    "all_reduce", name="direct", chunks=lambda p: 1, steps=lambda p: min(p - 1, 1), sent=lambda p: p - 1, labels=_BITS
)
def direct_all_reduce(schedule: Builder) -> None:
    """One shot: everyone reads everyone's whole vector and folds them all itself, from rank 0 upwards.

    1 step; (P - 1) * N bytes per rank. Best for small N, where the number of steps is what counts, and for few ranks.
    Any rank count. Bits equal on all ranks, and those of a left fold over ranks whatever the size of the message.
    Known as one-shot or "allpairs" (MSCCL) all-reduce.
    """
    rank = schedule.ranks
    if schedule.num_ranks > 1:
        with schedule.step():
            schedule.copy(src=0, dst=rank, chunk=0)
            schedule.reduce(src=rank[1:, None], dst=rank, chunk=0)


@algorithm(
    "reduce_scatter",
    name="direct",
    chunks=lambda p: p,
    steps=lambda p: min(p - 1, 1),
    sent=lambda p: (p - 1) / p,
    labels=_BITS,
)
def direct_reduce_scatter(schedule: Builder) -> None:
    """Everyone reads its own block from everyone and folds them, from rank 0 upwards.

    1 step; (P - 1) / P * N bytes per rank. Best where all pairs of ranks have links of their own, as in shared memory
    or behind a switch; on other networks the P - 1 messages at once get in each other's way. Any rank count. Bits are
    those of a left fold over ranks, whatever the size. HCCL calls the like Mesh.
    """
    rank = schedule.ranks
    if schedule.num_ranks > 1:
        with schedule.step():
            schedule.copy(src=0, dst=rank, chunk=rank)
            schedule.reduce(src=rank[1:, None], dst=rank, chunk=rank)


@algorithm("all_gather", name="direct", chunks=lambda p: p, steps=lambda p: min(p - 1, 1), sent=lambda p: (p - 1) / p)
def direct_all_gather(schedule: Builder) -> None:
    """Everyone gives its block to everyone, its next neighbour first, so that no rank is the first goal of all.

    1 step; (P - 1) / P * N bytes per rank. Best where all pairs of ranks have links of their own. Any rank count.
    HCCL calls the like Mesh.
    """
    p, rank = schedule.num_ranks, schedule.ranks
    distance = np.arange(1, p)[:, None]
    with schedule.step():
        schedule.copy(src=rank, dst=(rank + distance) % p, chunk=rank)


direct_two_shot = algorithm(
    "all_reduce",
    name="direct_two_shot",
    steps=lambda p: 2 * min(p - 1, 1),
    sent=lambda p: 2 * (p - 1) / p,
    labels=_BITS,
    doc="""Two shots: direct reduce_scatter, in which each rank folds one chunk for all, then direct all_gather.

    2 steps; 2 (P - 1) / P * N bytes per rank, which is the least there is. Best for medium and large N where all pairs
    of ranks have links of their own: shared memory, a switch. Any rank count. Bits as for one shot: equal on all ranks,
    a left fold over ranks whatever the size. HCCL calls the like Mesh.
    """,
)(direct_reduce_scatter.then(direct_all_gather))
