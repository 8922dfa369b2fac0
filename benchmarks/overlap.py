"""Measures how much of an all_reduce is hidden behind computation: wall times of two ranks that multiply matrices.

    python benchmarks/overlap.py [--rounds 15] [--json]

Each rank multiplies matrices for as long as the all_reduce takes. `serial`: one after the other. `overlapped`: the
all_reduce is launched, the matrices are multiplied, then the rank waits for it. `hidden` is (serial - overlapped) /
communication; `over longer` is overlapped / the longer of the two, 1 if one hides the other, `over sum` is
overlapped / their sum, 1 if nothing is hidden. `CPU` is the time of both ranks' cores in `overlapped`.

Over a paced link (hocket.testing.paced_link), as over a network card, communication uses the cores only for additions
and copies. Through shared memory, communication is itself work of a core, so nothing is hidden unless ranks have spare
cores. All numbers are of the slower rank, and medians over rounds in which the programs take turns.
"""

import argparse
import contextlib
import json
import statistics
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import numpy as np

import hocket
from hocket.testing import paced_link

LATENCY_SECONDS = 20e-6
LINKS = {"paced 125 MB/s": 125e6, "paced 500 MB/s": 500e6, "shared memory": None}
NUM_BYTES = {"paced 125 MB/s": 8 << 20, "paced 500 MB/s": 32 << 20, "shared memory": 64 << 20}
SIDE = 256  # of the matrices


def timed(comm: hocket.Communicator, program: Callable[[], None]) -> tuple[float, float]:
    """Returns the wall seconds of the slower rank, and the CPU seconds of both."""
    comm.barrier()
    wall, cpu = perf_counter(), process_time()
    program()
    spent = [perf_counter() - wall, process_time() - cpu]
    walls, cpus = comm.all_gather(np.array([spent])).T
    return float(walls.max()), float(cpus.sum())


def measure(num_bytes: int, num_rounds: int) -> list[dict[str, tuple[float, float]]]:
    """Runs one rank: returns the result of `timed` for each round and program."""
    with hocket.init() as comm:
        gradient = hocket.empty(num_bytes // 4, "float32")
        gradient[:] = 0.0
        one, other = np.random.default_rng(0).normal(size=(2, SIDE, SIDE)).astype("float32")
        product = np.empty_like(one)
        num_products = 20

        def compute() -> None:
            for _ in range(num_products):
                np.matmul(one, other, out=product)

        def communicate() -> None:
            comm.all_reduce(gradient, async_op=True).wait()

        def serial() -> None:
            compute()
            communicate()

        def overlapped() -> None:
            work = comm.all_reduce(gradient, async_op=True)
            compute()
            work.wait()

        for _ in range(4):  # then computing takes as long as communicating; the number is the same on all ranks
            pairs = [(timed(comm, communicate)[0], timed(comm, compute)[0]) for _ in range(3)]
            ratio = statistics.median(communication / computing for communication, computing in pairs)
            num_products = max(1, round(num_products * ratio))
        programs = {"computing": compute, "communication": communicate, "serial": serial, "overlapped": overlapped}
        return [{name: timed(comm, program) for name, program in programs.items()} for _ in range(num_rounds)]


def row(rounds: list[dict[str, tuple[float, float]]]) -> dict[str, float]:
    """Returns the table's numbers for one link."""

    def median(figure: Callable[..., float]) -> float:
        return statistics.median(figure(**{name: wall for name, (wall, _) in one.items()}) for one in rounds)

    return {
        **{f"{name}_seconds": median(lambda name=name, **walls: walls[name]) for name in rounds[0]},
        "hidden": median(lambda serial, overlapped, communication, **_: (serial - overlapped) / communication),
        "over_longer": median(
            lambda overlapped, computing, communication, **_: overlapped / max(computing, communication)
        ),
        "over_sum": median(lambda overlapped, computing, communication, **_: overlapped / (computing + communication)),
        "cpu_seconds": statistics.median(one["overlapped"][1] for one in rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="(15)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    table: dict[str, Any] = {}
    for name, speed in LINKS.items():
        with contextlib.nullcontext() if speed is None else paced_link(speed, LATENCY_SECONDS):
            found = hocket.run_ranks(measure, 2, args=(NUM_BYTES[name], arguments.rounds), kind="process")
        table[name] = {"bytes": NUM_BYTES[name], **row(found[0])}
    if arguments.json:
        print(json.dumps(table))
        return
    print(f"all_reduce of 2 ranks while they multiply matrices of {SIDE} x {SIDE}; milliseconds")
    print(
        f"{'link':<15} {'bytes':>9} {'computing':>10} {'communic.':>10} {'serial':>8} {'overlapped':>10} "
        f"{'hidden':>7} {'over longer':>11} {'over sum':>8} {'CPU':>7}"
    )
    for name, one in table.items():
        print(
            f"{name:<15} {one['bytes']:>9} {one['computing_seconds'] * 1e3:>10.2f} "
            f"{one['communication_seconds'] * 1e3:>10.2f} "
            f"{one['serial_seconds'] * 1e3:>8.2f} {one['overlapped_seconds'] * 1e3:>10.2f} {one['hidden']:>7.0%} "
            f"{one['over_longer']:>11.2f} {one['over_sum']:>8.2f} {one['cpu_seconds'] * 1e3:>7.1f}"
        )


if __name__ == "__main__":
    main()
