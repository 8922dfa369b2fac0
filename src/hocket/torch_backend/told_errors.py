"""Hocket's errors as PyTorch programs get them: the class, the words, and the traceback if nothing catches one."""

import functools
import re
import sys
from types import TracebackType

import torch.distributed as dist

from hocket.errors import CollectiveTimeout, HocketError, RendezvousError
from hocket.runtime import debugging, without_own_frames

_WORDS = (  # of Hocket's errors -> of PyTorch programs
    (r"\bpass arrays\b", "pass tensors"),
    (r"\buse sendrecv, or batch\b", "use dist.batch_isend_irecv"),
    (
        r"\bpass a longer timeout=",
        "give the process group a longer timeout (timeout= of init_process_group or new_group)",
    ),
    (r"\bpass the same algorithm=", "pass the same Options(algorithm=...)"),
    (r"\bcall hocket\.init in the child, or make another stream\b", "call init_process_group in the child"),
    (r"(can only be closed)$", r"\1 by destroy_process_group()"),
)


class BackendError(dist.DistBackendError):
    """The error that PyTorch programs catch; `cause` is Hocket's own error, with its fields."""

    __module__ = "hocket.torch_backend"  # where programs find it
    cause: HocketError


class _ToldToTorch:
    """A context that raises Hocket's errors as BackendError; a context of contextlib is a microsecond slower."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, HocketError):
            raise backend_error(error)


told_to_torch = _ToldToTorch()


def raise_to_torch(error: BaseException) -> None:
    """Raises the error of a call; Hocket's own errors become BackendError."""
    with told_to_torch:
        raise error


def backend_error(error: HocketError) -> BackendError:
    """Returns the error with " timeout " or " closed ", the words that programs look for, and names of PyTorch's calls.

    A traceback shows Hocket's own error, which has the same text, only with HOCKET_DEBUG=1.
    """
    text = str(error)
    for words, instead in _WORDS:
        text = re.sub(words, instead, text)
    if isinstance(error, RendezvousError):
        text = f"the ranks of this process group did not meet: {text}"
    elif isinstance(error, CollectiveTimeout):
        text = f"a timeout ended this operation: {text}"
    told = BackendError(f"hocket: {text}")
    told.cause = error
    told.__context__, told.__cause__ = error, error if debugging() else None
    return told


@functools.cache
def hide_own_frames() -> None:
    """Makes the traceback of an uncaught BackendError leave out the frames inside Hocket, unless HOCKET_DEBUG=1."""
    then = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, BackendError):
            trace = error.__traceback__ = without_own_frames(trace)
        then(kind, error, trace)

    sys.excepthook = show
