"""Tensor parallelism by hand: each rank has some columns of every weight, and activations are gathered.

    torchrun --standalone --nproc-per-node=4 examples/textbook/tensor_parallel.py
    torchrun --standalone --nproc-per-node=4 examples/textbook/tensor_parallel.py gloo

Lectures show the forward pass. The backward pass of gathering activations is reduce_scatter: every rank has a gradient
of all columns, and the gradient of a column is the sum over ranks. Rank 0 compares the result with one process that has
whole weights.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

NUM_LAYERS, BATCH, WIDTH = 3, 16, 32


class GatherColumns(torch.autograd.Function):
    """The columns of all ranks, side by side."""

    @staticmethod
    def forward(context, x):
        size = dist.get_world_size()
        columns = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(columns, x.contiguous())
        return torch.cat(columns, dim=1)

    @staticmethod
    def backward(context, gradient):
        size = dist.get_world_size()
        # reduce_scatter splits rows, so columns are turned into rows and back.
        turned = gradient.t().contiguous()
        mine = torch.empty(turned.size(0) // size, turned.size(1))
        dist.reduce_scatter(mine, list(turned.chunk(size)))
        return mine.t()


def weights() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(NUM_LAYERS)]


def whole(x: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
    """Returns the loss and the gradients of one process."""
    layers = [weight.requires_grad_() for weight in weights()]
    for weight in layers:
        x = nn.functional.gelu(x @ weight)
    loss = x.square().mean()
    loss.backward()
    return loss.item(), [weight.grad for weight in layers]


def main(backend: str) -> None:
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    data = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))

    layers = [weight.chunk(size, dim=1)[rank].clone().requires_grad_() for weight in weights()]
    x = data
    for weight in layers:
        x = GatherColumns.apply(nn.functional.gelu(x @ weight))
    loss = x.square().mean() / size  # every rank has the same loss; the sum must be the loss of one process
    loss.backward()

    expected_loss, expected = whole(data)
    alike = torch.tensor(
        [torch.allclose(weight.grad, full.chunk(size, dim=1)[rank], atol=1e-6)
         for weight, full in zip(layers, expected, strict=True)]
    )  # fmt: skip
    dist.all_reduce(alike, op=dist.ReduceOp.MIN)
    if rank == 0:
        print(f"loss {loss.item() * size:.6f}, in one process {expected_loss:.6f}")
        print(f"gradients of all layers on {size} ranks are those of one process: {bool(alike.all())}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "hocket")
