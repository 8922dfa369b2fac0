"""The best bandwidth of a collective on a network, for any algorithm of ranks, and the cut that limits it.

All latencies count as 0, and only ranks reduce and copy. Let a cut have r of p ranks before it.

- all_gather (Zhao et al. 2024: ForestColl), gather: r / p of the vector crosses the cut. The worst cut can be reached,
  by spanning trees from every rank (Edmonds 1973), or by paths to the root.
- broadcast: the whole vector crosses it, and spanning trees from the root reach the narrowest cut.
- reduce_scatter, scatter, reduce: the same backwards, on the network with all links turned round.
- all_reduce: reduce_scatter and then all_gather, each at its optimum. This is the best that is known; a better
  all_reduce is not excluded on every network.

`num_trees` equal shares per root reach the optimum exactly, the fewest that do. If these are more than 100, or than can
be proved in seconds, as few are taken as reach 99.9 % of it, or those that come closest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd

import numpy as np

from hocket.network.bounds.cuts import narrowest, ranks_alike, tightest, whole_capacities
from hocket.network.bounds.max_flow import make_max_flow
from hocket.network.topology import Bools, Ints, Topology
from hocket.schedule import find_collective

FORWARD = {
    "all_gather": "all_gather",
    "broadcast": "broadcast",
    "gather": "gather",
    "reduce_scatter": "all_gather",
    "reduce": "broadcast",
    "scatter": "gather",
}
"""The collective that is packed. If it is another one, it is packed on turned links and run backwards."""

_REFUSED = {
    "all_to_all": "every pair of ranks has data of its own, and trees do not apply",
    "barrier": "it moves no data",
}
_MOST_TREES = 100  # exact shares, per root: with more, chunks are so small that filling the trees costs more
_MOST_ROWS = 1 << 18  # transfers of single chunks: a proof of more takes more than seconds
_CLOSE = Fraction(999, 1000)  # of the optimum, if fewer trees are taken


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best bandwidth of a collective, in bytes of its whole vector per second.

    before: bool[num_nodes], the side of the worst cut that sends. links: those of the cut. bytes_per_second: reached by
    any algorithm at most; reached_bytes_per_second: by num_trees equal shares of each block. shares: int64[num_links],
    in how many of these each link can be; 0 for links that ranks may not use. parts: of an all_reduce, the optima of
    reduce_scatter and all_gather; cut and shares are then those of the slower part.
    """

    topology: Topology
    collective: str
    root: int
    forwarding: bool
    before: Bools
    links: Ints
    bytes_per_second: float
    reached_bytes_per_second: float
    num_trees: int
    shares: Ints
    parts: "tuple[Optimum, ...]" = ()


