"""Fits the constants of a machine to measured calls, through the predictions that are made with the machine.

Minimised is the relative error of all calls; calls far off count less. A constant is fitted only if the calls determine
it: if it changes predictions, and differently from those before it in `_CONSTANTS`. The others keep the values
of the machine from which the fit starts.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.network.calibration.measured_calls import MeasuredTable
from hocket.network.kinds.pods import PODS
from hocket.network.machines.call_traffic import PlacedRanks
from hocket.network.machines.library import LibraryTime, library_algorithms, library_times, placed_on
from hocket.network.machines.machine import Machine, Protocols

Floats = npt.NDArray[np.float64]

_Ways = tuple[tuple[str, str], ...]
"""Algorithms and protocols that a call may run."""

_ROUNDS = 12
_LIKELY = 1.6  # times the fastest; slower ways are left out while constants change a little
_ENOUGH = 1e-3  # relative gain of a round; a smaller one ends the fit
_FAR = 0.05  # relative error from which a call counts less
_LEAST_EFFECT = 0.01  # relative change of some prediction by a step of the constant; less does not determine it
_MOST_VAGUE = 0.5  # standard error of a share over its value; more does not determine it
_LEAST_SEPARATE = 0.1  # share of a constant's effect that no other constant has; less does not determine it


@dataclass(frozen=True)
class FittedConstant:
    """A constant of the machine file. before: of the base. error: standard error of value, None if it was not fitted.

    undetermined: why the calls do not determine it, else "". at_limit: whether value is the largest that is allowed.
    Units are seconds, bytes per second or shares.
    """

    key: str
    before: float
    value: float
    error: float | None
    undetermined: str = ""
    at_limit: bool = False


@dataclass(frozen=True, eq=False)
class MachineFit:
    """machine: with the fitted constants. predicted: of each call of each table, in order, by this machine."""

    base: Machine
    machine: Machine
    constants: tuple[FittedConstant, ...]
    predicted: tuple[tuple[LibraryTime, ...], ...]


@dataclass(frozen=True)
class _Constant:
    """How to read and change one constant. step: a change that matters. least, most: the values that are allowed.

    relative: whether it is a share, so that an error of its own size makes it useless.
    """

    key: str
    value: Callable[[Machine], float]
    changed: Callable[[Machine, float], Machine]
    step: float
    least: float
    most: float
    relative: bool = False


def _nic_share(machine: Machine) -> float:
    return max(one.share_between / one.share for one in machine.protocols.ring)


def _with_nic_share(machine: Machine, value: float) -> Machine:
    """Returns the machine with links between hosts at this share of their bandwidth, for every protocol."""
    factor = value / _nic_share(machine)
    changed = (
        tuple(replace(one, share_between=one.share_between * factor) for one in protocols)
        for protocols in machine.protocols
    )
    return replace(machine, protocols=Protocols(*changed))


def _field(key: str, name: str, *, step: float, least: float = 0.0, most: float, relative: bool = False) -> _Constant:
    """Returns a constant that is a field of the machine."""

    def changed(machine: Machine, value: float) -> Machine:
        fields: dict[str, Any] = {name: value}
        return replace(machine, **fields)

    return _Constant(key, attrgetter(name), changed, step, least, most, relative)


NIC_BANDWIDTH = "nic-bandwidth"
"""The constant that is an option of the topology: the bandwidth of a network card."""

_CONSTANTS = (
    _field("bandwidth_share", "bandwidth_share", step=0.05, least=0.01, most=1.0, relative=True),
    _Constant(NIC_BANDWIDTH, _nic_share, _with_nic_share, 0.05, 0.001, 20.0, relative=True),
    _field("launch", "launch_seconds", step=10e-6, most=0.1),
    _field("fabric", "fabric_seconds", step=2e-6, most=0.1),
    _field("hop_latency", "hop_seconds", step=1e-6, most=0.1),
    _field("switch_share", "switch_share", step=0.05, least=0.01, most=1.0, relative=True),
)  # the most important first


def fastest_call(machine: Machine, placed: PlacedRanks, collective: str, num_bytes: float) -> LibraryTime:
    """Returns the prediction of the library's choice: of all its algorithms and protocols, the fastest."""
    return min(_all_times(machine, placed, collective, num_bytes), key=lambda time: time.seconds)


