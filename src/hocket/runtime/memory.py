"""Registered memory: arrays in the rank's arena, which the other ranks of the host have mapped.

In a collective, the peers read such an array where it lies, without a copy. One arena serves all communicators of a
rank. The arena is a sealed memfd without a name, so nothing remains when the process ends.
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
from hocket.runtime.arena_size import arena_bytes
from hocket.runtime.ranks.per_rank import PerRank
from hocket.runtime.streams.stream import Stream
from hocket.schedule import EXTENSION_DTYPES, numpy_dtype


def _new_arena(num_ranks: int | None = None) -> Any:
    """Reserves addresses for as much as the machine could hold; memory is taken when arrays are made."""
    return _core.Arena(arena_bytes(num_ranks))


arena = PerRank[Any](_new_arena)
"""The arena of the calling rank, made at the first call for the given number of ranks (see arena_bytes).

ResourceError if the system refuses it.
"""


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = "float32") -> npt.NDArray[Any]:
    """Returns an uninitialised array in registered memory; collectives on it need no copy.

    shape: elements per dim. dtype: one of NumPy's, or the name of one of ml_dtypes ("bfloat16"). The memory is taken at
    once (ResourceError if there is none) and freed with the last array that uses it. The array stays usable after the
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
        raise TypeError(f"dtype is {kind}; expected one whose values are not Python objects, such as float32")
    num_bytes = math.prod(sizes) * kind.itemsize
    if num_bytes >= 1 << 63:  # more than an address can tell
        raise ResourceError(
            f"hocket.empty of {num_bytes} bytes: {os.strerror(errno.ENOMEM)}", errno=errno.ENOMEM, call="hocket.empty"
        )
    memory = arena().allocate(num_bytes)
    array: npt.NDArray[Any] = memory.view(kind).reshape(sizes)
    return array


def record_stream(array: Any, stream: Stream) -> None:
    """Says that a stream uses the memory of an array of hocket.empty() without keeping a reference to the array.

    When the last array on this memory is gone, the memory is reused only after the stream has done all that was in it
    at that moment. Arguments of Stream.submit and arrays of collectives do not need this call: they are kept until they
    have been used. Raises ValueError for other memory.
    """
    if not isinstance(stream, Stream):
        raise TypeError(f"record_stream: expected a hocket.Stream, found {stream!r}")
    address, _, _ = _core.describe(array, False, "record_stream: array")
    if not _core.record_stream(address, stream._core):
        raise ValueError(
            "record_stream: expected an array of hocket.empty(), found other memory; pass the array to Stream.submit, "
            "which keeps it"
        )
