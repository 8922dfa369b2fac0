"""Tensors that PyTorch treats as ordinary ones, though they lack memory or values."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce

from tests.torch_backend.ranks import run


def no_elements() -> None:
    """Strides of a tensor without elements say nothing; PyTorch calls all of them contiguous."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for empty in (torch.ones(4, 6)[:, 6:], torch.empty(0, 5).t(), torch.ones(3, 4)[::2, 4:]):
        dist.all_reduce(empty)
        dist.broadcast(empty, 1)
        dist.all_gather([torch.empty_strided(empty.shape, empty.stride()) for _ in range(size)], empty)
        dist.send(empty, 1) if rank == 0 else dist.recv(empty, 0) if rank == 1 else None


def test_tensors_without_elements() -> None:
    run(no_elements, 3)


def still_awaited() -> None:
    """Results of functional collectives, which wait at their first use: read, and written."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def total() -> Any:
        x = all_reduce(torch.full((2,), rank + 1.0), "sum", dist.group.WORLD)
        assert type(x).__name__ == "AsyncCollectiveTensor"
        return x

    x, gathered = total(), torch.empty(2 * size)
    dist.all_gather_into_tensor(gathered, x)
    dist.all_gather([total() for _ in range(size)], x)
    dist.reduce_scatter(total(), [total() for _ in range(size)])
    dist.broadcast(x, 0, async_op=True).wait()
    dist.all_reduce(x)
    assert gathered.tolist() == [6.0] * 2 * size and x.tolist() == [18.0] * 2


def test_results_of_functional_collectives_are_taken() -> None:
    run(still_awaited, 3)
