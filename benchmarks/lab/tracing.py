"""Measures the cost of tracing: an all_reduce with and without a trace, on two processes.

    python benchmarks/lab/tracing.py [--rounds 1000] [--calls 50] [--json]

A round has three short batches of the same calls, in changing order: one is traced, two are not. Batches of a round see
the same machine, so each round gives two ratios: traced / not traced, and, as the error of the measurement, not traced
/ not traced. The output shows the medians over rounds with 95 % confidence limits, the quartiles of the rounds, and the
median times in microseconds. If Valgrind is installed, it also shows the instructions of one call of 8 bytes on one
rank, not traced and traced.
"""

import argparse
import itertools
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

import hocket
from hocket.runtime.traces.trace import recorder

SIZES = {"8 B": 2, "64 KiB": 1 << 14, "1 MiB": 1 << 18}
BATCHES = ("plain", "traced", "again")
COUNTED = """
import sys
import numpy as np
import hocket
from hocket.runtime.traces.trace import recorder
comm, x = hocket.init(), np.zeros(2, "f4")
if sys.argv[2] == "traced":
    recorder().start(False)
for _ in range(int(sys.argv[1])):
    comm.all_reduce(x)
"""


def measure(rounds: int, calls: int, steps: bool) -> dict[str, list[dict[str, float]]]:
    """Returns the microseconds per call of each batch of each round, by size."""
    with hocket.init() as comm:
        return {name: list(times(comm, hocket.empty(count), rounds, calls, steps)) for name, count in SIZES.items()}


def times(comm: hocket.Communicator, x: Any, rounds: int, calls: int, steps: bool) -> Iterator[dict[str, float]]:
    orders = list(itertools.permutations(BATCHES))
    own = recorder()

    def timed() -> float:
        comm.barrier()
        comm.all_reduce(x)
        started = perf_counter_ns()
        for _ in range(calls):
            comm.all_reduce(x)
        return (perf_counter_ns() - started) / calls / 1000

    timed()
    for number in range(rounds):
        found = {}
        for batch in orders[number % len(orders)]:
            if batch == "traced":
                own.start(steps)
            found[batch] = timed()
            if batch == "traced":
                own.take()
        yield found


def spread(values: list[float]) -> dict[str, float]:
    """Returns the median, its 95 % confidence limits, and the quartiles."""
    ordered = sorted(values)
    half, away = len(ordered) / 2, 0.98 * math.sqrt(len(ordered))
    low, high = ordered[max(0, math.floor(half - away))], ordered[min(len(ordered) - 1, math.ceil(half + away))]
    first, middle, third = statistics.quantiles(ordered, n=4)
    return {"median": middle, "low": low, "high": high, "first_quartile": first, "third_quartile": third}


def instructions(how: str) -> float:
    """Returns the instructions of one call."""

    def counted(calls: int) -> int:
        tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        command = [*tool, sys.executable, "-c", COUNTED, str(calls), how]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        [number] = re.findall(r"Collected : (\d+)", text)
        return int(number)

    few, many = 2000, 12000
    return (counted(many) - counted(few)) / (many - few)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000, help="number of rounds (1000)")
    parser.add_argument("--calls", type=int, default=50, help="calls per batch (50)")
    parser.add_argument("--steps", action="store_true", help="trace steps, too")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    by_rank = hocket.run_ranks(measure, 2, args=(arguments.rounds, arguments.calls, arguments.steps), kind="process")
    results: dict[str, dict[str, Any]] = {}
    for size in SIZES:
        slower = [
            {batch: max(rank[batch] for rank in ranks) for batch in BATCHES}
            for ranks in zip(*(ranks[size] for ranks in by_rank), strict=True)
        ]
        results[size] = {f"{batch}_microseconds": statistics.median(one[batch] for one in slower) for batch in BATCHES}
        results[size]["ratio"] = spread([one["traced"] / one["plain"] for one in slower])
        results[size]["of_nothing"] = spread([one["again"] / one["plain"] for one in slower])
    if not arguments.json:
        for size, found in results.items():
            plain, traced = found["plain_microseconds"], found["traced_microseconds"]
            print(f"all_reduce of {size:>6}: {plain:8.2f} us, traced {traced:8.2f} us")
            print(f"    traced / not: {in_words(found['ratio'])}")
            print(f"       not / not: {in_words(found['of_nothing'])}", flush=True)
    counted = {how: instructions(how) for how in ("plain", "traced")} if shutil.which("valgrind") else None
    if arguments.json:
        print(json.dumps({"sizes": results, "instructions": counted}))
    elif counted is not None:
        plain, traced = counted["plain"], counted["traced"]
        print(f"instructions of a call of 8 B on one rank: {plain:.0f}, while it is traced {traced:.0f}")


def in_words(found: dict[str, float]) -> str:
    return (
        f"{found['median']:.3f} ({found['low']:.3f} to {found['high']:.3f}; rounds: {found['first_quartile']:.3f} to "
        f"{found['third_quartile']:.3f})"
    )


if __name__ == "__main__":
    main()
