"""Swing: partners on alternating sides of a ring, so that they stay nearer than those of recursive doubling."""

import numpy as np

from hocket.algorithms.programs.rounds import rounds
from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder

_RANKS = ("an even number of", lambda p: p == 1 or p % 2 == 0, "nonuniform_hierarchical_ring")


@algorithm("all_gather", name="swing", chunks=lambda p: p, steps=rounds, sent=lambda p: (p - 1) / p, ranks=_RANKS)
def swing_all_gather(schedule: Builder) -> None:
    """Partners are 1, 1, 3, 5, 11 ... ranks apart, on alternating sides, the farthest first: even ranks look to where
    (1 - (-2)**(k + 1)) / 3 points, odd ones the other way. They exchange all blocks that the other does not have.

    Steps: ceil(log2(P))
    Sent: (P - 1) / P * N
    Best: medium N on rings and tori, where a message shares links with all those that it passes
    Ranks: an even number of them, or one; nonuniform_hierarchical_ring takes any number
    Reference: De Sensi, Bonato, Saam and Hoefler, "Swing: short-cutting rings for higher bandwidth allreduce", 2024
      (arXiv 2401.09356)
    """
    p, rank = schedule.num_ranks, schedule.ranks
    side = 1 - 2 * (rank % 2)
    held = np.zeros(1, int)  # Blocks that each rank has, counted from its own towards its side.
    for k in reversed(range(rounds(p))):
        ahead = (1 - (-2) ** (k + 1)) // 3
        given = held[~np.isin((ahead - held) % p, held)]
        with schedule.step():
            schedule.copy(src=rank, dst=(rank + side * ahead) % p, chunk=(rank + side * given[:, None]) % p)
        held = np.concatenate([held, (ahead - given) % p])


swing_reduce_scatter = algorithm(
    "reduce_scatter",
    name="swing",
    steps=rounds,
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""Swing's all_gather run backwards: partners 1, 1, 3, 5, 11 ... apart, on alternating sides, give each other
    their parts of the blocks that the other is to sum.

    Steps: ceil(log2(P))
    Sent: (P - 1) / P * N
    Best: medium N on rings and tori, where a message shares links with all those that it passes
    Ranks: an even number of them, or one; nonuniform_hierarchical_ring takes any number
    Reference: De Sensi, Bonato, Saam and Hoefler, "Swing: short-cutting rings for higher bandwidth allreduce", 2024
      (arXiv 2401.09356)
    """,
)(swing_all_gather.reversed())


swing_all_reduce = algorithm(
    "all_reduce",
    name="swing",
    steps=lambda p: 2 * rounds(p),
    sent=lambda p: 2 * (p - 1) / p,
    labels=("same_on_all_ranks",),
    ranks=_RANKS,
    doc="""Reduce_scatter, then all_gather of Swing: what the paper calls its bandwidth-optimal version.

    Steps: 2 * ceil(log2(P))
    Sent: 2 * (P - 1) / P * N
    Best: medium N on rings and tori, where a message shares links with all those that it passes
    Ranks: an even number of them, or one; nonuniform_hierarchical_ring takes any number
    Reference: De Sensi, Bonato, Saam and Hoefler, "Swing: short-cutting rings for higher bandwidth allreduce", 2024
      (arXiv 2401.09356)
    """,
)(swing_reduce_scatter.then(swing_all_gather))
