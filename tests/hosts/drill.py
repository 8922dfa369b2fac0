"""The drill over hosts: what breaks while ranks communicate ends in the right result, or names who is gone.

    python -m tests.hosts.drill [--kills 100] [--deaths 100] [--resets 100] [--links 20] [--stops 100] [--cuts 100]
                                [--strangers 10000] [--meet 64] [--handshakes 1000] [--lab] [--seed 7]

prints a JSON object for each drill: the number of trials, those that went wrong, what was measured, and for each goal
(GOALS) whether it was reached or missed. The exit status is 1 if something went wrong: a result, the name in an error,
or what is left behind. It is 0 if only a goal was missed: times depend on the machine and on what else it does.

Seconds are those from the fault to the exception, of each survivor. `deaths` are of all ranks of a host at once;
`resets` are of connections that carry data, `links` those of a leader; `stops` of a rank last 1 to 5 s; `cuts` are of
the cable of a host, in a lab of three, as root: at the end no process and no socket may be left there. `strangers` come
to the doors of all ranks, in turn with as many that come to a gate of no rank: then the calls in a second count. For
`meet` and `handshakes` see meetings.py. Ranks are on pretended hosts (pretended.py), or, with --lab, on those of a lab.
"""

import argparse
import contextlib
import json
import math
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import hocket
from hocket import _core
from hocket.errors import CollectiveTimeout, PeerDied
from hocket.runtime.network.handshake import Credentials
from tests.hosts import calls, meetings, resets
from tests.hosts.keeper import others
from tests.hosts.lab import Host, Lab
from tests.hosts.namespaces import Unavailable
from tests.hosts.pretended import KEY, Job, Outcome, is_told, mark
from tests.hosts.siege import Siege, other_gate, recorded_at_doors

GOALS: dict[str, dict[str, float]] = {  # what a drill measures -> the largest value that is good
    "kills": {"max_seconds": 0.05},
    "deaths": {"max_seconds": 6.0},
    "links": {"max_seconds": 6.0},
    "cuts": {"max_seconds": 6.0, "left": 0},
    "stops": {"false_deaths": 0},
    "strangers": {"lost_throughput": 0.05, "kept_seconds": 5.0},
    "meet": {"init_seconds": 3.0},
    "handshakes": {"seconds": 1.0},
}
LAYOUT, LAYOUT_OF_CUTS = (0, 0, 1, 1), (0, 0, 1, 1, 2, 2)
COUNTS = (8, 8192, 524_288)  # of int64: 64 B, 64 KiB, 4 MiB
CALL_SECONDS = 20.0
NUM_TURNS = 1_000_000
IDLE_CALL = 3
NUM_WINDOWS, STRANGERS_A_SECOND = 20, 1000.0
END_SECONDS = 60.0  # after this time, what is left of a job stays


@dataclass
class Trial:
    fault: str
    kind: str
    count: int
    victims: list[int]
    delay_seconds: float
    stop_seconds: float = 0.0
    layout: tuple[int, ...] = LAYOUT

    def may_be_named(self, rank: int) -> set[int]:
        """Return the ranks of which one is to be named on this rank."""
        if self.fault in ("kills", "deaths"):
            return set(self.victims)
        if self.fault == "cuts":  # on both sides the ranks of the other
            return {one for one in range(len(self.layout)) if (one in self.victims) != (rank in self.victims)}
        return set(range(len(self.layout)))  # two ends of a broken way name each other


@dataclass
class Result:
    trials: int = 0
    wrong: list[Any] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        found = sorted(self.seconds)
        shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        times = {f"{name}_seconds": found[int(share * (len(found) - 1))] for name, share in shares.items() if found}
        return {"trials": self.trials, "survivors": len(found), "wrong": self.wrong, **times, **self.counts}


