"""The derivatives of each collective, by gradcheck on all ranks at once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hocket.torch_backend import autograd
from tests.torch_backend.ranks import run

NUM_RANKS = 3
ROWS = 3  # of each rank's x


class Mine(torch.autograd.Function):
    """Selects this rank's row of a tensor that all ranks have."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x[dist.get_rank()].clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return Everybodys.apply(gradient)


class Everybodys(torch.autograd.Function):
    """Gathers the rows of all ranks."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        rows = x.new_empty((dist.get_world_size(), *x.shape))
        dist.all_gather_single(rows, x.contiguous())
        return rows

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return Mine.apply(gradient)


def ring(x: Any) -> Any:
    """Sends to the next rank, then receives from the previous one; the last rank receives first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank < size - 1:
        sent = autograd.send(x, rank + 1)
        return autograd.recv(0 * x, (rank - 1) % size) + sent.sum()
    found = autograd.recv(0 * x, rank - 1)
    return found + autograd.send(x, 0).sum()


def exchange(x: Any) -> Any:
    """Uneven: rank i sends min(i, j) rows to rank j, and one more to itself."""
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


def checked(name: str) -> None:
    """Checks one function of all ranks' inputs, so that all ranks ask for the same derivatives in the same order."""

    def together(x: Any) -> Any:
        # x is squared, so that the second derivatives are not all 0.
        y = COLLECTIVES[name](Mine.apply(x).square()).reshape(-1)
        return Everybodys.apply(torch.nn.functional.pad(y, (0, ROWS * NUM_RANKS - y.numel())))

    torch.manual_seed(0)
    x = torch.rand(NUM_RANKS, ROWS, 1, dtype=torch.float64) + 1
    assert together(x).count_nonzero() > 0
    x.requires_grad_()
    assert torch.autograd.gradcheck(together, x)
    assert torch.autograd.gradgradcheck(together, x, fast_mode=True)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_derivatives_of_a_collective(name: str) -> None:
    run(checked, NUM_RANKS, name)


def trained_alike() -> None:
    """Compares with one process that has all the data."""
    torch.manual_seed(0)
    data, weight = torch.randn(6, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64, requires_grad=True)
    mine = data.chunk(3)[dist.get_rank()]
    autograd.all_reduce((mine @ weight.tanh()).sum()).square().backward()
    expected = torch.autograd.grad((data @ weight.tanh()).sum().square(), weight)[0]
    # Each rank's loss is the total, and the gradient of all_reduce is the sum over all ranks.
    total = autograd.all_reduce(weight.grad) / 3
    torch.testing.assert_close(total, expected)
    with pytest.raises(ValueError, match="which are linear"):
        autograd.all_reduce(data, dist.ReduceOp.MAX)


def test_a_loss_across_ranks() -> None:
    run(trained_alike, NUM_RANKS)
