"""Repeated calls of a process group skip Python: they do, return and refuse the same as the Python methods."""

import gc
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import _coalescing_manager

from hocket.torch_backend.options import _VALUES, offset_of
from tests.torch_backend.ranks import run

TURNS = 4
OPTIONS = ["Allreduce", "Broadcast", "Reduce", "Allgather", "ReduceScatter", "AllToAll", "Barrier"]


def repeated() -> int:
    count: int = dist.group.WORLD._calls.num_repeated
    return count


def hits(call: Callable[[], object]) -> int:
    """Returns how many of four such calls skip Python."""
    before = repeated()
    for _ in range(TURNS):
        call()
    return repeated() - before


def on_all_ranks(main: Callable[..., Any], num_ranks: int = 2) -> Any:
    return run(main, num_ranks)


def collectives(rank: int, size: int, count: int = 3) -> list[tuple[Callable[[], Any], Any]]:
    """Returns calls, each with new tensors, and its result on this rank."""

    def mine() -> Any:
        return torch.arange(float(count)) + rank

    def result(call: Callable[[Any], object], tensor: Any) -> Any:
        call(tensor)
        return tensor

    total = size * torch.arange(float(count)) + sum(range(size))
    every = torch.cat([torch.arange(float(count)) + one for one in range(size)])
    ones, out = torch.ones(size * count), lambda: torch.zeros(count)
    blocks = torch.arange(float(size)).repeat_interleave(count) + 10 * rank
    turned = torch.cat([torch.full((count,), float(rank + 10 * one)) for one in range(size)])
    return [
        (lambda: result(lambda x: dist.all_reduce(x), mine()), total),
        (lambda: result(lambda x: dist.all_reduce(x, dist.ReduceOp.MAX), mine()), mine() - rank + size - 1),
        (lambda: result(lambda x: dist.all_reduce(x, dist.ReduceOp.AVG), mine()), total / size),
        (lambda: result(lambda x: dist.broadcast(x, 0), mine()), mine() - rank),
        (lambda: result(lambda x: dist.broadcast(x, 1), mine()), mine() - rank + 1),
        (lambda: result(lambda x: dist.reduce(x, 1), mine()), total if rank == 1 else mine()),
        (lambda: result(lambda x: dist.all_gather_single(x, mine()), torch.zeros(size * count)), every),
        (lambda: result(lambda x: dist.reduce_scatter_single(x, ones), out()), torch.full((count,), float(size))),
        (lambda: result(lambda x: dist.all_to_all_single(x, blocks), torch.zeros(size * count)), turned),
    ]


def results() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for turn, (call, expected) in itertools.product(range(TURNS), collectives(rank, size)):
        before = repeated()
        assert torch.equal(call(), expected)
        assert repeated() == before + (turn > 0)
    assert hits(dist.barrier) == TURNS - 1


def test_the_second_call_like_one_before_skips_python_and_gives_the_same() -> None:
    on_all_ranks(results, 3)


