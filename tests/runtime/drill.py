"""The drill: ranks are killed inside all_reduce or broadcast, and every survivor must name a victim within a second.

    python -m tests.runtime.drill --kills 100 [--victims 2] [--seed 7]

prints one JSON object: the number of survivors, those that were wrong or late, and their times from the kill to the
exception. Ranks are forked from this process, which has imported everything but started nothing, so a trial takes
little longer than the death itself. Times are of CLOCK_MONOTONIC, which all processes of a machine share.
"""

import argparse
import contextlib
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import hocket
from hocket.errors import CommunicationError, PeerDied
from hocket.runtime import new_address

LIMIT_SECONDS = 1.0
HANG_SECONDS = 60.0
COUNTS = (1, 8, 1000, 1 << 15, 1 << 18, 1 << 21)  # float64: 8 B to 16 MiB
ALGORITHMS = (None, "ring", "direct", "direct_two_shot", "halving_doubling")


@dataclass
class Trial:
    number: int
    size: int
    count: int
    collective: str
    algorithm: str | None
    registered: bool
    victims: list[int]
    delay_seconds: float


@dataclass
class Result:
    seed: int
    kills: int = 0
    survivors: int = 0
    wrong: list[Any] = field(default_factory=list)  # survivors that named no rank, a living rank, or were late
    seconds: list[float] = field(default_factory=list)  # from the kill to the exception, of each survivor

    def summary(self) -> dict[str, Any]:
        found = sorted(self.seconds)
        return {
            **{name: value for name, value in asdict(self).items() if name != "seconds"},
            "p50_seconds": found[len(found) // 2] if found else None,
            "p99_seconds": found[len(found) * 99 // 100] if found else None,
            "max_seconds": found[-1] if found else None,
        }


def plan(number: int, num_victims: int, choose: random.Random) -> Trial:
    size = choose.randint(num_victims + 1, 4)
    collective = choose.choice(("all_reduce", "broadcast"))
    return Trial(
        number,
        size,
        choose.choice(COUNTS),
        collective,
        choose.choice(ALGORITHMS) if collective == "all_reduce" else None,
        choose.random() < 0.5,
        choose.sample(range(size), num_victims),
        choose.uniform(0, 0.03),
    )


def run_rank(trial: Trial, rank: int, address: str, pipe: int) -> None:
    """Runs one rank: calls without end, then a line that says how it ended."""
    comm = hocket.init(rank, trial.size, address=address)
    x = (hocket.empty if trial.registered else np.empty)(trial.count, "float64")
    total = trial.size * (trial.size + 1) / 2 if trial.collective == "all_reduce" else 1
    told: dict[str, Any] = {"rank": rank}
    turn = 0
    try:
        comm.barrier()
        while True:
            x[:] = rank + 1
            getattr(comm, trial.collective)(x, algorithm=trial.algorithm, timeout=HANG_SECONDS)
            if x[0] != total or x[-1] != total:
                told["error"] = f"wrong result {x[0]} {x[-1]}"
                break
            if turn == 0:
                os.write(pipe, b"started\n")
            turn += 1
    except CommunicationError as error:
        told["at"] = time.monotonic()
        told["error"] = type(error).__name__
        told["named"] = error.rank if isinstance(error, PeerDied) else str(error)
        try:
            comm.barrier()
        except PeerDied as again:
            told["again"] = again.rank
        comm.close()
    os.write(pipe, (json.dumps(told) + "\n").encode())


@contextlib.contextmanager
def forked(size: int, run: Callable[[int, int], None]) -> Iterator[tuple[list[int], list[int]]]:
    """Forks ranks, which call run(rank, pipe); gives processes and pipes, and kills what is left at the end."""
    processes: list[int] = []
    pipes: list[int] = []
    try:
        for rank in range(size):
            ours, theirs = os.pipe()
            process = os.fork()
            if process == 0:
                try:
                    run(rank, theirs)
                except BaseException as error:
                    os.write(theirs, (json.dumps({"rank": rank, "error": repr(error), "named": None}) + "\n").encode())
                finally:
                    os._exit(0)
            os.close(theirs)
            processes.append(process)
            pipes.append(ours)
        yield processes, pipes
    finally:
        for process in processes:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        for pipe in pipes:
            os.close(pipe)


def run_trial(trial: Trial, result: Result) -> None:
    address = new_address()
    with forked(trial.size, lambda rank, pipe: run_rank(trial, rank, address, pipe)) as (processes, pipes):
        deadline = time.monotonic() + HANG_SECONDS
        lines = [Lines(pipe, deadline) for pipe in pipes]
        for one in lines:
            one.next()
        time.sleep(trial.delay_seconds)  # the moment of the kill is random
        killed = time.monotonic()
        for victim in trial.victims:
            os.kill(processes[victim], signal.SIGKILL)
        for rank, one in enumerate(lines):
            if rank in trial.victims:
                continue
            result.survivors += 1
            told = json.loads(one.next() or "{}")
            seconds = told.get("at", float("inf")) - killed
            named = told.get("named")
            if named not in trial.victims or told.get("again") != named or seconds > LIMIT_SECONDS:
                result.wrong.append({"trial": asdict(trial), "told": told, "seconds": seconds})
            else:
                result.seconds.append(seconds)
    result.kills += len(trial.victims)


class Lines:
    """Reads lines from a pipe; returns "" at its end, or after the deadline."""

    def __init__(self, pipe: int, deadline: float) -> None:
        self.pipe, self.deadline, self.rest = pipe, deadline, b""

    def next(self) -> str:
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.pipe], [], [], max(0.0, self.deadline - time.monotonic()))
            data = os.read(self.pipe, 1 << 16) if ready else b""
            if not data:
                return ""
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=int(os.environ.get("KILLS", "20")), help="trials")
    parser.add_argument("--victims", type=int, default=1, help="ranks that are killed at the same time")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    choose, result = random.Random(seed), Result(seed)
    for number in range(arguments.kills):
        run_trial(plan(number, arguments.victims, choose), result)
    print(json.dumps(result.summary()))
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
