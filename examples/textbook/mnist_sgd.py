"""Synchronous SGD by hand: the data is partitioned among the ranks, and average_gradients() is one all_reduce each.

    torchrun --standalone --nproc-per-node=2 examples/textbook/mnist_sgd.py
    torchrun --standalone --nproc-per-node=2 examples/textbook/mnist_sgd.py gloo
    torchrun --standalone --nproc-per-node=2 examples/textbook/mnist_sgd.py hocket FOLDER

The classic tutorial's program. It learns the digits that come with Hocket, or those of MNIST's files in FOLDER.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

from hocket.training.datasets import load

NUM_EPOCHS, BATCH = 10, 64


def average_gradients(model: nn.Module) -> None:
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= size


def partition(images: torch.Tensor, labels: torch.Tensor) -> torch.utils.data.DataLoader:
    """Batches of this rank's part of the data."""
    rank, size = dist.get_rank(), dist.get_world_size()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1234))
    mine = order[: len(order) // size * size].chunk(size)[rank]
    data = torch.utils.data.TensorDataset(images[mine], labels[mine])
    shuffle = torch.Generator().manual_seed(rank)
    return torch.utils.data.DataLoader(data, BATCH // size, shuffle=True, generator=shuffle)


def main(backend: str, folder: str | None) -> None:
    dist.init_process_group(backend)
    torch.manual_seed(1234)
    data = load(folder)
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    model = nn.Sequential(nn.Linear(data.num_features, 50), nn.ReLU(), nn.Linear(50, data.num_classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    batches = partition(images, labels)
    for epoch in range(NUM_EPOCHS):
        total = 0.0
        for x, y in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            total += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        mean = torch.tensor(total / len(batches))
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {mean.item() / dist.get_world_size():.3f}")
    found = model(torch.from_numpy(data.test_images)).argmax(1)
    if dist.get_rank() == 0:
        right = (found == torch.from_numpy(data.test_labels)).float().mean().item()
        print(f"held-out accuracy {right:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "hocket", sys.argv[2] if len(sys.argv) > 2 else None)
