"""Neighbor exchange: ranks swap two blocks at a time with the neighbours on either side in turn."""

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder

_RANKS = ("an even number of", lambda p: p == 1 or p % 2 == 0, "ring")


@algorithm(
    "all_gather",
    name="neighbor_exchange",
    chunks=lambda p: p,
    steps=lambda p: p // 2,
    sent=lambda p: (p - 1) / p,
    ranks=_RANKS,
)
def neighbor_exchange_all_gather(schedule: Builder) -> None:
    """Pairs of neighbours swap their blocks. Then each rank swaps, with the neighbour on the one side and the other in
    turn, the two blocks that it got last.

    Steps: P // 2
    Sent: (P - 1) / P * N
    Best: large N on a ring whose links work in both directions: half as many steps as `ring`
    Ranks: an even number of them, or one; ring takes any number
    Reference: Chen, Zhang, Zhang and Yuan, "Performance evaluation of allgather algorithms on terascale Linux
      cluster with fast Ethernet", 2005
    """
    p, rank = schedule.num_ranks, schedule.ranks
    side = 1 - 2 * (rank % 2)  # To the other of the pair, and from it on to the next pair.
    if p > 1:
        with schedule.step():
            schedule.copy(src=rank, dst=rank + side, chunk=rank)
    for i in range(1, p // 2):
        # Pairs that even ranks got last, counted from their own: 0, -1, 1, -2, 2 ...; odd ranks the other way round.
        ahead = i // 2 if i % 2 else -(i // 2)
        pair = (rank // 2 + side * ahead) % (p // 2)
        with schedule.step():
            schedule.copy(src=rank, dst=(rank + (side if i % 2 == 0 else -side)) % p, chunk=2 * pair, count=2)


neighbor_exchange_reduce_scatter = algorithm(
    "reduce_scatter",
    name="neighbor_exchange",
    steps=lambda p: p // 2,
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""The all_gather of this name run backwards: sums of two blocks at a time come in from both sides in turn.

    Steps: P // 2
    Sent: (P - 1) / P * N
    Best: large N on a ring whose links work in both directions: half as many steps as `ring`
    Ranks: an even number of them, or one; ring takes any number
    Reference: Chen, Zhang, Zhang and Yuan 2005, for all_gather
    """,
)(neighbor_exchange_all_gather.reversed())


neighbor_exchange_all_reduce = algorithm(
    "all_reduce",
    name="neighbor_exchange",
    steps=lambda p: 2 * (p // 2),
    sent=lambda p: 2 * (p - 1) / p,
    labels=("same_on_all_ranks",),
    ranks=_RANKS,
    doc="""Reduce_scatter, then all_gather of this name.

    Steps: 2 * (P // 2)
    Sent: 2 * (P - 1) / P * N
    Best: large N on a ring whose links work in both directions: half as many steps as `ring`
    Ranks: an even number of them, or one; ring takes any number
    Reference: Chen, Zhang, Zhang and Yuan 2005, for all_gather
    """,
)(neighbor_exchange_reduce_scatter.then(neighbor_exchange_all_gather))
