"""Four ranks produce their gradients in opposite orders, then also leave one out. What do they get?

    python examples/opposite_order.py

Ranks with odd numbers use the branches of the model in the opposite order. In the second case, only rank 0 uses the
last branch. Each program averages the gradients of one backward pass. Rank 0 compares them with those of one process:

    by hooks    an all_reduce for each gradient as autograd produces it
    DDP         PyTorch's DistributedDataParallel
    hocket      hocket.training.DataParallel
"""

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

import hocket
from hocket.training import DataParallel

NUM_RANKS, NUM_BRANCHES, WIDTH = 4, 5, 64
SECONDS = 5.0  # for a program that hangs


class Branches(nn.Module):  # type: ignore[misc]
    """A sum of branches, used in the order of the rank; leaves_out: only rank 0 uses the last one."""

    def __init__(self, leaves_out: bool) -> None:
        super().__init__()
        self.leaves_out = leaves_out
        torch.manual_seed(0)
        self.branches = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_BRANCHES))

    def forward(self, x: Tensor, rank: int) -> Tensor:
        """Returns x and what each branch makes of it."""
        used = list(self.branches)[: -1 if self.leaves_out and rank > 0 else NUM_BRANCHES]
        total = x
        for branch in used if rank % 2 == 0 else reversed(used):
            total = total + torch.tanh(branch(x))
        return total


def loss_of(model: Callable[[Tensor, int], Tensor], rank: int) -> Tensor:
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(rank))
    return model(x, rank).square().mean()


def expected(leaves_out: bool) -> list[Tensor]:
    """Returns the mean over the ranks that have a gradient, computed in this process."""
    found: list[list[Tensor]] = []
    for rank in range(NUM_RANKS):
        model = Branches(leaves_out)
        loss_of(model, rank).backward()
        found.append([parameter.grad for parameter in model.parameters()])
    return [torch.stack([one for one in of_ranks if one is not None]).mean(0) for of_ranks in zip(*found, strict=True)]


def by_hooks(model: Branches, rank: int) -> list[Tensor]:
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: dist.all_reduce(one.grad, dist.ReduceOp.AVG))
    loss_of(model, rank).backward()
    return [parameter.grad for parameter in model.parameters()]


def with_ddp(model: Branches, rank: int) -> list[Tensor]:
    parallel = nn.parallel.DistributedDataParallel(model)
    loss_of(parallel, rank).backward()
    return [parameter.grad for parameter in model.parameters()]


def with_hocket(model: Branches, rank: int) -> list[Tensor]:
    with DataParallel(model, dist.group.WORLD.communicator) as parallel:
        loss_of(parallel, rank).backward()
    return [parameter.grad for parameter in model.parameters()]


def attempt(program: Callable[[Branches, int], list[Tensor]], leaves_out: bool, store: str) -> str:
    rank = int(os.environ["HOCKET_RANK"])
    dist.init_process_group(
        "hocket", init_method=f"file://{store}", rank=rank, world_size=NUM_RANKS, timeout=timedelta(seconds=SECONDS)
    )
    try:
        pairs = zip(program(Branches(leaves_out), rank), expected(leaves_out), strict=True)
        close = [one is not None and torch.allclose(one, right, atol=1e-6) for one, right in pairs]
        wrong = sorted({number // 2 for number, is_close in enumerate(close) if not is_close})
        return f"WRONG gradients of branches {wrong}, and no error" if wrong else "right"
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        dist.destroy_process_group()


def rank(folder: str) -> list[str]:
    torch.set_num_threads(1)
    lines = []
    for leaves_out in (False, True):
        lines.append("opposite order, and one branch only on rank 0" if leaves_out else "opposite order")
        for name, program in {"by hooks": by_hooks, "DDP": with_ddp, "hocket": with_hocket}.items():
            lines.append(f"  {name:9} {attempt(program, leaves_out, f'{folder}/{name}{leaves_out}')}")
    return lines


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(hocket.run_ranks(rank, NUM_RANKS, args=(folder,))[0]))
