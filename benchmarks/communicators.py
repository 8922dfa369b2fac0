"""What another communicator costs: time to make it, and memory of each rank, private and shared.

python benchmarks/communicators.py --ranks 8 --count 256
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import numpy as np

import hocket
from hocket.runtime import memory


def private_bytes() -> int:
    """Anonymous memory of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def measure(count: int) -> tuple[float, float, float, int]:
    """Median and worst milliseconds for one more, KiB per communicator that this rank takes, and a checksum."""
    with hocket.init() as comm:
        comm.dup().all_reduce(np.ones(1))  # what is made once is not counted
        arena = memory.arena().descriptor
        before = private_bytes() + os.fstat(arena).st_blocks * 512
        parts, milliseconds = [], []
        for _ in range(count):
            started = time.perf_counter()
            parts.append(comm.dup())
            milliseconds.append((time.perf_counter() - started) * 1e3)
        checksum = sum(int(part.all_reduce(np.ones(1))[0]) for part in parts)
        taken = private_bytes() + os.fstat(arena).st_blocks * 512 - before
        return statistics.median(milliseconds), max(milliseconds), taken / count / 1024, checksum


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8, help="ranks of each communicator, as processes (8)")
    parser.add_argument("--count", type=int, default=256, help="communicators that are open at once (256)")
    arguments = parser.parse_args()
    found = hocket.run_ranks(measure, arguments.ranks, args=(arguments.count,), kind="process")
    assert all(checksum == arguments.ranks * arguments.count for *_, checksum in found)
    median, worst, kib = (max(one[i] for one in found) for i in range(3))
    print(f"{arguments.count} communicators of {arguments.ranks} ranks on {os.cpu_count()} cores, each used once:")
    print(f"  one more costs {median:.2f} ms (median; worst {worst:.1f} ms) and {kib:.1f} KiB of each rank")


if __name__ == "__main__":
    main()
