"""What a library sends for a call: channels of rings, trees, chains, reducing switches, and exchanges of all pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from hocket.network.machines.rings import find_rings, lanes_of
from hocket.network.reach import components
from hocket.network.simulation.channels import CallChannels, one_pattern
from hocket.network.simulation.pipelined import host_tree
from hocket.network.simulation.traffic import Traffic, TrafficPattern
from hocket.network.topology import Topology

Ints = npt.NDArray[np.int64]

# NCCL's division of a vector for its switches (src/enqueue.cc): in each of 16 channels, one chunk per head. Rows are
# (times, chunk bytes): the first chunk size applies of which the vector holds at least `times` in all channels.
_SWITCH_CHANNELS = 16
_SWITCH_CHUNKS = ((64, 1 << 17), (8, 1 << 16), (2, 1 << 15))
_SWITCH_LEAST_CHUNK = 1 << 14
# The same for trees: rows are (times per level, chunk bytes), for the bytes of a channel.
_TREE_CHUNKS = ((8, 1 << 19), (4, 1 << 17), (1, 1 << 16))
_TREE_LEAST_CHUNK = 1 << 15


@dataclass(frozen=True, eq=False)
class PlacedRanks:
    """The ranks of a call on its hosts, and the orders in which channels pass them."""

    network: Topology

    @cached_property
    def hosts(self) -> tuple[Ints, ...]:
        """The ranks of each host, in the order of its first rank."""
        numbers = self.network.hosts
        return tuple(np.flatnonzero(numbers == one) for one in dict.fromkeys(numbers.tolist()))

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.network.num_ranks

    @cached_property
    def num_cards(self) -> int:
        """The number of network cards of a host that a call uses: not more than ranks of the smallest host."""
        network = self.network
        inside = network.link_class != "nic"
        host_of = components(network.link_source[inside], network.link_target[inside], network.num_nodes)
        of_cards = host_of[network.node_kinds == "nic"]
        used = (np.count_nonzero(of_cards == host_of[network.ranks[ranks[0]]]) for ranks in self.hosts)
        return min(max(1, int(min(used))), *map(len, self.hosts))

    @cached_property
    def _rings(self) -> tuple[tuple[Ints, ...], ...]:
        """The rings of each host, each as an array of its ranks."""
        return tuple(
            tuple(ranks[list(ring)] for ring in find_rings(lanes_of(self.network, ranks))) for ranks in self.hosts
        )

    @cached_property
    def paths(self) -> tuple[tuple[Ints, ...], ...]:
        """For each channel, a path through each host. Hosts of equal sizes have each of their rings from each rank on.

        Otherwise there are as many as the smallest host has. The first ones begin at different ranks.
        """
        return tuple(zip(*map(_paths, self._rings), strict=False))

    @cached_property
    def ring_orders(self) -> Ints:
        """Rings over all ranks, each a channel: int64[channels, num_ranks].

        A ring leaves a host at the same local rank at which it enters the next host, so that it stays on one rail: it
        passes every second host backwards.
        """
        if len(self.hosts) == 1:
            return np.array(self._rings[0])
        orders = ((path[:: -1 if host % 2 else 1] for host, path in enumerate(channel)) for channel in self.paths)
        return np.array([np.concatenate(list(order)) for order in orders])

    @property
    def head_orders(self) -> tuple[tuple[Ints, ...], ...]:
        """For each channel of trees, the ranks of each host from its head on. All of the smallest host are heads."""
        return self.paths[: min(map(len, self.hosts))]


def _paths(rings: Sequence[Ints]) -> list[Ints]:
    """Returns each ring from each rank on, the first ones from different ranks and in different rings."""
    begin = [{rank: at for at, rank in enumerate(ring.tolist())} for ring in rings]
    return [
        np.roll(rings[number], -begin[number][rank])
        for turn in range(len(rings))
        for at, rank in enumerate(sorted(begin[0]))
        for number in [(at + turn) % len(rings)]
    ]


def in_rings(placed: PlacedRanks, collective: str) -> CallChannels:
    """Returns all_gather or reduce_scatter, once round a ring; or all_reduce, twice."""
    number = placed.num_ranks
    ranks = np.arange(number)
    hops = (number - 1) * (2 if collective == "all_reduce" else 1)
    pattern = one_pattern(number, ranks, (ranks + 1) % number)
    traffic = Traffic(number, (pattern,), ((0, hops),) if hops else (), number)
    return CallChannels(traffic, placed.ring_orders)


def in_chains(placed: PlacedRanks, root: int, *, to_root: bool) -> CallChannels:
    """Returns broadcast or reduce: pieces follow each other through a chain from the root, or to it."""
    number = placed.num_ranks
    orders = np.array([np.roll(one, -int(np.flatnonzero(one == root)[0])) for one in placed.ring_orders])
    near, far = np.arange(number - 1), np.arange(1, number)
    pattern = one_pattern(number, far, near) if to_root else one_pattern(number, near, far)
    traffic = Traffic(number, (pattern,), ((0, 1),) if number > 1 else (), 1)
    return CallChannels(traffic, orders, in_sequence=True, pieces=partial(_tree_pieces, len(orders), number))


def in_trees(placed: PlacedRanks) -> CallChannels:
    """Returns an all_reduce with a chain in every host up to its head, two trees among heads, and the same paths back.

    Every rank of a host is the head of two channels, one for each tree, so that all cards are used.
    """
    sizes = [len(ranks) for ranks in placed.hosts]
    begins = np.concatenate([[0], np.cumsum(sizes)])
    parents, depths = host_tree(len(sizes))
    orders = [np.concatenate(order) for order in placed.head_orders]
    if len(sizes) > 1:
        orders += [np.concatenate(order[::-1]) for order in placed.head_orders]
        if len(set(sizes)) > 1:  # of mirrored trees, hosts of other sizes would be at these positions
            orders = orders[: len(placed.head_orders)]
    position = np.concatenate([np.arange(size) for size in sizes])
    levels = []
    for distance in range(max(sizes) - 1, 0, -1):
        at = np.flatnonzero(position == distance)
        levels.append((at, at - 1))
    for depth in range(int(depths.max()), 0, -1):
        hosts = np.flatnonzero(depths == depth)
        levels.append((begins[hosts], begins[parents[hosts]]))
    return _up_and_down(levels, np.array(orders), placed.num_ranks)


def in_switches(placed: PlacedRanks, *, between: bool) -> tuple[CallChannels, Topology]:
    """Returns an all_reduce in reducing switches, and the network with these switches as ranks after the others.

    Rank i of a host is responsible for one channel (two with several hosts). It requests the sum of its part from the
    host's switch, which reads that part from every rank (NVLS). With several hosts it exchanges that sum with rank i of
    the others, in a tree; or, if `between`, the switch of the rail reduces and multicasts (SHARP). Then it writes the
    total to all ranks through the switch. Raises ValueError if the network has no such switches.
    """
    network, hosts, number = placed.network, placed.hosts, placed.num_ranks
    switches = switches_of_hosts(placed)
    rails = rail_switches(network) if between and len(hosts) > 1 else np.zeros(0, np.int64)
    names = network.node_names
    with_switches = network.place([*range(number), *(names[node] for node in (*switches, *rails))])
    parents, depths = host_tree(len(hosts))
    heads = np.arange(len(hosts))  # of a channel: the heads, the switches of hosts, one rail, then all other ranks
    inside = len(hosts) + heads
    rail = 2 * len(hosts) if len(rails) else 0
    first = 2 * len(hosts) + (1 if len(rails) else 0)
    owner = np.concatenate([np.full(len(ranks) - 1, host) for host, ranks in enumerate(hosts)]).astype(np.int64)
    others = first + np.arange(len(owner))
    levels = [(np.concatenate([heads, others]), np.concatenate([inside, inside[owner]])), (inside, heads)]
    if len(rails):
        levels.append((heads, np.full(len(hosts), rail)))
    else:
        for depth in range(int(depths.max()), 0, -1):
            below = np.flatnonzero(depths == depth)
            levels.append((below, parents[below]))
    orders = []
    for channel in range(min(map(len, hosts))):
        rotated = [np.roll(ranks, -(channel % len(ranks))) for ranks in hosts]
        for turned in (rotated, rotated[::-1])[: 2 if len(hosts) > 1 and not len(rails) and _equal(hosts) else 1]:
            those = number + (np.arange(len(hosts)) if turned is rotated else np.arange(len(hosts))[::-1])
            middle = [number + len(hosts) + channel % len(rails)] if len(rails) else []
            orders.append(
                np.concatenate([[ranks[0] for ranks in turned], those, middle, *(ranks[1:] for ranks in turned)])
            )
    channels = _up_and_down(levels, np.array(orders, np.int64), first + len(owner))
    return replace(channels, pieces=partial(_switch_pieces, number / len(hosts))), with_switches


def _up_and_down(levels: list[tuple[Ints, Ints]], orders: Ints, number: int) -> CallChannels:
    """Returns channels that go up these levels, each with sources and targets, and down again."""
    patterns: list[TrafficPattern] = [
        *(one_pattern(number, below, above) for below, above in levels),
        *(one_pattern(number, above, below) for below, above in reversed(levels)),
    ]
    traffic = Traffic(number, tuple(patterns), tuple((step, 1) for step in range(len(patterns))), 1)
    return CallChannels(traffic, orders, pieces=partial(_tree_pieces, len(orders), len(levels)))


def _tree_pieces(num_channels: int, depth: int, num_bytes: float) -> int:
    each = num_bytes / num_channels
    return max(1, round(each / _chunk(each, depth, _TREE_CHUNKS, _TREE_LEAST_CHUNK)))


def _switch_pieces(heads: float, num_bytes: float) -> int:
    times = _SWITCH_CHANNELS * heads
    return max(1, round(num_bytes / times / _chunk(num_bytes, times, _SWITCH_CHUNKS, _SWITCH_LEAST_CHUNK)))


def _chunk(num_bytes: float, times: float, rows: Sequence[tuple[int, int]], least: int) -> int:
    for many, chunk in rows:
        if num_bytes >= many * times * chunk:
            return chunk
    return least


def _equal(hosts: Sequence[Ints]) -> bool:
    return len(set(map(len, hosts))) == 1


def switches_of_hosts(placed: PlacedRanks) -> list[int]:
    """Returns the reducing switch to which all ranks of each host are linked. Raises ValueError without one."""
    network = placed.network
    found = []
    for ranks in placed.hosts:
        near = network.link_target[np.isin(network.link_source, network.ranks[ranks])]
        nodes, counts = np.unique(near[network.reducing[near]], return_counts=True)
        joined = nodes[counts >= len(ranks)]
        if not len(joined):
            raise ValueError(
                f"expected a reducing switch in each host, such as in dgx-h100:HOSTS,reduces=yes; found none in "
                f"{network.name}"
            )
        found.append(int(joined[0]))
    return found


def rail_switches(network: Topology) -> Ints:
    """Returns the switches between hosts that cards are linked to."""
    cards = np.flatnonzero(network.node_kinds == "nic")
    near = np.unique(network.link_target[np.isin(network.link_source, cards) & (network.link_class == "nic")])
    rails: Ints = near[np.isin(network.node_kinds[near], ("rail", "switch", "edge"))]
    return rails
