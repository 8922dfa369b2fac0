"""Measures the parts of a small call, from Python to the first store: nanoseconds per call, 8 bytes per rank.

    python benchmarks/lab/call_path.py [--calls 5000] [--batches 21] [--json]

The table shows the minimum and the median over batches of back-to-back calls, on the slower rank:

- `empty`: an empty function of the core, called from the same loop: the cost of Python itself;
- `1 rank`: everything except communication, so all protections of a call: its description is recorded (the
  fingerprint) and hashed (the tag of its messages), and alarms are checked before and after. `1 rank` minus `empty` is
  an upper bound of the cost of these protections, because it also contains the argument checks and the executor;
- `2 ranks`: two processes, with communication. With fewer than 2 idle cores, use only the minimum;
- `python`: as `1 rank`, but through the Python method, like the first call of each kind.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

import hocket
from hocket import _core

Call = Callable[[], Any]
Times = tuple[float, float]
"""Nanoseconds per call: of the fastest batch, and of the median batch."""


def calls_of(comm: hocket.Communicator, by_python: bool) -> dict[str, Call]:
    """Returns the calls by name; blocks have 8 bytes. `by_python`: through the Python method, like a first call."""
    x, all_blocks, others = np.zeros(2, "f4"), np.zeros(2 * comm.size, "f4"), np.zeros(2 * comm.size, "f4")

    def method(name: str) -> Callable[..., Any]:
        return getattr(hocket.Communicator, name).__wrapped__.__get__(comm) if by_python else getattr(comm, name)

    def into(name: str, x: Any, out: Any) -> Call:  # with a keyword, a partial takes longer than the call
        call = method(name)
        return lambda: call(x, out=out)

    return {
        "all_reduce": partial(method("all_reduce"), x),
        "barrier": method("barrier"),
        "broadcast": partial(method("broadcast"), x),
        "reduce": partial(method("reduce"), x),
        "all_gather": into("all_gather", x, all_blocks),
        "reduce_scatter": into("reduce_scatter", all_blocks, x),
        "all_to_all": into("all_to_all", all_blocks, others),
    }


def timed(call: Call, meet: Call, shape: list[int]) -> Times:
    num_calls, num_batches = shape
    batches = []
    for _ in range(num_batches):
        meet()
        started = perf_counter_ns()
        for _ in range(num_calls):
            call()
        batches.append((perf_counter_ns() - started) / num_calls)
    return min(batches), statistics.median(batches)


def measure(shape: list[int], by_python: bool = False) -> dict[str, Times]:
    with hocket.init() as comm:
        return {name: timed(call, comm.barrier, shape) for name, call in calls_of(comm, by_python).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=5000, help="calls per batch (5000)")
    parser.add_argument("--batches", type=int, default=21, help="number of batches (21)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    shape = [arguments.calls, arguments.batches]
    empty = timed(_core.fork_generation, lambda: None, shape)
    [python] = hocket.run_ranks(measure, 1, args=(shape, True), kind="process")
    [one] = hocket.run_ranks(measure, 1, args=(shape,), kind="process")
    ranks = hocket.run_ranks(measure, 2, args=(shape,), kind="process")
    two = {name: (max(of[name][0] for of in ranks), max(of[name][1] for of in ranks)) for name in one}
    if arguments.json:
        print(json.dumps({"empty": empty, "python": python, "1 rank": one, "2 ranks": two}))
        return
    print(f"empty call of the core: {empty[0]:.0f} ns (median {empty[1]:.0f})")
    print(f"{'ns: least (median)':<20}{'python':>16}{'1 rank':>16}{'2 ranks':>16}")
    for name in one:
        columns = "".join(f"{f'{of[name][0]:.0f} ({of[name][1]:.0f})':>16}" for of in (python, one, two))
        print(f"{name:<20}{columns}")


if __name__ == "__main__":
    main()
