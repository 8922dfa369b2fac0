"""A call cache for a layer above whose methods each make one call of a communicator: a repeated call skips Python.

The object that has the methods keeps a `GroupCalls` in its attribute `_calls`. A method calls `note_written` for each
tensor that it writes. The method stays the definition of what is accepted, returned and refused.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from hocket import _core

GroupCalls = _core.GroupCalls
note_written = _core.note_written
read_options = _core.read_options
_Method = TypeVar("_Method", bound=Callable[..., Any])


def cached_group_method(method: _Method) -> _Method:
    """Puts the cache before a method. It recognises a call by plain tensors (or lists of one), options, constants."""
    return cast(_Method, _core.cached_group_method(method))