def plan(fault: str, number: int, choose: random.Random) -> Trial:
    """Return trial `number` of this fault: kinds and sizes come in turn, all else by chance."""
    kind = calls.KINDS[number % len(calls.KINDS)]
    count = COUNTS[number // len(calls.KINDS) % len(COUNTS)]
    if fault == "cuts":
        host = choose.randrange(1 + max(LAYOUT_OF_CUTS))
        victims = [rank for rank, number in enumerate(LAYOUT_OF_CUTS) if number == host]
        kind, count = choose.choice(calls.KINDS), choose.choice(COUNTS)
        return Trial(fault, kind, count, victims, choose.uniform(0, 0.05), layout=LAYOUT_OF_CUTS)
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
        if not named or not named <= trial.may_be_named(rank) or " on host " not in str(error):
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


def run_cut(trial: Trial, result: Result, lab: Lab) -> None:
    """Cut the cable of a host; when all ranks have ended, put it in again, and look at what is left on the hosts."""
    host = lab.hosts[trial.layout[trial.victims[0]]]
    with Job(until_failure(trial), trial.layout, lab=lab) as job:
        job.await_mark(1)
        time.sleep(trial.delay_seconds)  # the moment is random
        at = time.monotonic()
        lab.cut(host)
        try:
            outcomes = job.outcomes()
        finally:
            lab.mend(host)  # what was still to be sent can go now, and the socket with it
    judge(trial, outcomes, at, result)
    deadline = time.monotonic() + END_SECONDS
    while (left := left_on(lab.hosts)) and time.monotonic() < deadline:
        time.sleep(0.2)  # between two looks
    result.counts["left"] += len(left)
    if left:
        result.wrong.append({"trial": asdict(trial), "left": left})


def left_on(hosts: Sequence[Host]) -> list[str]:
    """Return the processes and the TCP sockets on these hosts; of a connection in TIME-WAIT there is no socket."""
    found = [f"process {process} on {host.name}" for host in hosts for process in others(host.keeper)]
    for host in hosts:
        sockets = host.run(["ss", "-Htan", "exclude", "time-wait"]).stdout.splitlines()
        found += [f"on {host.name}: {' '.join(line.split())}" for line in sockets]
    return found


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
                result.counts["false_deaths"] += any(isinstance(one.error, PeerDied) for one in outcomes)
                if any(one.error is not None or one.signal or not one.value for one in outcomes):
                    result.wrong.append({"trial": asdict(trial), "outcomes": repr(outcomes)})


def run_strangers(number: int) -> dict[str, Any]:
    """Count calls while strangers come to the doors of all ranks, and while they come to a gate of no rank.

    kept_seconds: from the end of the last strangers until no rank has more descriptors open than before them.
    """
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

    def more_than_before() -> dict[int, int]:
        found = enumerate(zip(job.num_descriptors(), before, strict=True))
        return {rank: now - then for rank, (now, then) in found if now > then}

    with other_gate() as foreign, Job(program, LAYOUT, limit=600.0) as job:
        job.await_mark(100)
        name, places = json.loads(os.read(told, 4096))
        doors = [(host, port) for host, port in places]
        answers = recorded_at_doors(Credentials(bytes.fromhex(KEY), name, len(doors), _core.LAYOUT))
        before = job.num_descriptors()
        pairs = [(calls_a_second(job, [foreign] * len(doors)), calls_a_second(job, doors)) for _ in range(NUM_WINDOWS)]
        gone_at = time.monotonic()
        while (more := more_than_before()) and time.monotonic() < gone_at + END_SECONDS:
            time.sleep(0.01)  # between two looks
        kept_seconds = time.monotonic() - gone_at
        job.tell()
        outcomes = job.outcomes()
    wrong = [repr(one) for one in outcomes if one.error is not None or one.signal]
    wrong += [f"more descriptors are open than before, by rank: {more}"] if more else []
    ratios = sorted(at_doors / elsewhere for elsewhere, at_doors in pairs)
    lost = 1.0 - ratios[len(ratios) // 2]
    measured = {"lost_throughput": lost, "kept_seconds": kept_seconds, "calls_a_second_elsewhere_and_here": pairs}
    return {"strangers": number, "wrong": wrong, **measured}


def run_faults(fault: str, number: int, choose: random.Random, lab: Lab | None, at_once: int) -> dict[str, Any]:
    """Make so many trials, on the hosts of the lab if there is one; return what was found."""
    result, trials = Result(), [plan(fault, one, choose) for one in range(number)]
    if fault == "stops":
        for first in range(0, number, at_once):
            run_stops(trials[first : first + at_once], result, lab)
    elif fault == "cuts":
        with Lab(1 + max(LAYOUT_OF_CUTS)) as lab_of_cuts:
            for trial in trials:
                run_cut(trial, result, lab_of_cuts)
    else:
        for trial in trials:
            run_fault(trial, result, lab)
    return result.summary()


def judged(drill: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return what a drill has found, with its goals. What could not be measured is missed."""
    goals = {"wrong: none": not found["wrong"]}
    for name, most in GOALS.get(drill, {}).items():
        goals[f"{name} <= {most:g}"] = found.get(name, math.inf) <= most
    return {"drill": drill, **found, "goals": {goal: "reached" if is_so else "missed" for goal, is_so in goals.items()}}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    faults = ("kills", "deaths", "resets", "links", "stops", "cuts")
    for fault in faults:
        parser.add_argument(f"--{fault}", type=int, default=0, help="trials")
    parser.add_argument("--strangers", type=int, default=0, help="connections")
    parser.add_argument("--meet", type=int, default=0, help="ranks")
    parser.add_argument("--handshakes", type=int, default=0, help="connections")
    parser.add_argument("--at-once", type=int, default=6, help="jobs in which ranks are stopped at the same time")
    parser.add_argument("--lab", action="store_true", help="on hosts of a lab, as root")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args(words)
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    choose = random.Random(seed)
    print(json.dumps({"seed": seed, "load": os.getloadavg()}), flush=True)
    others_by_name = {"meet": meetings.meet, "handshakes": meetings.shake_hands, "strangers": run_strangers}
    is_right = True
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab(2)) if arguments.lab else None
        for drill in (*others_by_name, *faults):
            if number := getattr(arguments, drill):
                run = others_by_name.get(drill)
                found = run(number) if run else run_faults(drill, number, choose, lab, arguments.at_once)
                print(json.dumps(judged(drill, found)), flush=True)
                is_right &= not found["wrong"]
    return 0 if is_right else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as reason:
        sys.exit(f"no hosts: {reason}")
