"""Measures streams: microseconds of an empty operation, of recording an event, and of waiting for one.

    python benchmarks/lab/streams.py [--calls 2000] [--batches 21] [--json]

The table shows the minimum and the median over batches:

- `round trip`: submit a function that does nothing, and wait until it is done;
- `in a row`: the same, but with one wait at the end of a batch;
- `record, idle`, `record, busy`: record an event on an idle stream, and on a busy one;
- `wait`: make a stream wait for an event that is not complete;
- `hand over`: two streams take turns: each waits for the event of the other, then does nothing;
- `8 B all_reduce`: on one rank, on the host, and in a stream from launch to end.
"""

import argparse
import json
import statistics
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np

import hocket


def nothing() -> None:
    """Does nothing; streams run it."""


def round_trip(num_calls: int) -> int:
    s = hocket.Stream()
    started = perf_counter_ns()
    for _ in range(num_calls):
        s.submit(nothing)
        s.synchronize()
    return perf_counter_ns() - started


def in_a_row(num_calls: int) -> int:
    s = hocket.Stream()
    started = perf_counter_ns()
    for _ in range(num_calls):
        s.submit(nothing)
    s.synchronize()
    return perf_counter_ns() - started


def record_idle(num_calls: int) -> int:
    s, event = hocket.Stream(), hocket.Event()
    started = perf_counter_ns()
    for _ in range(num_calls):
        event.record(s)
    return perf_counter_ns() - started


def record_busy(num_calls: int) -> int:
    return behind_a_gate(num_calls, lambda s, event: event.record(s))


def wait(num_calls: int) -> int:
    return behind_a_gate(num_calls, lambda s, event: event.wait(s))


def behind_a_gate(num_calls: int, act: Callable[[hocket.Stream, hocket.Event], None]) -> int:
    """Times `act` on a stream that is blocked."""
    s, other, gate = hocket.Stream(), hocket.Stream(), threading.Event()
    for one in (s, other):
        one.submit(gate.wait)
    event = other.record()
    started = perf_counter_ns()
    for _ in range(num_calls):
        act(s, event)
    elapsed = perf_counter_ns() - started
    gate.set()
    s.synchronize()
    return elapsed


def hand_over(num_calls: int) -> int:
    streams = [hocket.Stream(), hocket.Stream()]
    started = perf_counter_ns()
    event = hocket.Event()
    for turn in range(num_calls):
        s = streams[turn % 2]
        s.wait(event)
        s.submit(nothing)
        event.record(s)
    event.synchronize()
    return perf_counter_ns() - started


def all_reduce_of(stream: hocket.Stream | None) -> Callable[[int], int]:
    def run(num_calls: int) -> int:
        x = np.zeros(2, "f4")
        with hocket.init(0, 1) as comm, hocket.stream(stream):
            started = perf_counter_ns()
            for _ in range(num_calls):
                comm.all_reduce(x)
                if stream is not None:
                    stream.synchronize()
            return perf_counter_ns() - started

    return run


CASES: dict[str, Callable[[int], int]] = {
    "round trip": round_trip,
    "in a row": in_a_row,
    "record, idle": record_idle,
    "record, busy": record_busy,
    "wait": wait,
    "hand over": hand_over,
    "8 B all_reduce, host": all_reduce_of(None),
    "8 B all_reduce, stream": all_reduce_of(hocket.Stream()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=2000, help="calls per batch (2000)")
    parser.add_argument("--batches", type=int, default=21, help="number of batches (21)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        batches = [case(arguments.calls) / arguments.calls / 1e3 for _ in range(arguments.batches)]
        found[name] = {"least_us": min(batches), "median_us": statistics.median(batches)}
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{'us: least (median)':<24}")
    for name, times in found.items():
        print(f"{name:<24}{times['least_us']:8.2f} ({times['median_us']:.2f})")


if __name__ == "__main__":
    main()
