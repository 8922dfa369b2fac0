"""Compares simulated and measured times of collectives on this machine: private memory, more ranks than cores.

python benchmarks/predicted.py [--ranks 2,3,4,6,8] [--seconds 40] [--json FILE]

The machine is modelled as a network: every core is a link that its ranks share, and memory is a link that all cores
share. A message is staged from its rank over the core and memory to a slot, and read from there over the reader's core
and memory; data with many readers is staged once. In addition to the numbers of `hocket tune --measure`, three numbers
are measured: the exchange of two ranks in cache in one all_reduce, and the cost of a message with and without ranks
that take turns on a core. Everything else is predicted.
"""

import argparse
import json
import statistics
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

import numpy as np

from hocket.algorithms import ALGORITHMS
from hocket.network import ShortestPath, SimulationOptions, Topology, simulate
from hocket.network.routing import Supplied
from hocket.runtime.tuning import machine_costs
from hocket.runtime.tuning.timed_ranks import TimedJob, exact_bytes
from hocket.runtime.tuning.tuner import time_algorithms
from hocket.schedule import Repeat, Schedule, find_collective

SIZES = tuple(1 << shift for shift in (16, 18, 20, 22, 24, 26))
JOBS = {
    "all_reduce": ("direct_two_shot", "ring", "halving_doubling"),
    "all_gather": ("direct", "ring"),
    "reduce_scatter": ("direct", "ring"),
    "all_to_all": ("direct", "pairwise"),
}
_EXCHANGED, _SMALL = 1 << 20, 1 << 10  # bytes of the calls that are measured for the profile
_FREE = 1e15  # bytes per second of links that cost nothing


@dataclass(frozen=True)
class Profile:
    """Constants of one machine. core_bytes_per_second: how fast a core stages or reads data in another core's cache.

    memory_bytes_per_second: copies by all cores together in main memory; cached_bytes: up to this size, the data of a
    core stays in its caches; message_seconds: one message if each rank has a core; turn_seconds: one message if ranks
    take turns on a core, for each of these ranks.
    """

    num_cores: int
    core_bytes_per_second: float
    memory_bytes_per_second: float
    cached_bytes: int
    message_seconds: float
    turn_seconds: float


