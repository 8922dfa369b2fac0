"""Data parallelism by hand: every rank has the whole network and a part of the batch; gradients are averaged.

    torchrun --standalone --nproc-per-node=4 examples/textbook/data_parallel.py
    torchrun --standalone --nproc-per-node=4 examples/textbook/data_parallel.py gloo

Each parameter has an all_reduce of its own. Rank 0 compares the result with one process that sees whole batches.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

NUM_STEPS, BATCH, WIDTH = 20, 32, 64


def network() -> nn.Module:
    torch.manual_seed(0)  # the same weights on all ranks
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def train(size: int, rank: int) -> list[float]:
    """Returns the mean loss over the whole batch, at each step."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(NUM_STEPS):
        x = torch.randn(BATCH, WIDTH, generator=generator).chunk(size)[rank]
        loss = nn.functional.mse_loss(model(x), x.flip(1))
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        if size > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
                parameter.grad /= size
            dist.all_reduce(total, op=dist.ReduceOp.SUM)
        optimizer.step()
        losses.append(total.item() / size)
    return losses


def main(backend: str) -> None:
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    losses = train(size, rank)
    if rank == 0:
        alone = train(1, 0)
        for step in (0, NUM_STEPS // 2, NUM_STEPS - 1):
            print(f"step {step:2}: loss {losses[step]:.4f}")
        close = torch.allclose(torch.tensor(losses), torch.tensor(alone), rtol=1e-4)
        print(f"{size} ranks train as one process does: {close}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "hocket")
