"""Measures simulations of very many ranks: CPU seconds and memory. Each runs in its own process, on one core.

python benchmarks/simulator.py

The goals: max-min fair rates of 131,072 flows on a fat tree < 1 s; halving and doubling of 131,072 ranks on that tree
< 15 s, a ring < 5 s; 1,024 ranks with any algorithm < 2 s; less than 4 GB; the worst cut of 128 H100 < 2 s; a ring of
1,024 ranks < 1 s, whose 8 million pieces contend because neighbours are on different switches.
The table shows the time to build the schedule and the network separately. Each process builds its network once.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from hocket.algorithms import ALGORITHMS
from hocket.network import Topology, parse, simulate
from hocket.network.bounds.network_bound import gathering_bytes_per_second
from hocket.network.simulation.max_min import max_min

NUM_BYTES = 64 << 20
MOST_SECONDS = 60
MANY, SOME = "fat-tree:131072", "fat-tree:1024"
NARROW = "fat-tree:1024,radix=64,oversubscription=16"
FLOWS = {
    "each to its neighbour's": lambda rank: rank ^ 1,
    "each to the next": lambda rank: (rank + 1) % len(rank),
    "a random permutation": lambda rank: np.random.default_rng(0).permutation(rank),
}


def seconds_of(what: Callable[[], object]) -> float:
    """Returns the CPU seconds that a call takes."""
    started = time.process_time()
    what()
    return time.process_time() - started


def share_links(topology: Topology, pattern: str) -> dict[str, float]:
    """Returns the seconds to find the paths of one flow from each rank, and to compute the rates of the flows."""
    rank = np.arange(topology.num_ranks)
    began = time.process_time()
    paths = topology.paths(rank, FLOWS[pattern](rank))
    ways = time.process_time() - began
    solved = seconds_of(lambda: max_min(topology.bytes_per_second, paths.offsets, paths.links))
    return {"build": ways, "simulate": solved}


def transposed(topology: Topology) -> Topology:
    """Returns the same network with each rank under another switch than the rank before it."""
    side = math.isqrt(topology.num_ranks)
    return topology.place(np.arange(topology.num_ranks).reshape(side, side).T.ravel().tolist())


def simulated(topology: Topology, collective: str, name: str, num_bytes: float = NUM_BYTES) -> dict[str, float]:
    """Simulates one call, or a barrier; returns the CPU seconds and the result."""
    began = time.process_time()
    schedule = ALGORITHMS[collective, name].build(topology.num_ranks)
    built = time.process_time() - began
    began = time.process_time()
    result = simulate(schedule, topology, num_bytes if schedule.kind.exactly_once else 1)
    took = time.process_time() - began
    return {"build": built, "simulate": took, "seconds": result.seconds, "ratio": result.ratio}


def measure(kind: str, what: list[str]) -> dict[str, float]:
    """Measures one line of the table in this process."""
    began = time.process_time()
    topology = parse(kind)
    made = time.process_time() - began
    if what == ["worst cut"]:
        found = {"simulate": seconds_of(lambda: gathering_bytes_per_second(topology))}
    elif what == ["transposed ring"]:
        found = simulated(transposed(topology), "all_reduce", "ring", 16 * NUM_BYTES)
    else:
        found = share_links(topology, *what) if len(what) == 1 else simulated(topology, *what)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"topology": made, "memory": memory, **found}


def line(kind: str, what: list[str], limit: float) -> bool:
    """Measures one line in a new process on one core, and prints it; returns whether it reaches its goal."""
    command = [sys.executable, __file__, "--only", kind, *what]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    title = f"{f'{kind:<15} ' + ' '.join(what):<60}"
    if child.returncode:
        print(title, child.stderr.strip().rpartition("\n")[2] or f"more than {MOST_SECONDS} s")
        return False
    found = json.loads(child.stdout)
    kept = found["simulate"] < limit and found["memory"] < 4e9
    result = f"{found['seconds'] * 1e3:>10.3f} ms{found['ratio']:>8.2f}" if "seconds" in found else ""
    print(
        f"{title}{found['topology']:>8.2f} s{found.get('build', 0):>8.2f} s{found['simulate']:>9.2f} s"
        f"{limit:>6.0f} s{found['memory'] / 1e9:>8.2f} GB  {'' if kept else 'TOO MUCH':<8}{result}",
        flush=True,
    )
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="WHAT", help="measure one line; print JSON")
    arguments = parser.parse_args()
    if arguments.only:
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
        print(json.dumps(measure(arguments.only[0], arguments.only[1:])))
        return
    print(f"{'':<60}{'network':>10}{'build':>10}{'simulate':>11}{'goal':>8}{'memory':>11}{'simulated':>21}{'ratio':>8}")
    kept = [line(MANY, [pattern], 1) for pattern in FLOWS]
    kept += [line(MANY, ["all_reduce", "halving_doubling"], 15), line(MANY, ["all_reduce", "ring"], 5)]
    kept.append(line("dgx-h100:16", ["worst cut"], 2))
    kept.append(line(NARROW, ["transposed ring"], 1))
    num_ranks = int(SOME.partition(":")[2])
    kept += [line(SOME, list(key), 2) for key, one in ALGORITHMS.items() if one.allows(num_ranks)]
    print(f"{sum(kept)} of {len(kept)} lines reach their goals")
    sys.exit(not all(kept))


if __name__ == "__main__":
    main()
