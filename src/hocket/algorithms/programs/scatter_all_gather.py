"""Rooted collectives of large vectors, cut in blocks: two phases, so that all ranks share the work of the root."""

from hocket.algorithms.programs.recursive_multiplying import knomial_reduce_scatter
from hocket.algorithms.programs.ring import ring_all_gather
from hocket.algorithms.programs.tree import binomial_scatter, knomial_gather, largest_subtree
from hocket.algorithms.registry import algorithm

scatter_all_gather = algorithm(
    "broadcast",
    name="scatter_all_gather",
    steps="ceil(log2(P)) + P - 1",
    sent="2 * (P - 1) / P",
    doc="""The root sends every rank one block, down a binomial tree. Then the blocks travel round a ring until all
    ranks have all blocks.

    Best: large N
    Ranks: any
    Reference: Barnett, Shuler, van de Geijn, Gupta, Payne and Watts, "Interprocessor collective communication library",
      1994; Thakur, Rabenseifner and Gropp 2005
    """,
)(binomial_scatter.then(ring_all_gather))


def _sent(p: int) -> float:
    """(P - 1) / P, and in the gather the largest subtree below the root: up to 1 / 2 more"""
    return (p - 1 + largest_subtree(p, 4)) / p


reduce_scatter_gather = algorithm(
    "reduce",
    name="reduce_scatter_gather",
    steps="2 * ceil(log2(P) / 2)",
    sent=_sent,
    labels=("same_on_all_ranks",),
    doc="""Every rank sums one block, in a logarithmic number of steps. The root gathers the blocks by a tree of the
    same radix.

    Best: medium and large N, because all ranks share the work of summing
    Ranks: any
    Reference: Rabenseifner, "Optimization of collective reduction operations", 2004; of radix k in UCC
    """,
)(knomial_reduce_scatter.then(knomial_gather))
