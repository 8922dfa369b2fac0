"""What tracing costs: an all_reduce while it is traced, beside one while it is not, on two processes.

    python benchmarks/tracing.py [--rounds 40] [--calls 500] [--json]

Rounds of calls take turns, with and without a trace, as a machine changes its speed; printed is the median over rounds
of the ratio of two neighbours, with its quartiles, and the medians of both in microseconds. Then, where Valgrind is
installed, the instructions of one call while nothing is traced, of 8 bytes on one rank: to be compared with another
version of Hocket.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import hocket

SIZES = {"8 B": 2, "64 KiB": 1 << 14, "1 MiB": 1 << 18}
COUNTED = """
import sys
import numpy as np
import hocket
comm, x = hocket.init(), np.zeros(2, "f4")
for _ in range(int(sys.argv[1])):
    comm.all_reduce(x)
"""


def measure(rounds: int, calls: int, steps: bool) -> dict[str, list[tuple[float, float]]]:
    """Microseconds per call, (not traced, traced), of each round, by size."""
    with hocket.init() as comm, tempfile.TemporaryDirectory() as folder:
        return {
            name: list(pairs(comm, hocket.empty(count), rounds, calls, Path(folder) / f"{comm.rank}.json", steps))
            for name, count in SIZES.items()
        }


def pairs(
    comm: hocket.Communicator, x: Any, rounds: int, calls: int, file: Path, steps: bool
) -> Iterator[tuple[float, float]]:
    def timed() -> float:
        comm.barrier()
        started = perf_counter_ns()
        for _ in range(calls):
            comm.all_reduce(x)
        return (perf_counter_ns() - started) / calls / 1000

    timed()
    for number in range(rounds):
        found = {}
        for traced in (False, True) if number % 2 else (True, False):
            if traced:
                with hocket.trace(file, steps=steps):
                    found[traced] = timed()
            else:
                found[traced] = timed()
        yield found[False], found[True]


def instructions() -> float | None:
    """Of one call; None without Valgrind."""
    if shutil.which("valgrind") is None:
        return None

    def counted(calls: int) -> int:
        tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        command = [*tool, sys.executable, "-c", COUNTED, str(calls)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        [number] = re.findall(r"Collected : (\d+)", text)
        return int(number)

    few, many = 2000, 12000
    return (counted(many) - counted(few)) / (many - few)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="(40)")
    parser.add_argument("--calls", type=int, default=500, help="of one round, with and without (500)")
    parser.add_argument("--steps", action="store_true", help="trace steps, too")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    by_rank = hocket.run_ranks(measure, 2, args=(arguments.rounds, arguments.calls, arguments.steps), kind="process")
    results: dict[str, dict[str, Any]] = {}
    for name in SIZES:
        slower = [max(both) for both in zip(*(ranks[name] for ranks in by_rank), strict=True)]
        ratios = statistics.quantiles([traced / plain for plain, traced in slower], n=4)
        plain, traced = (statistics.median(times) for times in zip(*slower, strict=True))
        results[name] = {"plain_microseconds": plain, "traced_microseconds": traced, "ratio": ratios}
    counted = instructions()
    if arguments.json:
        print(json.dumps({"sizes": results, "instructions": counted}))
        return
    for name, found in results.items():
        low, middle, high = found["ratio"]
        print(
            f"all_reduce of {name:>6}: {found['plain_microseconds']:8.2f} us, traced "
            f"{found['traced_microseconds']:8.2f} us, ratio {middle:.3f} ({low:.3f} to {high:.3f})"
        )
    if counted is not None:
        print(f"instructions of a call of 8 B on one rank while nothing is traced: {counted:.0f}")


if __name__ == "__main__":
    main()
