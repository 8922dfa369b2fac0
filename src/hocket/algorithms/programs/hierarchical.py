"""Hierarchical: rings inside groups of ranks and logarithmic steps across them, or trees at both levels.

Other algorithms may be composed in the same way: see levels.hierarchical. all_to_all is in hierarchical_all_to_all.
"""

import numpy as np
import numpy.typing as npt

from hocket.algorithms.layout import Layout
from hocket.algorithms.levels import Groups, groups_of, hierarchical, place_of_root
from hocket.algorithms.programs.nonuniform import (
    hierarchical_ring_all_gather,
    hierarchical_ring_all_reduce,
    hierarchical_ring_reduce_scatter,
)
from hocket.algorithms.programs.ring import ring_all_gather, ring_reduce_scatter
from hocket.algorithms.programs.rounds import rounds
from hocket.algorithms.programs.tree import binomial_broadcast, binomial_reduce
from hocket.algorithms.registry import Algorithm, algorithm
from hocket.schedule import Schedule


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
    return rounds(len(groups)) + rounds(max(groups))


hierarchical_all_reduce = algorithm(
    "all_reduce",
    name="hierarchical",
    steps=lambda p, groups: 2 * (max(groups) - 1 + rounds(len(groups))),
    sent=lambda p, groups: 2 - 2 / (len(groups) * max(groups)),
    labels=("same_on_all_ranks",),
    doc="""A lap of a ring inside each group leaves each rank the sum of one shard; those that hold the same shard do an
    all_reduce across the groups, by the nonuniform hierarchical ring; another lap inside brings all shards to all.

    Steps: 2 * (M - 1) + 2 * ceil(log2(G))
    Sent: 2 * (G * M - 1) / (G * M) * N
    Best: large N, and links that are fast inside groups and slow across them: only 2 * (G - 1) / G / M * N goes across
    Ranks: any
    Reference: Jia et al., "Highly scalable deep learning training system with mixed-precision", 2018; for groups of
      unequal size the AHC algorithm of HCCL

    Groups of unequal size cut the vector each in its own way: into the least common multiple of their sizes; for each
    run of chunks those meet across that hold it. The order of reduction is another one for each chunk.
    """,
)(hierarchical(ring_reduce_scatter, hierarchical_ring_all_reduce, ring_all_gather))


hierarchical_reduce_scatter = algorithm(
    "reduce_scatter",
    name="hierarchical",
    steps=lambda p, groups: max(groups) - 1 + rounds(len(groups)),
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""A lap of a ring inside each group: each rank sums for its counterparts what the group has for them. Then the
    counterparts do a reduce_scatter across the groups, by the nonuniform hierarchical ring.

    Steps: M - 1 + ceil(log2(G))
    Sent: (P - 1) / P * N
    Best: large N, and links that are fast inside groups and slow across them: every block leaves a group once
    Ranks: any
    Reference: HCCL's hierarchical algorithms

    HCCL goes across first, so that the blocks which travel together lie together; then M times as much goes across. A
    group without a counterpart for all ranks of a larger one has ranks that stand for several.
    """,
)(hierarchical(ring_reduce_scatter, hierarchical_ring_reduce_scatter))


hierarchical_all_gather = algorithm(
    "all_gather",
    name="hierarchical",
    steps=lambda p, groups: max(groups) - 1 + rounds(len(groups)),
    sent=lambda p, groups: _most_sent_gathering(
        Layout(p, groups=groups), hierarchical_ring_all_gather, ring_all_gather
    ),
    doc="""Counterparts gather across the groups, by the nonuniform hierarchical ring; then all that each has travels
    round a ring inside its group.

    Steps: M - 1 + ceil(log2(G))
    Sent: (P - 1) / P * N where groups are equally large; a rank that stands for several sends more
    Best: large N, and links that are fast inside groups and slow across them: every block enters a group once
    Ranks: any
    Reference: HCCL's hierarchical algorithms

    HCCL goes inside first, so that the blocks which travel together lie together; then M times as much goes across.
    """,
)(hierarchical(hierarchical_ring_all_gather, ring_all_gather))


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
