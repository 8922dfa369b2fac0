"""Describes the connection between devices in the terms of `nvidia-smi topo -m` and NCCL."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hocket.network.routing import NOWHERE, ShortestPath, Supplied
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
_NO_PATH = "-"
_OUTSIDE = 1000  # the cost of a hop outside a host: more than that of any path inside
_DIRECT = {"nvlink": "NV", "nvswitch": "NV", "c2c": "C2C", "ub": "UB"}


@dataclass(frozen=True)
class Affinity:
    """Devices by name (ranks first, then network cards), the connection between any two, and their sockets.

    ways: one row of LEGEND entries per device. sockets: the name of the nearest root complex of each device, or "".
    cards: the network cards by which the traffic of each device leaves its host, "" for none. staged: whether data that
    crosses PCIe goes through host memory on its way, which `ways` do not tell.
    """

    devices: tuple[str, ...]
    ways: tuple[tuple[str, ...], ...]
    sockets: tuple[str, ...]
    cards: tuple[str, ...]
    staged: bool


def affinity(topology: Topology) -> Affinity:
    """Returns how any two devices reach each other.

    Two ranks: on the path that a simulation takes. If one end is a card, or if data is staged in the memory of a host:
    on the shortest path, inside a host if there is one.
    """
    cards = np.setdiff1d(np.flatnonzero(topology.node_kinds == "nic"), topology.ranks)
    devices = np.concatenate([topology.ranks, cards])
    number = len(devices)
    entries = [_NO_PATH] * number**2
    source, target = (ends.ravel() for ends in np.indices((topology.num_ranks, topology.num_ranks)))
    on_shortest = np.ones(number**2, bool)
    on_shortest[source * number + target] = False
    leave_by: list[set[int]] = [set() for _ in devices]
    staged = False
    joined = _has_route(topology, source, target) | _supplied(topology, source, target)
    source, target = source[joined], target[joined]
    paths = topology.paths(source, target)
    names = topology.node_names
    for flow, (one, at) in enumerate(zip(source.tolist(), (source * number + target).tolist(), strict=True)):
        links = paths.links[paths.offsets[flow] : paths.offsets[flow + 1]]
        visited = topology.link_target[links]
        in_memory = bool((topology.node_kinds[visited] == "memory").any())
        crosses = bool((topology.link_class[links] == "nic").any())
        staged |= in_memory
        if crosses or not in_memory:
            entries[at] = _way(topology, links)
        else:
            on_shortest[at] = True
        passed = visited[topology.node_kinds[visited] == "nic"]
        if crosses and len(passed):
            leave_by[one].add(int(passed[0]))
    rest = np.flatnonzero(on_shortest)
    shortest = _shortest(topology, devices[rest // number], devices[rest % number])
    for at, way in zip(rest.tolist(), shortest, strict=True):
        entries[at] = way
    rows = tuple(tuple(entries[start : start + number]) for start in range(0, len(entries), number))
    by = tuple(",".join(names[card] for card in sorted(cards)) for cards in leave_by)
    return Affinity(tuple(names[node] for node in devices), rows, _sockets(topology, devices), by, staged)


def _shortest(topology: Topology, source: Ints, target: Ints) -> list[str]:
    """Returns the entries of the shortest paths inside hosts, and where there is none, of the shortest paths."""
    keys = np.zeros(len(source), np.int64)
    found = []
    for routing in (ShortestPath(_OUTSIDE), ShortestPath()):
        visited = (way[way >= 0] for way in routing.find(topology, source, target, keys))
        found.append([_way(topology, _links(topology, nodes)) if len(nodes) else _NO_PATH for nodes in visited])
    return [near if not near.startswith("NET") else far for near, far in zip(*found, strict=True)]


def _has_route(topology: Topology, source: Ints, target: Ints) -> npt.NDArray[np.bool_]:
    """Returns between which ranks there is a path that passes only nodes that forward."""
    keys = np.zeros(len(source), np.int64)
    found = ShortestPath().find(topology, topology.ranks[source], topology.ranks[target], keys)
    return np.asarray(found[:, 0] != NOWHERE)


def _links(topology: Topology, nodes: Ints) -> Ints:
    return topology.links_between(nodes[:-1], nodes[1:], np.zeros(len(nodes) - 1, np.int64))


def _supplied(topology: Topology, source: Ints, target: Ints) -> npt.NDArray[np.bool_]:
    """Returns between which ranks the user gives the path: it may pass nodes that do not forward."""
    given = topology.routing.ways if isinstance(topology.routing, Supplied) else {}
    names = np.array(topology.node_names)[topology.ranks]
    return np.array([ends in given for ends in zip(names[source], names[target], strict=True)], bool)


def _way(topology: Topology, links: Ints) -> str:
    if not len(links):
        return "X"
    classes = set(topology.link_class[links].tolist())
    kinds = topology.node_kinds[topology.link_target[links[:-1]]].tolist()
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
