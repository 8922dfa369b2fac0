"""Ring: every chunk travels round the ring, from neighbour to neighbour. Optimal in bandwidth, for any rank count."""

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder


@algorithm(
    "reduce_scatter",
    "reduce_scatter_v",
    name="ring",
    chunks="P",
    steps="P - 1",
    sent="(P - 1) / P",
    labels=("same_on_all_ranks",),
)
def ring_reduce_scatter(schedule: Builder) -> None:
    """Each chunk travels once round the ring, collects a contribution at every rank, and ends at the rank that keeps
    it.

    Best: large N, and where only neighbours have fast links; no algorithm sends less
    Ranks: any
    Reference: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009

    Each chunk has its own order of reduction.
    """
    p, rank = schedule.num_ranks, schedule.ranks
    for i in schedule.repeat(p - 1):
        schedule.reduce(src=rank, dst=(rank + 1) % p, chunk=(rank - 1 - i) % p)


@algorithm(
    "all_gather",
    "all_gather_v",
    name="ring",
    chunks="P",
    steps="P - 1",
    sent="(P - 1) / P",
)
def ring_all_gather(schedule: Builder) -> None:
    """Each rank's block travels once round the ring: in each step a rank passes on the block that it has just received.

    Best: large N, and where only neighbours have fast links; no algorithm sends less
    Ranks: any
    Reference: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009
    """
    p, rank = schedule.num_ranks, schedule.ranks
    for i in schedule.repeat(p - 1):
        schedule.copy(src=rank, dst=(rank + 1) % p, chunk=(rank - i) % p)


ring_all_reduce = algorithm(
    "all_reduce",
    name="ring",
    steps="2 * (P - 1)",
    sent="2 * (P - 1) / P",
    labels=("same_on_all_ranks",),
    doc="""Twice round the ring: reduce_scatter, which leaves each rank one finished chunk, then all_gather.

    Best: large N, and where only neighbours have fast links; no algorithm sends less
    Ranks: any
    Reference: Patarasuk and Yuan 2009; made known for training by Gibiansky, "Bringing HPC techniques to deep
      learning", 2017
    """,
)(ring_reduce_scatter.then(ring_all_gather))


@algorithm(
    "all_gather",
    name="bidirectional_ring",
    chunks=lambda p: p if p % 2 else 2 * p,
    steps="P // 2",
    sent="(P - 1) / P",
)
def bidirectional_ring_all_gather(schedule: Builder) -> None:
    """Each rank's block travels round the ring in both directions at once, and so only half as far.

    Best: large N on rings whose links carry as much in each direction at the same time
    Ranks: any
    Reference: folklore; bi-directional all-gather of CTRAN (Meta)

    If the number of ranks is even, the block of the opposite rank comes in halves, one from each side.
    """
    p, rank = schedule.num_ranks, schedule.ranks
    parts = schedule.num_chunks // p  # Of a block.
    for i in range(p // 2):
        count = 1 if parts == 2 and i == p // 2 - 1 else parts
        with schedule.step():
            schedule.copy(src=rank, dst=(rank + 1) % p, chunk=(rank - i) % p * parts, count=count)
            schedule.copy(src=rank, dst=(rank - 1) % p, chunk=(rank + i) % p * parts + parts - count, count=count)


bidirectional_ring_reduce_scatter = algorithm(
    "reduce_scatter",
    name="bidirectional_ring",
    steps="P // 2",
    sent="(P - 1) / P",
    labels=("same_on_all_ranks",),
    doc="""The all_gather run backwards: contributions reach the owner of a block from both sides, and collect others on
    the way.

    Best: large N on rings whose links carry as much in each direction at the same time
    Ranks: any
    Reference: folklore, as for all_gather
    """,
)(bidirectional_ring_all_gather.reversed())

bidirectional_ring_all_reduce = algorithm(
    "all_reduce",
    name="bidirectional_ring",
    steps="2 * (P // 2)",
    sent="2 * (P - 1) / P",
    labels=("same_on_all_ranks",),
    doc="""The reduce_scatter, then the all_gather, both in both directions of the ring.

    Best: large N on rings whose links carry as much in each direction at the same time
    Ranks: any
    Reference: folklore, as for all_gather
    """,
)(bidirectional_ring_reduce_scatter.then(bidirectional_ring_all_gather))
