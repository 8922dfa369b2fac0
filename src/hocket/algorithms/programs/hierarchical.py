"""Hierarchical: rings inside groups of ranks and logarithmic steps across them, or trees at both levels.

hierarchical_direct has few steps instead. Other algorithms may be composed in the same way: see levels.hierarchical.
all_to_all is in hierarchical_all_to_all.
"""

import numpy as np
import numpy.typing as npt

from hocket.algorithms.layout import Layout, Parameter
from hocket.algorithms.levels import Groups, groups_of, hierarchical, place_of_root
from hocket.algorithms.programs.nonuniform import (
    hierarchical_ring_all_gather,
    hierarchical_ring_all_reduce,
    hierarchical_ring_reduce_scatter,
)
from hocket.algorithms.programs.ring import ring_all_gather, ring_reduce_scatter
from hocket.algorithms.programs.tree import binomial_broadcast, binomial_reduce
from hocket.algorithms.registry import Algorithm, algorithm
from hocket.schedule import Schedule


def passed_on(part: Schedule) -> npt.NDArray[np.float64]:
    """[rank, block]: how often each rank of a part sends each block to another rank."""
    k = part.chunks_per_block
    passed = np.zeros((part.num_ranks, part.num_chunks // k))
    for step in part.steps():
        one, _ = step.spread()
        away = one.src != one.dst
        np.add.at(passed, (one.src[away], one.src_chunk[away] // k), 1 / k)
    return passed


def sent_gathering(across: Algorithm, inside: Algorithm) -> Parameter:
    """The most that a rank sends in the all_gather of these two."""

    def sent(p: int, groups: Groups) -> float:
        """(P - 1) / P where all groups have the same size; else more, because some ranks do the work of several"""
        layout = Layout(p, groups=groups)
        first, sizes = groups_of(layout)
        sent = np.zeros(layout.num_ranks)
        outer = passed_on(across.build(len(sizes)))
        for number in range(sizes.max()):
            sent[first + number % sizes] += outer @ (number < sizes)
        numbers = np.concatenate([np.arange(size) for size in sizes])
        for rank, size in zip(first.tolist(), sizes.tolist(), strict=True):
            held = np.bincount(numbers % size, minlength=size)
            sent[rank : rank + size] += passed_on(inside.build(size)) @ held
        return float(sent.max()) / layout.num_ranks

    return sent


def sent_broadcasting(across: Algorithm, inside: Algorithm) -> Parameter:
    """The most that a rank sends in the broadcast of these two."""

    def sent(p: int, root: int, groups: Groups) -> float:
        """what the root sends at both levels, or what another rank sends if its group is much larger"""
        layout = Layout(p, root, groups=groups)
        first, sizes = groups_of(layout)
        sent = np.zeros(layout.num_ranks)
        group, leader = place_of_root(layout)
        sent[first + leader % sizes] += passed_on(across.build(len(sizes), group))[:, 0]
        for rank, size in zip(first.tolist(), sizes.tolist(), strict=True):
            sent[rank : rank + size] += passed_on(inside.build(size, leader % size))[:, 0]
        return float(sent.max())

    return sent


hierarchical_all_reduce = algorithm(
    "all_reduce",
    name="hierarchical",
    steps="2 * (M - 1) + 2 * ceil(log2(G))",
    sent="2 - 2 / (G * M)",
    labels=("same_on_all_ranks",),
    doc="""A reduce_scatter by ring inside each group leaves each rank the sum of one shard. The ranks that hold the
    same shard do an all_reduce across the groups, by the nonuniform hierarchical ring. An all_gather by ring inside
    each group brings all shards to all ranks.

    Best: large N, and links that are fast inside groups and slow across them: only 2 * (G - 1) / G / M * N goes across
    Ranks: any
    Reference: Jia et al., "Highly scalable deep learning training system with mixed-precision", 2018; for groups of
      unequal size the AHC algorithm of HCCL

    Groups of unequal size cut the vector in different ways, so it is cut into the least common multiple of their sizes;
    for each run of chunks, the ranks that hold it do the all_reduce across. Each chunk has its own order of reduction.
    """,
)(hierarchical(ring_reduce_scatter, hierarchical_ring_all_reduce, ring_all_gather))


hierarchical_reduce_scatter = algorithm(
    "reduce_scatter",
    name="hierarchical",
    steps="M - 1 + ceil(log2(G))",
    sent="(P - 1) / P",
    labels=("same_on_all_ranks",),
    doc="""A reduce_scatter by ring inside each group: each rank sums for its counterparts what the group has for them.
    Then the counterparts do a reduce_scatter across the groups, by the nonuniform hierarchical ring.

    Best: large N, and links that are fast inside groups and slow across them: every block leaves a group once
    Ranks: any
    Reference: HCCL's hierarchical algorithms

    HCCL goes across first, so that the blocks that travel together lie together; then M times as much goes across.
    Where a group is smaller than another one, one of its ranks is the counterpart of several ranks.
    """,
)(hierarchical(ring_reduce_scatter, hierarchical_ring_reduce_scatter))


hierarchical_all_gather = algorithm(
    "all_gather",
    name="hierarchical",
    steps="M - 1 + ceil(log2(G))",
    sent=sent_gathering(hierarchical_ring_all_gather, ring_all_gather),
    doc="""Counterparts gather across the groups, by the nonuniform hierarchical ring. Then all that each rank has
    travels round a ring inside its group.

    Best: large N, and links that are fast inside groups and slow across them: every block enters a group once
    Ranks: any
    Reference: HCCL's hierarchical algorithms

    HCCL goes inside first, so that the blocks that travel together lie together; then M times as much goes across.
    """,
)(hierarchical(hierarchical_ring_all_gather, ring_all_gather))


hierarchical_broadcast = algorithm(
    "broadcast",
    name="hierarchical",
    steps="ceil(log2(G)) + ceil(log2(M))",
    sent=sent_broadcasting(binomial_broadcast, binomial_broadcast),
    doc="""A binomial tree across the groups, of the root and its counterparts; then a binomial tree inside each group.

    Best: small N, and links that are fast inside groups and slow across them: N enters every group once
    Ranks: any
    Reference: Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective operation
      performance", 2000
    """,
)(hierarchical(binomial_broadcast, binomial_broadcast))


hierarchical_reduce = algorithm(
    "reduce",
    name="hierarchical",
    steps="ceil(log2(G)) + ceil(log2(M))",
    sent="min(P - 1, 1)",
    labels=("same_on_all_ranks", "size_invariant"),
    doc="""A binomial tree inside each group, to the root or its counterpart; then a binomial tree of these across the
    groups.

    Best: small N, and links that are fast inside groups and slow across them: N leaves every group once
    Ranks: any
    Reference: Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective operation
      performance", 2000
    """,
)(hierarchical(binomial_reduce, binomial_reduce))
