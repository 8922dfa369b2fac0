"""A classifier of handwritten digits, cut into four stages on four ranks, under any schedule.

    hocket run -n 4 -- examples/pipeline.py
    hocket run -n 4 -- examples/pipeline.py zb-h1

Without a name it takes the schedule below, which lectures begin with. `hocket show pipeline` draws the others.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import hocket
from hocket.training.datasets import load
from hocket.training.pipeline import Runner, backward, build_table, forward, full, time_table

NUM_STAGES, MICROBATCHES, BATCH, EPOCHS = 4, 8, 64, 4


def lecture(rank: int, p: int, m: int, v: int) -> Sequence[Any]:
    """All micro-batches go forward through the stage of this rank; then all go back."""
    return [forward(rank, m).take(), full(backward(rank, m).take())]


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    middle = [nn.Sequential(nn.Linear(48, 48), nn.Tanh()) for _ in range(NUM_STAGES - 2)]
    return [nn.Sequential(nn.Linear(64, 48), nn.Tanh()), *middle, nn.Linear(48, 10)]


def main() -> None:
    torch.set_num_threads(1)
    with hocket.init() as comm:
        table = build_table(sys.argv[1] if len(sys.argv) > 1 else lecture, comm.size, MICROBATCHES, chunks=1)
        stage, alone = layers()[comm.rank], nn.Sequential(*layers())
        loss = nn.functional.cross_entropy
        runner = Runner(table, {comm.rank: stage}, comm, loss=loss)
        optimizers = [torch.optim.SGD(module.parameters(), lr=0.5) for module in (stage, alone)]

        digits = load()
        images, labels = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels).long()
        batches = torch.arange(len(images)).split(BATCH)[:-1]  # without the last, which is shorter
        for batch in EPOCHS * batches:
            found = runner.step(images[batch], labels[batch])
            expected = loss(alone(images[batch]), labels[batch])
            expected.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        if comm.rank == 0:
            timing = time_table(table)
            print(f"{table.name}: bubble rate {timing.bubble_rate:.1%} where F, B and W take the same time")
            print(f"loss {found:.4f} at the end, in one process {expected.item():.4f}")


if __name__ == "__main__":
    main()
