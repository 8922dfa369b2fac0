"""Rooted collectives of large vectors, cut in blocks: the root's part in two phases, everybody's in between."""

from hocket.algorithms.registry import algorithm
from hocket.algorithms.ring import ring_all_gather, ring_reduce_scatter
from hocket.algorithms.rounds import rounds
from hocket.algorithms.tree import binomial_gather, binomial_scatter, largest_subtree

scatter_all_gather = algorithm(
    "broadcast",
    name="scatter_all_gather",
    steps=lambda p: rounds(p) + p - 1,
    sent=lambda p: 2 * (p - 1) / p,
    doc="""The root gives everyone one block, down a binomial tree; then blocks travel round a ring until all have all.

    Steps: ceil(log2(P)) + P - 1
    Sent: 2 * (P - 1) / P * N
    Best: large N
    Ranks: any
    Reference: Barnett, Shuler, van de Geijn, Gupta, Payne and Watts, "Interprocessor collective communication library",
      1994; Thakur, Rabenseifner and Gropp 2005
    """,
)(binomial_scatter.then(ring_all_gather))

reduce_scatter_gather = algorithm(
    "reduce",
    name="reduce_scatter_gather",
    steps=lambda p: rounds(p) + p - 1,
    sent=lambda p: (p - 1 + largest_subtree(p)) / p,
    labels=("same_on_all_ranks",),
    doc="""Blocks are summed on their way round a ring until each rank has one; the root gathers them by a tree.

    Steps: ceil(log2(P)) + P - 1
    Sent: (P - 1) / P * N, and up to N / 2 more in the gather
    Best: large N
    Ranks: any
    Reference: Rabenseifner, "Optimization of collective reduction operations", 2004
    """,
)(ring_reduce_scatter.then(binomial_gather))
