"""The effect of each collective on small tensors that one can check by eye; and all_reduce as two collectives.

torchrun --standalone --nproc-per-node=4 examples/textbook/collectives.py
torchrun --standalone --nproc-per-node=4 examples/textbook/collectives.py gloo
"""

import sys

import torch
import torch.distributed as dist


def show(rank: int, size: int, title: str, tensor: torch.Tensor) -> None:
    """Prints the tensor of every rank, in rank order."""
    rows: list[list[float]] = [[] for _ in range(size)]
    dist.all_gather_object(rows, tensor.tolist())
    if rank == 0:
        print(title)
        for other, row in enumerate(rows):
            print(f"  rank {other}: {row}")


def main(backend: str) -> None:
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()

    tensor = torch.arange(size, dtype=torch.float32) + 10 * rank
    show(rank, size, "at first", tensor)
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    show(rank, size, "all_reduce: every rank has the sums", tensor)

    whole = torch.arange(2 * size, dtype=torch.float32) + 10 * rank
    part = torch.empty(2)
    dist.reduce_scatter(part, list(whole.chunk(size)))
    show(rank, size, "reduce_scatter: every rank has a part of the sums", part)

    gathered = torch.empty(2 * size)
    dist.all_gather(list(gathered.chunk(size)), part)
    show(rank, size, "all_gather of these parts", gathered)

    dist.all_reduce(whole)
    if rank == 0:
        print(f"reduce_scatter, then all_gather, is all_reduce: {torch.equal(gathered, whole)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "hocket")
