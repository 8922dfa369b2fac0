"""Computation beside communication: streams and events in programs of two ranks, with measured times.

    python examples/streams.py
    python examples/streams.py --traces .

Links of 125 MB/s connect the ranks; like network cards, they use no core. Each program is traced: with --traces FOLDER
the files stay there, for `hocket trace view FILE` and Perfetto. docs/streams.md shows their pictures.
"""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import hocket
from hocket.testing import paced_link, run_ranks

BYTES_PER_SECOND, LATENCY_SECONDS = 125e6, 50e-6
NUM_FLOATS = 1 << 18  # in each message: 1 MiB, 8 ms on the link
SIDE = 256  # of the matrices
NUM_BATCHES = 8

Facts = dict[str, Any]


class Kernel:
    """An operation for a stream: multiplies matrices for about `seconds`, then calls a function."""

    one, other = np.random.default_rng(0).normal(size=(2, SIDE, SIDE)).astype("float32")

    def __init__(self, seconds: float) -> None:
        self.product, self.num_products = np.empty_like(self.one), 10
        fastest = min(self.time_products() for _ in range(10))  # the others were disturbed
        self.num_products = max(1, round(10 * seconds / fastest))

    def time_products(self) -> float:
        """Multiplies, and returns the seconds that it took."""
        started = perf_counter()
        for _ in range(self.num_products):
            np.matmul(self.one, self.other, out=self.product)
        return perf_counter() - started

    def named(self, name: str, then: Callable[[], Any] = lambda: None) -> Callable[[], None]:
        """Returns the operation as a function that has this name in the trace of a stream."""

        def operation() -> None:
            self.time_products()
            then()

        operation.__qualname__ = name
        return operation

    def run(self, name: str, then: Callable[[], Any] = lambda: None) -> None:
        """Runs the operation in this thread, as a span of this name."""
        with hocket.span(name):
            self.named(name, then)()


# --- what an event tells -------------------------------------------------------------------------------------------


def query(comm: hocket.Communicator) -> Facts:
    """Shows that an event is not ready while its stream is busy, and a launched collective is not complete."""
    kernel, stream, x = Kernel(0.02), hocket.Stream("compute"), np.ones(NUM_FLOATS, "float32")
    begin = stream.record()
    stream.submit(kernel.named("OP"))
    end = stream.record()
    ready = end.query()
    work = comm.all_reduce(x, async_op=True)
    before = ready, work.is_completed()
    end.synchronize()
    work.wait()
    return {
        "before": before,
        "after": (end.query(), work.is_completed()),
        "milliseconds": begin.elapsed_time(end),
        "sum": float(x[0]),
    }


def wait(comm: hocket.Communicator) -> Facts:
    """Shows what a second stream reads from an array that the first writes: without and with a wait for its event."""
    writer, reader = Kernel(0.02), Kernel(0.01)
    first, second = hocket.Stream("stream 1"), hocket.Stream("stream 2")
    read: list[float] = []
    for waits in (False, True):
        x = np.zeros(1)
        first.submit(writer.named("OP1 writes x", partial(x.fill, 1.0)))
        written = first.record()
        if waits:
            second.wait(written)
        second.submit(lambda x=x: read.append(float(x[0])))
        second.submit(reader.named("OP2 reads x"))
        first.synchronize()
        second.synchronize()
    return {"without": read[0], "with": read[1]}


# --- serial against parallel ---------------------------------------------------------------------------------------