def messages() -> None:
    rank = dist.get_rank()
    other = 1 - rank
    for turn, tag in itertools.product(range(TURNS), (0, 7, 2**31 - 1)):
        x, y = (
            torch.full((3,), float(100 * turn + tag + rank), dtype=torch.float64),
            torch.zeros(3, dtype=torch.float64),
        )
        before = repeated()
        sent, received = dist.isend(x, other, tag=tag), dist.irecv(y, other, tag=tag)
        assert repeated() == before + 2 * (turn > 0 or tag > 0)
        for work in (sent, received):
            assert isinstance(work, dist.Work) and work.wait() and work.is_completed() and work.is_success()
            assert work.exception() is None
        assert torch.equal(y, x - rank + other) and (x._version, y._version) == (0, 1)
        assert sent.result() == [x] and received.get_future().wait() == [y]
        assert received.source_rank() == other
    del x, y, sent, received
    # Those that are waited for, and those of any rank.
    y = torch.zeros(3)
    for turn in range(TURNS):
        before = repeated()
        dist.send(torch.full((3,), float(turn)), 1) if rank == 0 else dist.recv(y, 0)
        dist.send(torch.full((3,), float(turn)), 0) if rank == 1 else dist.recv(y)
        assert y.tolist() == [float(turn)] * 3
        assert repeated() == before + 2 * (turn > 0)
    # What is not in one piece, or has a gradient, is copied or detached by Python each time.
    for _ in range(TURNS):
        wide = torch.zeros(6)
        received = dist.irecv(wide[::2], other)
        sent = dist.isend(torch.arange(6.0, requires_grad=True)[::2], other)
        assert received.wait() and sent.wait()
        assert wide.tolist() == [0.0, 0.0, 2.0, 0.0, 4.0, 0.0]
        assert repeated() == before + 2
    for tag in (-1, 2**31, 1.0):
        with pytest.raises((ValueError, TypeError), match="tag"):
            dist.isend(torch.zeros(3), other, tag=tag)
    # Each is kept until it is done, also if the program lets go of it and of its tensor.
    y = torch.zeros(1 << 16)
    for _ in range(TURNS):
        dist.isend(torch.full((1 << 16,), float(rank)), other)
        gc.collect()
        dist.recv(y, other)
        assert y.min() == y.max() == other


def test_messages_skip_python_and_do_the_same() -> None:
    on_all_ranks(messages)


def unlike() -> None:
    group = dist.group.WORLD
    assert hits(lambda: dist.all_reduce(torch.ones(2))) == TURNS - 1
    # Each is a different call, with its own repetitions.
    for tensor in (torch.ones(3), torch.ones(2, 1), torch.ones(2, dtype=torch.float64), torch.ones(())):
        assert hits(lambda tensor=tensor: dist.all_reduce(tensor)) == TURNS - 1
    assert hits(lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.MIN)) == TURNS - 1
    options = distributed_c10d.AllreduceOptions()
    options.asyncOp, options.timeout = False, timedelta(seconds=30)
    assert hits(lambda: group.allreduce([torch.ones(2)], options)) == TURNS - 1
    options.timeout = timedelta(seconds=31)
    assert hits(lambda: group.allreduce(torch.ones(2), opts=options)) == TURNS - 1
    for root in (0, 1):
        assert hits(lambda root=root: dist.broadcast(torch.ones(2), root)) == TURNS - 1
    # These always need Python.
    assert hits(lambda: dist.all_reduce(torch.ones(2), async_op=True).wait()) == 0
    assert hits(lambda: dist.all_reduce(torch.ones(4)[::2])) == 0
    assert hits(lambda: dist.all_reduce(torch.ones(2).to_sparse())) == 0
    assert hits(lambda: dist.all_reduce(torch.nn.Parameter(torch.ones(2)))) == 0
    assert hits(lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2), [1, 1], [1, 1])) == 0
    for factor in (2.0, 3.0, 4.0):
        tensor = torch.ones(2)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        assert tensor.tolist() == [2 * factor] * 2
    x = torch.ones(4)
    assert hits(lambda: group.all_gather_single(x, x[:2].clone()).wait()) == 0  # no options: asynchronous


def test_what_differs_is_another_call_and_the_unusual_goes_to_python() -> None:
    on_all_ranks(unlike)


def versions() -> None:
    rank = dist.get_rank()
    x, out = torch.ones(2), torch.ones(4)
    written: list[tuple[Callable[[], object], int, int]] = [
        (lambda: dist.all_reduce(x), 1, 0),
        (lambda: dist.broadcast(x, 0), rank != 0, 0),
        (lambda: dist.reduce(x, 0), rank == 0, 0),
        (lambda: dist.all_gather_single(out, x), 0, 1),
        (lambda: dist.reduce_scatter_single(x, out), 1, 0),
    ]
    for call, of_x, of_out in written:
        for _ in range(TURNS):
            before = x._version, out._version
            call()
            assert (x._version, out._version) == (before[0] + of_x, before[1] + of_out)
    weight, other = torch.ones(2, requires_grad=True), torch.ones(2)
    product = (weight * other).sum()  # keeps `other`
    dist.all_reduce(other)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with torch.inference_mode():
        inference = torch.ones(2)
        assert hits(lambda: dist.all_reduce(inference)) == TURNS


