"""What this machine's cores and memory cost: measured, kept on disk, used for lower bounds.

Everything is the fastest that was ever seen on this kind of machine, as a bound must not be above what can be reached:
what the cores of a virtual machine share may change from minute to minute. How fast Hocket itself is plays no part.
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
"""What a core does to memory: load, store, copy (y[:] = x) or add (y += x)."""

_FOOTPRINTS = (1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 25, 1 << 27)  # bytes; from a first-level cache to main memory
_MOST_TOGETHER_BYTES = 1 << 31  # of all cores, where all work at once
_SECONDS_EACH = 0.05
_SECONDS_TOGETHER = 0.2
_SECONDS_HOP = 0.005  # between any two passes: over all of them the least counts


@dataclass(frozen=True)
class MachineCosts:
    """What was measured on one machine.

    num_cores: those that this process may use. hop_seconds: from a store on one core to its being seen on another, the
    nearest; 0 where there is one core. bytes_per_second: by pass of PASSES and footprint, the bytes that one core
    touches again and again; copy and add count the bytes of the destination. together_bytes_per_second: by pass, of
    all cores at work at once in main memory.
    """

    num_cores: int
    hop_seconds: float
    bytes_per_second: dict[str, dict[int, float]]
    together_bytes_per_second: dict[str, float]

    def rate(self, kind: str, footprint: float, num_cores: int) -> float:
        """The most bytes per second of a pass of this kind by num_cores cores, each in `footprint` bytes."""
        measured = self.bytes_per_second[kind]
        below = max((size for size in measured if size <= footprint), default=min(measured))
        alone = max(rate for size, rate in measured.items() if size >= below) * num_cores
        if footprint < max(measured):
            return alone
        return min(alone, max(self.together_bytes_per_second[kind], measured[max(measured)]))

    def best(self, other: "MachineCosts | None") -> "MachineCosts":
        """The faster of both in everything."""
        if other is None:
            return self
        alone, together = self.bytes_per_second, self.together_bytes_per_second
        return MachineCosts(
            self.num_cores,
            min(self.hop_seconds, other.hop_seconds),
            {kind: _greatest(alone[kind], other.bytes_per_second[kind]) for kind in alone},
            {kind: max(rate, other.together_bytes_per_second[kind]) for kind, rate in together.items()},
        )


_decoder = msgspec.json.Decoder(MachineCosts)  # made here: ranks that are threads would make what it needs at once


def _greatest(rates: dict[int, float], others: dict[int, float]) -> dict[int, float]:
    return {size: max(rates.get(size, 0.0), others.get(size, 0.0)) for size in sorted({*rates, *others})}


def measure() -> MachineCosts:
    """Measures, in about 3 seconds, during which nothing else should run. OSError where a core may not be used."""
    cores = sorted(os.sched_getaffinity(0))
    partners = [cores[1 << i] for i in range(len(cores).bit_length()) if 1 << i < len(cores)]  # near ones and far ones
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
    """Keeps the best of these costs and of those that were stored before for this kind of machine.

    Returns them, and the file. OSError if the cache folder cannot be written.
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
    """What was stored for so many cores of this machine, None if nothing was or it cannot be read.

    By default those that this process may use: a rank, which is bound to its share of them, says those of all ranks.
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
    """One for each kind of processor and number of cores: a cache folder may be shared by many machines."""
    identity = f"{platform.machine()} {_processor()} {num_cores or len(os.sched_getaffinity(0))}"
    return cache_folder() / "machines" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"


def _processor() -> str:
    """What /proc/cpuinfo says of the model of the first core; other architectures than x86 number it."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0].splitlines()
        fields = dict(line.partition(":")[::2] for line in lines)
        named = {name.strip(): value.strip() for name, value in fields.items()}
        wanted = ("model name", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")
        return " ".join(named[name] for name in wanted if name in named)
    return platform.processor()
