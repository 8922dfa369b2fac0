"""AVG of integers is the sum, divided and truncated towards zero, in every collective that reduces."""

import itertools

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.torch_backend.ranks import run
from tests.torch_backend.test_collectives import done, layouts

SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]


def means_of_integers() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in SIGNED + UNSIGNED:
        sign = -1 if dtype.is_signed else 1
        mine = [torch.tensor([sign * 2**rank, part], dtype=dtype) for part in range(size)]
        rows = torch.cat(mine)  # every row of two numbers sums to 7 * sign and size * part
        sums = [[sign * 7, size * part] for part in range(size)]
        means = [[int(total / size) for total in row] for row in sums]
        for async_op, turn in itertools.product((False, True), range(2)):  # the second turn might be a repeated call
            tensor = torch.tensor([sign * (2**rank + turn), 1], dtype=dtype)
            done(dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=async_op), async_op)
            assert tensor.tolist() == [sign * (2 + turn), 1]
            tensor = mine[1].clone()
            done(dist.reduce(tensor, 1, dist.ReduceOp.AVG, async_op=async_op), async_op)
            assert tensor.tolist() == (means[1] if rank == 1 else mine[1].tolist())
            for out in layouts(torch.zeros((1, 2), dtype=dtype)):
                done(
                    dist.reduce_scatter(out, [part[None] for part in mine], dist.ReduceOp.AVG, async_op=async_op),
                    async_op,
                )
                assert out.tolist() == [means[rank]]
            out = torch.zeros(2, dtype=dtype)
            done(dist.reduce_scatter_single(out, rows, dist.ReduceOp.AVG, async_op=async_op), async_op)
            assert out.tolist() == means[rank]
            tensors = [part.clone() for part in mine]
            with _coalescing_manager(async_ops=async_op) as manager:
                for tensor in tensors:
                    dist.all_reduce(tensor, dist.ReduceOp.AVG)
            if async_op:
                manager.wait()
            assert [tensor.tolist() for tensor in tensors] == means
            assert [part.tolist() for part in mine] == rows.view(size, 2).tolist()
    part = torch.tensor([[2**rank, 0]])[:, ::2]
    dist.all_reduce(part, dist.ReduceOp.AVG)
    assert part.tolist() == [[2]]


def test_means_of_integers_are_truncated() -> None:
    run(means_of_integers, 3)
