"""PyTorch's collectives on Hocket: torch.distributed.init_process_group("hocket").

Importing this package registers the backend, and so does `import torch` where Hocket is installed (an entry point of
the group "torch.backends"). All else is loaded when the first process group is made.

    process_group.py   what torch.distributed calls
    arguments.py       what a call gives beside one tensor
    tensors.py         tensors as arrays of the core, whatever their strides
    work.py            handles of what runs, and futures
    meeting.py         how ranks meet over the store that a process group is given
    monitored.py       monitored_barrier
    compiling.py       torch.compile leaves all of it alone
    autograd.py        collectives that differentiate
"""

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.torch_backend.meeting import Options
    from hocket.torch_backend.replacing import replace_gloo

__all__ = ["Options", "register", "replace_gloo"]


def register() -> None:
    """Makes "hocket" a backend of torch.distributed. It warns where it cannot: `import torch` must not fail for it."""
    try:
        import torch.distributed

        # Where PyTorch was built without its distributed package there is nothing to be a backend of.
        if torch.distributed.is_available() and not hasattr(torch.distributed.Backend, "HOCKET"):
            devices = ["cpu", "cuda"]
            torch.distributed.Backend.register_backend("hocket", _create, extended_api=True, devices=devices)
    except Exception as error:
        warnings.warn(f"hocket is no backend of torch.distributed here: {error}", RuntimeWarning, stacklevel=2)


def _create(given: Any, options: Any) -> Any:
    from hocket.torch_backend.process_group import ProcessGroup

    return ProcessGroup(given, options)


def __getattr__(name: str) -> Any:
    if name == "Options":
        from hocket.torch_backend.meeting import Options

        return Options
    if name == "replace_gloo":
        from hocket.torch_backend.replacing import replace_gloo

        return replace_gloo
    raise AttributeError(f"module 'hocket.torch_backend' has no attribute {name!r}")


register()
