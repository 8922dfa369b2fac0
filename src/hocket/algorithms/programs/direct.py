"""Direct: whoever has something gives it, in one step, to whom it is for; each sum is folded in rank order.

Called mesh where everyone exchanges with everyone (HCCL), star where one rank does with all others.
"""

import numpy as np
import numpy.typing as npt

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder

_BITS = ("same_on_all_ranks", "rank_order", "size_invariant")


def _one_step(p: int) -> int:
    return min(p - 1, 1)


@algorithm("all_reduce", name="direct", chunks=lambda p: 1, steps=_one_step, sent=lambda p: p - 1, labels=_BITS)
def direct_all_reduce(schedule: Builder) -> None:
    """One shot: everyone reads everyone's whole vector and folds them all itself, from rank 0 upwards.

    Steps: min(P - 1, 1)
    Sent: (P - 1) * N
    Best: small N, where the number of steps is what counts, and few ranks
    Ranks: any
    Reference: folklore; the "allpairs" of microsoft/msccl, one-shot elsewhere

    Bits equal on all ranks, and those of a left fold over ranks whatever the size of the message.
    """
    rank = schedule.ranks
    if schedule.num_ranks > 1:
        with schedule.step():
            schedule.copy(src=0, dst=rank, chunk=0)
            schedule.reduce(src=rank[1:, None], dst=rank, chunk=0)


@algorithm(
    "reduce_scatter",
    "reduce_scatter_v",
    name="direct",
    chunks=lambda p: p,
    steps=_one_step,
    sent=lambda p: (p - 1) / p,
    labels=_BITS,
)
def direct_reduce_scatter(schedule: Builder) -> None:
    """Everyone reads its own block from everyone and folds them, from rank 0 upwards.

    Steps: min(P - 1, 1)
    Sent: (P - 1) / P * N
    Best: all pairs of ranks have links of their own, as in shared memory or behind a switch; on other networks the
      P - 1 messages at once get in each other's way
    Ranks: any
    Reference: folklore; the Mesh of HCCL

    Bits are those of a left fold over ranks, whatever the size.
    """
    rank = schedule.ranks
    if schedule.num_ranks > 1:
        with schedule.step():
            schedule.copy(src=0, dst=rank, chunk=rank)
            schedule.reduce(src=rank[1:, None], dst=rank, chunk=rank)


@algorithm("all_gather", "all_gather_v", name="direct", chunks=lambda p: p, steps=_one_step, sent=lambda p: (p - 1) / p)
def direct_all_gather(schedule: Builder) -> None:
    """Everyone gives its block to everyone, its next neighbour first, so that no rank is the first goal of all.

    Steps: min(P - 1, 1)
    Sent: (P - 1) / P * N
    Best: all pairs of ranks have links of their own, as in shared memory or behind a switch
    Ranks: any
    Reference: folklore; the Mesh of HCCL
    """
    p, rank = schedule.num_ranks, schedule.ranks
    distance = np.arange(1, p)[:, None]
    with schedule.step():
        schedule.copy(src=rank, dst=(rank + distance) % p, chunk=rank)


@algorithm("barrier", name="direct", chunks=lambda p: 1, steps=_one_step, sent=lambda p: p - 1)
def direct_barrier(schedule: Builder) -> None:
    """Everyone tells everyone, and goes on when it has heard from all.

    Steps: min(P - 1, 1)
    Sent: (P - 1) * N
    Best: few ranks, and more ranks than cores, where each further step is a further turn of every rank on its core
    Ranks: any
    Reference: folklore; the "central counter" of textbooks, with a flag of its own for each pair

    N is one token of one byte.
    """
    p, rank = schedule.num_ranks, schedule.ranks
    if p > 1:
        with schedule.step():
            schedule.reduce(src=(rank + np.arange(1, p)[:, None]) % p, dst=rank, chunk=0)


