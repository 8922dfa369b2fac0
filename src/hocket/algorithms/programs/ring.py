"""Ring: every chunk travels round the ring, one neighbour at a time. Bandwidth optimal, for any rank count."""

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder


@algorithm(
    "reduce_scatter",
    "reduce_scatter_v",
    name="ring",
    chunks=lambda p: p,
    steps=lambda p: p - 1,
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
)
def ring_reduce_scatter(schedule: Builder) -> None:
    """Each chunk travels once round the ring, collecting a contribution at every rank, and ends at home.

    Steps: P - 1
    Sent: (P - 1) / P * N
    Best: large N, and where only neighbours have fast links; no algorithm sends less
    Ranks: any
    Reference: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009

    The order of reduction is another one for each chunk.
    """
    p, rank = schedule.num_ranks, schedule.ranks
    for i in schedule.repeat(p - 1):
        schedule.reduce(src=rank, dst=(rank + 1) % p, chunk=(rank - 1 - i) % p)


@algorithm(
    "all_gather",
    "all_gather_v",
    name="ring",
    chunks=lambda p: p,
    steps=lambda p: p - 1,
    sent=lambda p: (p - 1) / p,
)
def ring_all_gather(schedule: Builder) -> None:
    """Each rank's block travels once round the ring: in each step a rank passes on what it has just received.

    Steps: P - 1
    Sent: (P - 1) / P * N
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
    steps=lambda p: 2 * (p - 1),
    sent=lambda p: 2 * (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""Two laps of the ring: reduce_scatter, which leaves each rank one finished chunk, then all_gather.

    Steps: 2 * (P - 1)
    Sent: 2 * (P - 1) / P * N
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
    steps=lambda p: p // 2,
    sent=lambda p: (p - 1) / p,
)
def bidirectional_ring_all_gather(schedule: Builder) -> None:
    """Each rank's block travels both ways round the ring at once, and so half as far.

    Steps: P // 2
    Sent: (P - 1) / P * N
    Best: large N on rings whose links carry as much in each direction at the same time
    Ranks: any
    Reference: folklore; bi-directional all-gather of CTRAN (Meta)

    Of an even number of ranks the block of the one opposite comes in halves, one each way.
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
    steps=lambda p: p // 2,
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""The all_gather run backwards: contributions come home from both sides, collecting others on the way.

    Steps: P // 2
    Sent: (P - 1) / P * N
    Best: large N on rings whose links carry as much in each direction at the same time
    Ranks: any
    Reference: folklore, as for all_gather
    """,
)(bidirectional_ring_all_gather.reversed())

bidirectional_ring_all_reduce = algorithm(
    "all_reduce",
    name="bidirectional_ring",
    steps=lambda p: 2 * (p // 2),
    sent=lambda p: 2 * (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""reduce_scatter and then all_gather, both of them in both directions of the ring.

    Steps: 2 * (P // 2)
    Sent: 2 * (P - 1) / P * N
    Best: large N on rings whose links carry as much in each direction at the same time
    Ranks: any
    Reference: folklore, as for all_gather
    """,
)(bidirectional_ring_reduce_scatter.then(bidirectional_ring_all_gather))
