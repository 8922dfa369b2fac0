"""The drill over hosts: what breaks while ranks communicate ends in the right result, or names who is gone.

    python -m tests.hosts.drill [--kills 100] [--deaths 100] [--resets 100] [--links 20] [--stops 100]
                                [--strangers 10000] [--lab] [--seed 7]

prints one JSON object: for each kind of fault the number of trials, those that went wrong, and seconds from the fault
to the exception, of each survivor. `deaths` are of all ranks of a host at once; `resets` are of connections that carry
data, `links` those of a leader; `stops` of a rank last 1 to 5 s; `strangers` come to the doors of all ranks, in turn
with as many that come to a gate of no rank: then the calls in a second count. Ranks are on pretended hosts
(pretended.py), or, with --lab, on those of a lab, as root.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import hocket
from hocket import _core
from hocket.errors import CollectiveTimeout, PeerDied
from hocket.runtime.network.handshake import Credentials
from tests.hosts import calls, resets
from tests.hosts.lab import Lab
from tests.hosts.pretended import KEY, Job, Outcome, is_told, mark
from tests.hosts.siege import Siege, other_gate, recorded_at_doors

LAYOUT = (0, 0, 1, 1)
COUNTS = (8, 8192, 524_288)  # of int64: 64 B, 64 KiB, 4 MiB
CALL_SECONDS = 20.0
NUM_TURNS = 1_000_000
IDLE_CALL = 3
NUM_WINDOWS, STRANGERS_A_SECOND = 20, 1000.0


@dataclass
class Trial:
    fault: str
    kind: str
    count: int
    victims: list[int]
    delay_seconds: float
    stop_seconds: float = 0.0


@dataclass
class Result:
    trials: int = 0
    wrong: list[Any] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        found = sorted(self.seconds)
        shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        times = {f"{name}_seconds": found[int(share * (len(found) - 1))] for name, share in shares.items() if found}
        return {"trials": self.trials, "survivors": len(found), "wrong": self.wrong, **times}


def plan(fault: str, number: int, choose: random.Random) -> Trial:
    """Return trial `number` of this fault: kinds and sizes come in turn, all else by chance."""
    kind = calls.KINDS[number % len(calls.KINDS)]
    count = COUNTS[number // len(calls.KINDS) % len(COUNTS)]
    victims = {
        "deaths": [0, 1] if number % 4 == 0 else [2, 3],
        "resets": [choose.choice((0, 2))],  # leaders, which have connections in every algorithm
        "links": [2],
        "kills": [number % len(LAYOUT)],
    }.get(fault, [choose.randrange(len(LAYOUT))])
    return Trial(fault, kind, count, victims, choose.uniform(0, 0.05), choose.uniform(1, 5))


def until_failure(trial: Trial) -> Callable[[hocket.Communicator], Any]:
    """Return what a rank runs: calls without end."""

    def program(comm: hocket.Communicator) -> Any:
        calls.check(comm, trial.kind, trial.count, 0)
        comm.barrier()
        mark(comm, 1)
        if comm.rank in trial.victims and trial.fault in ("resets", "links"):
            break_ways = resets.reset_data if trial.fault == "resets" else resets.reset_link
            threading.Timer(trial.delay_seconds, break_ways, [comm]).start()
        begun = time.monotonic()
        try:
            for turn in range(1, NUM_TURNS):
                calls.check(comm, trial.kind, trial.count, turn, timeout=CALL_SECONDS)
                comm.barrier(timeout=CALL_SECONDS)
        except (PeerDied, CollectiveTimeout) as error:
            return error, time.monotonic(), begun + trial.delay_seconds

    return program


def idle(comm: hocket.Communicator) -> Any:
    """What a rank runs that is killed, or stopped, while all wait."""
    x = np.ones(8)
    for _ in range(IDLE_CALL):
        comm.all_reduce(x, op="max")
    mark(comm, 1)
    try:
        comm.recv(x, (comm.rank + 1) % comm.size, timeout=CALL_SECONDS)  # which sends nothing
    except (PeerDied, CollectiveTimeout) as error:
        return error, time.monotonic(), None


def judge(trial: Trial, outcomes: Sequence[Outcome], at: float | None, result: Result) -> None:
    """Note what was wrong with the survivors."""
    result.trials += 1
    is_death = trial.fault in ("kills", "deaths")
    for rank, one in enumerate(outcomes):
        if is_death and rank in trial.victims:
            continue
        if one.error is not None or one.signal or not isinstance(one.value, tuple):
            result.wrong.append({"trial": asdict(trial), "rank": rank, "outcome": repr(one)})
            continue
        error, raised_at, broken_at = one.value
        named = {error.rank} if isinstance(error, PeerDied) else set(error.missing)
        # Two ends of a broken way name each other.
        right = set(trial.victims) if is_death else set(range(len(LAYOUT)))
        if not named or not named <= right or " on host " not in str(error):
            result.wrong.append({"trial": asdict(trial), "rank": rank, "outcome": repr(error)})
        result.seconds.append(raised_at - (at or broken_at))


def run_fault(trial: Trial, result: Result, lab: Lab | None) -> None:
    program = idle if trial.fault == "kills" else until_failure(trial)
    with Job(program, LAYOUT, lab=lab) as job:
        job.await_mark(1)
        at = None
        if trial.fault in ("kills", "deaths"):
            seconds = 0.1 if trial.fault == "kills" else trial.delay_seconds
            time.sleep(seconds)  # until all sleep; or the moment is random
            at = job.kill(*trial.victims)
        judge(trial, job.outcomes(), at, result)


def run_stops(trials: Sequence[Trial], result: Result, lab: Lab | None) -> None:
    """Stop a rank of each of several jobs at once; nobody may die of it, and results stay right."""

    def program(comm: hocket.Communicator) -> int:
        x = np.ones(1000)
        mark(comm, 1)
        turn = 0
        while comm.all_reduce(np.array([time.monotonic() < ends_at]), op="min")[0]:
            x[:] = comm.rank + turn
            comm.all_reduce(x)
            assert (x == sum(range(comm.size)) + comm.size * turn).all()
            turn += 1
            if turn % 2 and idles:
                time.sleep(0.01)  # others wait for it, or compute
        return turn

    for idles in (False, True):
        some = trials[idles::2]
        ends_at = time.monotonic() + 9.0
        with contextlib.ExitStack() as stack:
            jobs = [stack.enter_context(Job(program, LAYOUT, lab=lab)) for _ in some]
            for job in jobs:
                job.await_mark(1)
            for trial, job in zip(some, jobs, strict=True):
                job.kill(*trial.victims, by=signal.SIGSTOP)

            def go_on(pair: tuple[Trial, Job]) -> None:
                time.sleep(pair[0].stop_seconds)  # it is stopped so long
                pair[1].kill(*pair[0].victims, by=signal.SIGCONT)

            with ThreadPoolExecutor(max(len(some), 1)) as pool:
                list(pool.map(go_on, zip(some, jobs, strict=True)))
            for trial, job in zip(some, jobs, strict=True):
                result.trials += 1
                outcomes = job.outcomes()
                if any(one.error is not None or one.signal or not one.value for one in outcomes):
                    result.wrong.append({"trial": asdict(trial), "outcomes": repr(outcomes)})


def run_strangers(number: int) -> dict[str, Any]:
    """Count calls while strangers come to the doors of all ranks, and while they come to a gate of no rank."""
    told, tells = os.pipe()

    def program(comm: hocket.Communicator) -> int:
        door = comm.context._door
        assert door is not None
        doors = comm.all_gather_object(door.addresses[0])
        if comm.rank == 0:
            os.write(tells, json.dumps([door._job.name, doors]).encode())
        x, turn, goes_on = np.empty(10_000), 0, True
        while goes_on:
            x[:] = comm.rank + turn
            comm.all_reduce(x)
            assert (x == sum(range(comm.size)) + comm.size * turn).all()
            turn += 1
            mark(comm, turn)
            if turn % 50 == 0:
                goes_on = comm.all_reduce(np.array([not is_told()]), op="min")[0] != 0
        return turn

    def calls_a_second(job: Job, addresses: Sequence[tuple[str, int]]) -> float:
        before, begun = job.marks()[0], time.monotonic()
        with Siege(addresses, answers, most=number // NUM_WINDOWS, rate=STRANGERS_A_SECOND) as siege:
            siege.wait()
        return (job.marks()[0] - before) / (time.monotonic() - begun)

    with other_gate() as foreign, Job(program, LAYOUT, limit=600.0) as job:
        job.await_mark(100)
        name, places = json.loads(os.read(told, 4096))
        doors = [(host, port) for host, port in places]
        answers = recorded_at_doors(Credentials(bytes.fromhex(KEY), name, len(doors), _core.LAYOUT))
        pairs = [(calls_a_second(job, doors), calls_a_second(job, [foreign] * len(doors))) for _ in range(NUM_WINDOWS)]
        job.tell()
        outcomes = job.outcomes()
    wrong = [repr(one) for one in outcomes if one.error is not None or one.signal]
    ratios = sorted(at_doors / elsewhere for at_doors, elsewhere in pairs)
    return {"strangers": number, "wrong": wrong, "median_ratio": ratios[len(ratios) // 2], "calls_a_second": pairs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    faults = ("kills", "deaths", "resets", "links", "stops")
    for fault in faults:
        parser.add_argument(f"--{fault}", type=int, default=0, help="trials")
    parser.add_argument("--strangers", type=int, default=0, help="connections")
    parser.add_argument("--at-once", type=int, default=6, help="jobs in which ranks are stopped at the same time")
    parser.add_argument("--lab", action="store_true", help="on hosts of a lab, as root")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    choose = random.Random(seed)
    found: dict[str, Any] = {"seed": seed, "load": os.getloadavg()}
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab(2)) if arguments.lab else None
        results = {fault: Result() for fault in faults if getattr(arguments, fault)}
        for fault, result in results.items():
            trials = [plan(fault, number, choose) for number in range(getattr(arguments, fault))]
            if fault == "stops":
                for first in range(0, len(trials), arguments.at_once):
                    run_stops(trials[first : first + arguments.at_once], result, lab)
                continue
            for trial in trials:
                run_fault(trial, result, lab)
    found |= {fault: result.summary() for fault, result in results.items()}
    if arguments.strangers:
        found["strangers"] = run_strangers(arguments.strangers)
    print(json.dumps(found))
    return 1 if any(one["wrong"] for one in found.values() if isinstance(one, dict)) else 0


if __name__ == "__main__":
    sys.exit(main())