direct_two_shot = algorithm(
    "all_reduce",
    name="direct_two_shot",
    steps=lambda p: 2 * _one_step(p),
    sent=lambda p: 2 * (p - 1) / p,
    labels=_BITS,
    doc="""Two shots: direct reduce_scatter, in which each rank folds one chunk for all, then direct all_gather.

    Steps: 2 * min(P - 1, 1)
    Sent: 2 * (P - 1) / P * N
    Best: medium and large N where all pairs of ranks have links of their own, as in shared memory or behind a switch;
      no algorithm sends less
    Ranks: any
    Reference: folklore; the Mesh of HCCL

    Bits as for one shot: equal on all ranks, a left fold over ranks whatever the size.
    """,
)(direct_reduce_scatter.then(direct_all_gather))


@algorithm("broadcast", name="direct", chunks=lambda p: 1, steps=_one_step, sent=lambda p: p - 1)
def direct_broadcast(schedule: Builder) -> None:
    """The root gives the vector to everyone, its next neighbour first.

    Steps: min(P - 1, 1)
    Sent: (P - 1) * N
    Best: few ranks, and where all can read the root's memory at once
    Ranks: any
    Reference: folklore; the Star of HCCL
    """
    with schedule.step():
        schedule.copy(src=schedule.root, dst=_others(schedule), chunk=0)


@algorithm("reduce", name="direct", chunks=lambda p: 1, steps=_one_step, sent=_one_step, labels=_BITS)
def direct_reduce(schedule: Builder) -> None:
    """The root reads everyone's whole vector and folds them all itself, from rank 0 upwards.

    Steps: min(P - 1, 1)
    Sent: min(P - 1, 1) * N
    Best: few ranks, or where the order of reduction must be that of the ranks
    Ranks: any
    Reference: folklore; the Star of HCCL

    Bits are those of a left fold over ranks, whatever root and size.
    """
    rank, root = schedule.ranks, schedule.root
    if schedule.num_ranks > 1:
        with schedule.step():
            schedule.copy(src=0, dst=root, chunk=0)
            schedule.reduce(src=rank[1:], dst=root, chunk=0)


@algorithm("gather", "gather_v", name="direct", chunks=lambda p: p, steps=_one_step, sent=lambda p: _one_step(p) / p)
def direct_gather(schedule: Builder) -> None:
    """Everyone gives its block to the root.

    Steps: min(P - 1, 1)
    Sent: min(P - 1, 1) / P * N
    Best: few ranks, large blocks, shared memory; elsewhere all messages reach the root at once
    Ranks: any
    Reference: folklore; the Star of HCCL

    N is the gathered vector; no algorithm sends less.
    """
    others = _others(schedule)
    with schedule.step():
        schedule.copy(src=others, dst=schedule.root, chunk=others)


@algorithm("scatter", "scatter_v", name="direct", chunks=lambda p: p, steps=_one_step, sent=lambda p: (p - 1) / p)
def direct_scatter(schedule: Builder) -> None:
    """The root gives everyone its block, its next neighbour first.

    Steps: min(P - 1, 1)
    Sent: (P - 1) / P * N
    Best: few ranks, large blocks, shared memory
    Ranks: any
    Reference: folklore; the Star of HCCL

    N is the whole vector, which the root has; no algorithm sends less.
    """
    others = _others(schedule)
    with schedule.step():
        schedule.copy(src=schedule.root, dst=others, chunk=others)


@algorithm(
    "all_to_all",
    "all_to_all_v",
    name="direct",
    chunks=lambda p: p * p,
    steps=lambda p: 1,
    sent=lambda p: (p - 1) / p**2,
)
def direct_all_to_all(schedule: Builder) -> None:
    """Everyone gives everyone the block for it, its next neighbour first, so that no rank is the first goal of all.

    Steps: 1
    Sent: (P - 1) / P * N
    Best: few ranks, and shared memory; on a network all messages are under way at once
    Ranks: any
    Reference: folklore; scattered in MPICH, without its windows

    N is what a rank gives in all, its own block included; no algorithm sends less.
    """
    p, rank = schedule.num_ranks, schedule.ranks
    peer = (rank + np.arange(p)[:, None]) % p  # One's own block, at distance 0, moves from input to output.
    with schedule.step():
        schedule.copy(src=rank, dst=peer, src_buffer="input", src_chunk=peer, dst_buffer="output", dst_chunk=rank)


def _others(schedule: Builder) -> npt.NDArray[np.int64]:
    """All ranks but the root, its next neighbour first."""
    return (schedule.root + schedule.ranks[1:]) % schedule.num_ranks
