"""What no algorithm can beat on a network: seconds that a collective takes at least, and the links that say so.

With n the bytes of the whole vector (of all_to_all: of what one rank gives), p ranks, r of them before a cut:

- latency: some rank learns something of the rank that is farthest from it.
- bandwidth: across a cut goes what is asked for behind it and known before it only, once: all_gather r n / p,
  reduce_scatter (p - r) n / p, gather r n / p, scatter (p - r) n / p, broadcast, reduce and all_reduce n, all_to_all
  r (p - r) n / p. Where only ranks reduce and copy, out of k parts that the network falls into go in sum
  (k - 1) n, in all_reduce 2 (k - 1) n: k - 1 messages until the first part has the sum, and one for each other part
  (Patarasuk, Yuan 2009). What goes from each rank to each other crosses at least as many links as they are apart, and
  all links together carry no more than their sum. The last byte has to travel, too.
- reduction: (p - 1) n bytes are added, by p ranks alike; none where switches reduce.

The cut is the worst there is, found by flows, for all_gather and reduce_scatter (Zhao et al. 2024: ForestColl), gather,
scatter, broadcast and reduce, up to so many ranks and links that this takes about a second; else the worst of those
that the shape of the network shows, and of all_reduce the narrowest. Every bound holds for any ways and any algorithm.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd
from weakref import WeakKeyDictionary

import numpy as np

from hocket.network import compiled
from hocket.network.bounds.cuts import Grouping, groupings, narrowest, ranks_alike, tightest, whole_capacities
from hocket.network.bounds.max_flow import make_max_flow
from hocket.network.shortest import shortest_seconds
from hocket.network.topology import Floats, Ints, Topology
from hocket.schedule import find_collective

# Flows x links x hops up to which the worst cut is searched for.
_MOST_WORK = 10**6 if compiled.simulator is None else 10**8

# Of a cut with r of p ranks before it: bytes that must cross it, in units of n / p. `root`: whether it lies before.
_CROSSING: dict[str, Callable[[Floats, int, Floats], Floats]] = {
    "all_gather": lambda r, p, root: r,
    "reduce_scatter": lambda r, p, root: p - r,
    "gather": lambda r, p, root: np.where(root, 0, r),
    "scatter": lambda r, p, root: np.where(root, p - r, 0),
    "broadcast": lambda r, p, root: np.where(root, p, 0),
    "reduce": lambda r, p, root: np.where(root, 0, p),
    "all_reduce": lambda r, p, root: np.full_like(r, p),
    "all_to_all": lambda r, p, root: r * (p - r),
    "barrier": lambda r, p, root: np.zeros_like(r),
}
# Of k parts that share nothing but forwarding: messages of n bytes that leave them, in units of k - 1.
_MESSAGES = {"all_gather": 1, "reduce_scatter": 1, "broadcast": 1, "reduce": 1, "all_reduce": 2}


@dataclass(frozen=True)
class Bound:
    """What a collective takes at least. seconds: the largest of the three, each of which is a bound by itself.

    bandwidth_seconds includes the least latency of a message. binding_links: int64, the links of the worst cut.
    exact: whether no cut is worse, so that large vectors can come as near as one likes.
    """

    seconds: float
    latency_seconds: float
    bandwidth_seconds: float
    reduction_seconds: float
    binding_links: Ints
    exact: bool

    @property
    def binding(self) -> str:
        """Which of the three is the largest: "latency", "bandwidth" or "reduction"."""
        return max(("bandwidth", "latency", "reduction"), key=lambda kind: float(getattr(self, f"{kind}_seconds")))


@dataclass(frozen=True)
class _Bandwidth:
    seconds_per_byte: float
    links: Ints
    exact: bool


_bandwidths: "WeakKeyDictionary[Topology, dict[tuple[str, int], _Bandwidth]]" = WeakKeyDictionary()
_members: "WeakKeyDictionary[Topology, Topology]" = WeakKeyDictionary()  # those whose ranks are switches too
_latencies: "WeakKeyDictionary[Topology, dict[tuple[str, int], float]]" = WeakKeyDictionary()


def lower_bound(
    topology: Topology, collective: str, num_bytes: float, *, root: int = 0, reduce_seconds_per_byte: float = 0.0
) -> Bound:
    """Seconds that the collective takes at least on this network, whatever the algorithm and the ways.

    A rank placed on a switch that reduces is no rank here: it only stands for what the switch does.
    num_bytes: n of the module's description. reduce_seconds_per_byte: what adding one byte to another costs a rank.
    Uneven blocks count as equally long ones. ScheduleError for an unknown collective, ValueError for a root that there
    is not.
    """
    kind, topology = find_collective(collective), _without_switches(topology)
    p, even = topology.num_ranks, collective.removesuffix("_v")
    if not 0 <= root < p:
        raise ValueError(f"expected a root from 0 to {p - 1}, found {root}")
    if p == 1:
        return Bound(0.0, 0.0, 0.0, 0.0, np.zeros(0, np.int64), True)
    at = (even, root if kind.rooted else 0)
    bandwidths, latencies = _bandwidths.setdefault(topology, {}), _latencies.setdefault(topology, {})
    if at not in bandwidths:
        latencies[at] = _latency(topology, *at)
        bandwidths[at] = _bandwidth(topology, *at)  # the last, as other threads look for it
    bandwidth, moves = bandwidths[at], kind.exactly_once and num_bytes > 0
    reduces = kind.counts_contributions and not topology.reducing.any()
    times = (
        latencies[at],
        bandwidth.seconds_per_byte * num_bytes + _least_latency(topology) if moves else 0.0,
        (p - 1) / p * num_bytes * reduce_seconds_per_byte if reduces else 0.0,
    )
    return Bound(max(times), *times, bandwidth.links, bandwidth.exact)


def _without_switches(topology: Topology) -> Topology:
    switches = topology.reducing[topology.ranks]
    if not switches.any():
        return topology
    if topology not in _members:
        _members[topology] = topology.place(np.flatnonzero(~switches).tolist())
    return _members[topology]


def gathering_bytes_per_second(topology: Topology) -> float:
    """The optimum of all_gather for long vectors, which some algorithm reaches: bytes of all blocks per second."""
    cut = tightest(topology, range(topology.num_ranks))
    return topology.num_ranks * cut.bytes_per_second / cut.ranks


def trees_for_optimum(topology: Topology) -> int:
    """How many spanning trees of each rank reach `gathering_bytes_per_second`: the fewest with equal shares."""
    capacity = whole_capacities(topology.bytes_per_second, topology.num_ranks)
    cut = tightest(topology, range(topology.num_ranks))
    inverse = Fraction(cut.ranks, int(capacity[cut.links].sum()))
    return int(Fraction(inverse.numerator, gcd(*capacity.tolist(), inverse.denominator)) / inverse)


def gathering_with_trees(topology: Topology, trees: int) -> float:
    """The optimum of all_gather if each rank sends along so many spanning trees alike: bytes per second.

    A link of b bytes per second is part of floor(U b) trees, where U is seconds for a share. Searched for the least U
    for which every rank is reached by all trees (ForestColl's fixed k).
    """
    capacity = whole_capacities(topology.bytes_per_second, topology.num_ranks)
    p, above, num_links = topology.num_ranks, topology.num_nodes, topology.num_links
    flow = make_max_flow(
        above + 1,
        np.concatenate([topology.link_source, np.full(p, above)]),
        np.concatenate([topology.link_target, topology.ranks]),
    )
    scaled = np.full(num_links + p, trees, np.int64)

    def suffices(seconds: Fraction) -> bool:
        scaled[:num_links] = [each * seconds.numerator // seconds.denominator for each in capacity.tolist()]
        return all(flow.run(scaled, above, int(node)) >= p * trees for node in topology.ranks)

    # The answer only changes where some floor(U b) does, at a multiple of 1 / b.
    largest = int(capacity.max())
    low, high = Fraction(0), Fraction(p * trees, int(capacity.min()))
    while high - low >= Fraction(1, largest * largest):
        middle = (low + high) / 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    seconds = ((low + high) / 2).limit_denominator(largest)
    return float(p * trees / seconds) * float(topology.bytes_per_second.max()) / largest


def carried_seconds_per_byte(topology: Topology) -> float:
    """Of all_to_all: hops that all bytes take at least, in sum, over what all links carry; for n = 1 byte."""
    ones = np.ones(topology.num_links)
    sources = topology.ranks[:1] if ranks_alike(topology) else topology.ranks
    hops = [
        shortest_seconds(topology.link_source, topology.link_target, ones, topology.num_nodes, int(node))[
            topology.ranks
        ]
        for node in sources
    ]
    return float(np.mean(hops)) * topology.num_ranks / float(topology.bytes_per_second.sum())


def _bandwidth(topology: Topology, collective: str, root: int) -> _Bandwidth:
    p = topology.num_ranks
    found = list(_seen(topology, collective, root))
    if collective == "all_to_all" and p * topology.num_links <= _MOST_WORK:
        found.append(_Bandwidth(p * carried_seconds_per_byte(topology), np.arange(topology.num_links), False))
    if collective != "barrier":
        found += _searched(topology, collective, root)
    worst = max(found, key=lambda each: each.seconds_per_byte)
    return replace(worst, exact=any(each.exact for each in found), seconds_per_byte=worst.seconds_per_byte / p)


def _seen(topology: Topology, collective: str, root: int) -> Iterator[_Bandwidth]:
    """The cuts to see in the network's shape; seconds are for n / p bytes here."""
    p = topology.num_ranks
    for grouping in groupings(topology):
        inside = np.arange(len(grouping.ranks)) == grouping.group[topology.ranks[root]]
        out = _CROSSING[collective](grouping.ranks.astype(float), p, inside) / grouping.out
        into = _CROSSING[collective]((p - grouping.ranks).astype(float), p, ~inside) / grouping.into
        for seconds, links in ((out, grouping.links_out), (into, grouping.links_into)):
            worst = int(seconds.argmax())
            yield _Bandwidth(float(seconds[worst]), links(worst), False)
        if collective in _MESSAGES and grouping.only_groups_reduce:
            yield from _in_sum(grouping, _MESSAGES[collective] * p)


def _in_sum(grouping: Grouping, messages: int) -> Iterator[_Bandwidth]:
    topology, group = grouping.topology, grouping.group
    between = group[topology.link_source] != group[topology.link_target]
    for ends, capacity in ((topology.link_source, grouping.out), (topology.link_target, grouping.into)):
        crossing = np.flatnonzero(between & (group[ends] >= 0))
        yield _Bandwidth(messages * (len(capacity) - 1) / float(capacity.sum()), crossing, False)


def _searched(topology: Topology, collective: str, root: int) -> Iterator[_Bandwidth]:
    """The worst cut of all, where it can be found in time; seconds are for n / p bytes here."""
    p = topology.num_ranks
    targets = _targets(topology, collective, root)
    if collective == "all_to_all" or len(targets) * topology.num_links > _MOST_WORK:
        return
    hops = shortest_seconds(
        topology.link_source,
        topology.link_target,
        np.ones(topology.num_links),
        topology.num_nodes,
        int(topology.ranks[0]),
    )
    if len(targets) * topology.num_links * hops[topology.ranks].max() > _MOST_WORK:
        return
    back = replace(topology, link_source=topology.link_target, link_target=topology.link_source)
    if collective in ("all_gather", "reduce_scatter", "gather", "scatter"):
        cut = tightest(topology if collective.endswith("gather") else back, targets)
        yield _Bandwidth(cut.ranks / cut.bytes_per_second, cut.links, True)
        return
    for network, needed in ((topology, collective != "reduce"), (back, collective != "broadcast")):
        if needed:
            cut = narrowest(network, root, targets)
            yield _Bandwidth(p / cut.bytes_per_second, cut.links, collective != "all_reduce")


def _targets(topology: Topology, collective: str, root: int) -> Sequence[int]:
    """The ranks to which flows are searched for."""
    if collective in ("gather", "scatter"):
        return [root]
    if collective in ("all_gather", "reduce_scatter"):
        return [0] if ranks_alike(topology) else range(topology.num_ranks)
    return [rank for rank in range(topology.num_ranks) if rank != root]


def _latency(topology: Topology, collective: str, root: int) -> float:
    """From the root to the farthest rank, or back; where none is the root, between ranks that are far apart."""
    ends = (topology.link_source, topology.link_target)
    away = ends if collective not in ("gather", "reduce") else ends[::-1]
    seconds = shortest_seconds(*away, topology.seconds, topology.num_nodes, int(topology.ranks[root]))[topology.ranks]
    if find_collective(collective).rooted:
        return float(seconds.max())
    farthest = int(topology.ranks[seconds.argmax()])
    again = shortest_seconds(*ends, topology.seconds, topology.num_nodes, farthest)[topology.ranks]
    return float(max(seconds.max(), again.max()))


def _least_latency(topology: Topology) -> float:
    """What no message between two ranks falls below: one link, or the first and the last of its way."""
    is_rank = np.zeros(topology.num_nodes, bool)
    is_rank[topology.ranks] = True
    begins, ends = is_rank[topology.link_source], is_rank[topology.link_target]
    least = [np.min(topology.seconds, where=links, initial=np.inf) for links in (begins & ends, begins, ends)]
    return float(min(least[0], least[1] + least[2]))
