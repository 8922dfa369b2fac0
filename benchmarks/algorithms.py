"""Compares algorithms for all_reduce, built-in ones and your own: microseconds per call, by size.

    python benchmarks/algorithms.py ring direct my_algo.py:halves [--ranks 4] [--sizes 8,64K,4M] [--rounds 9]

float32, in place, ordinary NumPy memory. The algorithms take turns, round by round, so that other work of the machine
affects all of them. A round's time is that of its slowest rank. The table shows the median of the rounds, the fastest
and the slowest. If the ranges of two algorithms overlap, their difference means nothing.
"""

import argparse
import statistics
from time import perf_counter

import numpy as np
from arguments import listed, num_bytes, whole

import hocket

ROUND_SECONDS = 0.02


def measure(algorithms: list[str], sizes: list[int], rounds: int) -> dict[tuple[int, str], list[float]]:
    """Runs one rank: returns the seconds per call of every round, by size and algorithm."""
    found = {}
    with hocket.init() as comm:
        for size in sizes:
            x = np.zeros(size // 4, np.float32)  # zeros stay zeros, however often they are added up
            num_calls = {}
            for algorithm in algorithms:
                seconds = min(timed(comm, x, algorithm, 3) for _ in range(3))
                num_calls[algorithm] = max(1, round(ROUND_SECONDS / seconds))
                found[size, algorithm] = []
            for _ in range(rounds):
                for algorithm in algorithms:
                    found[size, algorithm].append(timed(comm, x, algorithm, num_calls[algorithm]))
    return found


def timed(comm: hocket.Communicator, x: np.ndarray, algorithm: str, num_calls: int) -> float:
    """Returns the seconds per call of the slowest rank: the same number on all ranks."""
    comm.barrier()
    began = perf_counter()
    for _ in range(num_calls):
        comm.all_reduce(x, algorithm=algorithm)
    seconds = (perf_counter() - began) / num_calls
    return float(comm.all_reduce(np.array([seconds]), op="max")[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("algorithms", nargs="+", metavar="NAME", help="a value of algorithm=, such as ring")
    parser.add_argument("--ranks", type=whole(1), default=4)
    parser.add_argument("--sizes", type=listed(num_bytes), default="8,64K,4M")
    parser.add_argument("--rounds", type=whole(1), default=9)
    arguments = parser.parse_args()
    call = (arguments.algorithms, arguments.sizes, arguments.rounds)
    found = hocket.run_ranks(measure, arguments.ranks, args=call)[0]
    width = max(map(len, arguments.algorithms))
    print(f"{'bytes':>9}  {'algorithm':<{width}}  microseconds (fastest and slowest of {arguments.rounds} rounds)")
    for (size, algorithm), seconds in found.items():
        median, least, most = (1e6 * value for value in (statistics.median(seconds), min(seconds), max(seconds)))
        print(f"{size:>9}  {algorithm:<{width}}  {median:9.1f} ({least:.1f} to {most:.1f})")


if __name__ == "__main__":
    main()
