"""PyTorch's own parallel training on Hocket gives the same as training in one process."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
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


def assert_alike(network: Any, tolerance: float | None = None) -> None:
    for found, expected in zip(network.parameters(), in_one_process().parameters(), strict=True):
        full = found.full_tensor() if isinstance(found, DTensor) else found
        torch.testing.assert_close(full.detach(), expected.detach(), rtol=tolerance, atol=tolerance)


def data_parallel(**options: Any) -> None:
    train(DistributedDataParallel(model(), **options))


def train(network: Any, tolerance: float | None = None) -> None:
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for x, y in batches():
        step(network, optimizer, mine(x), mine(y))
    assert_alike(network, tolerance)


def all_data_parallel() -> None:
    data_parallel()
    data_parallel(bucket_cap_mb=0.0001)  # about one bucket for each parameter
    data_parallel(find_unused_parameters=True)
    data_parallel(gradient_as_bucket_view=True)
    data_parallel(static_graph=True)
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


def hooks() -> None:
    for hook, tolerance in (
        (default_hooks.allreduce_hook, None),
        (default_hooks.fp16_compress_hook, 1e-3),
        (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 1e-3),
    ):
        network = DistributedDataParallel(model())
        network.register_comm_hook(None, hook)
        train(network, tolerance)
    network = DistributedDataParallel(model())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=16, start_powerSGD_iter=2)
    network.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(network, 1e-4)
    network = DistributedDataParallel(model())
    network._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    train(network)
    # A hook of the user, which returns the future of an operation.
    network = DistributedDataParallel(model())
    network.register_comm_hook(
        None,
        lambda _, bucket: (
            dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, async_op=True)
            .get_future()
            .then(lambda done: done.value()[0])
        ),
    )
    train(network)


def test_communication_hooks() -> None:
    run(hooks, 2)


class Branching(nn.Module):
    """A model of which each rank uses another part, and no rank uses one part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: Any, part: int) -> Any:
        return self.parts[part](x)


def overlapping() -> None:
    """The gradients of the last layers are sent before those of the first layers are known."""
    network = DistributedDataParallel(model(), bucket_cap_mb=0.0001)
    launched = []

    def note(_: Any) -> None:
        launched.append(dist.group.WORLD._get_sequence_number_for_group())

    parameters = list(network.parameters())
    for parameter in parameters:
        parameter.register_hook(note)
    for x, y in batches():  # the first step finds the order of gradients, and makes buckets from it
        launched.clear()
        nn.functional.mse_loss(network(mine(x)), mine(y)).backward()
    assert len(launched) == len(parameters) and launched[-1] > launched[0]


def test_data_parallel_communicates_while_it_computes() -> None:
    run(overlapping, 2)


def unused() -> None:
    network = DistributedDataParallel(Branching(), find_unused_parameters=True)
    alone = Branching()
    for _ in range(2):
        network(torch.ones(1, 3), dist.get_rank()).sum().backward()
    for part in range(2):
        alone(torch.ones(1, 3), part).sum().backward()
    for found, expected in zip(network.module.parts, alone.parts, strict=True):
        if expected.weight.grad is None:
            assert found.weight.grad is None
        else:  # twice the mean of two ranks, one of which did not use it
            torch.testing.assert_close(found.weight.grad, expected.weight.grad)


def test_parameters_that_a_rank_does_not_use() -> None:
    run(unused, 2)


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


def fully_sharded_by_wrapping() -> None:
    cpu, policy = torch.device("cpu"), ModuleWrapPolicy({nn.Linear})
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for options in (
        {"sharding_strategy": ShardingStrategy.FULL_SHARD},
        {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP, "use_orig_params": True},
        {"sharding_strategy": ShardingStrategy.HYBRID_SHARD, "device_mesh": mesh},
    ):
        network = FullyShardedDataParallel(model(), auto_wrap_policy=policy, device_id=cpu, **options)
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        for x, y in batches():
            step(network, optimizer, mine(x), mine(y))
        with FullyShardedDataParallel.summon_full_params(network):
            assert_alike(network)


