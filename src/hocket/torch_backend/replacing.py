"""replace_gloo: programs that name the backend "gloo" run on Hocket without a change."""

import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from hocket.torch_backend.process_group import ProcessGroup


def replace_gloo() -> None:
    """Makes all later process groups of the backend "gloo" in this process use Hocket. All ranks must call it.

    dist.get_backend() still returns "gloo", so rank 0 tells on standard error that Hocket runs. Functions that PyTorch
    offers only for that name work, such as dist.monitored_barrier. Raises RuntimeError if the default group is one of
    Gloo, because it would stay with Gloo.
    """
    is_replaced = distributed_c10d.ProcessGroupGloo is _InPlaceOfGloo
    if not is_replaced and dist.is_initialized() and "gloo" in dist.get_backend_config():
        raise RuntimeError(
            "replace_gloo: the default process group runs on Gloo already; call replace_gloo() on all ranks before "
            "init_process_group"
        )
    distributed_c10d.ProcessGroupGloo = _InPlaceOfGloo
    dist.ProcessGroupGloo = _InPlaceOfGloo


class _InPlaceOfGloo(ProcessGroup):
    """A ProcessGroup with the constructor of ProcessGroupGloo."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        # Hocket compares the ranks as they meet; ProcessGroupGloo hears of them later, by its options.
        members = sys._getframe(1).f_locals.get("global_ranks_in_group", [])
        super().__init__(
            SimpleNamespace(
                store=store, group_rank=rank, group_size=size, timeout=timeout, global_ranks_in_group=members
            ),
            None,
        )
        if rank == 0 and not members:  # the default group
            print('hocket: the backend "gloo" of this program is Hocket (replace_gloo)', file=sys.stderr, flush=True)
        self.options = SimpleNamespace()  # torch.distributed writes into it