def parallel(comm: hocket.Communicator) -> Facts:
    """Runs OP1 and OP2, whose results XCCL1 and XCCL2 sum; OP3 needs neither sum, OP4 the first, OP5 the second."""
    kernel, stream = Kernel(0.008), hocket.Stream("compute")
    arrays = [np.empty(NUM_FLOATS, "float32") for _ in range(2)]
    sums: list[float] = []
    with comm.dup() as xccl1, comm.dup() as xccl2:

        def op(number: int) -> Callable[[], None]:
            """Returns what this operation does after multiplying."""
            if number in (1, 2):
                return lambda: arrays[number - 1].fill(number + comm.rank)
            return lambda: sums.append(float(arrays[number - 4].sum()) if number > 3 else 0.0)

        def serial() -> None:
            kernel.run("OP1", op(1))
            xccl1.all_reduce(arrays[0])
            kernel.run("OP2", op(2))
            xccl2.all_reduce(arrays[1])
            for number in (3, 4, 5):
                kernel.run(f"OP{number}", op(number))

        def side_by_side() -> None:
            with hocket.stream(stream):  # nothing here blocks
                stream.submit(kernel.named("OP1", op(1)))
                first = xccl1.all_reduce(arrays[0], async_op=True)  # once OP1 has written
                stream.submit(kernel.named("OP2", op(2)))
                second = xccl2.all_reduce(arrays[1], async_op=True)
                stream.submit(kernel.named("OP3", op(3)))
                first.wait()  # the stream waits, not this thread
                stream.submit(kernel.named("OP4", op(4)))
                second.wait()
                stream.submit(kernel.named("OP5", op(5)))
            stream.synchronize()

        seconds: dict[str, float] = {}
        expected: list[float] = []
        for name, program in (("warm up", side_by_side), ("serial", serial), ("parallel", side_by_side)):
            sums.clear()
            comm.barrier()
            started = perf_counter()
            with hocket.span(name):
                program()
            seconds[name] = perf_counter() - started
            if name == "serial":
                expected = list(sums)
    return {"seconds": seconds, "equal": sums == expected, "sums": expected[1:]}


# --- a copy stream that prefetches ---------------------------------------------------------------------------------


def prefetch(comm: hocket.Communicator) -> Facts:
    """Lets rank 1, the storage, send batches; rank 0 computes on one while a copy stream receives the next."""
    batches = np.arange(NUM_BATCHES, dtype="float32")[:, None] * np.ones(NUM_FLOATS, "float32")
    slots = [np.empty(NUM_FLOATS, "float32") for _ in range(2)]
    kernel, copy, compute = Kernel(0.008), hocket.Stream("copy"), hocket.Stream("compute")
    means: list[float] = []

    def add_mean(slot: Any) -> None:
        means.append(float(slot.mean()))

    def one_after_another() -> None:
        for number in range(NUM_BATCHES):
            comm.recv(slots[0], 1)
            kernel.run(f"batch {number}", partial(add_mean, slots[0]))

    def ahead() -> None:
        used = [hocket.Event(), hocket.Event()]  # not recorded yet, so no stream waits for them
        for number in range(NUM_BATCHES):
            slot, free = slots[number % 2], used[number % 2]
            with hocket.stream(copy):
                free.wait()  # until the computation on the batch before last is done
                comm.recv(slot, 1)  # returns at once: the copy stream waits for it
                filled = copy.record()
            compute.wait(filled)
            compute.submit(kernel.named(f"batch {number}", partial(add_mean, slot)))
            compute.record(free)
        compute.synchronize()

    seconds = {}
    for name, program in (("one after another", one_after_another), ("prefetched", ahead)):
        means.clear()
        comm.barrier()
        started = perf_counter()
        if comm.rank == 0:
            program()
        else:
            for batch in batches:
                comm.send(batch, 0)
        comm.barrier()
        seconds[name] = perf_counter() - started
    return {"seconds": seconds, "means": list(means)}


# --- data-parallel training ----------------------------------------------------------------------------------------