def test_what_is_written_is_counted_in_its_version() -> None:
    on_all_ranks(versions)


def gates() -> None:
    group, tensor = dist.group.WORLD, torch.ones(2)
    assert hits(lambda: dist.all_reduce(tensor)) == TURNS - 1
    with torch.profiler.profile() as profile:
        assert hits(lambda: dist.all_reduce(tensor)) == 0
    assert sum(event.name == "hocket:all_reduce" for event in profile.events()) == TURNS
    with _coalescing_manager(device=torch.device("cpu")):
        assert hits(lambda: group.allreduce([tensor], distributed_c10d.AllreduceOptions())) == 0
    assert hits(lambda: dist.all_reduce(tensor)) == TURNS
    before = group._get_sequence_number_for_group()
    assert hits(lambda: dist.all_reduce(tensor)) == TURNS
    assert group._get_sequence_number_for_group() == before + TURNS
    for change in (
        lambda: group.set_timeout(timedelta(seconds=50)),
        lambda: group.communicator.configure(order="rank"),
    ):
        change()
        assert hits(lambda: dist.all_reduce(tensor)) == TURNS - 1
    options = distributed_c10d.AllreduceOptions()
    options.asyncOp = False
    for _ in range(TURNS):
        work = group.allreduce([tensor], options)
        assert isinstance(work, dist.Work) and work.wait() and work.is_completed() and work.get_future().done()
    with pytest.raises(ValueError, match="list of one tensor"):
        group.allreduce([tensor, tensor], options)


def test_profiler_coalescing_and_settings_are_noticed() -> None:
    on_all_ranks(gates)


def changing() -> None:
    group, options = distributed_c10d._get_default_group(), dist.AllreduceOptions()
    options.asyncOp = False
    tensors: list[Any] = [torch.ones(2)]
    same, lists = tensors[0].detach(), []

    def change(phase: str, info: dict[str, int]) -> None:
        tensors.clear()
        group.set_timeout(timedelta(seconds=100))

    for _ in range(TURNS):
        group.allreduce(tensors, options)
        gc.disable()
        lists.append([[] for _ in range(2 * gc.get_threshold()[0])])  # the next new object runs the collector
        gc.callbacks.append(change)
        gc.enable()
        group.allreduce(tensors, options)
        gc.callbacks.remove(change)
        tensors[:] = [same.detach()]
    assert torch.equal(same, torch.full((2,), 4.0**TURNS))


def test_settings_and_lists_may_change_in_the_midst_of_a_repeated_call() -> None:
    on_all_ranks(changing)


def failing() -> None:
    tensor = torch.ones(2)
    for _ in range(TURNS):
        dist.all_reduce(tensor)
    store = dist.group.WORLD.get_group_store()
    if dist.get_rank() == 0:
        store.set("called", "")
    else:
        store.wait(["called"])  # an abort would end the call of the other rank
        dist.group.WORLD.communicator.abort("enough")
    with pytest.raises(dist.DistBackendError, match="enough") as caught:
        dist.all_reduce(tensor)
    assert type(caught.value.cause).__name__ == "PeerAborted"
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="Default process group"):
        dist.all_reduce(tensor)


def test_errors_are_those_of_the_backend() -> None:
    on_all_ranks(failing)


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_found_in_memory(name: str) -> None:
    kind: Any = getattr(distributed_c10d, f"{name}Options")
    offsets = [offset_of(kind, one) for one in _VALUES if hasattr(kind, one)]
    assert len(offsets) >= 2 and None not in offsets
    assert len({offset[0] for offset in offsets if offset}) == len(offsets)


def test_options_that_lie_elsewhere_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere:
        timeout = None

    assert offset_of(Elsewhere, "timeout") is None
    monkeypatch.setattr("hocket.torch_backend.options._MAX_BYTES", 32)  # before it
    assert offset_of(distributed_c10d.AllreduceOptions, "timeout") is None
