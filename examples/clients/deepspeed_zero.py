"""DeepSpeed's ZeRO on Hocket (pip install deepspeed).

    torchrun --standalone --nproc-per-node=2 examples/clients/deepspeed_zero.py
    torchrun --standalone --nproc-per-node=2 examples/clients/deepspeed_zero.py hocket 1

DeepSpeed uses the existing process group. The stage says what is sharded among the ranks: 1 the optimizer's state, 2
also gradients, 3 also parameters.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed


def main(backend: str, stage: int) -> None:
    dist.init_process_group(backend)
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    mine = x.chunk(dist.get_world_size())[dist.get_rank()]
    for _ in range(10):
        for inputs in mine.split(16):
            loss = nn.functional.mse_loss(engine(inputs), inputs.sum(1, keepdim=True))
            engine.backward(loss)
            engine.step()
    losses = loss.detach().clone()
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        print(f"{dist.get_backend()}, {dist.get_world_size()} ranks: loss {losses:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "hocket", int(sys.argv[2]) if len(sys.argv) > 2 else 3)
