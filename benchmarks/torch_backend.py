"""Compares torch.distributed on Hocket with Gloo: operations and a DDP step, interleaved, on the same ranks.

    .venv/bin/python benchmarks/torch_backend.py
    .venv/bin/python benchmarks/torch_backend.py --ranks 4 --rounds 3
    .venv/bin/python benchmarks/torch_backend.py --threads 2 # PyTorch threads per rank: more threads than cores

Each row shows the time of a call on the slowest rank, the median over rounds, and the ratio Gloo / Hocket. In a round
the backends take turns within milliseconds, so a change of the machine's speed affects both.

The DDP model is bound by communication, and its gradients lie in DDP's buckets. The row below it is the same step with
a hook that communicates nothing: no backend can be faster. The first line is for one rank: how much longer
dist.all_reduce takes than the communicator's own call, on Hocket and on a group whose methods do nothing.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from hocket.torch_backend.handles import FinishedWork

SIZES = [8, 64 << 10, 1 << 20, 64 << 20]  # bytes
SECONDS = 0.2  # about, per backend and round
BACKENDS = ("hocket", "gloo")


def operations(num_bytes: int, size: int, group: Any) -> dict[str, Callable[[], object]]:
    tensor, out = torch.zeros(max(1, num_bytes // 4)), torch.zeros(max(1, num_bytes // 4))
    found: dict[str, Callable[[], object]] = {"all_reduce": lambda: dist.all_reduce(tensor, group=group)}
    found["broadcast"] = lambda: dist.broadcast(tensor, 0, group=group)
    if tensor.numel() % size == 0:
        part = torch.zeros(tensor.numel() // size)
        found["reduce_scatter"] = lambda: dist.reduce_scatter_single(part, tensor, group=group)
        found["all_gather"] = lambda: dist.all_gather_single(out, part, group=group)
        found["all_to_all"] = lambda: dist.all_to_all_single(out, tensor, group=group)
    return found


def training_step(group: Any, hook: Callable[..., Any] | None = None) -> Callable[[], object]:
    """Returns a step of DDP with much communication and little computation."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
    parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    if hook is not None:
        parallel.register_comm_hook(None, hook)
    x = torch.randn(1, 1024)

    def step() -> None:
        parallel.zero_grad(set_to_none=False)
        parallel(x).sum().backward()

    return step


def no_communication(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A DDP hook that communicates nothing."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


class IdleGroup(dist.ProcessGroup):
    """A group of one rank whose methods do nothing: a call costs only PyTorch's own time."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.work = FinishedWork()

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Does nothing."""
        return self.work


def show_overhead(num_rounds: int) -> None:
    """Prints how much longer dist.all_reduce of one float on one rank takes than the communicator's own call."""
    hocket = dist.group.WORLD
    dist.Backend.register_backend("idle", lambda *_: IdleGroup(), extended_api=True, devices=["cpu"])
    idle = dist.new_group(backend="idle")
    tensor, x = torch.ones(1), np.ones(1, np.float32)
    calls: dict[str, Callable[[], object]] = {
        "core": lambda: hocket.communicator.all_reduce(x, out=x),
        "hocket": lambda: dist.all_reduce(tensor, group=hocket),
        "idle": lambda: dist.all_reduce(tensor, group=idle),
    }
    found = compare(calls, num_rounds)
    hocket_us, idle_us = ((found[name] - found["core"]) * 1e6 for name in ("hocket", "idle"))
    print(f"one rank, 4 B: dist.all_reduce adds {hocket_us:.2f} us to the core's call; an idle group: {idle_us:.2f} us")


def seconds_of(call: Callable[[], object], num_calls: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(num_calls):
        call()
    slowest = torch.tensor((time.perf_counter() - start) / num_calls, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def compare(calls: dict[str, Callable[[], object]], num_rounds: int) -> dict[str, float]:
    """Returns the median seconds of a call of each backend."""
    number = {}
    for name, call in calls.items():
        call()  # plans, connections, buffers
        number[name] = max(1, min(5000, int(SECONDS / seconds_of(call, 3))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(num_rounds):
        for name, call in calls.items():
            times[name].append(seconds_of(call, number[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def show(what: str, found: dict[str, float]) -> None:
    if dist.get_rank() == 0:
        hocket, gloo = (found[name] * 1e6 for name in BACKENDS)
        print(f"{what:28} {hocket:12.1f} {gloo:12.1f} {gloo / hocket:8.2f}", flush=True)


def alone(_: int, num_rounds: int, store: str) -> None:
    dist.init_process_group("hocket", init_method=f"file://{store}", rank=0, world_size=1)
    show_overhead(num_rounds)
    dist.destroy_process_group()


def main(rank: int, size: int, num_rounds: int, num_threads: int, store: str) -> None:
    torch.set_num_threads(num_threads)
    dist.init_process_group("hocket", init_method=f"file://{store}", rank=rank, world_size=size)
    groups = {"hocket": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    if rank == 0:
        print(
            f"torch {torch.__version__}, {size} ranks of {num_threads} threads on {len(os.sched_getaffinity(0))} cores"
        )
        print(f"{'':28} {'hocket(us)':>12} {'gloo(us)':>12} {'ratio':>8}")
    for num_bytes in SIZES:
        calls = {name: operations(num_bytes, size, group) for name, group in groups.items()}
        for operation in calls["hocket"]:
            found = compare({name: calls[name][operation] for name in BACKENDS}, num_rounds)
            show(f"{operation} {num_bytes} B", found)
    steps = {name: training_step(group) for name, group in groups.items()}
    found = compare({**steps, "idle": training_step(groups["hocket"], no_communication)}, num_rounds)
    show("DDP, 32 MiB of gradients", found)
    if rank == 0:
        print(f"{'  without communication':28} {found['idle'] * 1e6:12.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(alone, (arguments.rounds, f"{folder}/alone"), nprocs=1)
        mp.spawn(
            main,
            (arguments.ranks, arguments.rounds, arguments.threads, f"{folder}/store"),
            nprocs=arguments.ranks,
        )
