"""Double binary tree: two trees carry half of the data each, and who is an inner node of one is a leaf of the other."""

import numpy as np
import numpy.typing as npt

from hocket.algorithms.programs.rounds import rounds
from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder


@algorithm("broadcast", name="double_tree", chunks=lambda p: 2, steps=rounds, sent=lambda p: min(p - 1, 1))
def double_tree_broadcast(schedule: Builder) -> None:
    """The root gives half of the data to the top of each of two binary trees of all others, which pass it down. Numbers
    of nodes run in order of place, so that even ones are inner nodes and odd ones leaves; in the second tree ranks have
    other numbers, mirrored or moved by one, so that nobody is an inner node of both.

    Steps: ceil(log2(P))
    Sent: min(P - 1, 1) * N
    Best: all N, sent in pieces: logarithmic, and nobody sends more than N
    Ranks: any
    Reference: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009;
      NCCL 2.4
    """
    p = schedule.num_ranks
    n = p - 1
    node = np.arange(1, p)
    parent, depth = _tree(n)
    rank_of = [np.arange(p), np.append(0, p - node if n % 2 == 0 else node % max(n, 1) + 1)]
    for level in range(1, rounds(p) + 1):
        children = node[depth[node] == level]
        with schedule.step():
            for half, rank in enumerate(rank_of):
                source, target = rank[parent[children]], rank[children]
                schedule.copy(src=(source + schedule.root) % p, dst=(target + schedule.root) % p, chunk=half)


def _tree(n: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of nodes 0 to n the parents and depths; node 0, which is outside, is the parent of the top."""
    node = np.arange(n + 1)
    lowest = node & -node
    parent = node ^ lowest | lowest << 1
    parent = np.where(parent > n, node ^ lowest, parent)
    depth, at = np.zeros(n + 1, np.int64), node
    while at.any():
        depth += at > 0
        at = np.where(at > 0, parent[at], 0)
    return parent, depth


double_tree_reduce = algorithm(
    "reduce",
    name="double_tree",
    steps=rounds,
    sent=lambda p: min(p - 1, 1),
    labels=("same_on_all_ranks",),
    doc="""The broadcast run backwards: each half of the data is summed on its way up one of the two trees.

    Steps: ceil(log2(P))
    Sent: min(P - 1, 1) * N
    Best: all N, sent in pieces: logarithmic, and nobody receives more than N
    Ranks: any
    Reference: Sanders, Speck and Traeff 2009
    """,
)(double_tree_broadcast.reversed())

double_tree_all_reduce = algorithm(
    "all_reduce",
    name="double_tree",
    steps=lambda p: 2 * rounds(p),
    sent=lambda p: {1: 0, 2: 1, 3: 1.5}.get(p, 2),
    labels=("same_on_all_ranks",),
    doc="""Up both trees and down again: reduce to rank 0, then broadcast from it.

    Steps: 2 * ceil(log2(P))
    Sent: up to 2 N
    Best: all N at scale, sent in pieces: logarithmic, at nearly full bandwidth
    Ranks: any
    Reference: Sanders, Speck and Traeff 2009; NCCL 2.4
    """,
)(double_tree_reduce.then(double_tree_broadcast))
