"""Measures pipelines: steps beside what their tables promise, and the messages of torch.distributed.

    .venv/bin/python benchmarks/pipeline.py [--rounds 9] [--parts makespan,messages] [--json]

makespan: a step of each schedule on 4 ranks over paced links (hocket.testing.paced_link). Stages compute almost nothing
    and sleep in forward and backward, so more ranks than cores keep their times. A figure is the wall time of a step
    over the makespan of the table, timed with the sleeps and the time of one message over the link. An operation takes
    about 1 ms more than it sleeps. Below 1: in an overlapped pair the result of F leaves before the pair ends.
messages: between 2 ranks, dist.send and dist.recv of 8 bytes (half of to and fro) beside dist.all_reduce of 8 bytes;
    and dist.batch_isend_irecv of 8 messages of 64 KiB, beside Gloo.

Times are those of the slowest rank, and medians over rounds.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from arguments import listed, one_of, whole
from rounds import Figures, Goals, measured, show
from torch import nn

import hocket
from hocket.testing import paced_link
from hocket.training.pipeline import SCHEDULES, PipelineTable, Runner, build_table, time_table

PARTS = ("makespan", "messages")
NUM_STAGE_RANKS, NUM_MICROBATCHES = 4, 8
SLEEPS = {"F": 0.040, "B": 0.048, "W": 0.032}  # seconds of a stage
LINK_BYTES_PER_SECOND, LATENCY_SECONDS = 125e6, 50e-6
ROWS, WIDTH = 64, 1024  # of what a micro-batch hands on: 256 KiB, 2 ms on the link
NUM_MESSAGES, MESSAGE_ELEMENTS = 8, 16 * 1024
GOALS: Goals = {
    **{("makespan", f"{name}: over the table"): ("<=", 1.05) for name in SCHEDULES},
    ("messages", "send and recv of 8 B over all_reduce of 8 B"): ("<=", 2.0),
    ("messages", "8 x 64 KiB one way: Gloo over this"): (">=", 10.0),
    ("messages", "8 x 64 KiB both ways: Gloo over this"): (">=", 10.0),
}


class Sleeping(torch.autograd.Function):
    """Returns its argument; sleeps for some seconds in forward, and for others in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, before: float, after: float) -> torch.Tensor:
        """Sleeps `before` seconds."""
        ctx.seconds = after
        time.sleep(before)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        """Sleeps `after` seconds."""
        time.sleep(ctx.seconds)
        return gradient, None, None


class Stage(nn.Module):
    """Sleeps as long as a real stage computes: B on the way to the input, W on the way to the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the input times 1."""
        if not x.requires_grad:  # the first stage has a B, too
            x = x.clone().requires_grad_()
        x = Sleeping.apply(x, SLEEPS["F"], SLEEPS["B"])
        return x * Sleeping.apply(self.weight, 0.0, SLEEPS["W"])  # type: ignore[no-any-return]


def stepping(table: PipelineTable) -> Callable[[], object]:
    comm = dist.group.WORLD.communicator
    here = {stage for stage in range(table.num_stages) if comm.rank in table.placement[:, stage]}
    runner = Runner(table, {stage: Stage() for stage in here}, comm, loss=lambda y: y.mean())
    batch = torch.ones(ROWS * table.num_microbatches, WIDTH)
    return lambda: runner.step(batch)


def makespan(num_rounds: int) -> dict[str, float]:
    message = LATENCY_SECONDS + ROWS * WIDTH * 4 / LINK_BYTES_PER_SECOND
    tables = {name: build_table(name, NUM_STAGE_RANKS, NUM_MICROBATCHES) for name in SCHEDULES}
    found = measured({name: stepping(table) for name, table in tables.items()}, num_rounds)
    figures = {}
    for name, table in tables.items():
        promised = time_table(table, **SLEEPS, message=message).makespan
        figures[f"{name}: step (ms)"] = found[name] * 1e3
        figures[f"{name}: table (ms)"] = promised * 1e3
        figures[f"{name}: over the table"] = found[name] / promised
    return figures


def messages(num_rounds: int) -> dict[str, float]:
    rank = dist.get_rank()
    small, other = torch.zeros(1, dtype=torch.float64), 1 - rank
    sent, received = ([torch.zeros(MESSAGE_ELEMENTS) for _ in range(NUM_MESSAGES)] for _ in range(2))

    def to_and_fro(group: Any) -> Callable[[], object]:
        def exchange() -> None:
            for turn in (0, 1):
                if rank == turn:
                    dist.send(small, other, group)
                else:
                    dist.recv(small, other, group)

        return exchange

    def batch(group: Any, sends: bool, receives: bool) -> Callable[[], object]:
        def run() -> None:
            operations = [dist.P2POp(dist.isend, x, other, group) for x in sent if sends]
            operations += [dist.P2POp(dist.irecv, x, other, group) for x in received if receives]
            for work in dist.batch_isend_irecv(operations):
                work.wait()

        return run

    def programs(name: str, group: Any) -> dict[str, Callable[[], object]]:
        return {
            f"all_reduce, {name}": lambda: dist.all_reduce(small, group=group),
            f"send and recv, {name}": to_and_fro(group),
            f"one way, {name}": batch(group, rank == 0, rank == 1),
            f"both ways, {name}": batch(group, True, True),
        }

    # None: the default group, as most programs say it. Gloo comes later: its threads disturb short calls.
    found = measured(programs("hocket", None), num_rounds)
    found |= measured(programs("Gloo", dist.new_group(backend="gloo")), num_rounds)
    figures = {f"{name} (us)": seconds * 1e6 for name, seconds in found.items()}
    half = {name: found[f"send and recv, {name}"] / 2 for name in ("hocket", "Gloo")}  # a send, and its receive
    figures["send and recv of 8 B over all_reduce of 8 B"] = half["hocket"] / found["all_reduce, hocket"]
    figures["send and recv of 8 B: Gloo over this"] = half["Gloo"] / half["hocket"]
    for way in ("one way", "both ways"):
        figures[f"8 x 64 KiB {way}: Gloo over this"] = found[f"{way}, Gloo"] / found[f"{way}, hocket"]
    return figures


def rank(part: str, num_rounds: int, store: str) -> dict[str, float]:
    torch.set_num_threads(1)
    number, size = int(os.environ["HOCKET_RANK"]), int(os.environ["HOCKET_SIZE"])
    dist.init_process_group("hocket", init_method=f"file://{store}", rank=number, world_size=size)
    try:
        return makespan(num_rounds) if part == "makespan" else messages(num_rounds)
    finally:
        dist.destroy_process_group()


def run(part: str, size: int, num_rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        found: list[dict[str, float]] = hocket.run_ranks(rank, size, args=(part, num_rounds, f"{folder}/store"))
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=whole(1), default=9, help="(9)")
    parser.add_argument("--parts", type=listed(one_of(PARTS)), default=list(PARTS), help="of makespan,messages (all)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    table: Figures = {}
    sizes = {"makespan": NUM_STAGE_RANKS, "messages": 2}
    for part in arguments.parts:
        if part == "makespan":
            with paced_link(LINK_BYTES_PER_SECOND, LATENCY_SECONDS):
                table[part] = run(part, sizes[part], arguments.rounds)
        else:
            table[part] = run(part, sizes[part], arguments.rounds)
    if arguments.json:
        print(json.dumps(table))
        return
    for part, figures in table.items():
        show(part, sizes[part], figures, GOALS)


if __name__ == "__main__":
    main()
