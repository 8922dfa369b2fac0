"""Measures data parallelism: small gradients, steps beside PyTorch's DDP, and how much communication is hidden.

    .venv/bin/python benchmarks/training.py [--ranks 2] [--rounds 9] [--parts small,steps,links] [--json]

small: 200 gradients of 4 KiB. Times of communication by itself, which is all that happens between the last gradient and
    the optimizer: an all_reduce for each (through torch.distributed, through the communicator), all copied into one
    bucket and back, and one bucket in which the gradients lie. `coordinator` is the same bucket with everything that
    hocket.training does for it: 200 submits, the counts, the agreement.
steps: whole training steps of two models, DataParallel beside PyTorch's DDP on the backend "hocket" and on Gloo.
links: a step over links of a given speed (hocket.testing.paced_link), whose backward pass takes about a quarter longer
    than the communication. hidden = 1 - (step - computing) / communication, from wall times, in buckets and in one
    bucket.

In a round the programs take turns. Times are those of the slower rank, and medians over rounds.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from arguments import listed, one_of, whole
from rounds import Figures, Goals, Programs, measured, show
from torch import nn

import hocket
from hocket.testing import paced_link
from hocket.training import Coordinator, DataParallel

PARTS = ("small", "steps", "links")
NUM_SMALL, SMALL_ELEMENTS = 200, 1024
LINKS = {"125 MB/s": (125e6, 8), "500 MB/s": (500e6, 32)}  # bytes per second, and layers of the model
LATENCY_SECONDS = 20e-6
COMPUTING = 1.9  # of a step over a link, in times of communicating
WIDTH = 512  # of a layer of that model: 1 MiB

GOALS: Goals = {
    ("small", "views over per tensor"): (">=", 4.0),
    ("steps", "communication-bound: over DDP on hocket"): ("<=", 1.05),
    ("steps", "communication-bound: Gloo over this"): (">=", 1.3),
    ("links", "125 MB/s: hidden"): (">=", 0.6),
    ("links", "500 MB/s: hidden"): (">=", 0.6),
}


def small(num_rounds: int) -> dict[str, float]:
    comm = dist.group.WORLD.communicator
    tensors = [torch.zeros(SMALL_ELEMENTS) for _ in range(NUM_SMALL)]
    plain, flat = torch.empty(NUM_SMALL * SMALL_ELEMENTS), hocket.empty(NUM_SMALL * SMALL_ELEMENTS)
    flat.fill(0)
    parts = plain.split(SMALL_ELEMENTS)

    def copied() -> None:
        torch._foreach_copy_(parts, tensors)
        comm.all_reduce(plain)
        torch._foreach_copy_(tensors, parts)

    def through_dist() -> None:
        for tensor in tensors:
            dist.all_reduce(tensor)

    def through_communicator() -> None:
        for tensor in tensors:
            comm.all_reduce(tensor)

    with Coordinator(comm, bucket_bytes=1 << 30, first_bytes=1 << 30) as engine:
        names = [f"gradient {number}" for number in range(NUM_SMALL)]
        for name, tensor in zip(names, tensors, strict=True):
            engine.register(name, tensor, moved=lambda view: None)

        def coordinated() -> None:
            for name in names:
                engine.submit(name)
            engine.flush().wait()

        found = measured(
            {
                "per tensor, torch.distributed": through_dist,
                "per tensor, communicator": through_communicator,
                "copied into one bucket": copied,
                "views of one bucket": lambda: comm.all_reduce(flat),
                "views of one bucket, coordinator": coordinated,
            },
            num_rounds,
        )
    figures = {f"{name} (us)": seconds * 1e6 for name, seconds in found.items()}
    each = found["per tensor, communicator"]  # torch.distributed takes longer
    figures["copies over per tensor"] = each / found["copied into one bucket"]
    figures["views over per tensor"] = each / found["views of one bucket"]
    figures["coordinator over per tensor"] = each / found["views of one bucket, coordinator"]
    return figures


def few_large() -> nn.Module:
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))


def many_small() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(50)))


def stepping(parallel: Any, x: torch.Tensor) -> Callable[[], object]:
    """Returns a step without an optimizer, which would be the same for all."""

    def step() -> None:
        parallel(x).sum().backward()
        for parameter in parallel.module.parameters():
            parameter.grad = None

    return step


def steps(num_rounds: int, gloo: Any) -> dict[str, float]:
    figures = {}
    models = {"communication-bound": (few_large, 1024), "many small gradients": (many_small, 64)}
    for name, (model, width) in models.items():
        x = torch.randn(1, width)
        ddp = {
            group: nn.parallel.DistributedDataParallel(model(), process_group=group, gradient_as_bucket_view=True)
            for group in (dist.group.WORLD, gloo)
        }
        with DataParallel(model(), dist.group.WORLD.communicator) as ours:
            found = measured(
                {
                    "hocket.training": stepping(ours, x),
                    "DDP on hocket": stepping(ddp[dist.group.WORLD], x),
                    "DDP on Gloo": stepping(ddp[gloo], x),
                },
                num_rounds,
            )
        figures |= {f"{name}: {what} (us)": seconds * 1e6 for what, seconds in found.items()}
        figures[f"{name}: over DDP on hocket"] = found["hocket.training"] / found["DDP on hocket"]
        figures[f"{name}: Gloo over this"] = found["DDP on Gloo"] / found["hocket.training"]
    return figures


def over_link(num_rounds: int, depth: int) -> dict[str, float]:
    comm = dist.group.WORLD.communicator

    def model() -> nn.Module:
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(depth)))

    overlapped = DataParallel(model(), comm, buckets=1 << 20)
    one = DataParallel(model(), comm, buckets="one")
    group = dist.new_group()
    ddp = nn.parallel.DistributedDataParallel(
        model(), process_group=group, bucket_cap_mb=1, gradient_as_bucket_view=True
    )
    flat = hocket.empty(sum(parameter.numel() for parameter in one.module.parameters()))
    flat.fill(0)
    x = torch.randn(16, WIDTH)

    def compute() -> None:
        with one.no_sync():
            stepping(one, x)()

    for _ in range(4):  # the backward pass is about two thirds of computing
        found = measured({"computing": compute, "communicating": lambda: comm.all_reduce(flat)}, 3)
        rows = int(x.shape[0] * COMPUTING * found["communicating"] / found["computing"])
        agreed = comm.all_reduce(np.array([rows]), op="max")
        x = torch.randn(max(1, int(agreed[0])), WIDTH)
    programs: Programs = {"computing": compute, "communicating": lambda: comm.all_reduce(flat)}
    for name, parallel in {"buckets": overlapped, "one bucket": one, "DDP": ddp}.items():
        programs[name] = stepping(parallel, x)
    found = measured(programs, num_rounds)
    figures = {f"{name} (ms)": seconds * 1e3 for name, seconds in found.items()}
    for name in ("buckets", "one bucket", "DDP"):
        exposed = found[name] - found["computing"]
        figures[f"hidden, {name}"] = 1 - exposed / found["communicating"]
    figures["hidden"] = figures["hidden, buckets"]
    overlapped.close()
    one.close()
    return figures


def rank(part: str, num_rounds: int, depth: int, store: str) -> dict[str, float]:
    torch.set_num_threads(1)
    number, size = int(os.environ["HOCKET_RANK"]), int(os.environ["HOCKET_SIZE"])
    dist.init_process_group("hocket", init_method=f"file://{store}", rank=number, world_size=size)
    try:
        if part == "small":
            return small(num_rounds)
        return steps(num_rounds, dist.new_group(backend="gloo")) if part == "steps" else over_link(num_rounds, depth)
    finally:
        dist.destroy_process_group()


def run(part: str, size: int, num_rounds: int, depth: int = 0) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        found: list[dict[str, float]] = hocket.run_ranks(rank, size, args=(part, num_rounds, depth, f"{folder}/store"))
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=whole(2), default=2, help="(2)")
    parser.add_argument("--rounds", type=whole(1), default=9, help="(9)")
    parser.add_argument(
        "--parts", type=listed(one_of(PARTS)), default=list(PARTS), help="some of small,steps,links (all)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    table: Figures = {}
    for part in arguments.parts:
        if part != "links":
            table[part] = run(part, arguments.ranks, arguments.rounds)
            continue
        table[part] = {}
        for name, (speed, depth) in LINKS.items():
            with paced_link(speed, LATENCY_SECONDS):
                found = run(part, arguments.ranks, arguments.rounds, depth)
            table[part] |= {f"{name}: {figure}": value for figure, value in found.items()}
    if arguments.json:
        print(json.dumps(table))
        return
    for part, figures in table.items():
        show(part, arguments.ranks, figures, GOALS)


if __name__ == "__main__":
    main()
