"""What a user's function does, as a text that is equal in all processes in which the function does the same.

The text does not depend on a process: it has no address, no hash() of a string, no order of a set. A value that cannot
be compared (an open file, an array, a list) counts by its type only, and a global by the name in the code.
"""

import functools
import types
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

_BY_REPR = (bool, float, complex, str, bytes, types.NoneType, types.EllipsisType, range)
_BY_NAME = (type, types.BuiltinFunctionType)


def function_text(function: Any) -> str:
    """All of a function that ranks can compare: its name, code, defaults and closure, or the state of an object."""
    return _text(function, {})


def _text(value: Any, seen: dict[int, int]) -> str:
    """`seen` numbers the functions and objects that are being written, so that one that contains itself is written
    once.
    """
    kind = type(value)
    if kind is int:
        return hex(value)
    if kind in _BY_REPR:
        return repr(value)
    if kind is tuple:
        return _call("tuple", (_text(one, seen) for one in value))
    if kind is frozenset:
        return _call("frozenset", sorted(_text(one, seen) for one in value))
    if kind is slice:
        return _call("slice", (_text(one, seen) for one in (value.start, value.stop, value.step)))
    if isinstance(value, types.CodeType):
        return _code_text(value)
    if isinstance(value, np.generic | np.dtype):
        return _call(
            _name(kind), [str(value.dtype), value.tobytes().hex()] if isinstance(value, np.generic) else [str(value)]
        )
    if isinstance(value, np.ufunc):
        return _call("ufunc", [value.__name__])
    if isinstance(value, types.ModuleType):
        return _call("module", [value.__name__])
    if isinstance(value, _BY_NAME):
        return _call(_name(kind), [_name(value)])
    if not callable(value):
        return _name(kind)
    if id(value) in seen:
        return _call("again", [str(seen[id(value)])])
    seen[id(value)] = len(seen)
    return _call(_name(kind), _parts(value, seen))


def _parts(function: Any, seen: dict[int, int]) -> Iterable[str]:
    """The texts of the parts of a function, or of an object that is called like one."""
    if isinstance(function, types.FunctionType):
        yield _name(function)
        yield _code_text(function.__code__)
        yield _text(function.__defaults__, seen)
        yield _mapping(function.__kwdefaults__ or {}, seen)
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                yield "empty"
            else:
                yield _text(content, seen)
    elif isinstance(function, functools.partial):
        yield _text(function.func, seen)
        yield _text(function.args, seen)
        yield _mapping(function.keywords, seen)
    elif isinstance(function, types.MethodType):
        yield _text(function.__func__, seen)
        yield _text(function.__self__, seen)
    elif callable(wrapped := getattr(function, "__dict__", {}).get("__wrapped__")):
        # A compiled or cached function, whose state belongs to its machinery.
        yield _text(wrapped, seen)
    else:
        yield str(getattr(function, "__name__", ""))
        yield _text(type(function).__call__, seen)
        yield _mapping(getattr(function, "__dict__", {}), seen)


@lru_cache(maxsize=256)
def _code_text(code: types.CodeType) -> str:
    """What code does, wherever it is defined. `code` never changes, so the text is made once for all calls."""
    constants = [_text(one, {}) for one in code.co_consts]
    shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return _call(
        "code", [code.co_code.hex(), code.co_exceptiontable.hex(), repr(shape), repr(code.co_names), *constants]
    )


def _mapping(mapping: dict[str, Any], seen: dict[int, int]) -> str:
    return _call("dict", (f"{name!r}: {_text(mapping[name], seen)}" for name in sorted(mapping)))


def _name(one: Any) -> str:
    return f"{getattr(one, '__module__', None)}.{getattr(one, '__qualname__', type(one).__qualname__)}"


def _call(name: str, parts: Iterable[str]) -> str:
    return f"{name}({', '.join(parts)})"
