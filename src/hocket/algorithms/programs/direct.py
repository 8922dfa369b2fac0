"""Direct: each rank sends its data in one step to every rank that needs it; each sum is folded in rank order.

Other names: mesh, if all ranks exchange with all others (HCCL); star, if one rank exchanges with all others.
"""

import numpy as np
import numpy.typing as npt

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder

_BITS = ("same_on_all_ranks", "rank_order", "size_invariant")


@algorithm("all_reduce", name="direct", chunks="1", steps="min(P - 1, 1)", sent="P - 1", labels=_BITS)
def direct_all_reduce(schedule: Builder) -> None:
    """One shot: every rank reads the whole vectors of all ranks and folds them itself, from rank 0 upwards.

    Best: small N, where the number of steps decides, and few ranks
    Ranks: any
    Reference: folklore; the "allpairs" of microsoft/msccl, one-shot elsewhere

    All ranks have equal bits, those of a left fold over ranks, whatever the size of the message.
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
    chunks="P",
    steps="min(P - 1, 1)",
    sent="(P - 1) / P",
    labels=_BITS,
)
def direct_reduce_scatter(schedule: Builder) -> None:
    """Every rank reads its own block from all ranks and folds these blocks, from rank 0 upwards.

    Best: all pairs of ranks have links of their own, for example in shared memory or behind a switch; on other
      networks the P - 1 messages at once slow each other down
    Ranks: any
    Reference: folklore; the Mesh of HCCL

    The bits are those of a left fold over ranks, whatever the size.
    """
    rank = schedule.ranks
    if schedule.num_ranks > 1:
        with schedule.step():
            schedule.copy(src=0, dst=rank, chunk=rank)
            schedule.reduce(src=rank[1:, None], dst=rank, chunk=rank)


@algorithm("all_gather", "all_gather_v", name="direct", chunks="P", steps="min(P - 1, 1)", sent="(P - 1) / P")
def direct_all_gather(schedule: Builder) -> None:
    """Every rank sends its block to all others, to its next neighbour first, so that no rank is the first target of
    all.

    Best: all pairs of ranks have links of their own, for example in shared memory or behind a switch
    Ranks: any
    Reference: folklore; the Mesh of HCCL
    """
    p, rank = schedule.num_ranks, schedule.ranks
    distance = np.arange(1, p)[:, None]
    with schedule.step():
        schedule.copy(src=rank, dst=(rank + distance) % p, chunk=rank)


@algorithm("barrier", name="direct", chunks="1", steps="min(P - 1, 1)", sent="P - 1")
def direct_barrier(schedule: Builder) -> None:
    """Every rank sends a token to all others, and goes on when it has the tokens of all.

    Best: few ranks, and more ranks than cores, where each further step makes every rank wait once more for its core
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
    steps="2 * min(P - 1, 1)",
    sent="2 * (P - 1) / P",
    labels=_BITS,
    doc="""Two shots: direct reduce_scatter, in which each rank folds one chunk for all, then direct all_gather.

    Best: medium and large N where all pairs of ranks have links of their own, for example in shared memory or behind
      a switch; no algorithm sends less
    Ranks: any
    Reference: folklore; the Mesh of HCCL

    The bits are those of one shot: equal on all ranks, a left fold over ranks whatever the size.
    """,
)(direct_reduce_scatter.then(direct_all_gather))


@algorithm("broadcast", name="direct", chunks="1", steps="min(P - 1, 1)", sent="P - 1")
def direct_broadcast(schedule: Builder) -> None:
    """The root sends the vector to all others, to its next neighbour first.

    Best: few ranks, and where all of them can read the root's memory at once
    Ranks: any
    Reference: folklore; the Star of HCCL
    """
    with schedule.step():
        schedule.copy(src=schedule.root, dst=_others(schedule), chunk=0)


@algorithm("reduce", name="direct", chunks="1", steps="min(P - 1, 1)", sent="min(P - 1, 1)", labels=_BITS)
def direct_reduce(schedule: Builder) -> None:
    """The root reads the whole vectors of all ranks and folds them itself, from rank 0 upwards.

    Best: few ranks, or where the order of reduction must be that of the ranks
    Ranks: any
    Reference: folklore; the Star of HCCL

    The bits are those of a left fold over ranks, whatever the root and the size.
    """
    rank, root = schedule.ranks, schedule.root
    if schedule.num_ranks > 1:
        with schedule.step():
            schedule.copy(src=0, dst=root, chunk=0)
            schedule.reduce(src=rank[1:], dst=root, chunk=0)


@algorithm("gather", "gather_v", name="direct", chunks="P", steps="min(P - 1, 1)", sent="min(P - 1, 1) / P")
def direct_gather(schedule: Builder) -> None:
    """Every rank sends its block to the root.

    Best: few ranks, large blocks, shared memory; on a network all messages reach the root at once
    Ranks: any
    Reference: folklore; the Star of HCCL

    N is the gathered vector; no algorithm sends less.
    """
    others = _others(schedule)
    with schedule.step():
        schedule.copy(src=others, dst=schedule.root, chunk=others)


@algorithm("scatter", "scatter_v", name="direct", chunks="P", steps="min(P - 1, 1)", sent="(P - 1) / P")
def direct_scatter(schedule: Builder) -> None:
    """The root sends every rank its block, to its next neighbour first.

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
    chunks="P * P",
    steps="1",
    sent="(P - 1) / P",
)
def direct_all_to_all(schedule: Builder) -> None:
    """Every rank sends every other rank its block, to its next neighbour first, so that no rank is the first target of
    all.

    Best: few ranks, and shared memory; on a network too many messages are under way at once
    Ranks: any
    Reference: folklore; scattered in MPICH, without its windows

    N is all that one rank has to send, the block for itself included; no algorithm sends less.
    """
    p, rank = schedule.num_ranks, schedule.ranks
    peer = (rank + np.arange(p)[:, None]) % p  # A rank's own block, at distance 0, moves from input to output.
    with schedule.step():
        schedule.copy(src=rank, dst=peer, src_buffer="input", src_chunk=peer, dst_buffer="output", dst_chunk=rank)


def _others(schedule: Builder) -> npt.NDArray[np.int64]:
    """All ranks but the root, its next neighbour first."""
    return (schedule.root + schedule.ranks[1:]) % schedule.num_ranks
