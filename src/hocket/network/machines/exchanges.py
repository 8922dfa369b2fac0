"""Exchanges of all pairs of ranks: all_to_all, and the direct forms of all_gather, reduce_scatter and all_reduce."""

import numpy as np
import numpy.typing as npt

from hocket.network.machines.call_traffic import PlacedRanks
from hocket.network.machines.rings import lanes_of
from hocket.network.simulation.channels import ChannelTimes
from hocket.network.topology import Topology

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MOST_PAIRS = 1 << 18  # with more, hosts of equal sizes count as alike
_PEERS_AT_ONCE = 8  # NCCL's peers in one round of sends and receives (src/enqueue.cc, MAX_P2P per work element)


def exchange(
    blocks: Floats, placed: PlacedRanks, bytes_per_second: Floats, hop_seconds: tuple[float, float], block_bytes: float
) -> ChannelTimes:
    """Returns the time in which every rank sends block_bytes to every other.

    A rank talks to eight others at once. The links carry all blocks at their full rate. blocks: of blocks_on_links.
    hop_seconds: within a host, and between hosts.
    """
    rounds = -(-(placed.num_ranks - 1) // _PEERS_AT_ONCE)
    latency = rounds * hop_seconds[len(placed.hosts) > 1]
    link_bytes = block_bytes * blocks
    return ChannelTimes(latency + float((link_bytes / bytes_per_second).max(initial=0.0)), latency, rounds, link_bytes)


def blocks_on_links(placed: PlacedRanks) -> Floats:
    """Returns the number of blocks on each link, if every rank sends one to each other: float64[num_links].

    With many ranks only one host of each size sends, as often as there are such hosts, and links count as equal that
    lead from a node to another at the same positions in their hosts.
    """
    network, number = placed.network, placed.num_ranks
    if number * number <= _MOST_PAIRS:
        source = np.repeat(np.arange(number), number)
        return _blocks(placed, source, np.tile(np.arange(number), number))
    by_size: dict[int, list[Ints]] = {}
    for ranks in placed.hosts:
        by_size.setdefault(len(ranks), []).append(ranks)
    blocks = np.zeros(network.num_links)
    for alike in by_size.values():
        source = np.repeat(alike[0], number)
        blocks += len(alike) * _blocks(placed, source, np.tile(np.arange(number), len(alike[0])))
    orbit = _orbits(network, len(placed.hosts))
    mean: Floats = (np.bincount(orbit, blocks) / np.bincount(orbit))[orbit]
    return mean


def _blocks(placed: PlacedRanks, source: Ints, target: Ints) -> Floats:
    network = placed.network
    third = _third_gpus(placed, source, target)
    bounced = np.flatnonzero(third >= 0)
    ends = np.concatenate([np.where(third >= 0, third, source), source[bounced]])
    paths = network.paths(ends, np.concatenate([target, third[bounced]]))
    return np.bincount(paths.links, minlength=network.num_links).astype(np.float64)


def _third_gpus(placed: PlacedRanks, source: Ints, target: Ints) -> Ints:
    """Returns, for GPUs of a host that only a third GPU connects by NVLinks, the third one, else -1.

    NCCL sends through it (NVB, since 2.11) and not over PCIe; of several, through the first with the most links.
    """
    third = np.full(len(source), -1)
    for ranks in placed.hosts:
        lanes = np.array(lanes_of(placed.network, ranks))
        if not lanes.any():
            continue
        position = np.full(placed.num_ranks, -1)
        position[ranks] = np.arange(len(ranks))
        most = np.minimum(lanes[:, :, None], lanes[None, :, :])  # from the first GPU, through the second, to the third
        chosen = np.where(
            (lanes == 0) & (most.max(axis=1) > 0) & ~np.eye(len(ranks), dtype=bool), most.argmax(axis=1), -1
        )
        inside = np.flatnonzero((position[source] >= 0) & (position[target] >= 0))
        found = chosen[position[source[inside]], position[target[inside]]]
        third[inside] = np.where(found >= 0, ranks[found], -1)
    return third


def _orbits(network: Topology, num_hosts: int) -> Ints:
    """Returns a number for each link, the same for links at the same position in different hosts."""
    label = np.zeros(network.num_nodes, np.int64)
    next_label = 0
    for kind in dict.fromkeys(network.node_kinds.tolist()):
        nodes = np.flatnonzero(network.node_kinds == kind)
        per_host, rest = divmod(len(nodes), num_hosts)
        positions = np.arange(len(nodes)) % per_host if per_host and not rest else np.arange(len(nodes))
        label[nodes] = next_label + positions
        next_label += len(nodes)
    ends = label[network.link_source] * np.int64(next_label) + label[network.link_target]
    orbits: Ints = np.unique(ends, return_inverse=True)[1].astype(np.int64)
    return orbits
