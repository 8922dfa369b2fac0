"""What may slow a call down: the machine with one kind of link slowed or left out, or with a later start of calls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hocket.network.calibration.machine_fit import fastest_call
from hocket.network.links import LINKS, name_seconds
from hocket.network.machines.call_traffic import PlacedRanks
from hocket.network.machines.library import LIBRARY_COLLECTIVES
from hocket.network.machines.machine import Machine
from hocket.network.topology import Topology

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_BETWEEN_GPUS = ("nvswitch", "nvlink")
_MOST_CALLS = 8  # that are predicted for each cause
_BETTER, _NEAR = 0.6, 0.15  # of the machine's own error, and in all; a cause that explains less is not named
_SLOWER_FABRICS = (("EFA", 15e-6), ("TCP", 25e-6))  # seconds per hop beyond InfiniBand, as in nccl.yaml


@dataclass(frozen=True)
class SlowCause:
    """What may be wrong. error: the median relative error with it. ratio: the bandwidth it gives, over the prediction.

    seconds: what it predicts for the largest call.
    """

    text: str
    error: float
    ratio: float
    seconds: float


def slow_causes(
    machine: Machine, placed: PlacedRanks, collective: str, calls: Sequence[tuple[int, float]], *, starting: bool
) -> list[SlowCause]:
    """Returns the causes that explain calls, pairs of bytes and measured seconds, best match first.

    Each cause is a prediction with the changed network, for at most eight of the calls. starting: whether the calls
    take their time to start and not to move data, so that a later start may explain them.
    """
    chosen = np.unique(np.linspace(0, len(calls) - 1, _MOST_CALLS).round().astype(np.int64))
    sizes = [calls[number][0] for number in chosen.tolist()]
    measured = np.array([calls[number][1] for number in chosen.tolist()])
    usual = _seconds(machine, placed, collective, sizes)
    own = _error(usual, measured)
    found = []
    later = float(np.median(measured - usual))
    changes = [*_changes(machine, placed, collective)]
    if starting and later > 0:
        text = f"each call begins {name_seconds(later, 2)} later: no CUDA graph, or a busy host"
        changes.append((text, replace(machine, launch_seconds=machine.launch_seconds + later), placed))
    for text, changed, on in changes:
        seconds = _seconds(changed, on, collective, sizes)
        error = _error(seconds, measured)
        if error < min(_BETTER * own, _NEAR):
            ratio = float(np.median(usual / seconds))
            found.append(SlowCause(text, error, ratio, float(seconds[-1])))
    return sorted(found, key=lambda one: round(one.error, 2))  # of equal ones, the first in the order below


def _seconds(machine: Machine, placed: PlacedRanks, collective: str, sizes: Sequence[int]) -> Floats:
    return np.array([fastest_call(machine, placed, collective, size).seconds for size in sizes])


def _error(seconds: Floats, measured: Floats) -> float:
    return float(np.median(np.abs(seconds / measured - 1)))


def _changes(machine: Machine, placed: PlacedRanks, collective: str) -> Iterator[tuple[str, Machine, PlacedRanks]]:
    usable = [one for one in machine.algorithms if one in LIBRARY_COLLECTIVES[collective]]
    rings = replace(machine, algorithms=("ring",))
    for text, network in _networks(placed):
        slowed = PlacedRanks(network)
        yield text, machine, slowed
        if len(usable) > 1 and "ring" in usable:
            yield f"{text}, and only rings (NCCL_ALGO)", rings, slowed
    if len(placed.hosts) > 1:
        for name, seconds in _SLOWER_FABRICS:
            text = f"a fabric with {name_seconds(seconds, 2)} more per hop, such as {name}"
            yield text, replace(machine, fabric_seconds=machine.fabric_seconds + seconds), placed
    for one in usable if len(usable) > 1 else ():
        fewer = tuple(other for other in machine.algorithms if other != one)
        yield f"the library does not use {one}", replace(machine, algorithms=fewer), placed


def _networks(placed: PlacedRanks) -> Iterator[tuple[str, Topology]]:
    """Yields the network with links slowed."""
    network = placed.network
    kinds, classes = network.node_kinds, network.link_class
    if len(placed.hosts) > 1:
        cards = np.flatnonzero(kinds == "nic")
        each = max(1, len(cards) // len(np.unique(network.hosts)))
        outside = classes == "nic"
        for idle in sorted({1, each // 4, each // 2, each - 1} - {0, each}):
            text = f"{idle} of {each} network cards of each host idle"
            if 2 * idle == each:
                text += ", or all at half speed"
            yield text, _slowed(network, outside, (each - idle) / each)
        first = outside & ((network.link_source == cards[0]) | (network.link_target == cards[0]))
        yield "one network card of one host at half speed", _slowed(network, first, 0.5)
        yield "one network card of one host at a quarter of its speed", _slowed(network, first, 0.25)
    direct = np.isin(classes, _BETWEEN_GPUS)
    if direct.any():
        rank = network.ranks[0]
        one = direct & ((network.link_source == rank) | (network.link_target == rank))
        yield "the NVLinks of one GPU at half speed", _slowed(network, one, 0.5)
        pcie = network.bytes_per_second[classes == "pcie"]
        rate = float(pcie.max()) if len(pcie) else LINKS["pcie4-x16"].bytes_per_second
        slower = np.where(direct, np.minimum(network.bytes_per_second, rate), network.bytes_per_second)
        yield "PCIe instead of NVLink between GPUs", replace(network, bytes_per_second=slower)


def _slowed(network: Topology, links: Bools, factor: float) -> Topology:
    rates = np.where(links, network.bytes_per_second * factor, network.bytes_per_second)
    return replace(network, bytes_per_second=rates)
