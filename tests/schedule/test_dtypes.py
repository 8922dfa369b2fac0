"""The names of the element types, and what NumPy calls them."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from hocket.schedule import DTYPES, EXTENSION_DTYPES, ITEM_BYTES, numpy_dtype
from hocket.schedule.dtypes import dtype_name


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_has_one_name(name: str) -> None:
    dtype = numpy_dtype(name)
    assert dtype.name == name and dtype_name(dtype) == name
    assert dtype.itemsize == ITEM_BYTES[DTYPES.index(name)]
    assert (dtype.type.__module__ == "numpy") == (name not in EXTENSION_DTYPES)


def test_what_has_a_dtype_may_be_given_in_any_way_that_numpy_takes() -> None:
    assert dtype_name(float) == "float64"
    assert dtype_name(np.int8) == "int8"
    assert dtype_name("?") == "bool"
    assert dtype_name(ml_dtypes.bfloat16) == "bfloat16"


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"float16, .*, complex128; found 'float128'"):
        numpy_dtype("float128")
    for dtype in ("U3", "datetime64[s]", "longdouble", ml_dtypes.float8_e5m2fnuz, "i4,i4"):
        with pytest.raises(TypeError, match=r"float16, .*, complex128 in native byte order; found"):
            dtype_name(dtype)
    with pytest.raises(TypeError, match="native byte order; found >i4"):
        dtype_name(np.dtype("i4").newbyteorder("S"))


def test_only_types_that_numpy_lacks_need_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert numpy_dtype("float16") == np.float16
    with pytest.raises(ImportError, match=r"bfloat16 .* needs ml_dtypes.*hocket\[types\]") as caught:
        numpy_dtype("bfloat16")
    assert caught.value.name == "ml_dtypes"


def test_ml_dtypes_is_imported_for_its_own_types_only() -> None:
    program = (
        "import sys, hocket.schedule.reduction as r, hocket.schedule.dtypes as d\n"
        "r.check_reduction('sum', d.numpy_dtype('float16')); assert 'ml_dtypes' not in sys.modules\n"
        "d.numpy_dtype('bfloat16'); assert 'ml_dtypes' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