def _all_times(machine: Machine, placed: PlacedRanks, collective: str, num_bytes: float) -> list[LibraryTime]:
    return [
        time
        for algorithm in library_algorithms(machine, collective)
        for time in library_times(machine, placed, collective, num_bytes, algorithm=algorithm)
    ]


@lru_cache(8)
def placed_as(machine: Machine, ranks_per_host: tuple[int, ...]) -> PlacedRanks:
    """Returns the first ranks of each host, as many as each has. Raises ValueError if a host has fewer."""
    size, hosts = placed_on(machine, 1).num_ranks, len(ranks_per_host)
    if max(ranks_per_host) > size:
        raise ValueError(
            f"expected at most {size} ranks on each host of {machine.name}; found {max(ranks_per_host)}; choose the "
            "machine of the log with machine= (--machine)"
        )
    whole = placed_on(machine, hosts)
    if set(ranks_per_host) == {size}:
        return whole
    ranks = [host * size + rank for host, count in enumerate(ranks_per_host) for rank in range(count)]
    return PlacedRanks(whole.network.place(ranks))


def fit_machine(base: Machine, tables: Sequence[MeasuredTable]) -> MachineFit:
    """Fits the constants of `base` to all calls of the tables, whose ranks are placed.

    Raises ValueError if there are fewer than three calls, or ranks do not fit on the machine.
    """
    return _Fit(base, tables).result()


