"""Packs spanning trees into trunks between ranks (Edmonds 1973; strongly polynomial by Berczi and Frank 2010).

A tree grows edge by edge. An edge may carry as much of the tree as leaves room for all trees that are not complete; a
flow says how much that is. If it is less than the whole tree, the rest becomes a tree of its own, which grows later.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hocket.errors import InternalError
from hocket.network.bounds.max_flow import MaxFlow, make_max_flow
from hocket.network.synthesis.trunks import Ends

_Candidate = tuple[int, int, int, int]  # depth of the source, its width below 0, source, target


@dataclass
class Tree:
    """A spanning tree that grows from its root. shares: how often it is used. depth: of each of its nodes.

    edges: from a node of the tree to a new one, in the order in which they were added.
    """

    root: int
    shares: int
    edges: list[Ends] = field(default_factory=list)
    depth: dict[int, int] = field(default_factory=dict)

    def rest(self, shares: int) -> "Tree":
        """Returns a copy for so many shares."""
        return Tree(self.root, shares, list(self.edges), dict(self.depth))


def pack_trees(trunks: Mapping[Ends, int], roots: Mapping[int, int], nodes: list[int]) -> list[Tree]:
    """Returns spanning out-trees, `roots[node]` shares from each root, that together use at most the trunks' shares.

    They exist if flows from all roots reach every node (Edmonds); InternalError if these do not.
    """
    packing = _Packing(trunks, roots, nodes)
    open_trees = [Tree(root, shares, depth={root: 0}) for root, shares in roots.items() if shares]
    done = []
    while open_trees:
        tree = open_trees.pop()
        packing.complete(tree, open_trees)
        done.append(tree)
    return done


class _Packing:
    def __init__(self, trunks: Mapping[Ends, int], roots: Mapping[int, int], nodes: list[int]) -> None:
        self.number = {node: number for number, node in enumerate(nodes)}
        self.place = {ends: number for number, ends in enumerate(trunks)}
        self.capacity = np.array(list(trunks.values()), np.int64)
        self.ends = [(self.number[source], self.number[target]) for source, target in trunks]
        self.behind: dict[int, list[int]] = {node: [] for node in nodes}
        for source, target in trunks:
            self.behind[source].append(target)
        self.unlimited = int(self.capacity.sum()) + sum(roots.values())

    def complete(self, tree: Tree, others: list[Tree]) -> None:
        """Adds edges until the tree reaches all nodes; what does not fit is added to the others.

        Edges from shallow nodes are tried first, wide ones before narrow ones. An edge that is full stays full, because
        capacities only shrink.
        """
        graph = _Graph(self, others)
        candidates: list[_Candidate] = []
        for node in tree.depth:
            self._add_candidates(candidates, tree, node)
        while len(tree.depth) < len(self.number):
            if not candidates:
                raise InternalError(f"no edge fits a spanning tree from node {tree.root} any more")
            _, _, source, target = heapq.heappop(candidates)
            if target in tree.depth:
                continue
            ends = source, target
            fits = min(tree.shares, int(self.capacity[self.place[ends]]))
            fits = min(fits, graph.spare(ends)) if fits else 0
            if fits <= 0:
                continue
            if fits < tree.shares:
                others.append(tree.rest(tree.shares - fits))
                tree.shares = fits
                graph = _Graph(self, others)
            self.capacity[self.place[ends]] -= fits
            tree.edges.append(ends)
            tree.depth[target] = tree.depth[source] + 1
            self._add_candidates(candidates, tree, target)

    def _add_candidates(self, candidates: "list[_Candidate]", tree: Tree, source: int) -> None:
        for target in self.behind[source]:
            if target not in tree.depth:
                width = int(self.capacity[self.place[source, target]])
                heapq.heappush(candidates, (tree.depth[source], -width, source, target))


class _Graph:
    """The trunks, and for each open tree a node that leads to all nodes of the tree.

    Trees that have only a root are joined into an arc to it.
    """

    def __init__(self, packing: _Packing, others: list[Tree]) -> None:
        self.packing = packing
        num_nodes = len(packing.number)
        above = num_nodes
        ends, capacity = [], []
        begun: dict[frozenset[int], int] = {}
        for tree in others:
            nodes = frozenset(tree.depth)
            begun[nodes] = begun.get(nodes, 0) + tree.shares
        for number, (nodes, shares) in enumerate(begun.items()):
            own = above + 1 + number
            ends += [(above, own), *((own, packing.number[node]) for node in nodes)]
            capacity += [shares, *(packing.unlimited for _ in nodes)]
        self.reserved = sum(begun.values())
        self.num_trunks, first = len(packing.ends), len(packing.ends) + len(ends)
        ends += [(node, above) for node in range(num_nodes)]
        self.gate = first
        source, target = np.array([*packing.ends, *ends], np.int64).T.copy()
        self.flow: MaxFlow = make_max_flow(above + 1 + len(begun), source, target)
        self.capacity = np.array([*packing.capacity, *capacity, *([0] * num_nodes)], np.int64)

    def spare(self, ends: Ends) -> int:
        """Returns how much of an edge is left if all other trees get what they need."""
        source, target = (self.packing.number[node] for node in ends)
        self.capacity[: self.num_trunks] = self.packing.capacity
        self.capacity[self.gate + source] = self.packing.unlimited
        flow = self.flow.run(self.capacity, source, target)
        self.capacity[self.gate + source] = 0
        return flow - self.reserved
