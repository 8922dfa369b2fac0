"""Describes the connection between devices in the terms of `nvidia-smi topo -m` and NCCL."""

from dataclasses import dataclass

import numpy as np

from hocket.network.routing import ShortestPath
from hocket.network.topology import Ints, Topology

LEGEND = {
    "X": "itself",
    "NV#": "# NVLinks, directly or through an NVSwitch",
    "C2C": "a link between chips of one package or board",
    "UB#": "# links of a unified bus",
    "PIX": "PCIe, within one switch",
    "PXB": "PCIe, through several switches",
    "PHB": "PCIe, through the root complex of one socket",
    "SYS": "between sockets",
    "NET#": "through # links of the network",
    "-": "no path, unless a device in between forwards",
}
_DIRECT = {"nvlink": "NV", "nvswitch": "NV", "c2c": "C2C", "ub": "UB"}


@dataclass(frozen=True)
class Affinity:
    """Devices by name (ranks first, then network cards), the connection between any two, and their sockets.

    ways: one row of LEGEND entries per device. sockets: the name of the nearest root complex of each device, or "".
    """

    devices: tuple[str, ...]
    ways: tuple[tuple[str, ...], ...]
    sockets: tuple[str, ...]


def affinity(topology: Topology) -> Affinity:
    """Returns how any two devices reach each other on the shortest path, wherever their traffic is staged."""
    cards = np.setdiff1d(np.flatnonzero(topology.node_kinds == "nic"), topology.ranks)
    devices = np.concatenate([topology.ranks, cards])
    source, target = np.repeat(devices, len(devices)), np.tile(devices, len(devices))
    nodes = ShortestPath().find(topology, source, target, np.zeros(len(source), np.int64))
    entries = [_way(topology, way[way >= 0]) for way in nodes]
    rows = [tuple(entries[start : start + len(devices)]) for start in range(0, len(entries), len(devices))]
    names = tuple(topology.node_names[node] for node in devices)
    return Affinity(names, tuple(rows), _sockets(topology, devices))


def _way(topology: Topology, nodes: Ints) -> str:
    if len(nodes) < 2:
        return "X" if len(nodes) else "-"
    links = topology.links_between(nodes[:-1], nodes[1:], np.zeros(len(nodes) - 1, np.int64))
    classes = set(topology.link_class[links].tolist())
    kinds = topology.node_kinds[nodes[1:-1]].tolist()
    if "nic" in classes:
        return f"NET{int((topology.link_class[links] == 'nic').sum())}"
    if "socket" in classes:
        return "SYS"
    if "root" in kinds:
        return "PHB"
    if "pcie" in classes:
        return "PXB" if kinds.count("pcie-switch") > 1 else "PIX"
    name = _DIRECT.get(str(topology.link_class[links[0]]), str(topology.link_class[links[0]]))
    return name if name == "C2C" or name not in _DIRECT.values() else f"{name}{int(topology.lanes[links].min())}"


def _sockets(topology: Topology, devices: Ints) -> tuple[str, ...]:
    roots = np.flatnonzero(topology.node_kinds == "root")
    if not len(roots):
        return ("",) * len(devices)
    pcie = topology.link_class == "pcie"
    above = np.full(topology.num_nodes, -1)
    above[roots] = roots
    for _ in range(3):  # nodes below a root, below a switch there, and below a switch of that switch
        found = pcie & (above[topology.link_target] >= 0) & (above[topology.link_source] < 0)
        above[topology.link_source[found]] = above[topology.link_target[found]]
    return tuple(topology.node_names[above[node]] if above[node] >= 0 else "" for node in devices)
