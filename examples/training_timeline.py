"""Buckets that go out while the backward pass goes on, beside one all_reduce at its end, over a slow link.

    python examples/training_timeline.py
    python examples/training_timeline.py --traces .

Two ranks train the same model over a simulated link of 125 MB/s. Like a network card, it uses no core. With --traces
FOLDER there is a trace of three steps in each manner, for `hocket trace view FILE`; docs/training.md shows them.
"""

import argparse
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

import hocket
from hocket.testing import paced_link
from hocket.training import DataParallel

BYTES_PER_SECOND, LATENCY_SECONDS = 125e6, 50e-6
WIDTH, DEPTH, ROWS = 512, 6, 768  # a layer has 1 MiB of gradients: 8 ms on the link, about as long as its backward pass
MANNERS: dict[str, tuple[int | Literal["one"], bool]] = {"one bucket": ("one", False), "buckets": (1 << 20, True)}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))


def train(folder: str) -> tuple[dict[str, float], bool]:
    """Runs one rank; returns the median seconds of a step in each manner, and whether the weights are equal."""
    torch.set_num_threads(1)
    seconds, weights = {}, []
    with hocket.init() as comm:
        x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(comm.rank))
        for name, (buckets, overlap) in MANNERS.items():
            with DataParallel(model(), comm, buckets=buckets, overlap=overlap, order="invariant") as parallel:
                optimizer = torch.optim.SGD(parallel.module.parameters(), lr=1e-3)
                for _ in range(5):  # the order is locked after three
                    step(parallel, optimizer, x)
                with hocket.trace(f"{folder}/{name.replace(' ', '-')}.json"):
                    for _ in range(3):
                        step(parallel, optimizer, x)
                lasted = []
                for _ in range(15):
                    comm.barrier()
                    started = perf_counter()
                    step(parallel, optimizer, x)
                    lasted.append(perf_counter() - started)
            seconds[name] = float(np.median(lasted))
            weights.append(torch.cat([one.detach().ravel() for one in parallel.module.parameters()]))
    return seconds, torch.equal(*weights)


def step(parallel: DataParallel, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    with hocket.span("forward"):
        loss = parallel(x).square().mean()
    with hocket.span("backward"):
        loss.backward()
    with hocket.span("step"):
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="keep the traces in this folder")
    arguments = parser.parse_args()
    if arguments.traces is not None and not arguments.traces.is_dir():
        parser.error(f"--traces: expected a folder, found {arguments.traces}")
    with tempfile.TemporaryDirectory() as folder, paced_link(BYTES_PER_SECOND, LATENCY_SECONDS):
        seconds, equal = hocket.run_ranks(train, 2, args=(str(arguments.traces or folder),))[0]
    for name, one in seconds.items():
        print(f"{name:<11} a step takes {one * 1e3:.1f} ms")
    print(f"the same weights: {equal}")


if __name__ == "__main__":
    main()
