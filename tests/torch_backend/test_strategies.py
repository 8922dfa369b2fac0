"""PyTorch's own ways to train across ranks give on Hocket what one process gives."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.torch_backend.ranks import run

NUM_STEPS, BATCH = 3, 8


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))


def batches() -> Iterator[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(NUM_STEPS):
        yield torch.randn(BATCH, 6, generator=generator), torch.randn(BATCH, 2, generator=generator)


def step(network: Any, optimizer: Any, x: Any, y: Any) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(network(x), y).backward()
    optimizer.step()


def in_one_process() -> nn.Module:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for x, y in batches():
        step(network, optimizer, x, y)
    return network


def mine(tensor: Any) -> Any:
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def assert_alike(network: Any) -> None:
    for found, expected in zip(network.parameters(), in_one_process().parameters(), strict=True):
        full = found.full_tensor() if isinstance(found, DTensor) else found
        torch.testing.assert_close(full.detach(), expected.detach())


def data_parallel(**options: Any) -> None:
    network = DistributedDataParallel(model(), **options)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for x, y in batches():
        step(network, optimizer, mine(x), mine(y))
    assert_alike(network)


def all_data_parallel() -> None:
    data_parallel()
    data_parallel(bucket_cap_mb=0.0001)  # a bucket for each parameter or so
    data_parallel(find_unused_parameters=True)
    data_parallel(gradient_as_bucket_view=True)
    data_parallel(static_graph=True)
    hooked = DistributedDataParallel(model())
    hooked.register_comm_hook(None, default_hooks.allreduce_hook)
    optimizer = torch.optim.SGD(hooked.parameters(), 0.1)
    for x, y in batches():
        step(hooked, optimizer, mine(x), mine(y))
    assert_alike(hooked)
    joined = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(joined.parameters(), 0.1)
    with Join([joined]):
        for _ in range(1 + dist.get_rank()):
            step(joined, optimizer, torch.ones(2, 6), torch.ones(2, 2))
    total = [torch.zeros(16, 6) for _ in range(2)]
    dist.all_gather(total, next(iter(joined.parameters())).detach())
    assert torch.equal(*total)


def test_data_parallel() -> None:
    run(all_data_parallel, 2)


def zero() -> None:
    network = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.SGD, lr=0.1)
    for x, y in batches():
        step(network, optimizer, mine(x), mine(y))
    assert_alike(network)


def test_zero_redundancy_optimizer() -> None:
    run(zero, 2)


def fully_sharded(shape: tuple[int, ...]) -> None:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    network = model()
    for layer in (network[0], network[2], network):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for x, y in batches():
        step(network, optimizer, mine(x), mine(y))
    assert_alike(network)


@pytest.mark.parametrize("shape", [(2,), (2, 2)])
def test_fully_sharded(shape: tuple[int, ...]) -> None:
    run(fully_sharded, 2 if len(shape) == 1 else 4, shape)


def tensor_parallel() -> None:
    mesh = init_device_mesh("cpu", (2,))
    network = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for x, y in batches():
        step(network, optimizer, x, y)
    assert_alike(network)
    tensor = torch.arange(12.0).reshape(4, 3)
    sharded = distribute_tensor(tensor, mesh, [Shard(0)])
    turned = sharded.redistribute(placements=[Shard(1)])
    assert torch.equal(turned.redistribute(placements=[Replicate()]).to_local(), tensor)
    assert torch.equal((sharded @ sharded.t()).full_tensor(), tensor @ tensor.t())


def test_tensor_parallel() -> None:
    run(tensor_parallel, 2)


def functional_collectives() -> None:
    rank, group = dist.get_rank(), dist.group.WORLD
    x = torch.full((4,), 1.0 + rank)
    assert functional.all_reduce(x, "sum", group).tolist() == [3.0] * 4
    assert functional.all_gather_tensor(x, 0, group).tolist() == [1.0] * 4 + [2.0] * 4
    assert functional.reduce_scatter_tensor(x, "avg", 0, group).tolist() == [1.5] * 2
    assert functional.all_to_all_single(x, None, None, group).tolist() == [1.0, 1.0, 2.0, 2.0]
    assert functional.broadcast(x, 1, group).tolist() == [2.0] * 4
    assert [one.tolist() for one in functional.all_reduce_coalesced([x, x], "max", group)] == [[2.0] * 4] * 2
    x.requires_grad_()
    functional.all_gather_tensor_autograd(x, 0, group).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 4

    def compiled(x: Any) -> Any:
        return functional.all_reduce(x * 2, "sum", group) + 1

    assert torch.compile(compiled, backend="aot_eager")(torch.ones(3)).tolist() == [5.0] * 3


def test_functional_collectives() -> None:
    run(functional_collectives, 2)


def pipeline() -> None:
    rank = dist.get_rank()
    for kind in (ScheduleGPipe, Schedule1F1B):
        network = model()
        part = network[:2] if rank == 0 else network[2:]
        stage = PipelineStage(part, rank, 2, torch.device("cpu"))
        schedule = kind(stage, 4, loss_fn=nn.functional.mse_loss)
        optimizer = torch.optim.SGD(part.parameters(), 0.1)
        for x, y in batches():
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(x)
            else:
                schedule.step(target=y)
            optimizer.step()
        expected = copy.deepcopy(in_one_process())
        expected = expected[:2] if rank == 0 else expected[2:]
        for found, other in zip(part.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(found.detach(), other.detach())


def test_pipeline() -> None:
    run(pipeline, 2)


def checkpoint(path: str) -> None:
    import torch.distributed.checkpoint as saved

    mesh = init_device_mesh("cpu", (2,))
    tensor = torch.arange(8.0)
    saved.save({"x": distribute_tensor(tensor, mesh, [Shard(0)])}, checkpoint_id=path)
    state = {"x": distribute_tensor(torch.zeros(8), mesh, [Shard(0)])}
    saved.load(state, checkpoint_id=path)
    assert torch.equal(state["x"].full_tensor(), tensor)


def test_checkpoint(tmp_path: Any) -> None:
    run(checkpoint, 2, str(tmp_path))
