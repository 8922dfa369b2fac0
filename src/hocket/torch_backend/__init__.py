"""PyTorch's collectives on Hocket: torch.distributed.init_process_group("hocket").

Importing this package registers the backend. If Hocket is installed, `import torch` registers it, too (an entry point
of the group "torch.backends"). All other modules are loaded when the first process group is made.

    process_group.py   the methods that torch.distributed calls
    operands.py        lists of tensors and options of a call
    tensors.py         tensors as arrays of the core, with any strides
    handles.py         handles of operations, and futures
    told_errors.py     errors in the words and the class of PyTorch
    meeting.py         the meeting of ranks over the store of a process group
    roll_call.py       ranks that make different groups are told so
    monitored.py       monitored_barrier
    computing.py       spans of the program's computing, in traces
    compiling.py       keeps torch.compile out of the backend
    autograd.py        differentiable collectives
"""

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.torch_backend.meeting import Options
    from hocket.torch_backend.replacing import replace_gloo
    from hocket.torch_backend.told_errors import BackendError

__all__ = ["BackendError", "Options", "register", "replace_gloo"]


def register() -> None:
    """Makes "hocket" a backend of torch.distributed; on failure it only warns, because `import torch` must not fail."""
    try:
        import torch.distributed

        # A PyTorch that was built without its distributed package has no backends.
        if torch.distributed.is_available() and not hasattr(torch.distributed.Backend, "HOCKET"):
            devices = ["cpu", "cuda"]
            torch.distributed.Backend.register_backend("hocket", _create, extended_api=True, devices=devices)
    except Exception as error:
        warnings.warn(f"hocket cannot be a backend of this torch.distributed: {error}", RuntimeWarning, stacklevel=2)


def _create(given: Any, options: Any) -> Any:
    from hocket.torch_backend.process_group import ProcessGroup

    return ProcessGroup(given, options)


def __getattr__(name: str) -> Any:
    if name == "BackendError":
        from hocket.torch_backend.told_errors import BackendError

        return BackendError
    if name == "Options":
        from hocket.torch_backend.meeting import Options

        return Options
    if name == "replace_gloo":
        from hocket.torch_backend.replacing import replace_gloo

        return replace_gloo
    raise AttributeError(f"module 'hocket.torch_backend' has no attribute {name!r}")


register()
