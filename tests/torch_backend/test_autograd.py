"""The gradient of each collective is its transpose: <A x, y> = <x, A' y>, summed over ranks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hocket.torch_backend import autograd
from tests.torch_backend.ranks import run

NUM_RANKS = 3


def ring(x: Any) -> Any:
    """Sends to the next rank what it receives from the one before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        sent = autograd.send(x, 1)
        return autograd.recv(torch.zeros_like(x, requires_grad=True), size - 1) + sent.sum()
    found = autograd.recv(torch.zeros_like(x, requires_grad=True), rank - 1)
    return found + autograd.send(x, (rank + 1) % size).sum()


def exchange(x: Any) -> Any:
    """Uneven: what rank i sends to rank j is min(i, j) rows, and one more to itself."""
    rank, size = dist.get_rank(), dist.get_world_size()
    counts = [min(rank, one) for one in range(size)]
    counts[-1] += x.size(0) - sum(counts) if rank == size - 1 else 0
    return autograd.all_to_all(x[: sum(counts)], counts, counts)


COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "all_reduce": autograd.all_reduce,
    "all_reduce of means": lambda x: autograd.all_reduce(x, dist.ReduceOp.AVG),
    "reduce": lambda x: autograd.reduce(x, 1),
    "broadcast": lambda x: autograd.broadcast(x, 1),
    "all_gather": autograd.all_gather,
    "reduce_scatter": autograd.reduce_scatter,
    "reduce_scatter of means": lambda x: autograd.reduce_scatter(x, dist.ReduceOp.AVG),
    "all_to_all": autograd.all_to_all,
    "all_to_all, uneven": exchange,
    "gather": lambda x: autograd.gather(x, 1),
    "scatter": lambda x: autograd.scatter(x, 1),
    "send and recv": ring,
}


def transposed(name: str) -> None:
    torch.manual_seed(dist.get_rank())
    collective = COLLECTIVES[name]
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    result = collective(x)
    y = torch.randn_like(result)
    (result * y).sum().backward()
    products = torch.stack([(result * y).sum().detach(), (x.detach() * x.grad).sum()])
    dist.all_reduce(products)
    torch.testing.assert_close(products[0], products[1])
    assert products[0] != 0


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_gradient_is_the_transpose(name: str) -> None:
    run(transposed, NUM_RANKS, name)


def trained_alike() -> None:
    """Against one process that has all the data."""
    torch.manual_seed(0)
    data, weight = torch.randn(6, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64, requires_grad=True)
    mine = data.chunk(3)[dist.get_rank()]
    autograd.all_reduce((mine @ weight.tanh()).sum()).square().backward()
    expected = torch.autograd.grad((data @ weight.tanh()).sum().square(), weight)[0]
    # Each rank's loss is the whole one, and the gradient of all_reduce adds up those of all ranks.
    total = autograd.all_reduce(weight.grad) / 3
    torch.testing.assert_close(total, expected)
    with pytest.raises(ValueError, match="which are linear"):
        autograd.all_reduce(data, dist.ReduceOp.MAX)


def test_a_loss_across_ranks() -> None:
    run(trained_alike, NUM_RANKS)
