"""What may slow a call down: the machine with one kind of link slowed or left out, or with a later start of calls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hocket.network.calibration.machine_fit import fastest_call
from hocket.network.links import LINKS, name_bandwidth, name_seconds
from hocket.network.machines.call_traffic import PlacedRanks
from hocket.network.machines.library import LIBRARY_COLLECTIVES, LibraryTime
from hocket.network.machines.machine import Machine
from hocket.network.topology import Topology

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_BETWEEN_GPUS = ("nvswitch", "nvlink")
_MOST_CALLS = 8  # that are predicted for each cause
_FITTED_CALLS = 3  # the largest ones, which decide how slow links are
_BETTER, _NEAR = 0.6, 0.15  # of the machine's own error, and in all; a cause that explains less is not named
_BEHIND = 0.03  # the best cause's error; a cause that is farther behind is not named
_PENALTY = 0.01  # added to the error of a cause for its freedom: with more of it, errors are small anyway
_ALIKE = 0.01  # relative difference of times; with less, calls do not tell causes apart
_LEAST, _MOST = 0.01, 0.95  # shares of bandwidth that are a cause
_ROUNDS, _FOUND = 8, 0.005  # of a fit, which ends when the prediction is as near as that
_AND_RINGS = ", and only rings (NCCL_ALGO)"
_EFA_SECONDS, _SOCKETS_SECONDS = 15e-6, 25e-6  # per hop beyond InfiniBand, as in nccl.yaml
_LEAST_SECONDS = 1e-6  # per hop that are a cause


@dataclass(frozen=True)
class SlowCause:
    """What may be wrong: texts, which the calls do not tell apart. error: the median relative error with it.

    ratio: the bandwidth it gives, over the prediction. seconds: what it predicts for the largest call.
    """

    texts: tuple[str, ...]
    error: float
    ratio: float
    seconds: float


@dataclass(frozen=True, eq=False)
class _Change:
    """What was simulated. freedom: 2 if the calls chose a number in it, and 1 more for a second cause."""

    text: str
    times: tuple[LibraryTime, ...]
    freedom: int = 0

    @property
    def seconds(self) -> Floats:
        """The time of each call."""
        return np.array([time.seconds for time in self.times])

    @property
    def only_rings(self) -> bool:
        """Whether the library runs rings for all calls, though it may choose."""
        return all(time.algorithm == "ring" for time in self.times)


def slow_causes(
    machine: Machine, placed: PlacedRanks, collective: str, calls: Sequence[tuple[int, float]], *, starting: bool
) -> list[SlowCause]:
    """Returns the causes that explain calls, pairs of bytes and measured seconds, best match first.

    Each cause is a prediction with the changed network, for at most eight of the calls. starting: whether the calls
    take their time to start and not to move data, so that a later start may explain them.
    """
    return _CauseSearch(machine, placed, collective, calls).result(starting=starting)


class _CauseSearch:
    def __init__(
        self, machine: Machine, placed: PlacedRanks, collective: str, calls: Sequence[tuple[int, float]]
    ) -> None:
        chosen = np.unique(np.linspace(0, len(calls) - 1, _MOST_CALLS).round().astype(np.int64)).tolist()
        self.machine, self.placed, self.collective = machine, placed, collective
        self.sizes = [calls[number][0] for number in chosen]
        self.measured = np.array([calls[number][1] for number in chosen])
        self.algorithms = [one for one in machine.algorithms if one in LIBRARY_COLLECTIVES[collective]]

    def result(self, *, starting: bool) -> list[SlowCause]:
        usual = self._change("", self.machine, self.placed).seconds
        own, later = self._error(usual), float(np.median(self.measured - usual))
        changes = [*self._named(), *self._fitted()]
        if starting and later > 0:
            text = f"each call begins {name_seconds(later, 2)} later: no CUDA graph, or a busy host"
            machine = replace(self.machine, launch_seconds=self.machine.launch_seconds + later)
            changes.append(self._change(text, machine, self.placed, freedom=2))
        near = min(_BETTER * own, _NEAR)
        rows = [(error, one) for one in changes if (error := self._error(one.seconds)) < near]
        rows.sort(key=_rank)  # of equal ones, in the order of changes
        found: list[tuple[SlowCause, Floats]] = []
        for row in rows:
            error, one = row
            if _rank(row) > _rank(rows[0]) + _BEHIND:
                break
            seconds = one.seconds
            alike = next((at for at, (_, other) in enumerate(found) if np.allclose(seconds, other, rtol=_ALIKE)), None)
            if alike is None:
                ratio = float(np.median(usual / seconds))
                found.append((SlowCause((one.text,), error, ratio, float(seconds[-1])), seconds))
            else:
                cause, other = found[alike]
                found[alike] = replace(cause, texts=(*cause.texts, one.text)), other
        return [cause for cause, _ in found]

    def _change(self, text: str, machine: Machine, placed: PlacedRanks, freedom: int = 0) -> _Change:
        times = (fastest_call(machine, placed, self.collective, size) for size in self.sizes)
        return _Change(text, tuple(times), freedom)

    def _error(self, seconds: Floats) -> float:
        return float(np.median(np.abs(seconds / self.measured - 1)))

    def _named(self) -> Iterator[_Change]:
        machine, placed = self.machine, self.placed
        for text, network in _networks(placed):
            one = self._change(text, machine, PlacedRanks(network))
            yield one
            if not one.only_rings and "ring" in self.algorithms:
                yield self._change(f"{text}{_AND_RINGS}", self._with("ring"), PlacedRanks(network), freedom=1)
        if (pcie := _with_pcie(placed.network)) is not None:
            text = "PCIe instead of NVLink or xGMI between GPUs"
            yield self._change(text, self._without("nvls", "sharp"), PlacedRanks(pcie))
        for algorithm in self.algorithms if len(self.algorithms) > 1 else ():
            yield self._change(f"the library does not use {algorithm}", self._without(algorithm), placed)

    def _with(self, *algorithms: str) -> Machine:
        return replace(self.machine, algorithms=algorithms)

    def _without(self, *algorithms: str) -> Machine:
        kept = tuple(one for one in self.machine.algorithms if one not in algorithms)
        return self._with(*(kept or self.machine.algorithms))

    def _fitted(self) -> Iterator[_Change]:
        """Yields all links of one kind, as slow as the calls say."""
        network, machine = self.placed.network, self.machine
        direct, cards = np.isin(network.link_class, _BETWEEN_GPUS), network.link_class == "nic"
        several = len(self.placed.hosts) > 1
        kinds = [("network cards", cards)] if several else []
        kinds.append(("links between GPUs", direct if direct.any() else network.link_class == "pcie"))
        for name, links in kinds:
            one = self._as_slow(f"all {name}", machine, links)
            if one:
                yield one
            if not (one and one.only_rings) and "ring" in self.algorithms and len(self.algorithms) > 1:
                one = self._as_slow(f"all {name}", self._with("ring"), links, _AND_RINGS)
                if one:
                    yield one
        if several and (seconds := self._seconds_per_hop()):
            known = f"EFA has about {name_seconds(_EFA_SECONDS, 2)}, sockets (TCP) {name_seconds(_SOCKETS_SECONDS, 2)}"
            text = f"a fabric with {name_seconds(seconds, 2)} more per hop; {known}"
            yield self._change(text, _with_fabric(machine, seconds), self.placed, freedom=2)
        sockets = _with_fabric(machine, _SOCKETS_SECONDS)
        if several and (share := self._share(sockets, cards)):
            each = np.count_nonzero(network.node_kinds == "nic") // len(np.unique(network.hosts))
            rate = name_bandwidth(share * each * float(network.bytes_per_second[cards].min()))
            text = f"sockets (TCP) instead of InfiniBand or RoCE, with {rate} for each host"
            yield self._change(text, sockets, PlacedRanks(_slowed(network, cards, share)), freedom=2)

    def _as_slow(self, name: str, machine: Machine, links: Bools, beside: str = "") -> _Change | None:
        network = self.placed.network
        if not (share := self._share(machine, links)):
            return None
        rate = name_bandwidth(share * float(network.bytes_per_second[links].min()))
        text = f"{name} at {share:.0%} of their speed ({rate} each){beside}"
        return self._change(text, machine, PlacedRanks(_slowed(network, links, share)), freedom=3 if beside else 2)

    def _seconds_per_hop(self) -> float:
        """Returns how much more time per hop between hosts predicts the calls; 0 if it does not act, or is little."""
        at, more = _SOCKETS_SECONDS, 0.0
        before = self._change("", self.machine, self.placed).seconds
        slopes = (self._change("", _with_fabric(self.machine, at), self.placed).seconds - before) / at
        if not (slopes > 0).all():
            return 0.0
        for _ in range(2):  # with more time, the library may choose another algorithm
            found = self._change("", _with_fabric(self.machine, max(0.0, more)), self.placed).seconds
            more += float(np.median((self.measured - found) / slopes))
        return more if more >= _LEAST_SECONDS else 0.0

    def _share(self, machine: Machine, links: Bools) -> float:
        """Returns the share of their bandwidth with which links predict the calls; 0 if there is none."""
        sizes, measured = self.sizes[-_FITTED_CALLS:], self.measured[-_FITTED_CALLS:]
        share = 1.0
        for _ in range(_ROUNDS):
            network = PlacedRanks(_slowed(self.placed.network, links, share))
            seconds = [fastest_call(machine, network, self.collective, size).seconds for size in sizes]
            times = float(np.median(np.array(seconds) / measured))
            share *= times
            if abs(times - 1) < _FOUND or share < _LEAST:
                break
        return share if _LEAST <= share <= _MOST else 0.0


def _rank(row: tuple[float, _Change]) -> float:
    """Returns the order of a cause with this error: the smaller, the better."""
    error, one = row
    return round(error, 2) + _PENALTY * one.freedom


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
            yield text, _slowed(network, outside, (each - idle) / each)
        first = outside & ((network.link_source == cards[0]) | (network.link_target == cards[0]))
        text = "one network card of one host at half speed, or idle, so that another does its work"
        yield text, _slowed(network, first, 0.5)
        yield "one network card of one host at a quarter of its speed", _slowed(network, first, 0.25)
    direct = np.isin(classes, _BETWEEN_GPUS)
    if direct.any():
        rank = network.ranks[0]
        one = direct & ((network.link_source == rank) | (network.link_target == rank))
        yield "the links of one GPU to the others at half speed", _slowed(network, one, 0.5)


def _with_pcie(network: Topology) -> Topology | None:
    """Returns the network with links between GPUs as slow as PCIe; None if it has no such links."""
    direct = np.isin(network.link_class, _BETWEEN_GPUS)
    if not direct.any():
        return None
    pcie = network.bytes_per_second[network.link_class == "pcie"]
    rate = float(pcie.max()) if len(pcie) else LINKS["pcie4-x16"].bytes_per_second
    slower = np.where(direct, np.minimum(network.bytes_per_second, rate), network.bytes_per_second)
    return replace(network, bytes_per_second=slower)


def _with_fabric(machine: Machine, seconds: float) -> Machine:
    return replace(machine, fabric_seconds=machine.fabric_seconds + seconds)


def _slowed(network: Topology, links: Bools, factor: float) -> Topology:
    rates = np.where(links, network.bytes_per_second * factor, network.bytes_per_second)
    return replace(network, bytes_per_second=rates)
