"""Hosts with accelerators: sockets, root complexes, PCIe switches, network cards, direct links between accelerators.

NCCL's and nvidia-smi's names of the path between two devices: PIX within one PCIe switch, PXB through several, PHB
through the root complex of a socket, SYS between sockets, NV# over # NVLinks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hocket.errors import TopologyError
from hocket.network.drawing import Drawing
from hocket.network.kinds.host_routing import HostRouting
from hocket.network.links import Link
from hocket.network.topology import Ints, Topology

AFFINITIES = ("PIX", "PXB", "PHB", "SYS")
FABRICS = ("rails", "rail-only", "switch")


@dataclass(frozen=True)
class Host:
    """One host. Device i is on socket i * sockets // gpus, below one of the socket's PCIe switches, in order.

    switches: PCIe switches per socket; with 0, devices are at the root complex. nics: network cards; every accelerator
    gets equally many, or every card serves equally many. affinity: the position of a card, seen from the first
    accelerator that it serves: on its switch (PIX), on a switch below (PXB), on its socket (PHB), or on the next socket
    (SYS). pcie: None leaves out sockets and switches and puts cards at accelerators. direct: the link between
    accelerators, with the numbers of links between any two in `lanes`, or, if lanes is empty, through one switch for
    all; None: no direct links. reduces: whether that switch reduces and multicasts. memory: None if cards reach device
    memory directly (GPUDirect); else traffic over PCIe is written to the memory of its socket and read from there.
    forwards: whether accelerators forward traffic of others.
    """

    gpus: int
    nic: Link
    pcie: Link | None
    socket: Link
    nics: int = 1
    sockets: int = 2
    switches: int = 2
    affinity: str = "PIX"
    direct: Link | None = None
    lanes: Sequence[Sequence[int]] = ()
    reduces: bool = False
    memory: Link | None = None
    kind: str = "gpu"
    forwards: bool = False


def pod(host: Host, count: int, fabric: str, name: str) -> Topology:
    """Returns a network of `count` such hosts; a non-blocking fabric connects the network cards of several hosts.

    fabric: "rails" connects card i of all hosts to rail switch i, and the rail switches to a spine; "rail-only" leaves
    out the spine; "switch" has one switch for all cards.
    """
    if min(host.gpus, count, host.sockets, host.nics) < 1 or host.switches < 0:
        raise TopologyError(f"{name}: expected at least 1 host, accelerator, socket and network card")
    if max(host.gpus, host.nics) % min(host.gpus, host.nics):
        raise TopologyError(f"{name}: {host.nics} network cards cannot serve {host.gpus} accelerators evenly")
    drawing = Drawing(name)
    gpus = drawing.nodes(host.kind, count * host.gpus, forwards=host.forwards).reshape(count, host.gpus)
    nics = drawing.nodes("nic", count * host.nics).reshape(count, host.nics)
    _join_directly(drawing, host, gpus)
    memories = np.zeros((0, 0), np.int64)
    served = np.arange(host.nics) * host.gpus // host.nics  # the first accelerator of each card
    if host.pcie is None:
        with_card = np.arange(host.gpus) * host.nics // host.gpus
        if host.nics > host.gpus:
            drawing.cable(gpus[:, served], nics, host.nic)
        else:
            drawing.cable(gpus, nics[:, with_card], host.nic)
    else:
        memories = _join_by_pcie(drawing, host, host.pcie, gpus, nics, served)
    if count > 1:
        _join_hosts(drawing, host, nics, fabric)
    routing = HostRouting(gpus, _cards_of(gpus, nics), memories, meets=fabric != "rail-only")
    places = np.indices((count, host.gpus)).reshape(2, -1).T
    topology = drawing.topology(gpus.ravel(), routing, axes=("host", host.kind), coordinates=places)
    return replace(topology, card_bytes_per_second=host.nic.bytes_per_second)


def _cards_of(gpus: Ints, nics: Ints) -> Ints:
    """Returns the cards that serve each accelerator: int64[hosts, accelerators, cards per accelerator]."""
    hosts, num_gpus = gpus.shape
    if nics.shape[1] > num_gpus:
        return nics.reshape(hosts, num_gpus, -1)
    return np.repeat(nics, num_gpus // nics.shape[1], axis=1)[:, :, None]


def _join_directly(drawing: Drawing, host: Host, gpus: Ints) -> None:
    if host.direct is None or host.gpus == 1:
        return
    if not host.lanes:
        name = "nvswitch" if host.direct.link_class == "nvswitch" else "switch"
        switches = drawing.nodes(name, len(gpus), reducing=host.reduces)
        drawing.cable(gpus, switches[:, None], host.direct)
        return
    lanes = np.array(host.lanes)
    for bundle in sorted(set(lanes[lanes > 0].tolist())):
        one, other = np.nonzero(np.triu(lanes == bundle))
        drawing.cable(gpus[:, one], gpus[:, other], host.direct.times(bundle))


def _join_by_pcie(drawing: Drawing, host: Host, pcie: Link, gpus: Ints, nics: Ints, served: Ints) -> Ints:
    """Draws sockets and all below them; returns the memory in which each accelerator's traffic is staged, if any."""
    count, per_socket = len(gpus), -(-host.gpus // host.sockets)
    roots = drawing.nodes("root", count * host.sockets).reshape(count, host.sockets)
    drawing.clique(roots, host.socket)
    socket = np.arange(host.gpus) // per_socket
    above = roots[:, socket]  # the node above each accelerator
    if host.switches:
        switches = drawing.nodes("pcie-switch", count * host.sockets * host.switches).reshape(count, host.sockets, -1)
        drawing.cable(switches, roots[:, :, None], pcie)
        above = switches[:, socket, np.arange(host.gpus) % per_socket * host.switches // per_socket]
    drawing.cable(gpus, above, pcie)
    if host.affinity == "PXB":
        below = drawing.nodes("pcie-switch", nics.size).reshape(nics.shape)
        drawing.cable(below, above[:, served], pcie)
        drawing.cable(nics, below, pcie)
    else:
        attached = {
            "PIX": above[:, served],
            "PHB": roots[:, socket[served]],
            "SYS": roots[:, (socket[served] + 1) % host.sockets],
        }[host.affinity]
        drawing.cable(nics, attached, pcie)
    if host.memory is None:
        return np.zeros((0, 0), np.int64)
    memories = drawing.nodes("memory", roots.size).reshape(roots.shape)
    drawing.cable(memories, roots, host.memory)
    return memories[:, socket]


def _join_hosts(drawing: Drawing, host: Host, nics: Ints, fabric: str) -> None:
    if fabric == "switch":
        drawing.cable(nics, drawing.nodes("switch", 1), host.nic)
        return
    rails = drawing.nodes("rail", host.nics)
    drawing.cable(nics, rails, host.nic)
    if fabric == "rails" and host.nics > 1:
        drawing.cable(rails, drawing.nodes("spine", 1), host.nic.times(len(nics)))
