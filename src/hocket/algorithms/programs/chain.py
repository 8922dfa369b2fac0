"""Chain: from neighbour to neighbour. The executor sends pieces, so that all of the chain works at the same time."""

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder


@algorithm("broadcast", name="chain", chunks=lambda p: 1, steps=lambda p: p - 1, sent=lambda p: min(p - 1, 1))
def chain_broadcast(schedule: Builder) -> None:
    """The root gives the vector to its next neighbour, that one to its own, and so on round to the one before the root.

    Steps: P - 1
    Sent: min(P - 1, 1) * N
    Best: very large N, of which many pieces are on their way at once; links between neighbours only
    Ranks: any
    Reference: folklore; Open MPI calls it chain, or pipeline; NCCL's broadcast on a ring
    """
    for hop in range(schedule.num_ranks - 1):
        giver = (schedule.root + hop) % schedule.num_ranks
        with schedule.step():
            schedule.copy(src=giver, dst=(giver + 1) % schedule.num_ranks, chunk=0)


chain_reduce = algorithm(
    "reduce",
    name="chain",
    steps=lambda p: p - 1,
    sent=lambda p: min(p - 1, 1),
    labels=("same_on_all_ranks", "size_invariant"),
    doc="""The broadcast run backwards: the sum grows from neighbour to neighbour until it reaches the root.

    Steps: P - 1
    Sent: min(P - 1, 1) * N
    Best: very large N, of which many pieces are on their way at once; links between neighbours only
    Ranks: any
    Reference: folklore; Open MPI calls it chain, or pipeline
    """,
)(chain_broadcast.reversed())
