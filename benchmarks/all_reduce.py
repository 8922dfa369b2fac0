"""all_reduce of Hocket beside torch's Gloo, in one run: seconds per call and, what counts, their ratio.

    python benchmarks/all_reduce.py [--ranks 2] [--sizes 8,1M,64M] [--rounds 5] [--require] [--json FILE]

float32, in place. Each library has its own processes, all alive throughout; they take turns, round by round, and those
that wait sleep. A round measures batches of back-to-back calls; the inputs are rewritten before each batch, and every
result is checked. The time of a batch is that of its slowest rank, of a round the median of its batches. A machine's
speed changes from minute to minute: trust the ratio within a round, and its spread over rounds, more than any time.
Without torch (`pip install torch==2.13.0`) only Hocket is measured.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import secrets
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, os.fspath(Path(__file__).parent))
from arguments import listed, new_file, num_bytes, whole
from load import QUIET, Load

REQUIRED_RATIOS = {8: 100.0, 1 << 20: 8.0, 64 << 20: 4.0}  # Gloo's time over Hocket's, ordinary memory, 2 ranks
BATCHES_PER_ROUND = 5
BATCH_SECONDS = 0.02
FEWEST_CALLS, MOST_CALLS = 3, 20_000
CONTENDERS = {"hocket": ("hocket", "private"), "registered": ("hocket", "registered"), "gloo": ("gloo", "private")}


@dataclass(frozen=True)
class Task:
    """What the parent asks all ranks of one library to measure."""

    memory: str
    num_bytes: int
    num_calls: int
    num_batches: int


@dataclass(frozen=True)
class Member:
    """One rank of one library: how it gets memory, reduces, and waits for the others."""

    empty: Callable[[int, str], tuple[Any, np.ndarray]]  # (number of float32, memory) -> what it takes, its NumPy view
    all_reduce: Callable[[Any], object]
    barrier: Callable[[], object]
    close: Callable[[], object]


def join_hocket(rank: int, size: int, place: str) -> Member:
    import hocket

    communicator = hocket.init(rank, size, address=place)

    def empty(count: int, memory: str) -> tuple[Any, np.ndarray]:
        array = hocket.empty(count, "float32") if memory == "registered" else np.empty(count, np.float32)
        return array, np.asarray(array)

    return Member(empty, communicator.all_reduce, communicator.barrier, communicator.close)


def join_gloo(rank: int, size: int, place: str) -> Member:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=size)

    def empty(count: int, memory: str) -> tuple[Any, np.ndarray]:
        tensor = torch.empty(count, dtype=torch.float32)
        return tensor, tensor.numpy()

    return Member(empty, dist.all_reduce, dist.barrier, dist.destroy_process_group)


def measure(member: Member, rank: int, size: int, task: Task) -> list[float]:
    """Return the seconds per call of each batch on this rank; RuntimeError on a wrong sum."""
    count = task.num_bytes // 4
    taken, array = member.empty(count, task.memory)
    start = (np.arange(count) % 1021 + 1 + rank).astype(np.float32)
    total = size * (np.arange(count) % 1021 + 1) + size * (size - 1) // 2  # small whole numbers: exact in float32
    with np.errstate(over="ignore"):  # in place, each further call multiplies by size; infinity is right, and no slower
        expected = (total * np.float64(size) ** (task.num_calls - 1)).astype(np.float32)
    exact = size & (size - 1) == 0
    seconds = []
    for _ in range(task.num_batches):
        array[:] = start
        member.barrier()
        began = perf_counter()
        for _ in range(task.num_calls):
            member.all_reduce(taken)
        seconds.append((perf_counter() - began) / task.num_calls)
        if not (np.array_equal(array, expected) if exact else np.allclose(array, expected, rtol=1e-3)):
            raise RuntimeError(f"rank {rank}: wrong sum after {task.num_calls} calls of {task.num_bytes} bytes")
    array[:] = start
    member.all_reduce(taken)
    if not np.array_equal(array, total):
        raise RuntimeError(f"rank {rank}: wrong sum of {task.num_bytes} bytes")
    return seconds


def serve(connection: Connection, library: str, rank: int, size: int, place: str) -> None:
    """Be one rank: join, then answer every task until None comes."""
    try:
        member = {"hocket": join_hocket, "gloo": join_gloo}[library](rank, size, place)
        connection.send([])
        while task := connection.recv():
            connection.send(measure(member, rank, size, task))
        member.close()
    except Exception:
        connection.send(traceback.format_exc())


class Group:
    """The processes of one library, waiting for tasks."""

    def __init__(self, library: str, size: int, place: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.library, self.processes, self._connections = library, [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, library, rank, size, place), daemon=True)
            process.start()
            theirs.close()  # so that a rank's end is an EOFError here
            self.processes.append(process)
            self._connections.append(ours)
        self._answers()

    def _answers(self) -> list[list[float]]:
        answers = []
        for rank, connection in enumerate(self._connections):
            try:
                answer = connection.recv()
            except EOFError:
                answer = "its process ended"
            if isinstance(answer, str):
                sys.exit(f"{self.library}, rank {rank}: {answer}")
            answers.append(answer)
        return answers

    def run(self, task: Task) -> float:
        """Return seconds per call: of each batch the slowest rank, of these the median."""
        for connection in self._connections:
            connection.send(task)
        return statistics.median(max(ranks) for ranks in zip(*self._answers(), strict=True))

    def close(self) -> None:
        """Let the ranks end. Where this is not reached, they end with this process: they are daemons."""
        for connection in self._connections:
            connection.send(None)
        for process in self.processes:
            process.join(10)


def compare(groups: dict[str, Group], sizes: Sequence[int], rounds: int) -> dict[int, dict[str, list[float]]]:
    """Return seconds per call by size and contender, one value a round."""
    present = [name for name, (library, _) in CONTENDERS.items() if library in groups]
    results: dict[int, dict[str, list[float]]] = {size: {name: [] for name in present} for size in sizes}

    def run(name: str, size: int, num_calls: int, num_batches: int) -> float:
        library, memory = CONTENDERS[name]
        return groups[library].run(Task(memory, size, num_calls, num_batches))

    for size in sizes:
        once = {name: run(name, size, FEWEST_CALLS, 3) for name in present}
        calls = {name: min(MOST_CALLS, max(FEWEST_CALLS, round(BATCH_SECONDS / once[name]))) for name in present}
        for turn in range(rounds):
            for name in present[turn % len(present) :] + present[: turn % len(present)]:
                results[size][name].append(run(name, size, calls[name], BATCHES_PER_ROUND))
    return results


def ratios(times: dict[str, list[float]], name: str) -> list[float]:
    """Return how many times faster than Gloo `name` was, in each round; empty without Gloo."""
    return [gloo / ours for gloo, ours in zip(times.get("gloo", []), times[name], strict=False)]


def table(results: dict[int, dict[str, list[float]]]) -> str:
    """Return the results as lines for a person."""

    def microseconds(values: list[float] | None) -> str:
        return f"{statistics.median(values) * 1e6:12.2f}" if values else f"{'-':>12}"

    def spread(values: list[float]) -> str:
        text = f"{statistics.median(values):.1f}x ({min(values):.1f}..{max(values):.1f})" if values else "-"
        return f"{text:>24}"

    lines = [
        f"{'bytes':>10}{'hocket us':>12}{'registered':>12}{'gloo us':>12}{'gloo/hocket':>24}{'gloo/registered':>24}"
    ]
    for size, times in results.items():
        columns = [microseconds(times.get(name)) for name in CONTENDERS]
        columns += [spread(ratios(times, name)) for name in ("hocket", "registered")]
        lines.append(f"{size:>10}" + "".join(columns))
    return "\n".join(lines)


def unmet(results: dict[int, dict[str, list[float]]]) -> list[str]:
    """Return what falls short of REQUIRED_RATIOS, or was not measured."""
    short = []
    for size, required in REQUIRED_RATIOS.items():
        found = ratios(results[size], "hocket") if size in results else []
        if not found:
            short.append(f"{size} bytes: expected {required:.0f}x of Gloo, not measured")
        elif statistics.median(found) < required:
            short.append(f"{size} bytes: expected {required:.0f}x of Gloo, found {statistics.median(found):.1f}x")
    return short


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=whole(2), default=2)
    parser.add_argument("--sizes", type=listed(num_bytes), default="8,1M,64M")
    parser.add_argument("--rounds", type=whole(1), default=5)
    parser.add_argument("--require", action="store_true", help="fail unless 100x, 8x, 4x faster than Gloo")
    parser.add_argument("--json", type=new_file, metavar="FILE")
    arguments = parser.parse_args()

    libraries = ["hocket"] + ["gloo"] * (importlib.util.find_spec("torch") is not None)
    print(
        f"# all_reduce, float32, in place, {arguments.ranks} ranks, {os.cpu_count()} cores, {arguments.rounds} rounds"
    )
    if "gloo" not in libraries:
        print("# torch is not installed: Gloo is skipped (pip install torch==2.13.0)")
    with tempfile.TemporaryDirectory() as folder:
        place = {"hocket": f"hocket-benchmark-{secrets.token_hex(8)}", "gloo": f"{folder}/store"}
        groups = {library: Group(library, arguments.ranks, place[library]) for library in libraries}
        load = Load(process.pid for group in groups.values() for process in group.processes)
        results = compare(groups, arguments.sizes, arguments.rounds)
        noise = load.since()
        for group in groups.values():
            group.close()
    print(table(results))
    busy = "" if sum(noise.values()) < QUIET else ": too busy to judge by, repeat it on a quiet machine"
    print(f"# other load {noise['other_load']:.1%} of all cores, stolen by the host {noise['stolen']:.1%}{busy}")
    if arguments.json:
        rows = [
            {"bytes": size, "seconds": times, "ratios": {name: ratios(times, name) for name in times if name != "gloo"}}
            for size, times in results.items()
        ]
        found = {"ranks": arguments.ranks, "noise": noise, "results": rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    short = unmet(results) if arguments.require else []
    for line in short:
        print(f"not reached: {line}", file=sys.stderr)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
