"""The floor of each cell that has one, measured by benchmarks/floor.cpp."""

import subprocess
from pathlib import Path

from comparison.results import Row

SECONDS = 30.0


def measure(program: Path, row: Row, memory: str, batch_seconds: float, batches: int) -> dict[str, float] | None:
    """Seconds of a call by protocol; None where there is no such floor on this machine."""
    operation = "turns" if memory == "turns" else row.operation
    arguments = [operation, memory, row.num_ranks, row.num_bytes, batch_seconds, batches]
    command = [program, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if found.returncode:
        return None
    touched, untouched = map(float, found.stdout.split())
    return {"touched": touched, "untouched": untouched}


def exchange(program: Path) -> list[float]:
    """Seconds in which two cores exchange a line of cache, if it can be measured: whether they share a cache now."""
    found = measure(program, Row("all_reduce", 8, "float32", 2), "private", 0.001, 5)
    return [found["untouched"]] if found else []


def has(row: Row, memory: str) -> bool:
    """all_reduce and broadcast of two ranks; all_reduce in shared memory, and turns where all wait for all, of any."""
    if memory == "turns":
        return row.operation in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
    if row.dtype != "float32" or row.operation not in ("all_reduce", "broadcast"):
        return False
    return row.num_ranks == 2 or (row.operation == "all_reduce" and memory == "registered")