def train(comm: hocket.Communicator, store: str, trace: str) -> Facts:
    """Runs PyTorch's DDP on the digits: first one bucket of all gradients at the end, then buckets on the way."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from hocket.training.datasets import load

    torch.set_num_threads(1)
    dist.init_process_group("hocket", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size)
    digits = load()
    images = torch.from_numpy(digits.train_images[comm.rank :: comm.size])
    labels = torch.from_numpy(digits.train_labels[comm.rank :: comm.size])
    seconds, weights = {}, {}
    for name, bucket_megabytes in (("one bucket", 100.0), ("buckets", 0.25)):
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(digits.num_features, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
            nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, digits.num_classes),
        )  # fmt: skip
        model = DistributedDataParallel(network, bucket_cap_mb=bucket_megabytes)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        lasted: list[float] = []

        def step(number: int, model: Any = model, optimizer: Any = optimizer, lasted: Any = lasted) -> None:
            batch = slice(number % 2 * 256, (number % 2 + 1) * 256)
            comm.barrier()
            started = perf_counter()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()  # the trace has spans of forward, backward and the optimizer's step
            optimizer.step()
            optimizer.zero_grad()
            lasted.append(perf_counter() - started)

        for number in range(3):
            step(number)  # DDP rebuilds its buckets after the first
        with hocket.trace(f"{trace}-{name.replace(' ', '-')}.json"):
            for number in range(3, 7):
                step(number)
        for number in range(7, 27):
            step(number)
        seconds[name] = float(np.median(lasted[7:]))
        weights[name] = torch.cat([one.detach().ravel() for one in network.parameters()])
    with torch.no_grad():
        found = network(torch.from_numpy(digits.test_images)).argmax(1)
    dist.destroy_process_group()
    return {
        "seconds": seconds,
        "equal": bool(torch.equal(*weights.values())),
        "accuracy": float((found == torch.from_numpy(digits.test_labels)).float().mean()),
        "weights": weights["buckets"].sum().item(),
    }


# --- all of them ---------------------------------------------------------------------------------------------------

SHOWCASES = {"query": query, "wait": wait, "parallel": parallel, "prefetch": prefetch}


def show(folder: str, with_torch: bool) -> dict[str, Facts]:
    """Runs one rank: every showcase, each traced into a file of its name."""
    with hocket.init() as comm:
        found = {}
        for name, showcase in SHOWCASES.items():
            comm.barrier()
            with hocket.trace(f"{folder}/{name}.json"):
                found[name] = showcase(comm)
        if with_torch:
            found["train"] = train(comm, f"{folder}/store", f"{folder}/train")
        return found


def tell(found: dict[str, Facts]) -> None:
    """Prints the results of rank 0."""
    milliseconds = {
        name: {what: f"{seconds * 1e3:.1f} ms" for what, seconds in facts.get("seconds", {}).items()}
        for name, facts in found.items()
    }
    print(f"event.query(), work.is_completed(): {found['query']['before']}, then {found['query']['after']}")
    print(f"stream 2 reads {found['wait']['without']:g} without waiting for stream 1, {found['wait']['with']:g} after")
    times = milliseconds["parallel"]
    print(f"OP1..OP5 over XCCL1, XCCL2: serial {times['serial']}, parallel {times['parallel']}, the same results: "
          f"{found['parallel']['equal']}")  # fmt: skip
    times = milliseconds["prefetch"]
    print(f"{NUM_BATCHES} batches: fetched one after another {times['one after another']}, prefetched "
          f"{times['prefetched']}")  # fmt: skip
    if "train" in found:
        times = milliseconds["train"]
        print(f"DDP on digits: a step takes {times['one bucket']} with one bucket at the end, {times['buckets']} with "
              f"buckets on the way; the same weights: {found['train']['equal']}; "
              f"{found['train']['accuracy']:.1%} right")  # fmt: skip
    else:
        print('DDP on digits needs PyTorch: pip install "hocket[torch]"')


def main(folder: str) -> None:
    with_torch = importlib.util.find_spec("torch") is not None
    with paced_link(BYTES_PER_SECOND, LATENCY_SECONDS):
        tell(run_ranks(show, 2, args=(folder, with_torch), kind="process")[0])
    file = "train-buckets.json" if with_torch else "parallel.json"
    print(f"\n{file}:", flush=True)
    subprocess.run([sys.executable, "-m", "hocket", "trace", "summary", f"{folder}/{file}"], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", metavar="FOLDER", help="keep the traces there")
    kept = parser.parse_args().traces
    if kept:
        Path(kept).mkdir(exist_ok=True)
        main(str(Path(kept).absolute()))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(scratch)
