"""Measures the costs apart from moving data: start-up, one more communicator, its memory, and waiting.

    python benchmarks/communicators.py --ranks 2,4,8,16,32,64 --json FILE

For each number of ranks, all processes of this host:

first       milliseconds from hocket.init(), after all imports, until the last rank has finished its first all_reduce;
            warm: the proof is in the cache, cold: the cache is empty. Median of --rounds jobs, and the worst
communicator  milliseconds for one more communicator (median over --count open ones, and the worst), and KiB per rank:
            anonymous memory of the process (smaps_rollup) and blocks of its arena (fstat)
staging     KiB of shared memory of a rank after all_reduces of 8 B to 4 MiB of private memory: blocks of its arena,
            without those of the first communicator
late        milliseconds of CPU (getrusage) that a rank uses while another is one second late for an all_reduce, and
            for a message; the worst rank

The output is a table of Markdown. Every number is the worst over the ranks. With more ranks than cores, ranks take
turns, and set-up is mostly the work of all ranks on few cores.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from arguments import listed, new_file, whole

import hocket
from hocket.cli.argument_types import time_limit
from hocket.runtime import memory

LATE_SECONDS = 1.0
STAGED_BYTES = (8, 64 << 10, 1 << 20, 4 << 20)


def anonymous_bytes() -> int:
    """Returns the private memory of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def arena_bytes() -> int:
    """Returns the shared memory that this rank has taken."""
    return os.fstat(memory.arena().descriptor).st_blocks * 512


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def first_call(begin: float) -> float:
    """Returns the seconds from `begin`, a time that all ranks know, to the end of this rank's first all_reduce."""
    x = np.ones(2, np.float32)
    hocket.init  # noqa: B018 - naming it imports what it needs
    if time.monotonic() >= begin:
        raise RuntimeError("importing took longer than --imports; give it more seconds")
    while time.monotonic() < begin:
        time.sleep(max(0.0, begin - time.monotonic()))
    with hocket.init() as comm:
        comm.all_reduce(x)
        return time.monotonic() - begin


def communicators(count: int) -> tuple[float, float, float]:
    """Returns the median and worst seconds for one more communicator, and its bytes on this rank."""
    with hocket.init() as comm:
        comm.dup().all_reduce(np.ones(1))  # objects that are made only once do not count
        before = anonymous_bytes() + arena_bytes()
        parts, seconds = [], []
        for _ in range(count):
            started = time.perf_counter()
            parts.append(comm.dup())
            seconds.append(time.perf_counter() - started)
        for part in parts:
            if part.all_reduce(np.ones(1))[0] != comm.size:
                raise RuntimeError("an all_reduce of a new communicator has a wrong result")
        taken = anonymous_bytes() + arena_bytes() - before
        return statistics.median(seconds), max(seconds), taken / count


