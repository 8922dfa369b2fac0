"""For a layer above whose methods make one call of a communicator each: a repeated one goes to the core at once.

The methods are those of an object whose attribute `_calls` is a `GroupCalls`. A method says `note_written` of each
tensor that it writes, and stays what says what is taken, given and refused.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from hocket import _core

GroupCalls = _core.GroupCalls
note_written = _core.note_written
read_options = _core.read_options
_Method = TypeVar("_Method", bound=Callable[..., Any])


def cached_group_method(method: _Method) -> _Method:
    """The decorator. It knows a call by plain tensors, alone or in a list of one, by options, and by constants."""
    return cast(_Method, _core.cached_group_method(method))