@dataclass(frozen=True)
class Row:
    """The measured and the predicted seconds of one call."""

    collective: str
    algorithm: str
    num_ranks: int
    num_bytes: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Returns the relative error: above 0, the prediction is too slow."""
        return self.predicted / self.measured - 1


def profile(costs: machine_costs.MachineCosts, seconds: float) -> Profile:
    """Measures the constants that `costs` does not have."""
    pair = _measured(
        2, [TimedJob("all_reduce", (_SMALL, _EXCHANGED), ("direct_two_shot",), ("direct_two_shot",) * 2)], seconds
    )
    crowd = 2 * costs.num_cores
    turns = _measured(crowd, [TimedJob("all_gather", (_SMALL,), ("direct",), ("direct",))], seconds)
    small, large = (pair["all_reduce", "direct_two_shot", size] for size in (_SMALL, _EXCHANGED))
    copies = costs.bytes_per_second["copy"]
    return Profile(
        num_cores=costs.num_cores,
        core_bytes_per_second=2 * _EXCHANGED / (large - small),  # each of two steps stages half and reads half
        memory_bytes_per_second=costs.together_bytes_per_second["copy"],
        cached_bytes=max(size for size, rate in copies.items() if rate > max(copies.values()) / 3),
        message_seconds=small / 4,  # two steps, each with a message into a slot and one out of it
        turn_seconds=turns["all_gather", "direct", _SMALL] / crowd / (crowd / costs.num_cores),
    )


def predict(this: Profile, collective: str, algorithm: str, num_ranks: int, num_bytes: int) -> float:
    """Returns the predicted seconds of one of many calls back to back."""
    schedule = staged(ALGORITHMS[collective, algorithm].build(num_ranks))
    crowded = num_ranks > this.num_cores
    each = this.turn_seconds * num_ranks / this.num_cores if crowded else this.message_seconds
    touched = num_ranks * num_bytes * _arrays(collective, num_ranks) / this.num_cores
    network = host(this, num_ranks, cached=touched <= this.cached_bytes)
    return simulate(schedule, network, num_bytes, options=SimulationOptions(receive_seconds=each)).seconds


def _arrays(collective: str, num_ranks: int) -> float:
    """Returns how much a rank touches, relative to its largest array: input plus output, or 1 if they are the same."""
    kind = find_collective(collective)
    lengths = [int(of(num_ranks).max()) for of in (kind.num_input_blocks, kind.num_output_blocks)]
    return 1.0 if collective == "all_reduce" else sum(lengths) / max(lengths)


def host(this: Profile, num_ranks: int, *, cached: bool) -> Topology:
    """Returns the machine as a network: ranks, their slots, and cores and memory, each with a way in and a way out.

    If all data stays in caches, the link of memory costs nothing.
    """
    ranks = [f"rank{rank}" for rank in range(num_ranks)]
    slots = [f"slot{rank}" for rank in range(num_ranks)]
    cores = [f"core{core}" for core in range(this.num_cores)]
    names = [*ranks, *slots, *cores, *(f"{core} done" for core in cores), "memory", "memory done"]
    number = {name: index for index, name in enumerate(names)}
    links = [(core, f"{core} done", this.core_bytes_per_second, "core") for core in cores]
    links += [("memory", "memory done", _FREE if cached else this.memory_bytes_per_second, "memory")]
    links += [(f"{core} done", "memory", _FREE, "core") for core in cores]
    for end in (*ranks, *slots):
        links += [("memory done", end, _FREE, "memory"), *((end, core, _FREE, "core") for core in cores)]

    def way(source: str, target: str, rank: int) -> tuple[str, ...]:
        core = cores[rank % this.num_cores]
        return source, core, f"{core} done", "memory", "memory done", target

    ways = {(rank, slot): way(rank, slot, index) for index, (rank, slot) in enumerate(zip(ranks, slots, strict=True))}
    ways |= {(slot, rank): way(slot, rank, index) for slot in slots for index, rank in enumerate(ranks)}
    source, target, rate, kind = zip(*links, strict=True)
    return Topology(
        name=f"{this.num_cores} cores, {num_ranks} ranks",
        node_kinds=np.array([name.rstrip("0123456789 done") for name in names]),
        names=tuple(names),
        ranks=np.arange(2 * num_ranks),
        link_source=np.array([number[name] for name in source]),
        link_target=np.array([number[name] for name in target]),
        bytes_per_second=np.array(rate),
        seconds=np.zeros(len(rate)),
        link_class=np.array(kind),
        routing=Supplied(ways, ShortestPath()),
    )


def staged(schedule: Schedule) -> Schedule:
    """Returns the schedule with slots: rank p + r is the slot of rank r. Each step stages everything, then reads.

    If a rank's own block goes from its input to its output, it is staged too, because that costs as much. The result
    is always an all_reduce of one vector: only the sends matter.
    """
    p, repeats = schedule.num_ranks, list[Repeat]()
    moves_own = schedule.collective in ("all_gather", "all_to_all")
    for number, step in enumerate(schedule.steps()):
        rows = step.take(step.src != step.dst)
        places = np.stack((rows.src, rows.src_buffer, rows.src_chunk, rows.count))
        sent = rows.take(np.unique(places, axis=1, return_index=True)[1])
        count = np.bincount(sent.src, sent.count, p) + (schedule.chunks_per_block if moves_own and not number else 0)
        ranks = np.flatnonzero(count)
        into = replace(rows.take(np.zeros(len(ranks), np.int64)), count=count[ranks].astype(np.int32))
        repeats += [Repeat(replace(into, src=ranks, dst=ranks + p)), Repeat(replace(rows, src=rows.src + p))]
    whole = schedule.vector_chunks
    return replace(schedule, collective="all_reduce", num_ranks=2 * p, num_chunks=whole, repeats=tuple(repeats))


def compare(counts: list[int], seconds: float) -> tuple[Profile, list[Row]]:
    """Measures every call, for `seconds` per rank count, and predicts it.

    The machine may be faster in one minute than in the next, so its profile is the median of several: one before each
    rank count.
    """
    costs = machine_costs.load() or machine_costs.measure()
    profiles, found = [], {}
    for num_ranks in counts:
        profiles.append(profile(costs, seconds / 10))
        jobs = []
        for collective, names in JOBS.items():
            sizes = tuple(exact_bytes(collective, size, num_ranks) for size in SIZES)
            jobs.append(TimedJob(collective, sizes, names, names[:1] * len(sizes)))
        for (collective, name, size), measured in _measured(num_ranks, jobs, seconds).items():
            found[collective, name, num_ranks, size] = measured
    this = Profile(*(statistics.median_low(of_all) for of_all in zip(*map(astuple, profiles), strict=True)))
    return this, [Row(*call, measured, predict(this, *call)) for call, measured in found.items()]


def _measured(num_ranks: int, jobs: list[TimedJob], seconds: float) -> dict[tuple[str, str, int], float]:
    """Returns the seconds per call: the median over all rounds."""
    found = time_algorithms(num_ranks, jobs, seconds, screen=False)
    return {
        (collective, name, size): statistics.median(rounds)
        for (collective, size), by_name in found.items()
        for name, rounds in by_name.items()
    }


def report(this: Profile, rows: list[Row]) -> None:
    """Prints a line for each call, and the median error by rank count and over all calls."""
    print(f"# {this}")
    print(f"{'collective':>14} {'algorithm':>16} ranks {'bytes':>9} {'measured us':>12} {'predicted us':>12}  error")
    for row in rows:
        times = f"{row.measured * 1e6:>12.1f} {row.predicted * 1e6:>12.1f} {row.error:>+6.0%}"
        print(f"{row.collective:>14} {row.algorithm:>16} {row.num_ranks:>5} {row.num_bytes:>9} {times}")
    for count in sorted({row.num_ranks for row in rows}):
        print(f"# {count} ranks: median error {median_error([row for row in rows if row.num_ranks == count]):.1%}")
    print(f"# median error {median_error(rows):.1%} of {len(rows)} calls")


def median_error(rows: list[Row]) -> float:
    return statistics.median(abs(row.error) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,3,4,6,8")
    parser.add_argument("--seconds", type=float, default=40.0, help="for each rank count")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    this, rows = compare([int(count) for count in arguments.ranks.split(",")], arguments.seconds)
    report(this, rows)
    if arguments.json:
        content = {"profile": asdict(this), "median_error": median_error(rows), "rows": [asdict(row) for row in rows]}
        Path(arguments.json).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