class _Fit:
    def __init__(self, base: Machine, tables: Sequence[MeasuredTable]) -> None:
        self.base, self.tables = base, tables
        self.placed = [placed_as(base, table.ranks_per_host) for table in tables]
        self.measured = np.array([call.seconds for table in tables for call in table.calls])
        if len(self.measured) < 3:
            raise ValueError(f"expected at least 3 measured calls for a fit; found {len(self.measured)}")
        several = any(len(table.ranks_per_host) > 1 for table in tables)
        known = base.topology.partition(":")[0] in PODS and "@" not in base.topology
        usable = {NIC_BANDWIDTH: several and known, "fabric": several, "switch_share": base.switch_share is not None}
        constants = [one for one in _CONSTANTS if usable.get(one.key, True)]
        # Where no log is of one host, slow links are more likely those between hosts.
        outside = all(len(table.ranks_per_host) > 1 for table in tables)
        self.all = tuple(sorted(constants, key=lambda one: outside and one.key != NIC_BANDWIDTH))

    def result(self) -> MachineFit:
        machine, active = self._start(), self.all
        reasons: dict[str, str] = {}
        scattered: dict[str, str] = {}
        for _ in self.all:  # what is determined depends on where the fit ends, so it is asked again there
            machine = self._minimised(machine, active)
            kept, reasons = self._determined(machine, scattered)
            if kept == active:
                vague = [one for one in active if one.relative and self._is_vague(one, machine, active)]
                if not vague:
                    break
                scattered[vague[-1].key] = "the calls of this log scatter too much"
                kept = tuple(one for one in active if one is not vague[-1])
            for one in self.all:
                if one not in kept:
                    machine = one.changed(machine, one.value(self.base))
            active = kept
        else:
            machine = self._minimised(machine, active)
        reasons |= scattered
        machine = self._rounded(machine, active)
        predicted = self._predicted(machine)
        errors = self._errors(machine, active, predicted)
        constants = tuple(
            FittedConstant(
                one.key,
                one.value(self.base) * self._unit(one),
                one.value(machine) * self._unit(one),
                errors[one.key] * self._unit(one) if one.key in errors else None,
                reasons.get(one.key, ""),
                one in active and one.value(machine) == one.most,
            )
            for one in self.all
        )
        times = iter(predicted)
        by_table = tuple(tuple(next(times) for _ in table.calls) for table in self.tables)
        return MachineFit(self.base, machine, constants, by_table)

    def _unit(self, one: _Constant) -> float:
        """Returns the bandwidth of a card, of which the fit has a share; for other constants 1."""
        return _nic_bandwidth(self.placed) if one.key == NIC_BANDWIDTH else 1.0

    def _start(self) -> Machine:
        """Returns the base with the launch of the shortest call, and the bandwidth of the longest."""
        machine = self.base
        predicted = np.array([one.seconds for one in self._predicted(machine)])
        last, first = int(np.argmax(self.measured)), int(np.argmin(self.measured))
        slower = predicted[last] / self.measured[last]
        bandwidth = self.all[0]
        machine = bandwidth.changed(
            machine, float(np.clip(bandwidth.value(machine) * slower, bandwidth.least, bandwidth.most))
        )
        launch = next(one for one in self.all if one.key == "launch")
        late = launch.value(machine) + self.measured[first] - predicted[first]
        return launch.changed(machine, float(np.clip(late, launch.least, launch.most)))

    def _predicted(self, machine: Machine, among: Sequence[_Ways] = ()) -> list[LibraryTime]:
        """Returns the predictions of all calls, each the fastest `among` some algorithms and protocols, or of all."""
        ways = iter(among)
        return [
            min(
                (
                    time
                    for algorithm, protocol in next(ways)
                    for time in library_times(
                        machine, placed, table.collective, call.num_bytes, algorithm=algorithm, protocol=protocol
                    )
                ),
                key=lambda time: time.seconds,
            )
            if among
            else fastest_call(machine, placed, table.collective, call.num_bytes)
            for table, placed in zip(self.tables, self.placed, strict=True)
            for call in table.calls
        ]

    def _likely(self, machine: Machine) -> list[_Ways]:
        """Returns for each call the algorithms and protocols that may become the fastest during a fit."""
        found = []
        for table, placed in zip(self.tables, self.placed, strict=True):
            for call in table.calls:
                times = _all_times(machine, placed, table.collective, call.num_bytes)
                most = _LIKELY * min(one.seconds for one in times)
                found.append(tuple((one.algorithm, one.protocol) for one in times if one.seconds <= most))
        return found

    def _residuals(self, predicted: Sequence[LibraryTime]) -> Floats:
        residuals: Floats = np.log(np.array([one.seconds for one in predicted]) / self.measured)
        return residuals

    def _slopes(self, machine: Machine, active: Sequence[_Constant], predicted: Sequence[LibraryTime]) -> Floats:
        """Returns how the residuals change by a step of each constant: float64[calls, constants]."""
        at = self._residuals(predicted)
        chosen = [((time.algorithm, time.protocol),) for time in predicted]
        columns = []
        for one in active:
            value = one.value(machine)
            step = 0.1 * one.step * (value if one.relative else 1)
            step = -step if value + step > one.most else step
            if one.key == "launch":  # added to every time as it is
                times = np.array([time.seconds for time in predicted])
                moved = np.log((times + step) / self.measured)
            else:
                moved = self._residuals(self._predicted(one.changed(machine, value + step), chosen))
            columns.append((moved - at) * one.step / step)
        return np.stack(columns, axis=1)

    def _minimised(self, machine: Machine, active: Sequence[_Constant]) -> Machine:
        damping = 1e-3
        likely = self._likely(machine)
        predicted = self._predicted(machine, likely)
        cost = _cost(self._residuals(predicted))
        for _ in range(_ROUNDS if active else 0):
            slopes, residuals = self._slopes(machine, active, predicted), self._residuals(predicted)
            better = None
            while better is None and damping < 1e3:
                better = self._step(machine, active, slopes, residuals, damping)
                trial = self._predicted(better, likely)
                found = _cost(self._residuals(trial))
                if found >= cost:
                    better, damping = None, damping * 10
            if better is None:
                break
            gain, machine, predicted, cost, damping = 1 - found / cost, better, trial, found, damping / 10
            if gain < _ENOUGH:
                break
        return machine

    def _step(
        self, machine: Machine, active: Sequence[_Constant], slopes: Floats, residuals: Floats, damping: float
    ) -> Machine:
        """Returns the machine after one step of least squares; constants at a limit stay there."""
        weights = 1 / np.maximum(np.abs(residuals), _FAR)
        free = list(range(len(active)))
        values = [one.value(machine) for one in active]
        while free:
            part = slopes[:, free]
            square = part.T @ (weights[:, None] * part)
            square += damping * np.diag(np.maximum(np.diag(square), 1e-12))
            moved = np.linalg.solve(square, -part.T @ (weights * residuals))
            new = {
                number: values[number] + float(change) * active[number].step
                for number, change in zip(free, moved, strict=True)
            }
            out = [
                number
                for number, value in new.items()
                if not active[number].least <= value <= active[number].most
                and values[number] in (active[number].least, active[number].most)
            ]
            if not out:
                break
            free = [number for number in free if number not in out]
        for number in free:
            one = active[number]
            machine = one.changed(machine, float(np.clip(new[number], one.least, one.most)))
        return machine

    def _is_vague(self, one: _Constant, machine: Machine, active: Sequence[_Constant]) -> bool:
        return self._errors(machine, active, self._predicted(machine))[one.key] > _MOST_VAGUE * one.value(machine)

    def _determined(self, machine: Machine, without: Container[str]) -> tuple[tuple[_Constant, ...], dict[str, str]]:
        """Returns the constants that the calls determine, and for each other one why they do not."""
        slopes = self._slopes(machine, self.all, self._predicted(machine))
        kept: list[int] = []
        reasons: dict[str, str] = {}
        basis: list[Floats] = []
        for number, one in enumerate(self.all):
            column = slopes[:, number]
            if one.key in without:
                continue
            if np.abs(column).max() < _LEAST_EFFECT:
                reasons[one.key] = "it changes no prediction of this log"
                continue
            rest = column.copy()
            for vector in basis:
                rest -= vector * (vector @ rest)
            if np.linalg.norm(rest) < _LEAST_SEPARATE * np.linalg.norm(column):
                alike = max(kept, key=lambda other: abs(_cosine(slopes[:, other], column)))
                reasons[one.key] = f"it acts like {self.all[alike].key} on every call of this log"
                continue
            basis.append(rest / np.linalg.norm(rest))
            kept.append(number)
        return tuple(self.all[number] for number in kept), reasons

    def _rounded(self, machine: Machine, active: Sequence[_Constant]) -> Machine:
        """Returns the machine with the values that its file will have, of four digits."""
        for one in active:
            unit = self._unit(one)
            machine = one.changed(machine, float(f"{one.value(machine) * unit:.4g}") / unit)
        return machine

    def _errors(
        self, machine: Machine, active: Sequence[_Constant], predicted: Sequence[LibraryTime]
    ) -> dict[str, float]:
        if not active:
            return {}
        slopes, residuals = self._slopes(machine, active, predicted), self._residuals(predicted)
        variance = float(residuals @ residuals) / max(1, len(residuals) - len(active))
        inverse = np.linalg.pinv(slopes.T @ slopes)
        return {
            one.key: float(np.sqrt(variance * inverse[number, number])) * one.step for number, one in enumerate(active)
        }


def _nic_bandwidth(placed: Sequence[PlacedRanks]) -> float:
    """Returns the bandwidth of one card in bytes per second, of the first of these networks that has cards in use."""
    for one in placed:
        network = one.network
        cards = network.node_kinds[network.link_source] == "nic"
        found = network.bytes_per_second[cards & (network.link_class == "nic")]
        if len(one.hosts) > 1 and len(found):
            return float(found.min())
    return 0.0


def _cost(residuals: Floats) -> float:
    """Returns a sum that grows with the square of small residuals, and linearly with large ones."""
    size = np.abs(residuals)
    return float(np.where(size < _FAR, size**2 / (2 * _FAR), size - _FAR / 2).sum())


def _cosine(one: Floats, other: Floats) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other) or 1.0))
