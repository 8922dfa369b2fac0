"""Each operation of torch.distributed gives the right result, with and without async_op, for all strides."""

import itertools
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.torch_backend.ranks import run
from tests.waiting import wait_until

NUM_RANKS = 3


def on_all_ranks(main: Any, *arguments: Any, num_ranks: int = NUM_RANKS) -> Any:
    return run(main, num_ranks, *arguments)


def given(rank: int, shape: tuple[int, ...] = (4, 6), dtype: Any = torch.float32) -> Any:
    """Returns a tensor of small whole numbers that differ by rank."""
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape) % 5 + 1
    return (numbers + rank).to(dtype)


def layouts(tensor: Any) -> list[Any]:
    """Returns the same values with different strides: contiguous, transposed, with gaps, and as part of a tensor."""
    wide = torch.zeros((tensor.size(0), 2 * tensor.size(1)), dtype=tensor.dtype)
    framed = torch.zeros((tensor.size(0) + 2, tensor.size(1) + 2), dtype=tensor.dtype)
    views = [torch.empty_like(tensor), tensor.new_empty(tensor.t().shape).t(), wide[:, ::2], framed[1:-1, 1:-1]]
    return [view.copy_(tensor) for view in views]


def done(work: Any, async_op: bool) -> None:
    assert (work is not None) == async_op
    if async_op:
        assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None


def all_reduce_everything() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    ops = {
        dist.ReduceOp.SUM: torch.add,
        dist.ReduceOp.PRODUCT: torch.mul,
        dist.ReduceOp.MIN: torch.minimum,
        dist.ReduceOp.MAX: torch.maximum,
        dist.ReduceOp.BAND: torch.bitwise_and,
        dist.ReduceOp.BOR: torch.bitwise_or,
        dist.ReduceOp.BXOR: torch.bitwise_xor,
    }
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32]
    dtypes += [torch.int64, torch.uint8]
    for dtype, (op, function) in itertools.product(dtypes, ops.items()):
        if dtype.is_floating_point and function.__name__.startswith("bitwise"):
            continue
        expected = given(0, dtype=dtype)
        for other in range(1, size):
            expected = function(expected, given(other, dtype=dtype))
        for async_op in (False, True):
            tensor = given(rank, dtype=dtype)
            done(dist.all_reduce(tensor, op, async_op=async_op), async_op)
            assert torch.equal(tensor, expected), (dtype, op)


def test_all_reduce_of_every_type_and_operation() -> None:
    on_all_ranks(all_reduce_everything)


def all_reduce_the_rest() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mean = given(rank)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    torch.testing.assert_close(mean, sum(given(one) for one in range(size)) / size)
    scaled = given(rank)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(2.0))
    assert torch.equal(scaled, 2 * sum(given(one) for one in range(size)))
    for dtype in (torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = torch.full((3,), 1.0 + rank).to(dtype)
        dist.all_reduce(tensor)
        assert tensor.to(torch.complex64).tolist() == [6.0] * 3
    flag = torch.tensor([rank == 1, False])
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    assert flag.tolist() == [True, False]
    for shape in ((), (0,), (0, 3), (1,)):
        tensor = torch.ones(shape)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full(shape, float(size)))


