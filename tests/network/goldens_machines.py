"""Times that were measured on GPU hosts, and the predictions of `hocket.network.simulation.calibrated_machines`.

Times are of the operation, computed from busbw if needed. If a source gives a busbw without a size, the size is 8 GiB.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hocket.algorithms import ALGORITHMS
from hocket.network.simulation.calibrated_machines import MACHINES, PredictedTime, predict, predictions
from hocket.schedule import Schedule

MEASURED: dict[str, Any] = json.loads(Path(__file__).with_name("goldens.json").read_text())["measured"]
LARGE = 8 << 30
PRECISE_FROM = 16 << 20
PRECISE, COARSE = 0.15, 0.35  # allowed relative errors from PRECISE_FROM on, and below it

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_ND_V5 = (  # the table, its machine, its collective
    ("allreduce_fp16", "h100", "all_reduce"),
    ("allgather", "h100", "all_gather"),
    ("msccl_allreduce", "h100-msccl", "all_reduce"),
    ("msccl_allgather", "h100-msccl", "all_gather"),
)

Entry = tuple[str, float, float, float, str]
"""Name; ours and the published figure, in microseconds; the relative error allowed; parameters."""


def entries() -> Iterator[Entry]:
    """Every measured number about collectives."""
    return (predicted() for _, predicted in cases())


def cases() -> Iterator[tuple[str, Callable[[], Entry]]]:
    """Returns the name of every entry, and the function that computes it, which takes seconds."""
    for table, machine, collective in _ND_V5:
        for size, published in MEASURED["H100x8_ND_v5_nccl2.18.3_us"][table].items():
            name = f"H100x8 ND v5 {table} {size}"
            yield name, partial(_entry, name, machine, collective, 8, _bytes(size), published)
    for count, rows in MEASURED["A100_allreduce_us_vtrain"].items():
        for size, published in rows.items():
            name = f"A100x{count} all_reduce {size}"
            yield name, partial(_entry, name, "a100-framework", "all_reduce", int(count), _bytes(size), published)
    for kind, by_count in MEASURED["H200x8_busbw_8GiB"].items():
        for count, busbw in by_count.items():
            name = f"H200x{count} {kind} 8 GiB, {busbw:g} GB/s"
            yield name, partial(_of_busbw, name, "h200", int(count), busbw, only="ring" if kind == "ring" else "")
    for count, busbw in MEASURED["H100_issue309_busbw"].items():
        name = f"H100x{count} nccl-tests #309, {busbw:g} GB/s"
        yield name, partial(_of_busbw, name, "h100", int(count), busbw)
    # The source does not say how many hosts; with two, a tree sends more than the NICs of a ring can.
    busbw = MEASURED["DGX_A100_8x200Gb_busbw_nvidia_staff"]
    name = f"A100 hosts with 8x200G, nccl #812, {busbw:g} GB/s"
    yield name, partial(_of_busbw, name, "a100", 32, busbw)


def _entry(name: str, machine: str, collective: str, num_ranks: int, num_bytes: int, published: float) -> Entry:
    return _made(
        name, machine, predict(MACHINES[machine], collective, num_ranks, num_bytes, _build), num_bytes, published
    )


def _of_busbw(name: str, machine: str, num_ranks: int, busbw: float, only: str = "") -> Entry:
    """only: the algorithm that the source fixed, if it did not leave the choice to the library."""
    ways = predictions(MACHINES[machine], "all_reduce", num_ranks, LARGE, _build)
    found = min((way for way in ways if only in ("", way.algorithm)), key=lambda way: way.seconds)
    published = 2 * (num_ranks - 1) / num_ranks * LARGE / (busbw * 1e9) * 1e6
    return _made(name, machine, found, LARGE, published)


def _made(name: str, machine: str, found: PredictedTime, num_bytes: int, published: float) -> Entry:
    allowed = PRECISE if num_bytes >= PRECISE_FROM else COARSE
    return name, found.seconds * 1e6, published, allowed, f"{machine}: {found.algorithm}, {found.protocol}"


def _build(collective: str, algorithm: str, num_ranks: int) -> Schedule:
    return ALGORITHMS[collective, algorithm].build(num_ranks)


def _bytes(size: str) -> int:
    return int(size[:-1]) * _UNITS[size[-1]]
