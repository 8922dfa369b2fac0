"""Measures the floor of a cell with benchmarks/lab/floor.cpp, without Python's time, which measuring.py adds."""

import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from comparison import results, values
from comparison.results import Row

SECONDS = 30.0  # floor.cpp itself gives up after 20
EXCHANGE = "lined:taker:64:8192:1:p"  # one cache line there and back, polled
MEMORIES = ("private", "staged", "registered", "turns")


class Found(NamedTuple):
    """The seconds of a call by protocol, and the measured variants, best first."""

    seconds: dict[str, float]
    variants: list[str]

    def attaches(self) -> bool:
        """Returns whether the best variant reads or writes another process's memory through the kernel."""
        return any(best.startswith(("attached", "fetched")) for best in self.variants[:1])


def measure(
    program: Path, row: Row, memory: str, batch_seconds: float, batches: int, variants: Collection[str] = ()
) -> Found | None:
    """Returns the floor, or None if there is none, or not in time. variants: of an earlier Found, to try only these."""
    operation = "turns" if memory == "turns" else row.operation
    arguments = [operation, memory, row.num_ranks, row.num_bytes, batch_seconds, batches, *variants]
    command = [program, *map(str, arguments)]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    if found.returncode:
        return None
    touched, untouched, *measured = found.stdout.split()
    ways = values.ways(row.operation)
    return Found({"touched": float(touched) / ways, "untouched": float(untouched) / ways}, measured)


def exchange(program: Path) -> list[float]:
    """Returns the seconds in which two cores exchange a cache line: they show whether the cores share a cache now."""
    found = measure(program, Row("all_reduce", 8, "float32", 2), "private", 0.001, 5, [EXCHANGE])
    return [found.seconds["untouched"]] if found else []


def has(row: Row, memory: str) -> bool:
    """Returns whether the cell has a floor. With more than two ranks, `registered` and `turns` are bounds."""
    if memory == "turns":
        return row.num_ranks > 2 and row.operation in results.WAIT_FOR_ALL
    if row.dtype != "float32":
        return False
    return memory in ("private", "staged") or row.operation != "barrier"
