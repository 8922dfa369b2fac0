"""Measures building, timing and proving of pipeline tables for many ranks: seconds and memory, one process each.

python benchmarks/large_pipelines.py --ranks 1024 --microbatches 4096
"""

import argparse
import itertools
import multiprocessing
import resource
import time

from hocket.training.pipeline import SCHEDULES, build_table, time_table, verify_table


def measure(name: str, num_ranks: int, num_microbatches: int) -> str:
    """Returns a line: rows, seconds to build, time and prove, peak memory of this process, and what was found."""
    seconds = [time.perf_counter()]
    table = build_table(name, num_ranks, num_microbatches)
    seconds.append(time.perf_counter())
    timing = time_table(table, F=1.0, B=1.1, W=0.9, message=0.1)
    seconds.append(time.perf_counter())
    fewest = verify_table(table).fewest_messages
    seconds.append(time.perf_counter())
    build, timed, laws = (after - before for before, after in itertools.pairwise(seconds))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return (
        f"{name:<18}{len(table):>11,}{build:>8.2f} s{timed:>8.2f} s{laws:>8.2f} s{memory:>8.2f} GiB"
        f"{timing.bubble_rate:>9.4f}{fewest.tagged:>8}{'none' if fewest.fifo is None else fewest.fifo:>6}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024, help="ranks of each pipeline (1024)")
    parser.add_argument("--microbatches", type=int, default=4096, help="micro-batches of each pipeline (4096)")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"schedules (all: {', '.join(SCHEDULES)})")
    arguments = parser.parse_args()
    print(
        f"{'schedule':<18}{'rows':>11}{'build':>10}{'time':>10}{'5 laws':>10}{'memory':>12}{'bubble':>9}  tagged  FIFO"
    )
    context = multiprocessing.get_context("spawn")  # a new process for each: memory is that of one table
    for name in arguments.names or SCHEDULES:
        with context.Pool(1) as pool:
            print(pool.apply(measure, (name, arguments.ranks, arguments.microbatches)), flush=True)


if __name__ == "__main__":
    main()
