"""Registered memory: arrays in the rank's arena, which the other ranks of the host have mapped.

A collective on such an array is read by the peers where it lies. One arena serves all communicators of a rank; it is a
sealed memfd without a name, so nothing can be left behind.
"""

import errno
import math
import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket import _core
from hocket.errors import ResourceError
from hocket.runtime.environment import at_rank_end
from hocket.schedule.dtypes import EXTENSION_DTYPES, numpy_dtype

_rank = threading.local()  # of a rank that run_ranks called
_process: list[Any] = []  # of a process that is one rank
_lock = threading.Lock()  # guards _process


def arena() -> Any:
    """The arena of the calling rank, made at the first call. ResourceError if the system refuses it."""
    if hasattr(_rank, "arena"):
        return _rank.arena
    if at_rank_end(lambda _: delattr(_rank, "arena")):
        _rank.arena = _new_arena()
        return _rank.arena
    with _lock:
        if not _process or _process[0] != _core.fork_generation():
            _process[:] = [_core.fork_generation(), _new_arena()]
        return _process[1]


def _new_arena() -> Any:
    """Addresses for as much as the machine could hold; memory is taken when arrays are made."""
    return _core.Arena(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = "float32") -> npt.NDArray[Any]:
    """An uninitialised array in registered memory; collectives on it need no copy.

    shape: elements per dim. dtype: NumPy's, or the name of one of ml_dtypes ("bfloat16"). The memory is taken at once
    (ResourceError if there is none) and goes back with the last array that shows it. The array stays usable after its
    communicators are closed.
    """
    sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape is {sizes}; expected sizes of at least 0")
    kind = numpy_dtype(dtype) if isinstance(dtype, str) and dtype in EXTENSION_DTYPES else np.dtype(dtype)
    num_bytes = math.prod(sizes) * kind.itemsize
    if num_bytes >= 1 << 63:  # more than an address can tell
        raise ResourceError(
            f"hocket.empty of {num_bytes} bytes: {os.strerror(errno.ENOMEM)}", errno=errno.ENOMEM, call="hocket.empty"
        )
    memory = arena().allocate(num_bytes)
    array: npt.NDArray[Any] = memory.view(kind).reshape(sizes)
    return array
