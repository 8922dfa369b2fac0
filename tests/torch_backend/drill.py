"""The drill of exits: ranks end with pending operations, in every way in which programs end.

    python -m tests.torch_backend.drill [--exits 100] [--seed 7]

prints one JSON object: the number of exits of each kind, and the ranks that ended wrongly, for example by SIGABRT, or
not at all. The drill stops at the first rank that does not end, and shows its stacks. Ranks are forked from this
process, which has imported PyTorch but started nothing. They end like programs, through the end of the interpreter.
"""

import argparse
import faulthandler
import json
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import hocket.torch_backend.process_group  # noqa: F401, so that no rank has to

HANG_SECONDS = 120.0  # of a trial; on an idle machine, the longest takes 8
HANGS = "did not end"
KINDS = {  # how a trial ends -> allowed exit statuses of its ranks
    "end": [0],
    "destroy": [0],
    "fork": [0],
    "interrupt": [-signal.SIGINT],
    "exception": [1],
    "finally": [1],
}
OPERATIONS = ("recv", "send", "collective of one", "collective of all", "all of these")
COUNTS = (1, 1 << 14, 1 << 20)


@dataclass
class Trial:
    kind: str
    size: int
    operation: str
    count: int
    with_futures: bool
    guilty: int  # the rank that raises an exception
    num_groups: int  # each has such pending operations


class Become(BaseException):
    """Unwinds a forked process out of all calls of its parent."""

    def __init__(self, trial: Trial, rank: int, folder: str) -> None:
        super().__init__()
        self.trial, self.rank, self.folder = trial, rank, folder

    def live(self) -> None:
        trial, rank = self.trial, self.rank
        log = os.open(f"{self.folder}/log{rank}", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 2)
        faulthandler.register(signal.SIGUSR1, file=2)
        store = dist.FileStore(f"{self.folder}/store", trial.size)
        dist.init_process_group("hocket", store=store, rank=rank, world_size=trial.size)
        groups = [dist.group.WORLD, *(dist.new_group() for _ in range(1, trial.num_groups))]
        works = []
        for group in groups:
            dist.all_reduce(torch.ones(1), group=group)
            works += begun(trial, rank, group)
        futures = [work.get_future().then(lambda done: done) for work in works] if trial.with_futures else []
        Path(f"{self.folder}/begun{rank}").touch()
        if trial.kind == "finally":
            try:
                fail_or_wait(trial, rank)
            finally:
                dist.destroy_process_group()
        elif trial.kind in ("interrupt", "exception"):
            fail_or_wait(trial, rank)
        elif trial.kind == "fork":
            forked()
        elif trial.kind == "destroy":
            dist.destroy_process_group()
        del futures


def fail_or_wait(trial: Trial, rank: int) -> None:
    """Fails, or waits for a message that never comes: from the rank that fails, or from the next rank."""
    if trial.kind != "interrupt" and rank == trial.guilty:
        raise RuntimeError("the program failed")
    src = (rank + 1) % trial.size if trial.kind == "interrupt" else trial.guilty
    dist.recv(torch.ones(1), src, tag=7)


def begun(trial: Trial, rank: int, group: Any) -> list[Any]:
    """Returns pending operations, which a peer answers or not."""
    following, works = (rank + 1) % trial.size, []
    if trial.operation in ("recv", "all of these"):
        works.append(dist.irecv(torch.ones(trial.count), following, group, tag=1))
    if trial.operation in ("send", "all of these"):
        works.append(dist.isend(torch.ones(trial.count), following, group, tag=2))
    if rank == 0 or trial.operation != "collective of one":
        works.append(dist.all_reduce(torch.ones(trial.count), group=group, async_op=True))
    return works


def forked() -> None:
    """Forks a child, in which using the group must raise an error; the parent goes on."""
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except dist.DistBackendError:
            sys.exit(0)
        sys.exit(3)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(4)


def run_trial(trial: Trial, folder: str) -> list[str]:
    """Returns what was wrong with the ends of the ranks."""
    ranks = []
    for rank in range(trial.size):
        process = os.fork()
        if process == 0:
            raise Become(trial, rank, folder)
        ranks.append(process)
    deadline = time.monotonic() + HANG_SECONDS
    if trial.kind == "interrupt":
        while len(list(Path(folder).glob("begun*"))) < trial.size and time.monotonic() < deadline:
            time.sleep(0.01)  # between two checks
        for process in ranks:
            os.kill(process, signal.SIGINT)
    return [found for rank, process in enumerate(ranks) if (found := judged(trial, rank, process, folder, deadline))]


def judged(trial: Trial, rank: int, process: int, folder: str, deadline: float) -> str:
    """Waits for the end of a rank; returns what is wrong with it, or ""."""
    said, code = Path(f"{folder}/log{rank}"), None
    while code is None:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > deadline:
            for number in (signal.SIGUSR1, signal.SIGKILL):  # it shows its stacks, then ends
                os.kill(process, number)
                time.sleep(1)  # it writes its stacks meanwhile
            os.waitpid(process, 0)
            return f"rank {rank} {HANGS}: {said.read_text()[-4000:]}"
        else:
            time.sleep(0.01)  # between two checks
    if code in KINDS[trial.kind] and "terminate called" not in said.read_text():
        return ""
    return f"rank {rank} ended with {code}: {said.read_text()[-2000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exits", type=int, default=100, help="trials (default 100)")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    choose, wrong, exits = random.Random(seed), [], dict.fromkeys(KINDS, 0)
    torch.set_num_threads(1)
    for number in range(arguments.exits):
        kind = list(KINDS)[number % len(KINDS)]
        size = choose.randint(2, 4)
        trial = Trial(
            kind,
            size,
            choose.choice(OPERATIONS),
            choose.choice(COUNTS),
            choose.random() < 0.5,
            choose.randrange(size),
            choose.choice((1, 1, 3)),
        )
        folder = tempfile.mkdtemp(prefix="drill-")  # a forked rank must not remove it
        found = run_trial(trial, folder)
        for left in Path(folder).iterdir():
            left.unlink()
        Path(folder).rmdir()
        exits[kind] += 1
        if found:
            wrong.append({"trial": asdict(trial), "found": found})
            if any(HANGS in one for one in found):
                break
    print(json.dumps({"seed": seed, "exits": exits, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        code = main()
    except Become as rank:
        rank.live()
    else:
        sys.exit(code)
