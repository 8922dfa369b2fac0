"""Hugging Face accelerate on Hocket (pip install accelerate).

    torchrun --standalone --nproc-per-node=2 examples/clients/accelerate_sgd.py

accelerate accepts only the CPU backends in its own list. But it uses an existing process group as it is, so this
program makes the group first.
"""

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(backend: str) -> None:
    dist.init_process_group(backend)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for _ in range(10):
        for inputs, labels in data:
            optimizer.zero_grad()
            accelerator.backward(loss := nn.functional.mse_loss(model(inputs), labels))
            optimizer.step()
    losses = accelerator.gather(loss.detach().reshape(1))
    accelerator.print(f"{dist.get_backend()}, {accelerator.num_processes} ranks: loss {losses.mean():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "hocket")
