"""Four ranks produce their gradients in opposite orders, then also leave one out. What do they get?

    python examples/opposite_order.py

Ranks with odd numbers use the branches of the model in the opposite order. In the second case, only rank 0 uses the
last branch. The loss is the mean over the ranks. Rank 0 compares the gradients of one backward pass with those of one
process:

    by hooks       an all_reduce for each gradient as autograd produces it
    DDP            PyTorch's DistributedDataParallel
    DDP, unused    the same with find_unused_parameters=True, which walks the graph in each step
    hocket         hocket.training.DataParallel
"""

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial

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
    """Returns the gradients of the mean loss of all ranks, computed in this process."""
    model = Branches(leaves_out)
    torch.stack([loss_of(model, rank) for rank in range(NUM_RANKS)]).mean().backward()
    return [parameter.grad for parameter in model.parameters()]


def by_hooks(model: Branches, rank: int) -> None:
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: dist.all_reduce(one.grad, dist.ReduceOp.AVG))
    loss_of(model, rank).backward()


def with_ddp(model: Branches, rank: int, unused: bool = False) -> None:
    parallel = nn.parallel.DistributedDataParallel(model, find_unused_parameters=unused)
    loss_of(parallel, rank).backward()


def with_hocket(model: Branches, rank: int) -> None:
    with DataParallel(model, dist.group.WORLD.communicator, op="sum") as parallel:
        (loss_of(parallel, rank) / NUM_RANKS).backward()


PROGRAMS: dict[str, Callable[[Branches, int], None]] = {"by hooks": by_hooks, "DDP": with_ddp, "hocket": with_hocket}
OF_UNUSED = {"DDP, unused": partial(with_ddp, unused=True)}


def attempt(program: Callable[[Branches, int], None], leaves_out: bool, store: str) -> str:
    rank = int(os.environ["HOCKET_RANK"])
    dist.init_process_group(
        "hocket", init_method=f"file://{store}", rank=rank, world_size=NUM_RANKS, timeout=timedelta(seconds=SECONDS)
    )
    try:
        model = Branches(leaves_out)
        program(model, rank)
        pairs = zip([one.grad for one in model.parameters()], expected(leaves_out), strict=True)
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
        for name, program in (PROGRAMS | (OF_UNUSED if leaves_out else {})).items():
            lines.append(f"  {name:11} {attempt(program, leaves_out, f'{folder}/{name}{leaves_out}')}")
    return lines


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(hocket.run_ranks(rank, NUM_RANKS, args=(folder,))[0]))
