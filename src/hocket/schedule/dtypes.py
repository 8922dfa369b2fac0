"""The element types: their names, their order, and their NumPy dtypes.

NumPy has no bfloat16 and no float8. Their names and their rounding are those of ml_dtypes, which is imported only when
an array of such a type is needed.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

DTYPES = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
    "complex64",
    "complex128",
)
"""All element types; the position of a type is its number in the core (csrc/types.h)."""

ITEM_BYTES = (2, 2, 4, 8, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 8, 16)
"""Bytes of one element of each type of DTYPES."""

EXTENSION_DTYPES = frozenset(("bfloat16", "float8_e4m3fn", "float8_e5m2"))
"""The types that ml_dtypes adds to NumPy."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype called `name`. ValueError for an unknown name, ImportError where it takes ml_dtypes and that is
    not installed.
    """
    if name not in DTYPES:
        raise ValueError(f"expected a dtype, one of {', '.join(DTYPES)}; found {name!r}")
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
