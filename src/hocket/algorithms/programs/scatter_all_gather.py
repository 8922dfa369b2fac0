"""Rooted collectives of large vectors, cut in blocks: the root's part in two phases, everybody's in between."""

from hocket.algorithms.programs.recursive_multiplying import knomial_reduce_scatter
from hocket.algorithms.programs.ring import ring_all_gather
from hocket.algorithms.programs.rounds import rounds
from hocket.algorithms.programs.tree import binomial_scatter, knomial_gather, largest_subtree
from hocket.algorithms.registry import algorithm

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
    steps=lambda p: 2 * rounds(p, 4),
    sent=lambda p: (p - 1 + largest_subtree(p, 4)) / p,
    labels=("same_on_all_ranks",),
    doc="""Everyone sums one block, in a logarithmic number of steps; the root gathers them by a tree of the same radix.

    Steps: 2 * ceil(log2(P) / 2)
    Sent: (P - 1) / P * N, and the largest subtree below the root, up to N / 2, in the gather
    Best: medium and large N: all ranks share the work of summing
    Ranks: any
    Reference: Rabenseifner, "Optimization of collective reduction operations", 2004; of radix k in UCC
    """,
)(knomial_reduce_scatter.then(knomial_gather))
