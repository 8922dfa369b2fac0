"""The speed of this machine's cores and memory: measured, kept on disk, used for lower bounds.

Each number is the fastest ever seen on this kind of machine, because a lower bound must not be above what can be
reached. The share of a virtual machine may change from minute to minute. Hocket's own speed plays no part.
"""

import contextlib
import hashlib
import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hocket import _core
from hocket.runtime.cache import cache_folder

PASSES: tuple[str, ...] = _core.PASSES
"""Passes over memory: load, store, copy (y[:] = x) or add (y += x)."""

_FOOTPRINTS = (1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 25, 1 << 27)  # bytes; from a first-level cache to main memory
_MOST_TOGETHER_BYTES = 1 << 31  # for all cores together, if all work at once
_SECONDS_EACH = 0.05
_SECONDS_TOGETHER = 0.2
_SECONDS_HOP = 0.005  # measured between any two passes; the least of all counts


@dataclass(frozen=True)
class MachineCosts:
    """The measurements of one machine.

    num_cores: the cores that this process may use. hop_seconds: the time from a store on one core until the nearest
    other core sees it; 0 with one core. bytes_per_second: by pass of PASSES and footprint (the bytes that one core
    touches again and again); copy and add count the bytes of the destination. together_bytes_per_second: by pass, for
    all cores at once in main memory.
    """

    num_cores: int
    hop_seconds: float
    bytes_per_second: dict[str, dict[int, float]]
    together_bytes_per_second: dict[str, float]

    def rate(self, kind: str, footprint: float, num_cores: int) -> float:
        """Returns the most bytes per second of a pass of this kind by num_cores cores, each in `footprint` bytes."""
        measured = self.bytes_per_second[kind]
        below = max((size for size in measured if size <= footprint), default=min(measured))
        alone = max(rate for size, rate in measured.items() if size >= below) * num_cores
        if footprint < max(measured):
            return alone
        return min(alone, max(self.together_bytes_per_second[kind], measured[max(measured)]))

    def best(self, other: "MachineCosts | None") -> "MachineCosts":
        """Returns the faster of both, number by number."""
        if other is None:
            return self
        alone, together = self.bytes_per_second, self.together_bytes_per_second
        return MachineCosts(
            self.num_cores,
            min(self.hop_seconds, other.hop_seconds),
            {kind: _greatest(alone[kind], other.bytes_per_second[kind]) for kind in alone},
            {kind: max(rate, other.together_bytes_per_second[kind]) for kind, rate in together.items()},
        )


_decoder = msgspec.json.Decoder(MachineCosts)  # made at import: ranks that are threads would race to make it


def _greatest(rates: dict[int, float], others: dict[int, float]) -> dict[int, float]:
    return {size: max(rates.get(size, 0.0), others.get(size, 0.0)) for size in sorted({*rates, *others})}


def measure() -> MachineCosts:
    """Measures for about 3 seconds; nothing else should run meanwhile. Raises OSError if a core may not be used."""
    cores = sorted(os.sched_getaffinity(0))
    partners = [cores[1 << i] for i in range(len(cores).bit_length()) if 1 << i < len(cores)]  # near and far cores
    hops: list[float] = []

    def rate(kind: str, footprint: int, together: list[int], seconds: float) -> float:
        hops.extend(_core.hop_seconds(cores[0], partner, _SECONDS_HOP) for partner in partners)
        found: float = _core.bytes_per_second(kind, footprint, together, seconds)
        return found

    alone = {kind: {size: rate(kind, size, cores[:1], _SECONDS_EACH) for size in _FOOTPRINTS} for kind in PASSES}
    each = min(_FOOTPRINTS[-1], _MOST_TOGETHER_BYTES // len(cores))
    together = {kind: rate(kind, each, cores, _SECONDS_TOGETHER) for kind in PASSES}
    return MachineCosts(len(cores), min(hops, default=0.0), alone, together)


def store(costs: MachineCosts) -> tuple[MachineCosts, Path]:
    """Stores the better of these costs and those stored before for this kind of machine.

    Returns the stored costs and the file. Raises OSError if the cache folder cannot be written.
    """
    file, costs = _file(), costs.best(load())
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(prefix="unfinished-", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as unfinished:
            unfinished.write(msgspec.json.encode(costs))
        Path(name).replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    return costs, file


def load(num_cores: int | None = None) -> MachineCosts | None:
    """Returns the costs stored for `num_cores` of this machine; None if there are none, or they cannot be read.

    By default num_cores is what this process may use. A rank is bound to its share, so it passes the number of all.
    """
    try:
        costs = _decoder.decode(_file(num_cores).read_bytes())
    except (OSError, RuntimeError, msgspec.DecodeError, UnicodeDecodeError):  # RuntimeError: no home directory
        return None
    together, alone = costs.together_bytes_per_second, costs.bytes_per_second
    complete = all(together.get(kind) and alone.get(kind) for kind in PASSES)
    rates = [*together.values(), *(rate for each in alone.values() for rate in each.values())]
    positive = all(0 < rate < float("inf") for rate in rates)
    return costs if complete and positive and costs.num_cores > 0 and costs.hop_seconds >= 0 else None


def _file(num_cores: int | None = None) -> Path:
    """Returns the file for this kind of processor and number of cores: machines may share a cache folder."""
    identity = f"{platform.machine()} {_processor()} {num_cores or len(os.sched_getaffinity(0))}"
    return cache_folder() / "machines" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"


def _processor() -> str:
    """Returns the model of the first core in /proc/cpuinfo; architectures other than x86 give numbers."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0].splitlines()
        fields = dict(line.partition(":")[::2] for line in lines)
        named = {name.strip(): value.strip() for name, value in fields.items()}
        wanted = ("model name", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")
        return " ".join(named[name] for name in wanted if name in named)
    return platform.processor()