def find_optimum(topology: Topology, collective: str, root: int = 0, *, forwarding: bool = False) -> Optimum:
    """Returns the best bandwidth of a collective among all ranks of a network.

    forwarding: nodes that are no ranks and do not forward, such as idle accelerators, may forward all the same.
    Raises ValueError for a collective without such an optimum, for a root that does not exist and for a single rank;
    TopologyError if ranks reach each other only through idle accelerators.
    """
    if topology.num_ranks < 2:
        raise ValueError(f"{topology.name}: expected 2 ranks or more, found 1, which has nothing to send")
    if not 0 <= root < topology.num_ranks:
        raise ValueError(f"expected a root from 0 to {topology.num_ranks - 1}, found {root}")
    if collective == "all_reduce":
        parts = tuple(find_optimum(topology, part, forwarding=forwarding) for part in ("reduce_scatter", "all_gather"))
        slower = min(parts, key=lambda part: part.bytes_per_second)
        return replace(
            slower,
            collective=collective,
            bytes_per_second=1 / sum(1 / part.bytes_per_second for part in parts),
            reached_bytes_per_second=1 / sum(1 / part.reached_bytes_per_second for part in parts),
            parts=parts,
        )
    if collective not in FORWARD:
        known = ", ".join(("all_reduce", *FORWARD))
        reason = _REFUSED.get(find_collective(collective).name, "its blocks differ in length")
        raise ValueError(f"expected one of {known}; {collective} has no known optimum, because {reason}")
    allowed = _without_dead_ends(topology, np.ones(topology.num_links, bool) if forwarding else topology.usable_links)
    kind, p = FORWARD[collective], topology.num_ranks
    kept = np.flatnonzero(allowed)
    usable = topology if len(kept) == topology.num_links else topology.keep(allowed)
    network = usable if kind == collective else turned(usable)
    trees, targets = _Trees(network, kind, root), _targets(network, kind, root)
    capacity = trees.capacity
    cut = narrowest(network, root, targets) if kind == "broadcast" else tightest(network, targets)
    ratio = Fraction(int(capacity[cut.links].sum()), 1 if kind == "broadcast" else cut.ranks)
    num_trees, seconds = trees.fewest(cut.links, ratio, min(_MOST_TREES, max(1, _MOST_ROWS // (p * p))))
    unit = float(network.bytes_per_second.max()) / int(capacity.max()) * (1 if kind == "broadcast" else p)
    shares = np.zeros(topology.num_links, np.int64)
    shares[kept] = trees.shares(seconds)
    return Optimum(
        topology,
        collective,
        root if find_collective(collective).rooted else 0,
        forwarding,
        cut.before if network is usable else ~cut.before,
        kept[cut.links],
        float(ratio) * unit,
        float(num_trees / seconds) * unit,
        num_trees,
        shares,
    )


def optimum_with_trees(topology: Topology, trees: int) -> float:
    """Returns the best all_gather in bytes per second if each rank sends equal shares along `trees` spanning trees."""
    found = _Trees(topology, "all_gather", 0)
    unit = float(topology.bytes_per_second.max()) / int(found.capacity.max())
    return float(topology.num_ranks * trees / found.least_seconds(trees)) * unit


def turned(topology: Topology) -> Topology:
    """Returns the network with every link turned round. Links keep their numbers."""
    return replace(topology, link_source=topology.link_target, link_target=topology.link_source, unchanged=None)


def trees_per_root(optimum: Optimum) -> dict[int, int]:
    """Returns the number of trees (or of paths, for gather and scatter) of each root, by node."""
    ranks = optimum.topology.ranks.tolist()
    roots = [ranks[optimum.root]] if FORWARD[optimum.collective] == "broadcast" else ranks
    return dict.fromkeys(roots, optimum.num_trees)


def _without_dead_ends(topology: Topology, links: Bools) -> Bools:
    """Returns which of these links may lead from a rank to another: not those of a switch with a single neighbour."""
    switches = np.ones(topology.num_nodes, bool)
    switches[topology.ranks] = False
    ends = np.sort(np.stack((topology.link_source, topology.link_target), axis=1), axis=1)
    while True:
        pairs = np.unique(ends[links], axis=0)
        dead = switches & (np.bincount(pairs.ravel(), minlength=topology.num_nodes) == 1)
        if not dead.any():
            return links
        links = links & ~dead[ends].any(axis=1)


def _targets(network: Topology, kind: str, root: int) -> Sequence[int]:
    """Returns the ranks that need everything."""
    if kind == "gather":
        return [root]
    if kind == "broadcast":
        return [rank for rank in range(network.num_ranks) if rank != root]
    return [0] if ranks_alike(network) else range(network.num_ranks)


class _Trees:
    """Equal shares of the roots: how many of them can go to all targets in how much time.

    Seconds count for whole capacities. In that time a link carries whole shares only (ForestColl's search for a fixed
    number of trees).
    """

    def __init__(self, network: Topology, kind: str, root: int) -> None:
        above, self._num_links = network.num_nodes, network.num_links
        roots = network.ranks[[root]] if kind == "broadcast" else network.ranks
        self.capacity = whole_capacities(network.bytes_per_second, network.num_ranks)
        self._above, self._num_roots = above, len(roots)
        self._targets = network.ranks[list(_targets(network, kind, root))]
        self._flow = make_max_flow(
            above + 1,
            np.concatenate([network.link_source, np.full(len(roots), above)]),
            np.concatenate([network.link_target, roots]),
        )

    def shares(self, seconds: Fraction) -> list[int]:
        """Returns how many shares each link carries."""
        return [each * seconds.numerator // seconds.denominator for each in self.capacity.tolist()]

    def arrive(self, trees: int, seconds: Fraction) -> bool:
        """Returns whether so many shares of every root can reach all targets."""
        scaled = np.array([*self.shares(seconds), *([trees] * self._num_roots)], np.int64)
        short, _ = self._flow.find_short(scaled, self._above, self._targets, self._num_roots * trees)
        return short < 0

    def least_seconds(self, trees: int) -> Fraction:
        """Returns the least seconds in which so many shares of every root reach all targets."""
        # The answer changes only where some whole number of shares changes, at a multiple of 1 / capacity.
        largest = int(self.capacity.max())
        low, high = Fraction(0), Fraction(self._num_roots * trees, int(self.capacity.min()))
        while high - low >= Fraction(1, largest * largest):
            middle = (low + high) / 2
            low, high = (low, middle) if self.arrive(trees, middle) else (middle, high)
        return ((low + high) / 2).limit_denominator(largest)

    def fewest(self, cut: Ints, ratio: Fraction, most: int) -> tuple[int, Fraction]:
        """Returns the fewest trees that reach the optimum, and their seconds; of at most `most`, which come closest.

        cut: the links of the bottleneck. They are full, so they carry whole shares: only multiples can be exact.
        """
        step = (ratio / gcd(*self.capacity[cut].tolist())).numerator
        for trees in range(step, most + 1, step):
            if self.arrive(trees, trees / ratio):
                return trees, trees / ratio
        for trees in range(1, most + 1):
            if self.arrive(trees, trees / (ratio * _CLOSE)):
                return trees, self.least_seconds(trees)
        seconds = {trees: self.least_seconds(trees) for trees in range(1, most + 1)}
        trees = max(seconds, key=lambda each: each / seconds[each])
        return trees, seconds[trees]
