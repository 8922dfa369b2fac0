"""PyTorch's collectives together with hocket's streams, on the CPU and, if there is one, on a GPU."""

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

import hocket
from tests.torch_backend.ranks import run

PATIENCE_SECONDS = 60.0
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here that PyTorch can use")


def in_the_order_of_a_stream(async_op: bool) -> None:
    """One stream writes, sums and reads tensors of all strides, while the host only launches."""
    rank = dist.get_rank()
    for turn in range(3):  # without a current stream, the second such call goes to the core without Python
        for turned in (False, True):
            s, gate = hocket.Stream(), threading.Event()
            x = torch.zeros(40, 50).t() if turned else torch.zeros(50, 40)
            parts = [torch.zeros(7) for _ in range(2)]
            seen: list[Any] = []
            with hocket.stream(s):
                s.submit(gate.wait, PATIENCE_SECONDS)
                s.submit(x.fill_, rank + 1.0 + turn)
                work = dist.all_reduce(x, async_op=async_op)
                if async_op:
                    work.wait()
                s.submit(lambda x=x, seen=seen: seen.append(x.clone()))
                s.submit(x.add_, 1)
                works = [dist.all_gather(parts, x[0, :7], async_op=async_op)]
                if async_op:
                    works[0].wait()
                s.submit(lambda parts=parts, seen=seen: seen.append(torch.stack(parts)))
            assert not s.query() and not x.any()
            gate.set()
            s.synchronize()
            assert (seen[0] == 3 + 2 * turn).all() and (seen[1] == 4 + 2 * turn).all()
            dist.all_reduce(x)
            assert (x == 2 * (4 + 2 * turn)).all()


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_collectives_are_in_the_order_of_the_current_stream(async_op: bool) -> None:
    run(in_the_order_of_a_stream, 2, async_op)


def messages_and_the_rest() -> None:
    rank = dist.get_rank()
    s, gate = hocket.Stream(), threading.Event()
    x, y = torch.zeros(6, 4).t(), torch.zeros(6, 4).t()
    with hocket.stream(s):
        s.submit(gate.wait, PATIENCE_SECONDS)
        s.submit(x.fill_, rank + 1)
        sent = dist.isend(x, 1 - rank)
        received = dist.irecv(y)
        received.wait()
        s.submit(y.mul_, 10)
        threading.Timer(0.05, gate.set).start()
        assert received._source_rank() == 1 - rank  # the host must wait for it
        sparse = torch.eye(3).to_sparse()
        dist.all_reduce(sparse)  # several steps of the host
        assert (sparse.to_dense() == 2 * torch.eye(3)).all()
        future = dist.all_reduce(x, async_op=True).get_future()
    s.synchronize()
    sent.wait()
    assert (y == 10 * (2 - rank)).all()
    assert (future.wait()[0] == 3).all() and (x == 3).all()


def test_messages_and_what_the_host_does_itself() -> None:
    run(messages_and_the_rest, 2)


def on_a_gpu() -> None:
    from hocket.torch_backend.cuda import CudaStream

    rank, device = dist.get_rank(), torch.device("cuda", 0)  # the ranks share it
    x = torch.full((1 << 20,), rank + 1.0, device=device)
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert (x == 6).all()
    s, start, end, other = CudaStream(), hocket.Event(), hocket.Event(), hocket.Stream()
    start.record(s)
    with torch.cuda.stream(s.cuda):
        x.fill_(rank)
        dist.all_reduce(x)
        gathered = [torch.empty(2, device=device) for _ in range(2)]
        dist.all_gather(gathered, x[:2])
    end.record(s)
    other.wait(end)
    other.synchronize()
    assert end.query() and start.elapsed_time(end) > 0
    s.synchronize()
    assert s.query() and (torch.stack(gathered) == 1).all()


@needs_gpu
def test_tensors_of_a_gpu_go_by_pinned_memory_in_the_order_of_its_streams() -> None:
    run(on_a_gpu, 2)