def moved() -> None:
    """Elements that are not folded are copied unchanged, also of types that PyTorch hardly supports."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dtypes = [torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32]
    dtypes += [torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn]
    dtypes += [torch.float8_e5m2, torch.complex64, torch.complex128]
    for dtype in dtypes:

        def of(one: int, dtype: Any = dtype) -> Any:
            return torch.arange(one, one + size).to(dtype)

        outputs = [torch.zeros(size).to(dtype) for _ in range(size)]
        whole, turned = torch.zeros(size * size).to(dtype), torch.zeros(size).to(dtype)
        given, taken = of(rank), torch.zeros(size).to(dtype)
        dist.all_gather(outputs, given)
        assert all(bits(output) == bits(of(one)) for one, output in enumerate(outputs)), dtype
        dist.all_gather_single(whole, given)
        assert bits(whole) == [byte for one in range(size) for byte in bits(of(one))], dtype
        dist.all_to_all_single(turned, given)
        assert bits(turned) == [byte for one in range(size) for byte in bits(of(one)[rank : rank + 1])], dtype
        dist.broadcast(given, 1)
        dist.scatter(taken, [of(one) for one in range(size)] if rank == 0 else None, 0)
        assert bits(given) == bits(of(1)) and bits(taken) == bits(of(rank)), dtype
        for work in dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, of(rank), (rank + 1) % size),
                dist.P2POp(dist.irecv, taken, (rank - 1) % size),
            ]
        ):
            work.wait()
        assert bits(taken) == bits(of((rank - 1) % size)), dtype


def bits(tensor: Any) -> list[int]:
    found: list[int] = tensor.view(torch.uint8).tolist()
    return found


def test_data_of_every_type_moves() -> None:
    on_all_ranks(moved)


def test_all_reduce_of_means_factors_and_rare_types() -> None:
    on_all_ranks(all_reduce_the_rest)


def strided() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(given(one) for one in range(size))
    for async_op in (False, True):
        for tensor in layouts(given(rank)):
            done(dist.all_reduce(tensor, async_op=async_op), async_op)
            assert torch.equal(tensor, total)
        for tensor in layouts(given(rank)):
            done(dist.broadcast(tensor, 1, async_op=async_op), async_op)
            assert torch.equal(tensor, given(1))
        for tensor in layouts(given(rank)):
            done(dist.reduce(tensor, 2, async_op=async_op), async_op)
            assert torch.equal(tensor, total if rank == 2 else given(rank))
        for tensor in layouts(given(rank)):
            outputs = [out for _, out in zip(range(size), layouts(torch.zeros(4, 6)), strict=False)]
            done(dist.all_gather(outputs, tensor, async_op=async_op), async_op)
            assert all(torch.equal(out, given(one)) for one, out in enumerate(outputs))
        parts = [given(rank + 10 * one) for one in range(size)]
        for tensor in layouts(torch.zeros(4, 6)):
            done(
                dist.reduce_scatter(tensor, [layouts(part)[one] for one, part in enumerate(parts)], async_op=async_op),
                async_op,
            )
            assert torch.equal(tensor, sum(given(one + 10 * rank) for one in range(size)))
        for tensor in layouts(torch.zeros(4, 6)):
            outputs = layouts(torch.zeros(4, 6))[:size] if rank == 1 else None
            done(dist.gather(layouts(given(rank))[rank], outputs, 1, async_op=async_op), async_op)
            assert outputs is None or all(torch.equal(out, given(one)) for one, out in enumerate(outputs))
            inputs = [layouts(given(one))[one] for one in range(size)] if rank == 1 else None
            done(dist.scatter(tensor, inputs, 1, async_op=async_op), async_op)
            assert torch.equal(tensor, given(rank))
    if rank == 0:
        dist.send(layouts(given(7))[1], 1)
    elif rank == 1:
        tensor = layouts(torch.zeros(4, 6))[2]
        assert dist.recv(tensor, 0) == 0
        assert torch.equal(tensor, given(7))
    whole = torch.zeros(3 * 4, 6)
    turned = torch.zeros(6, 3 * 4).t()
    dist.all_gather_into_tensor(whole, layouts(given(rank))[1])
    dist.all_gather_into_tensor(turned, given(rank))
    assert torch.equal(whole, turned) and torch.equal(whole, torch.cat([given(one) for one in range(size)]))
    values = torch.tensor([1 + 2j, 3j]).conj()
    outputs = [torch.zeros(2, dtype=torch.complex64) for _ in range(size)]
    dist.group.WORLD.allgather([outputs], [values]).wait()
    assert outputs[0].tolist() == [1 - 2j, -3j]


def test_strides_never_matter() -> None:
    on_all_ranks(strided)


def in_one_memory() -> None:
    """Blocks are in one tensor, and every rank gives or gets the first one: in place on rank 0 only."""
    rank, size = dist.get_rank(), dist.get_world_size()
    of_rank = [given(one, (size, 2)) for one in range(size)]
    for async_op in (False, True):
        whole, blocks = fresh_blocks(rank, size)
        done(dist.all_gather(blocks, blocks[0], async_op=async_op), async_op)
        assert torch.equal(whole, torch.stack([tensor[0] for tensor in of_rank]))
        whole, blocks = fresh_blocks(rank, size)
        done(dist.gather(blocks[0], blocks if rank == 1 else None, 1, async_op=async_op), async_op)
        assert torch.equal(whole, torch.stack([tensor[0] for tensor in of_rank]) if rank == 1 else of_rank[rank])
        _, blocks = fresh_blocks(rank, size)
        done(dist.reduce_scatter(blocks[0], blocks, async_op=async_op), async_op)
        assert torch.equal(blocks[0], sum(tensor[rank : rank + 1] for tensor in of_rank))
        _, blocks = fresh_blocks(rank, size)
        done(dist.scatter(blocks[0], blocks if rank == 1 else None, 1, async_op=async_op), async_op)
        assert torch.equal(blocks[0], of_rank[1][rank : rank + 1])


def fresh_blocks(rank: int, size: int) -> tuple[Any, list[Any]]:
    whole = given(rank, (size, 2))
    return whole, list(whole.chunk(size))


def test_blocks_may_share_their_memory_with_what_is_given() -> None:
    on_all_ranks(in_one_memory)


def uneven() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for async_op in (False, True):
        outputs = [torch.zeros(one, 2) for one in range(size)]  # nothing from rank 0
        done(dist.all_gather(outputs, torch.full((rank, 2), float(rank)), async_op=async_op), async_op)
        assert all((out == one).all() for one, out in enumerate(outputs))
        tensor = torch.zeros(rank + 1)
        done(
            dist.reduce_scatter(tensor, [torch.full((one + 1,), 1.0 + one) for one in range(size)], async_op=async_op),
            async_op,
        )
        assert torch.equal(tensor, torch.full((rank + 1,), size * (1.0 + rank)))
        outputs = [torch.zeros(one + rank) for one in range(size)]
        inputs = [torch.full((one + rank,), 10.0 * rank + one) for one in range(size)]
        done(dist.all_to_all(outputs, inputs, async_op=async_op), async_op)
        assert all((out == 10 * one + rank).all() for one, out in enumerate(outputs))
        counts = [one + rank for one in range(size)]
        output = torch.zeros(sum(counts), 2)
        done(
            dist.all_to_all_single(output, torch.cat(inputs).repeat(2, 1).t(), counts, counts, async_op=async_op),
            async_op,
        )
        assert torch.equal(output, torch.cat(outputs).repeat(2, 1).t())
        output = torch.zeros(2 * size)
        done(dist.all_to_all_single(output, torch.arange(2.0 * size) + 100 * rank, async_op=async_op), async_op)
        assert output.tolist() == [100.0 * one + 2 * rank + i for one in range(size) for i in range(2)]


def test_blocks_may_differ_in_length() -> None:
    on_all_ranks(uneven)


def both_spellings() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    for gather in (group.all_gather_single, group._allgather_base):
        output = torch.zeros(size)
        gather(output, torch.tensor([float(rank)])).wait()
        assert output.tolist() == [0.0, 1.0, 2.0]
    for scatter in (group.reduce_scatter_single, group._reduce_scatter_base):
        output = torch.zeros(1)
        scatter(output, torch.arange(float(size))).wait()
        assert output.item() == size * rank
    for exchange in (group.all_to_all_single, group.alltoall_base):
        output = torch.zeros(size)
        exchange(output, torch.full((size,), float(rank)), [], []).wait()
        assert output.tolist() == [0.0, 1.0, 2.0]
    for gather in (group.all_gather_single_coalesced, group.allgather_into_tensor_coalesced):
        outputs = [torch.zeros(size), torch.zeros(2 * size)]
        gather(outputs, [torch.full((1,), float(rank)), torch.full((2,), float(rank))]).wait()
        assert outputs[1].tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    for scatter in (group.reduce_scatter_single_coalesced, group.reduce_scatter_tensor_coalesced):
        outputs = [torch.zeros(1), torch.zeros(2)]
        scatter(outputs, [torch.ones(size), torch.ones(2 * size)]).wait()
        assert outputs[1].tolist() == [size, size]
    tensor = torch.ones(2)
    group.allreduce(tensor).wait()  # like DDP's join
    group.allreduce([tensor], dist.ReduceOp.MAX).wait()
    group.broadcast(tensor, 0).wait()
    assert tensor.tolist() == [size, size]
    group.reduce(tensor, 0, dist.ReduceOp.SUM).wait()
    assert tensor[0] == (size * size if rank == 0 else size)
    group.barrier().wait()


def test_old_and_new_names() -> None:
    on_all_ranks(both_spellings)


def coalesced() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for device in (None, torch.device("cpu")):
        tensors = [torch.full((n,), float(rank)) for n in (1, 5, 0)]
        with _coalescing_manager(device=device, async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        assert all((tensor == 3).all() for tensor in tensors)
    received = torch.zeros(2)
    with _coalescing_manager(device=torch.device("cpu")):
        dist.isend(torch.full((2,), float(rank)), (rank + 1) % size)
        dist.irecv(received, (rank - 1) % size)
    assert (received == (rank - 1) % size).all()
    outputs = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    dist.group.WORLD.allgather_coalesced(outputs, [torch.full((2,), float(rank)), torch.full((3,), 1.0)]).wait()
    assert [row[0][0].item() for row in outputs] == [0.0, 1.0, 2.0]
    tensors = [torch.ones(2), torch.ones(3)]
    dist.all_reduce_coalesced(tensors)
    assert tensors[1].tolist() == [size] * 3


def test_coalesced() -> None:
    on_all_ranks(coalesced)


def objects() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank})
    assert found == [{"rank": one, "text": "x" * one} for one in range(size)]
    found = ["a", 1] if rank == 1 else [None, None]
    dist.broadcast_object_list(found, 1)
    assert found == ["a", 1]
    out: list[Any] = [None]
    dist.scatter_object_list(out, [f"for {one}" for one in range(size)] if rank == 0 else None, 0)
    assert out == [f"for {rank}"]
    gathered: list[Any] | None = [None] * size if rank == 2 else None
    dist.gather_object(rank, gathered, 2)
    assert gathered in (None, [0, 1, 2])


def test_objects() -> None:
    on_all_ranks(objects)


def messages() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    received = [torch.zeros(3) for _ in range(size)]
    # In an order that would deadlock if each call waited.
    operations = [dist.P2POp(dist.irecv, received[one], one) for one in range(size) if one != rank]
    operations += [dist.P2POp(dist.isend, torch.full((3,), float(rank)), one) for one in range(size) if one != rank]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert all((received[one] == one).all() for one in range(size) if one != rank)
    dist.barrier()
    if rank == 0:
        sources = set()
        for _ in range(1, size):
            tensor = torch.zeros(1)
            source = dist.recv(tensor)
            assert tensor.item() == source
            sources.add(source)
        assert sources == {1, 2}
        first, second = torch.zeros(1), torch.zeros(1)
        later = dist.irecv(second, 1, tag=5)
        dist.recv(first, 1, tag=4)
        assert later.wait() and (first.item(), second.item()) == (4, 5)
        assert later.get_future().wait() == [second]
    else:
        dist.send(torch.tensor([float(rank)]), 0)
        if rank == 1:
            dist.send(torch.tensor([5.0]), 0, tag=5)
            dist.send(torch.tensor([4.0]), 0, tag=4)


def test_messages() -> None:
    on_all_ranks(messages)


def versions() -> None:
    for collective in (
        lambda tensor: dist.all_reduce(tensor),
        lambda tensor: dist.all_reduce(tensor, async_op=True).wait(),
        lambda tensor: dist.all_gather(list(tensor.chunk(2)), torch.ones(2)),
        lambda tensor: dist.all_to_all_single(tensor, torch.ones(4)),
    ):
        weight, other = torch.ones(4, requires_grad=True), torch.ones(4)
        product = (weight * other).sum()  # keeps `other`
        collective(other)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()
    with torch.inference_mode():
        dist.all_reduce(torch.ones(2))


def test_a_result_in_place_is_seen_by_autograd() -> None:
    on_all_ranks(versions, num_ranks=2)


def futures() -> None:
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    then = work.get_future().then(lambda future: future.value()[0] * 10)
    assert then.wait().tolist() == [20.0] * 3
    assert work.get_future().wait() == work.result() == [tensor]
    many = [dist.all_reduce(torch.full((10,), float(i)), async_op=True) for i in range(100)]
    for i, value in enumerate(torch.futures.wait_all([work.get_future() for work in many])):
        assert (value[0] == 2 * i).all()


def test_futures() -> None:
    on_all_ranks(futures, num_ranks=2)


def released() -> None:
    """As soon as an operation is known to be done, its memory is released, though no other operation begins."""
    rank = dist.get_rank()
    begin: dict[str, Callable[[Any], Any]] = {
        "collective": lambda x: dist.all_reduce(x, async_op=True),
        "message": lambda x: dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0),
    }
    end: dict[str, Callable[[Any], Any]] = {
        "wait": lambda work: work.wait(),
        "future": lambda work: work.get_future().wait(),
        "poll": lambda work: wait_until(work.is_completed),
    }
    for launch, finish in itertools.product(begin, end):
        for make in (lambda: torch.ones(3), lambda: torch.ones(2, 3)[:, 1]):
            tensor = make()
            seen = weakref.ref(tensor)
            work = begin[launch](tensor)
            end[finish](work)
            del work, tensor
            wait_until(lambda seen=seen: seen() is None)  # the thread that sets a future still holds it for a moment


def test_memory_is_released_once_an_operation_is_known_to_be_done() -> None:
    on_all_ranks(released, num_ranks=2)


def waiting_callbacks() -> None:
    """Callbacks start another operation and wait for it, on a rank whose peer is late for each of them."""
    late = dist.get_rank() == 1

    def again(future: Any) -> Any:
        time.sleep(0.2 * late)  # a peer that comes late is the case
        (tensor,) = future.value()
        return dist.all_reduce(tensor, async_op=True).get_future().wait()

    time.sleep(0.2 * late)  # the same
    first, second = torch.ones(3), torch.full((3,), 2.0)
    futures = [dist.all_reduce(one, async_op=True).get_future() for one in (first, second)]
    chains = [future.then(again).then(again) for future in futures]
    assert [chain.wait()[0].tolist() for chain in chains] == [[8.0] * 3, [16.0] * 3]


def test_callbacks_may_wait_for_what_they_start() -> None:
    on_all_ranks(waiting_callbacks, num_ranks=2)


def sparse() -> None:
    rank = dist.get_rank()
    for nnz in (rank, 2):
        tensor = torch.zeros(4, 3, 2)
        tensor[:nnz, rank] = 1.0 + rank
        entries = tensor.to_sparse(2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of PyTorch, about the calls of this test
            dist.all_reduce(entries)
        total = tensor.clone()
        dist.all_reduce(total)
        assert entries.is_sparse and torch.equal(entries.to_dense(), total)
    several = [torch.eye(2).to_sparse(), torch.full((2, 2), rank + 1.0).to_sparse()]
    dist.group.WORLD.allreduce_coalesced(several).wait()
    assert several[0].to_dense().tolist() == [[dist.get_world_size(), 0], [0, dist.get_world_size()]]
    assert (several[1].to_dense() == sum(range(1, dist.get_world_size() + 1))).all()
    with pytest.raises(ValueError, match="sparse tensors of one shape"):
        dist.all_reduce(torch.zeros(2 + rank).to_sparse())


def test_all_reduce_of_sparse_tensors() -> None:
    on_all_ranks(sparse)
