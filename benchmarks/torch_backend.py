"""torch.distributed on Hocket beside Gloo: operations and a step of DDP, interleaved, on the same ranks.

    .venv/bin/python benchmarks/torch_backend.py
    .venv/bin/python benchmarks/torch_backend.py --ranks 4 --rounds 3
    .venv/bin/python benchmarks/torch_backend.py --threads 2 # of PyTorch in each rank: more than cores

Each row: the median over rounds of the time of a call, as the slowest rank sees it, and Gloo's over Hocket's. In a
round both backends take their turn within milliseconds, so that a change of the machine's speed meets both.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [8, 64 << 10, 1 << 20, 64 << 20]  # bytes
SECONDS = 0.2  # of one backend in one round, about
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


def training_step(group: Any) -> Callable[[], object]:
    """A step of DDP with much to communicate and little to compute."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
    parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    x = torch.randn(1, 1024)

    def step() -> None:
        parallel.zero_grad(set_to_none=True)
        parallel(x).sum().backward()

    return step


def seconds_of(call: Callable[[], object], num_calls: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(num_calls):
        call()
    slowest = torch.tensor((time.perf_counter() - start) / num_calls, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def compare(calls: dict[str, Callable[[], object]], num_rounds: int) -> dict[str, float]:
    """The median time of a call of each backend."""
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
    show(
        "DDP, 32 MiB of gradients", compare({name: training_step(group) for name, group in groups.items()}, num_rounds)
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(
            main,
            (arguments.ranks, arguments.rounds, arguments.threads, f"{folder}/store"),
            nprocs=arguments.ranks,
        )
