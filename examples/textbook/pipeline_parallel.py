"""Pipeline parallelism by hand: each rank has some layers, and micro-batches go from rank to rank and back.

    torchrun --standalone --nproc-per-node=4 examples/textbook/pipeline_parallel.py
    torchrun --standalone --nproc-per-node=4 examples/textbook/pipeline_parallel.py gloo

Lectures show the forward pass. In the backward pass each rank receives the gradient of its output and sends the
gradient of its input. All micro-batches go forward before the first goes back (GPipe). Rank 0 compares the result with
one process.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

NUM_LAYERS, NUM_MICRO_BATCHES, BATCH, WIDTH = 4, 4, 32, 32


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(NUM_LAYERS)))


def forward_and_backward(stage: nn.Module, rank: int, size: int, data: torch.Tensor) -> float:
    """Leaves the gradients in the stage's parameters; the last rank returns the loss."""
    received, sent, loss = [], [], 0.0
    for part in data.chunk(NUM_MICRO_BATCHES):
        x = part
        if rank > 0:
            x = torch.empty_like(part)
            dist.recv(x, src=rank - 1)
            x.requires_grad_()
        y = stage(x)
        if rank < size - 1:
            dist.send(y.detach(), dst=rank + 1)
        received.append(x)
        sent.append(y)
    for x, y in zip(received, sent, strict=True):
        if rank == size - 1:
            part = y.square().mean() / NUM_MICRO_BATCHES
            part.backward()
            loss += part.item()
        else:
            gradient = torch.empty_like(y)
            dist.recv(gradient, src=rank + 1)
            y.backward(gradient)
        if rank > 0:
            dist.send(x.grad, dst=rank - 1)
    return loss


def main(backend: str) -> None:
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    data = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    share = slice(NUM_LAYERS * rank // size, NUM_LAYERS * (rank + 1) // size)

    stage = network()[share]
    loss = torch.tensor(forward_and_backward(stage, rank, size, data))
    dist.broadcast(loss, src=size - 1)

    alone = network()
    expected = alone(data).square().mean()
    expected.backward()
    pairs = zip(stage.parameters(), alone[share].parameters(), strict=True)
    alike = torch.tensor(all(torch.allclose(found.grad, other.grad, atol=1e-6) for found, other in pairs))
    dist.all_reduce(alike, op=dist.ReduceOp.MIN)
    if rank == 0:
        print(f"loss {loss.item():.6f}, in one process {expected.item():.6f}")
        print(f"gradients of all {size} stages are those of one process: {bool(alike)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "hocket")
