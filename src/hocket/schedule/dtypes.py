"""The element types: one table of their names, sizes and order.

NumPy has no bfloat16 and no float8. Their names and their rounding are those of ml_dtypes, which is imported only when
an array of such a type is needed.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hocket.errors import did_you_mean


class Dtype(NamedTuple):
    """One element type.

    name: as Hocket, NumPy and ml_dtypes write it. bytes: of one element. digits: every whole number of at most that
    many binary digits is exact in the type; of a complex type, in each of its parts. numpy: whether NumPy has the type;
    if not, ml_dtypes has. nccl: its name in NCCL's tests.
    """

    name: str
    bytes: int
    digits: int
    numpy: bool
    nccl: str


DTYPE_TABLE = (
    Dtype("float16", 2, 11, True, "half"),
    Dtype("bfloat16", 2, 8, False, "bfloat16"),
    Dtype("float32", 4, 24, True, "float"),
    Dtype("float64", 8, 53, True, "double"),
    Dtype("float8_e4m3fn", 1, 4, False, "f8e4m3"),
    Dtype("float8_e5m2", 1, 3, False, "f8e5m2"),
    Dtype("int8", 1, 7, True, "int8"),
    Dtype("int16", 2, 15, True, "int16"),
    Dtype("int32", 4, 31, True, "int32"),
    Dtype("int64", 8, 63, True, "int64"),
    Dtype("uint8", 1, 8, True, "uint8"),
    Dtype("uint16", 2, 16, True, "uint16"),
    Dtype("uint32", 4, 32, True, "uint32"),
    Dtype("uint64", 8, 64, True, "uint64"),
    Dtype("bool", 1, 1, True, "bool"),
    Dtype("complex64", 8, 24, True, "complex64"),
    Dtype("complex128", 16, 53, True, "complex128"),
)
"""All element types; the position of a type is its number in the core (csrc/base/types.h)."""

DTYPES = tuple(dtype.name for dtype in DTYPE_TABLE)
"""The names of all element types, in the order of DTYPE_TABLE."""

ITEM_BYTES = tuple(dtype.bytes for dtype in DTYPE_TABLE)
"""Bytes of one element of each type of DTYPES."""

EXTENSION_DTYPES = frozenset(dtype.name for dtype in DTYPE_TABLE if not dtype.numpy)
"""The types that ml_dtypes adds to NumPy."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype called `name`. ValueError for an unknown name, ImportError where it takes ml_dtypes and that is
    not installed.
    """
    if name not in DTYPES:
        raise ValueError(f"expected a dtype, one of {', '.join(DTYPES)}; found {name!r}{did_you_mean(name, DTYPES)}")
    if name not in EXTENSION_DTYPES:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(
            f"{name} is not a type of NumPy's own: it needs ml_dtypes, which is not installed; "
            'pip install "hocket[types]" adds it',
            name="ml_dtypes",
        ) from error
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def dtype_name(dtype: npt.DTypeLike) -> str:
    """The name of a NumPy dtype, or the name itself; TypeError for others, also of the other byte order."""
    if isinstance(dtype, str) and dtype in DTYPES:  # needs no ml_dtypes
        return dtype
    found = np.dtype(dtype)
    if found.name not in DTYPES or not found.isnative:
        raise TypeError(f"expected a dtype, one of {', '.join(DTYPES)} in native byte order; found {found}")
    return found.name
