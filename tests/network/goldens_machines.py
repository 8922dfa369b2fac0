"""Times that were measured on GPU hosts, and what `hocket.simulate(..., machine=NAME)` predicts.

Times are of the operation, computed from busbw if needed. If a source gives a busbw without a size, the size is 8 GiB.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import hocket

MEASURED: dict[str, Any] = json.loads(Path(__file__).with_name("goldens.json").read_text())["measured"]
OTHERS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("other_logs.json").read_text())
"""Public logs, with times out of place in microseconds. fabric: "" for that of the machine."""
LARGE = 8 << 30
PRECISE_FROM = 16 << 20
PRECISE, COARSE = 0.15, 0.35  # allowed relative errors from PRECISE_FROM on, and below it

_ALL_REDUCES = ("ring", "tree", "nvls", "direct")
_ND_V5: tuple[tuple[str, str, Sequence[str]], ...] = (  # the table, its collective, the algorithms of MSCCL
    ("allreduce_fp16", "all_reduce", ()),
    ("allgather", "all_gather", ()),
    ("msccl_allreduce", "all_reduce", _ALL_REDUCES),
    ("msccl_allgather", "all_gather", ("ring", "direct")),
)

Entry = tuple[str, float, float, float, str]
"""Name; ours and the published figure, in microseconds; the relative error allowed; parameters."""


def entries() -> Iterator[Entry]:
    """Every measured number about collectives."""
    return (predicted() for _, predicted in cases())


def cases() -> Iterator[tuple[str, Callable[[], Entry]]]:
    """Returns the name of every entry, and the function that computes it."""
    for table, collective, algorithms in _ND_V5:
        for size, published in MEASURED["H100x8_ND_v5_nccl2.18.3_us"][table].items():
            name = f"H100x8 ND v5 {table} {size}"
            yield name, partial(_entry, name, "h100", collective, 8, size, published, algorithms)
    for count, rows in MEASURED["A100_allreduce_us_vtrain"].items():
        for size, published in rows.items():
            name = f"A100x{count} all_reduce {size}"
            yield name, partial(_entry, name, "a100", "all_reduce", int(count), size, published)
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


def allowed(num_bytes: int) -> float:
    """Returns the relative error that is allowed for a vector of this size."""
    return PRECISE if num_bytes >= PRECISE_FROM else COARSE


def errors_of(log: dict[str, Any], folder: Path) -> list[tuple[int, float]]:
    """Returns the size and the relative error of each time of another log. folder: for a file with its fabric."""
    machine, ranks = log["machine"], log["ranks"]
    if log["fabric"]:
        file = folder / f"{machine}-{log['fabric']}.yaml"
        file.write_text(f"base: {machine}\nfabric: {log['fabric']}\n")
        machine = str(file)
    found = [hocket.simulate(log["collective"], size, ranks, machine=machine) for size in log["times"]]
    return [(one.num_bytes, one.seconds * 1e6 / us - 1) for one, us in zip(found, log["times"].values(), strict=True)]


def _entry(
    name: str,
    machine: str,
    collective: str,
    num_ranks: int,
    size: int | str,
    published: float,
    algorithms: Sequence[str] = (),
) -> Entry:
    found = hocket.simulate(collective, size, num_ranks, machine=machine, algorithm=algorithms)
    how = f"{machine}: {found.algorithm}, {found.protocol}"
    return name, found.seconds * 1e6, published, allowed(found.num_bytes), how


def _of_busbw(name: str, machine: str, num_ranks: int, busbw: float, only: str = "") -> Entry:
    """only: the algorithm that the source fixed, if it did not leave the choice to the library."""
    published = 2 * (num_ranks - 1) / num_ranks * LARGE / (busbw * 1e9) * 1e6
    return _entry(name, machine, "all_reduce", num_ranks, LARGE, published, [only] if only else ())
