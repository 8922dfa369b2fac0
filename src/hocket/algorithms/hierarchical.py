"""Hierarchical: direct or a tree inside groups of ranks, rings or a tree across them.

Other algorithms may be composed in the same way: see levels.hierarchical. all_to_all is in hierarchical_all_to_all.
"""

import numpy as np
import numpy.typing as npt

from hocket.algorithms.direct import direct_all_gather, direct_reduce_scatter
from hocket.algorithms.layout import Layout
from hocket.algorithms.levels import Groups, groups_of, hierarchical, place_of_root
from hocket.algorithms.registry import Algorithm, algorithm
from hocket.algorithms.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from hocket.algorithms.tree import binomial_broadcast, binomial_reduce
from hocket.schedule.ir import Schedule


def _passed_on(part: Schedule) -> npt.NDArray[np.float64]:
    """[rank, block]: how often each rank of a part sends each block to another."""
    k = part.chunks_per_block
    passed = np.zeros((part.num_ranks, part.num_chunks // k))
    for step in part.steps():
        one, _ = step.spread()
        away = one.src != one.dst
        np.add.at(passed, (one.src[away], one.src_chunk[away] // k), 1 / k)
    return passed


def _most_sent_gathering(layout: Layout, across: Algorithm, inside: Algorithm) -> float:
    """The most that a rank sends in an all_gather of two levels."""
    first, sizes = groups_of(layout)
    sent = np.zeros(layout.num_ranks)
    outer = _passed_on(across.build(len(sizes)))
    for number in range(sizes.max()):
        sent[first + number % sizes] += outer @ (number < sizes)
    numbers = np.concatenate([np.arange(size) for size in sizes])
    for rank, size in zip(first.tolist(), sizes.tolist(), strict=True):
        held = np.bincount(numbers % size, minlength=size)
        sent[rank : rank + size] += _passed_on(inside.build(size)) @ held
    return float(sent.max()) / layout.num_ranks


def _most_sent_broadcasting(layout: Layout, across: Algorithm, inside: Algorithm) -> float:
    """The most that a rank sends in a broadcast of two levels."""
    first, sizes = groups_of(layout)
    sent = np.zeros(layout.num_ranks)
    group, leader = place_of_root(layout)
    sent[first + leader % sizes] += _passed_on(across.build(len(sizes), group))[:, 0]
    for rank, size in zip(first.tolist(), sizes.tolist(), strict=True):
        sent[rank : rank + size] += _passed_on(inside.build(size, leader % size))[:, 0]
    return float(sent.max())


def _binomial_steps(p: int, groups: Groups) -> int:
    return (len(groups) - 1).bit_length() + (max(groups) - 1).bit_length()


hierarchical_all_reduce = algorithm(
    "all_reduce",
    name="hierarchical",
    steps=lambda p, groups: 2 * min(max(groups) - 1, 1) + 2 * (len(groups) - 1),
    sent=lambda p, groups: 2 - 2 / (len(groups) * max(groups)),
    labels=("same_on_all_ranks",),
    doc="""Direct reduce_scatter inside each group, which leaves each rank one shard; a ring of those that hold the same
    shard, across the groups; direct all_gather inside.

    Steps: 2 * min(M - 1, 1) + 2 * (G - 1)
    Sent: 2 * (G * M - 1) / (G * M) * N
    Best: large N, and links that are fast inside groups and slow across them: only 2 * (G - 1) / G / M * N goes across
    Ranks: any
    Reference: Jia et al., "Highly scalable deep learning training system with mixed-precision", 2018; for groups of
      unequal size the AHC algorithm of HCCL

    Groups of unequal size cut the vector each in its own way: into the least common multiple of their sizes; for each
    run of chunks those meet across that hold it. The order of reduction is another one for each chunk.
    """,
)(hierarchical(direct_reduce_scatter, ring_all_reduce, direct_all_gather))


hierarchical_reduce_scatter = algorithm(
    "reduce_scatter",
    name="hierarchical",
    steps=lambda p, groups: min(max(groups) - 1, 1) + len(groups) - 1,
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""Direct inside each group: each rank sums for its counterparts what the group has for them. Then rings of
    counterparts, across the groups.

    Steps: min(M - 1, 1) + G - 1
    Sent: (P - 1) / P * N
    Best: large N, and links that are fast inside groups and slow across them: every block leaves a group once
    Ranks: any
    Reference: HCCL's hierarchical algorithms

    HCCL goes across first, so that the blocks which travel together lie together; then M times as much goes across. A
    group without a counterpart for all ranks of a larger one has ranks that stand for several.
    """,
)(hierarchical(direct_reduce_scatter, ring_reduce_scatter))


hierarchical_all_gather = algorithm(
    "all_gather",
    name="hierarchical",
    steps=lambda p, groups: min(max(groups) - 1, 1) + len(groups) - 1,
    sent=lambda p, groups: _most_sent_gathering(Layout(p, groups=groups), ring_all_gather, direct_all_gather),
    doc="""Rings of counterparts across the groups; then each rank gives all that it has to all of its group, directly.

    Steps: min(M - 1, 1) + G - 1
    Sent: (P - 1) / P * N where groups are equally large; a rank that stands for several sends more
    Best: large N, and links that are fast inside groups and slow across them: every block enters a group once
    Ranks: any
    Reference: HCCL's hierarchical algorithms

    HCCL goes inside first, so that the blocks which travel together lie together; then M times as much goes across.
    """,
)(hierarchical(ring_all_gather, direct_all_gather))


hierarchical_broadcast = algorithm(
    "broadcast",
    name="hierarchical",
    steps=_binomial_steps,
    sent=lambda p, root, groups: _most_sent_broadcasting(
        Layout(p, root, groups=groups), binomial_broadcast, binomial_broadcast
    ),
    doc="""A binomial tree across the groups, of the root and its counterparts; then one inside each group.

    Steps: ceil(log2(G)) + ceil(log2(M))
    Sent: what the root sends in both trees, or another rank if its group is much larger
    Best: small N, and links that are fast inside groups and slow across them: N enters every group once
    Ranks: any
    Reference: Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective operation
      performance", 2000
    """,
)(hierarchical(binomial_broadcast, binomial_broadcast))


hierarchical_reduce = algorithm(
    "reduce",
    name="hierarchical",
    steps=_binomial_steps,
    sent=lambda p: min(p - 1, 1),
    labels=("same_on_all_ranks", "size_invariant"),
    doc="""A binomial tree inside each group, to the root or its counterpart; then one of these, across the groups.

    Steps: ceil(log2(G)) + ceil(log2(M))
    Sent: min(P - 1, 1) * N
    Best: small N, and links that are fast inside groups and slow across them: N leaves every group once
    Ranks: any
    Reference: Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective operation
      performance", 2000
    """,
)(hierarchical(binomial_reduce, binomial_reduce))
