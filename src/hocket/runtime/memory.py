"""Registered memory: arrays in the rank's arena, which the other ranks of the host have mapped.

A collective on such an array is read by the peers where it lies. One arena serves all communicators of a rank; it is a
sealed memfd without a name, so nothing can be left behind.
"""

import errno
import math
import operator
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket import _core
from hocket.errors import ResourceError
from hocket.runtime.ranks.per_rank import PerRank
from hocket.runtime.streams.stream import Stream
from hocket.schedule import EXTENSION_DTYPES, numpy_dtype


def _new_arena() -> Any:
    """Addresses for as much as the machine could hold; memory is taken when arrays are made."""
    return _core.Arena(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


arena = PerRank[Any](_new_arena)
"""The arena of the calling rank, made at the first call. ResourceError if the system refuses it."""


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = "float32") -> npt.NDArray[Any]:
    """An uninitialised array in registered memory; collectives on it need no copy.

    shape: elements per dim. dtype: NumPy's, or the name of one of ml_dtypes ("bfloat16"). The memory is taken at once
    (ResourceError if there is none) and goes back with the last array that shows it. The array stays usable after its
    communicators are closed.
    """
    try:
        sizes = tuple(operator.index(size) for size in (shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError:
        raise TypeError(f"shape is {shape!r}; expected an int or a tuple of ints") from None
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape is {sizes}; expected sizes of at least 0")
    kind = numpy_dtype(dtype) if isinstance(dtype, str) and dtype in EXTENSION_DTYPES else np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype is {kind}; expected one whose values have no objects, as float32")
    num_bytes = math.prod(sizes) * kind.itemsize
    if num_bytes >= 1 << 63:  # more than an address can tell
        raise ResourceError(
            f"hocket.empty of {num_bytes} bytes: {os.strerror(errno.ENOMEM)}", errno=errno.ENOMEM, call="hocket.empty"
        )
    memory = arena().allocate(num_bytes)
    array: npt.NDArray[Any] = memory.view(kind).reshape(sizes)
    return array


def record_stream(array: Any, stream: Stream) -> None:
    """Tells that the stream uses the memory of an array of hocket.empty() in ways that hold no reference to it.

    When the last array that shows the memory is gone, it is used again only once the stream has passed what was in it
    then. Not needed for arguments of Stream.submit and arrays of collectives, which are kept until they were used.
    ValueError for other memory.
    """
    if not isinstance(stream, Stream):
        raise TypeError(f"record_stream: expected a hocket.Stream, found {stream!r}")
    address, _, _ = _core.describe(array, False, "record_stream: array")
    if not _core.record_stream(address, stream._core):
        raise ValueError(
            "record_stream: expected an array of hocket.empty(), found other memory; pass the array to Stream.submit, "
            "which keeps it"
        )