def test_fully_sharded_by_wrapping() -> None:
    run(fully_sharded_by_wrapping, 4)


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


def compiled_data_parallel(folder: str) -> None:
    """With the default compiler, which generates C++: DDP, and a collective in the middle of a function."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # a pool of processes would take longer to start
    torch._inductor.config.cpp_cache_precompile_headers = False  # so would this, for three small functions
    network = DistributedDataParallel(model())
    network.compile()
    train(network)

    @torch.compile(fullgraph=True)
    def scaled(x: Any) -> Any:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    assert scaled(torch.full((3,), 1.0 + dist.get_rank())).tolist() == [7.0] * 3


@pytest.mark.slow("a compiler of C++ runs for every function")
def test_compiled(tmp_path: Path) -> None:
    run(compiled_data_parallel, 2, str(tmp_path))


def pipeline(kind: Any, stages_of_rank: list[list[int]]) -> None:
    """Four stages, or two of two layers, each on its rank from stages_of_rank."""
    layers, rank = model(), dist.get_rank()
    num_stages = sum(map(len, stages_of_rank))
    bounds = [0, 2, 3, 4, 5] if num_stages == 4 else [0, 2, 5]
    parts = {number: layers[bounds[number] : bounds[number + 1]] for number in stages_of_rank[rank]}
    stages = [PipelineStage(part, number, num_stages, torch.device("cpu")) for number, part in parts.items()]
    schedule = kind(stages if len(stages) > 1 else stages[0], 4, loss_fn=nn.functional.mse_loss)
    # Only a layer with weights can learn.
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in parts.values() if list(part.parameters())]
    for x, y in batches():
        for optimizer in optimizers:
            optimizer.zero_grad()
        schedule.step(*([x] if 0 in parts else []), **({"target": y} if num_stages - 1 in parts else {}))
        for optimizer in optimizers:
            optimizer.step()
    expected = in_one_process()
    for number, part in parts.items():
        others = expected[bounds[number] : bounds[number + 1]].parameters()
        for found, other in zip(part.parameters(), others, strict=True):
            torch.testing.assert_close(found.detach(), other.detach())


def pipelines() -> None:
    pipeline(ScheduleGPipe, [[0], [1]])
    pipeline(Schedule1F1B, [[0], [1]])
    pipeline(ScheduleInterleaved1F1B, [[0, 2], [1, 3]])


def test_pipelines() -> None:
    run(pipelines, 2)


def checkpoint(path: str) -> None:
    import torch.distributed.checkpoint as saved
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    mesh = init_device_mesh("cpu", (2,))
    trained = fully_shard(model(), mesh=mesh)
    optimizer = torch.optim.AdamW(trained.parameters())
    for x, y in batches():
        step(trained, optimizer, mine(x), mine(y))
    saved.save(dict(zip("mo", get_state_dict(trained, optimizer), strict=True)), checkpoint_id=f"{path}/at once")
    saving = saved.async_save(
        dict(zip("mo", get_state_dict(trained, optimizer), strict=True)), checkpoint_id=f"{path}/later"
    )
    saving.result()
    for folder in ("at once", "later"):
        torch.manual_seed(7)
        # Read with the shards in the other order: each rank has all of it.
        other = model()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        its = torch.optim.AdamW(other.parameters())
        state = dict(zip("mo", get_state_dict(other, its), strict=True))
        saved.load(state, checkpoint_id=f"{path}/{folder}")
        set_state_dict(other, its, model_state_dict=state["m"], optim_state_dict=state["o"])
        for found, expected in zip(other.parameters(), trained.parameters(), strict=True):
            assert torch.equal(found.detach(), expected.full_tensor())


def test_checkpoint(tmp_path: Path) -> None:
    run(checkpoint, 2, str(tmp_path))
