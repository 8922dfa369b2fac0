"""A rank is killed as it trains: every survivor is told which rank died, in its present call and in the next one.

    python -m tests.training.test_training_faults 50 [SEED]

makes 50 trials of each kind and prints one JSON object: the number of survivors, those that were wrong, and the seconds
from the kill to the exception. Ranks are forked from this process, which has imported everything but started nothing.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

import hocket
from hocket.errors import CommunicationError, PeerDied
from hocket.runtime import new_address
from hocket.training import Coordinator, DataParallel
from hocket.training.buckets.slots import Slots
from tests.runtime.drill import Lines, forked

ROOT = Path(__file__).parents[2]
HANG_SECONDS = 60.0
NAMES = tuple(f"t{number}" for number in range(6))
MAX_STEP = 8  # ranks negotiate in the first three, and replay the later ones

Step = Callable[[int], None]


@dataclass
class Death:
    """One trial. step: in which the victim dies; place: at which of its gradients, tensors or batches."""

    kind: str
    size: int
    victim: int
    step: int
    place: int
    count: int


def die(pipe: int) -> NoReturn:
    os.write(pipe, (json.dumps({"at": time.monotonic()}) + "\n").encode())
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def in_backward(comm: Any, death: Death, pipe: int) -> Step:
    """The victim dies as autograd has completed one of its gradients."""
    network = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in NAMES))
    model = DataParallel(network, comm, buckets=1500)
    now = 0

    def accumulated(_: Any) -> None:
        if (comm.rank, now) == (death.victim, death.step):
            die(pipe)

    network[death.place].weight.register_post_accumulate_grad_hook(accumulated)

    def step(number: int) -> None:
        nonlocal now
        now = number
        model(torch.ones(4, 16)).sum().backward()

    return step


def in_flush(comm: Any, death: Death, pipe: int) -> Step:
    """The victim dies between its flush and its wait; in every other trial it has not flushed."""
    return round_of(comm, death, pipe, Slots)


def in_a_batch(comm: Any, death: Death, pipe: int) -> Step:
    """The victim dies in a collective of a round that it has begun."""

    class Dying(Slots):
        num_launched = 0

        def launch(self, ids: Any, present: Any) -> Any:
            works = super().launch(ids, present)
            self.num_launched += 1
            if comm.rank == death.victim and self.num_launched > death.step * len(NAMES) + death.place:
                die(pipe)
            return works

    return round_of(comm, death, pipe, Dying)


def round_of(comm: Any, death: Death, pipe: int, carrier: Any) -> Step:
    engine = Coordinator(comm, bucket_bytes=1, carrier=carrier)
    arrays = {name: np.zeros(death.count) for name in NAMES}
    for name, array in arrays.items():
        engine.register(name, array)

    def step(number: int) -> None:
        dies = death.kind == "flush" and (comm.rank, number) == (death.victim, death.step)
        for name in NAMES if comm.rank % 2 else reversed(NAMES):
            engine.submit(name)
        if dies and death.place % 2:
            die(pipe)
        work = engine.flush()
        if dies:
            die(pipe)
        work.wait()

    return step


PROGRAMS = {"backward": in_backward, "flush": in_flush, "batch": in_a_batch}


def run_rank(death: Death, rank: int, address: str, pipe: int) -> None:
    """Runs one rank: steps without end, then a line that says how they ended."""
    torch.set_num_threads(1)
    comm = hocket.init(rank, death.size, address=address)

    def step(_: int) -> None:
        comm.barrier()

    told: dict[str, Any] = {}
    numbers = itertools.count()
    try:
        step = PROGRAMS[death.kind](comm, death, pipe)  # another rank may already die in its first step
        for number in numbers:
            step(number)
    except CommunicationError as error:
        told = {"at": time.monotonic(), "error": repr(error), "named": getattr(error, "rank", None)}
        told["is_death"] = isinstance(error, PeerDied)
    try:
        step(next(numbers))
    except PeerDied as again:
        told["again"] = again.rank
    os.write(pipe, (json.dumps(told) + "\n").encode())
    with contextlib.suppress(CommunicationError):
        comm.close()


def run_trial(death: Death) -> tuple[list[Any], list[float]]:
    """Returns what survivors told that were wrong, and the seconds from the kill to the exception of the others."""
    address = new_address()
    with forked(death.size, lambda rank, pipe: run_rank(death, rank, address, pipe)) as (_, pipes):
        deadline = time.monotonic() + HANG_SECONDS
        told = [json.loads(Lines(pipe, deadline).next() or "{}") for pipe in pipes]
    wrong, seconds = [], []
    for rank, one in enumerate(told):
        if rank == death.victim:
            if "at" not in one:
                wrong.append({"death": asdict(death), "rank": rank, "told": one})
        elif not one.get("is_death") or one["named"] != death.victim or one.get("again") != death.victim:
            wrong.append({"death": asdict(death), "rank": rank, "told": one})
        else:
            seconds.append(one["at"] - told[death.victim].get("at", float("nan")))
    return wrong, seconds


def run_trials(num_trials: int, seed: int) -> dict[str, Any]:
    choose = random.Random(seed)
    wrong, seconds = [], []
    for kind in PROGRAMS:
        for _ in range(num_trials):
            size = choose.randint(2, 4)
            death = Death(
                kind,
                size,
                choose.randrange(size),
                choose.randrange(MAX_STEP),
                choose.randrange(len(NAMES)),
                choose.choice((1, 1000, 1 << 18)),
            )
            more_wrong, more_seconds = run_trial(death)
            wrong += more_wrong
            seconds += more_seconds
    seconds.sort()
    return {
        "seed": seed,
        "kills": num_trials * len(PROGRAMS),
        "survivors": len(seconds),
        "wrong": wrong,
        "p50_seconds": seconds[len(seconds) // 2] if seconds else None,
        "max_seconds": seconds[-1] if seconds else None,
    }


def test_survivors_of_a_kill_in_backward_in_flush_and_in_a_batch_name_the_victim() -> None:
    command = [sys.executable, "-m", "tests.training.test_training_faults", "2"]
    it = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert it.stdout, it.stderr
    found = json.loads(it.stdout)
    assert found["wrong"] == [] and found["kills"] == 6 and found["survivors"] >= 6


if __name__ == "__main__":
    result = run_trials(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32))
    print(json.dumps(result))
    sys.exit(1 if result["wrong"] else 0)
