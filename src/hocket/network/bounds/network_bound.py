"""Lower bounds: the least seconds of a collective on a network, for any algorithm and any paths, and the worst cut.

Let n be the bytes of the whole vector (for all_to_all: the input of one rank), p the ranks, r the ranks before a cut.

- latency: data must travel between the two ranks that are farthest apart.
- bandwidth: data that is known only before a cut and needed behind it crosses the cut once: all_gather r n / p,
  reduce_scatter (p - r) n / p, gather r n / p, scatter (p - r) n / p, broadcast, reduce and all_reduce n, all_to_all
  r (p - r) n / p. If only ranks reduce and copy, and the network is split into k parts, the parts send (k - 1) n bytes
  in sum, in all_reduce 2 (k - 1) n: k - 1 messages until the first part has the sum, and one to each other part
  (Patarasuk, Yuan 2009). In all_to_all, a message crosses at least as many links as its ranks are apart, and all
  links together carry at most the sum of their bandwidths. The latency of the last byte is added.
- reduction: (p - 1) n bytes are added, shared equally by p ranks; 0 if switches reduce.

For all_gather and reduce_scatter (Zhao et al. 2024: ForestColl), gather, scatter, broadcast and reduce, flows find the
worst of all cuts, if ranks and links are few enough for about a second of work. Otherwise the cuts are those visible in
the shape of the network, and for all_reduce also the narrowest cut.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from hocket.errors import TopologyError
from hocket.network import compiled
from hocket.network.bounds.cuts import Grouping, groupings, narrowest, ranks_alike, tightest
from hocket.network.shortest import shortest_seconds
from hocket.network.topology import Floats, Ints, Topology
from hocket.schedule import find_collective

# Flows x links x hops up to which the worst cut is searched.
_MOST_WORK = 10**6 if compiled.simulator is None else 10**8

# Bytes that must cross a cut with r of p ranks before it, in units of n / p. `root`: whether the root is before it.
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
# Messages of n bytes that leave k parts in sum, in units of k - 1, if nodes outside the parts only forward.
_MESSAGES = {"all_gather": 1, "reduce_scatter": 1, "broadcast": 1, "reduce": 1, "all_reduce": 2}


@dataclass(frozen=True)
class Bound:
    """The lower bound of a collective. seconds is the largest of the three bounds of latency, bandwidth and reduction.

    bandwidth_seconds includes the least latency of a message. binding_links: int64, the links of the worst cut.
    exact: whether no other cut is worse; then large vectors can come arbitrarily close to the bound.
    """

    seconds: float
    latency_seconds: float
    bandwidth_seconds: float
    reduction_seconds: float
    binding_links: Ints
    exact: bool

    @property
    def binding(self) -> str:
        """The largest of the three bounds: "latency", "bandwidth" or "reduction"."""
        return max(("bandwidth", "latency", "reduction"), key=lambda kind: float(getattr(self, f"{kind}_seconds")))


@dataclass(frozen=True)
class _Bandwidth:
    seconds_per_byte: float
    links: Ints
    exact: bool


_bandwidths: "WeakKeyDictionary[Topology, dict[tuple[str, int], _Bandwidth]]" = WeakKeyDictionary()
_members: "WeakKeyDictionary[Topology, Topology]" = WeakKeyDictionary()  # without ranks on switches
_latencies: "WeakKeyDictionary[Topology, dict[tuple[str, int], float]]" = WeakKeyDictionary()


def lower_bound(
    topology: Topology, collective: str, num_bytes: float, *, root: int = 0, reduce_seconds_per_byte: float = 0.0
) -> Bound:
    """Returns the least time of the collective on this network, for any algorithm and any usable paths.

    A node that is no rank and does not forward, such as an idle accelerator, is of no use. A rank on a reducing switch
    does not count as a rank: it only represents the work of the switch.
    num_bytes: n in the module docstring. reduce_seconds_per_byte: a rank's time to add one byte to another.
    Uneven blocks count as equal ones. Raises ScheduleError for an unknown collective, ValueError for a root outside
    the ranks.
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
        kept, used = _usable(topology)
        latencies[at] = _latency(used, *at)
        found = _bandwidth(used, *at)
        bandwidths[at] = replace(found, links=kept[found.links])  # stored last, because other threads look for it
    bandwidth, moves = bandwidths[at], kind.exactly_once and num_bytes > 0
    reduces = kind.counts_contributions and not topology.reducing.any()
    times = (
        latencies[at],
        bandwidth.seconds_per_byte * num_bytes + _least_latency(topology) if moves else 0.0,
        (p - 1) / p * num_bytes * reduce_seconds_per_byte if reduces else 0.0,
    )
    return Bound(max(times), *times, bandwidth.links, bandwidth.exact)


def _usable(topology: Topology) -> tuple[Ints, Topology]:
    """Returns the numbers of the links that ranks can use, and the network of these; all, if ranks need others."""
    kept = np.flatnonzero(topology.usable_links)
    if len(kept) < topology.num_links:
        try:
            return kept, topology.keep(topology.usable_links)
        except TopologyError:  # no schedule has a route here, and a bound is a bound all the same
            pass
    return np.arange(topology.num_links), topology


def _without_switches(topology: Topology) -> Topology:
    switches = topology.reducing[topology.ranks]
    if not switches.any():
        return topology
    if topology not in _members:
        _members[topology] = topology.place(np.flatnonzero(~switches).tolist())
    return _members[topology]


def carried_seconds_per_byte(topology: Topology) -> float:
    """Returns, for all_to_all with n = 1 byte: the least hops of all bytes over the bandwidth of all links together."""
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
    """Yields the cuts visible in the network's shape; seconds are for n / p bytes."""
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
    """Yields the worst of all cuts if it can be found in time; seconds are for n / p bytes."""
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
    """Returns the ranks to which flows are searched."""
    if collective in ("gather", "scatter"):
        return [root]
    if collective in ("all_gather", "reduce_scatter"):
        return [0] if ranks_alike(topology) else range(topology.num_ranks)
    return [rank for rank in range(topology.num_ranks) if rank != root]


def _latency(topology: Topology, collective: str, root: int) -> float:
    """Returns the latency from the root to the farthest rank, or back; without a root, between two distant ranks."""
    ends = (topology.link_source, topology.link_target)
    away = ends if collective not in ("gather", "reduce") else ends[::-1]
    seconds = shortest_seconds(*away, topology.seconds, topology.num_nodes, int(topology.ranks[root]))[topology.ranks]
    if find_collective(collective).rooted:
        return float(seconds.max())
    farthest = int(topology.ranks[seconds.argmax()])
    again = shortest_seconds(*ends, topology.seconds, topology.num_nodes, farthest)[topology.ranks]
    return float(max(seconds.max(), again.max()))


def _least_latency(topology: Topology) -> float:
    """Returns a lower bound of the latency of any message between two ranks: one link, or the first and last link."""
    is_rank = np.zeros(topology.num_nodes, bool)
    is_rank[topology.ranks] = True
    begins, ends = is_rank[topology.link_source], is_rank[topology.link_target]
    least = [np.min(topology.seconds, where=links, initial=np.inf) for links in (begins & ends, begins, ends)]
    return float(min(least[0], least[1] + least[2]))
