"""Cuts: the data that one side of a network must send to the other, divided by the bandwidth of the links between.

`tightest` finds the worst cut exactly, by flows, if every rank sends a share and some ranks need all shares.
`groupings` yields cuts that are visible in the network's shape: each rank, each host, each pod, each half. They are
used for all_to_all, whose worst cut is hard to find, and for networks of very many ranks.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.network.bounds.max_flow import make_max_flow
from hocket.network.topology import Bools, Floats, Ints, Topology

_OUTSIDE = -1
_LARGEST = 2**62


@dataclass(frozen=True)
class Cut:
    """A cut. before: bool[num_nodes], the sending side. ranks: number of ranks there. links: those that leave it."""

    before: Bools
    ranks: int
    links: Ints
    bytes_per_second: float


def make_cut(topology: Topology, before: Bools) -> Cut:
    """Returns the cut with these nodes on the sending side."""
    links = np.flatnonzero(before[topology.link_source] & ~before[topology.link_target])
    return Cut(before, int(before[topology.ranks].sum()), links, float(topology.bytes_per_second[links].sum()))


def tightest(topology: Topology, targets: Sequence[int]) -> Cut:
    """Returns the cut with the least bytes per second per rank before it, of all cuts with a target rank behind them.

    If every rank has one share and each target needs all, the least time is bytes of a share x ranks / capacity of this
    cut; it can be reached for each target alone, and for all together (Edmonds 1973). Newton's iteration on the ratio:
    while some target cannot be reached at the current ratio, a flow shows a worse cut.
    """
    capacity = whole_capacities(topology.bytes_per_second, topology.num_ranks)
    first = topology.num_links  # the first link from the super-source to the ranks
    above = topology.num_nodes
    flow = make_max_flow(
        above + 1,
        np.concatenate([topology.link_source, np.full(topology.num_ranks, above)]),
        np.concatenate([topology.link_target, topology.ranks]),
    )
    target = int(topology.ranks[targets[0]])
    before = np.ones(above, bool)
    before[target] = False
    best = make_cut(topology, before)
    ratio = Fraction(int(capacity[best.links].sum()), best.ranks)
    scaled = np.empty(first + topology.num_ranks, np.int64)
    mask = np.empty(above + 1, bool)
    for rank in targets:
        target = int(topology.ranks[rank])
        while True:
            scaled[:first] = capacity * ratio.denominator
            scaled[first:] = ratio.numerator
            if flow.run(scaled, above, target) >= topology.num_ranks * ratio.numerator:
                break
            flow.mark_before_cut(mask)
            best = make_cut(topology, mask[:above].copy())
            ratio = Fraction(int(capacity[best.links].sum()), best.ranks)
    return best


def narrowest(topology: Topology, source: int, targets: Sequence[int]) -> Cut:
    """Returns the cut of the least capacity with the source rank before it and some target rank behind it."""
    capacity = whole_capacities(topology.bytes_per_second, topology.num_ranks)
    flow = make_max_flow(topology.num_nodes, topology.link_source, topology.link_target)
    least, best = None, None
    for rank in targets:
        found = flow.run(capacity, int(topology.ranks[source]), int(topology.ranks[rank]))
        if least is None or found < least:
            least, best = found, np.empty(topology.num_nodes, bool)
            flow.mark_before_cut(best)
    assert best is not None
    return make_cut(topology, best)


def whole_capacities(bytes_per_second: Floats, num_ranks: int) -> Ints:
    """Returns whole numbers in the same ratio, small enough to be summed over all links and ranks.

    The ratios are exact if bandwidths are whole bytes per second with a large enough common divisor, as in catalogues;
    else they are rounded to the precision that 62 bits allow.
    """
    limit = _LARGEST // (max(num_ranks, 2) * (len(bytes_per_second) + 1))
    if (bytes_per_second == np.floor(bytes_per_second)).all() and bytes_per_second.max() < 2**53:
        whole = bytes_per_second.astype(np.int64)
        whole //= math.gcd(*(int(each) for each in set(bytes_per_second.tolist())))
        if whole.max() <= limit:
            return whole
    scaled: Ints = np.maximum(np.rint(bytes_per_second * (limit / bytes_per_second.max())), 1).astype(np.int64)
    return scaled


def ranks_alike(topology: Topology) -> bool:
    """Returns whether all ranks of a full grid without switches are equivalent.

    They are if one step along any axis, with wrap-around, maps links to links of the same bandwidth.
    """
    columns = topology.coordinates
    shape = tuple(int(size) for size in columns.max(axis=0) + 1)
    if not shape or math.prod(shape) != topology.num_ranks or topology.num_nodes != topology.num_ranks:
        return False
    node_at = np.full(shape, _OUTSIDE)
    node_at[tuple(columns.T)] = topology.ranks
    if (node_at == _OUTSIDE).any():
        return False

    def links(moved: Ints) -> npt.NDArray[Any]:
        ends = moved[topology.link_source] * topology.num_nodes + moved[topology.link_target]
        return np.stack((ends, topology.bytes_per_second))[:, np.lexsort((topology.bytes_per_second, ends))]

    there = links(np.arange(topology.num_nodes))
    for axis in range(len(shape)):
        moved = np.empty(topology.num_nodes, np.int64)
        moved[node_at] = np.roll(node_at, 1, axis)
        if not np.array_equal(links(moved), there):
            return False
    return True


@dataclass(frozen=True)
class Grouping:
    """Nodes in groups. group: int64[num_nodes], -1 for no group. ranks, out, into: per group, ranks and bandwidths."""

    topology: Topology
    group: Ints
    ranks: Ints
    out: Floats
    into: Floats

    def links_out(self, group: int) -> Ints:
        """Returns the links that leave a group."""
        topology = self.topology
        return np.flatnonzero((self.group[topology.link_source] == group) & (self.group[topology.link_target] != group))

    def links_into(self, group: int) -> Ints:
        """Returns the links that enter a group."""
        topology = self.topology
        return np.flatnonzero((self.group[topology.link_source] != group) & (self.group[topology.link_target] == group))

    @property
    def only_groups_reduce(self) -> bool:
        """Whether no switch outside all groups reduces or multicasts."""
        return not self.topology.reducing[self.group == _OUTSIDE].any()


def groupings(topology: Topology) -> Iterator[Grouping]:
    """Yields groupings of two or more groups: single ranks, hosts, and neighbours along the axes of the network.

    A switch that is linked only to one group, and to switches of that group, joins the group, round by round. Each
    round is yielded as a grouping, because any of them may have the least capacity.
    """
    for of_rank in _natural(topology):
        group = np.full(topology.num_nodes, _OUTSIDE, np.int64)
        group[topology.ranks] = of_rank
        while True:
            yield _grouping(topology, group)
            joined = _join(topology, group)
            if np.array_equal(joined, group):
                break
            group = joined


def _natural(topology: Topology) -> Iterator[Ints]:
    yield np.arange(topology.num_ranks)
    seen = [np.arange(topology.num_ranks)]
    for of_rank in _hosts_and_axes(topology):
        numbers = np.unique(of_rank, return_inverse=True)[1]
        if 1 < numbers.max() + 1 < topology.num_ranks and not any(np.array_equal(numbers, other) for other in seen):
            seen.append(numbers)
            yield numbers


def _hosts_and_axes(topology: Topology) -> Iterator[Ints]:
    yield topology.hosts
    columns = topology.coordinates
    prefix = np.zeros(topology.num_ranks, np.int64)
    for axis in range(columns.shape[1]):
        column = columns[:, axis]
        size = int(column.max()) + 1
        prefix = prefix * size + column
        yield prefix
        yield column
        yield column * 2 // size
    yield np.arange(topology.num_ranks) * 2 // topology.num_ranks


def _grouping(topology: Topology, group: Ints) -> Grouping:
    num_groups = int(group.max()) + 1
    source, target = group[topology.link_source], group[topology.link_target]
    leaves, enters = (source != target) & (source != _OUTSIDE), (source != target) & (target != _OUTSIDE)
    return Grouping(
        topology,
        group,
        np.bincount(group[topology.ranks], minlength=num_groups),
        np.bincount(source[leaves], topology.bytes_per_second[leaves], num_groups).astype(np.float64),
        np.bincount(target[enters], topology.bytes_per_second[enters], num_groups).astype(np.float64),
    )


def _join(topology: Topology, group: Ints) -> Ints:
    """Returns the groups after one round: a node without a group joins the only group that it has links with."""
    most = np.full(topology.num_nodes, _OUTSIDE, np.int64)
    least = np.full(topology.num_nodes, topology.num_nodes, np.int64)
    for here, there in ((topology.link_source, topology.link_target), (topology.link_target, topology.link_source)):
        known = group[there] != _OUTSIDE
        np.maximum.at(most, here[known], group[there[known]])
        np.minimum.at(least, here[known], group[there[known]])
    joins = (group == _OUTSIDE) & (most == least)
    return np.where(joins, most, group)