def staging() -> float:
    """Returns the bytes of this rank's arena that calls on private memory take."""
    with hocket.init() as comm:
        before = arena_bytes()
        for num_bytes in STAGED_BYTES:
            for _ in range(3):
                comm.all_reduce(np.ones(num_bytes // 4, np.float32))
        return arena_bytes() - before


def late() -> tuple[float, float]:
    """Returns the CPU seconds that this rank uses while rank 0 is late: for an all_reduce, and for a message."""
    with hocket.init() as comm:
        x, burnt = np.ones(2, np.float32), []

        def send_or_receive() -> None:
            for rank in range(1, comm.size) if comm.rank == 0 else ():
                comm.send(x, dst=rank)
            if comm.rank > 0:
                comm.recv(x, src=0)

        def reduce() -> None:
            comm.all_reduce(x)

        for call in (reduce, send_or_receive):
            call()
            comm.barrier()
            if comm.rank == 0:
                time.sleep(LATE_SECONDS)
            started = cpu_seconds()
            call()
            burnt.append(cpu_seconds() - started if comm.rank > 0 else 0.0)
        return burnt[0], burnt[1]


def on_ranks(function: Callable[..., Any], num_ranks: int, *args: Any) -> list[float]:
    """Returns the maximum over the ranks of each number that `function` returns."""
    found = hocket.run_ranks(function, num_ranks, args=args, kind="process")
    rows = [one if isinstance(one, tuple) else (one,) for one in found]
    return [max(column) for column in zip(*rows, strict=True)]


def first_calls(num_ranks: int, rounds: int, imports: float) -> dict[str, list[float]]:
    """Returns the seconds to the first all_reduce: with an empty cache, then with the proof in the cache."""
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    kept = os.environ.get("HOCKET_CACHE")
    try:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as os.environ["HOCKET_CACHE"]:
                for found in times.values():  # the second job finds the cache of the first
                    found += on_ranks(first_call, num_ranks, time.monotonic() + imports * max(1.0, num_ranks / 4))
    finally:
        os.environ.pop("HOCKET_CACHE")
        if kept is not None:
            os.environ["HOCKET_CACHE"] = kept
    return times


def measure(num_ranks: int, count: int, rounds: int, imports: float) -> dict[str, Any]:
    """Returns all numbers for one rank count, in seconds and bytes."""
    one, worst, taken = on_ranks(communicators, num_ranks, count)
    burnt_in_call, burnt_in_message = on_ranks(late, num_ranks)
    return {
        "ranks": num_ranks,
        "first_seconds": first_calls(num_ranks, rounds, imports),
        "communicator": {"median_seconds": one, "worst_seconds": worst, "bytes": taken},
        "staging_bytes": on_ranks(staging, num_ranks)[0],
        "late_cpu_seconds": {"all_reduce": burnt_in_call, "message": burnt_in_message},
    }


COLUMNS = (
    "ranks",
    "first: warm (worst)",
    "cold",
    "communicator (worst)",
    "KiB",
    "staging KiB",
    "late: all_reduce",
    "message",
)


def table_row(words: Iterable[str]) -> str:
    return f"| {' | '.join(words)} |"


def line(found: dict[str, Any]) -> str:
    """Returns one row under COLUMNS; times in milliseconds."""
    warm, cold = found["first_seconds"]["warm"], found["first_seconds"]["cold"]
    one, burnt = found["communicator"], found["late_cpu_seconds"]
    words = (
        f"{found['ranks']}",
        f"{statistics.median(warm) * 1e3:.0f} ({max(warm) * 1e3:.0f})",
        f"{statistics.median(cold) * 1e3:.0f}",
        f"{one['median_seconds'] * 1e3:.2f} ({one['worst_seconds'] * 1e3:.1f})",
        f"{one['bytes'] / 1024:.1f}",
        f"{found['staging_bytes'] / 1024:.0f}",
        f"{burnt['all_reduce'] * 1e3:.1f}",
        f"{burnt['message'] * 1e3:.1f}",
    )
    return table_row(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ranks = listed(whole(1))
    parser.add_argument("--ranks", type=ranks, default="2,4,8,16,32,64", help="numbers of ranks (2,4,8,16,32,64)")
    parser.add_argument("--count", type=whole(1), default=64, help="communicators that are open at once (64)")
    parser.add_argument("--rounds", type=whole(1), default=3, help="jobs that time the start, cold and warm (3)")
    parser.add_argument("--imports", type=time_limit, default=4.0, help="seconds that 4 ranks may take to import (4)")
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write all numbers, in seconds and bytes")
    arguments = parser.parse_args()
    print(f"# {os.cpu_count()} cores; milliseconds, KiB of each rank; {arguments.count} communicators open")
    print(table_row(COLUMNS), table_row("---" for _ in COLUMNS).replace(" ", ""), sep="\n", flush=True)
    rows = []
    for num_ranks in arguments.ranks:
        rows.append(measure(num_ranks, arguments.count, arguments.rounds, arguments.imports))
        print(line(rows[-1]), flush=True)
    if arguments.json:
        found = {"cores": os.cpu_count(), "count": arguments.count, "results": rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
