"""replace_gloo: programs that name "gloo" run on Hocket, and need no change."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from hocket.torch_backend.process_group import ProcessGroup


def replace_gloo() -> None:
    """Makes process groups of the backend "gloo" Hocket's, from now on, in this process; all ranks have to call it.

    dist.get_backend() still says "gloo", and what PyTorch does for that name only works: dist.monitored_barrier does.
    """
    distributed_c10d.ProcessGroupGloo = _InPlaceOfGloo
    dist.ProcessGroupGloo = _InPlaceOfGloo


class _InPlaceOfGloo(ProcessGroup):
    """Made as torch.distributed makes a ProcessGroupGloo."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(SimpleNamespace(store=store, group_rank=rank, group_size=size, timeout=timeout), None)
        self.options = SimpleNamespace()  # torch.distributed writes into it
