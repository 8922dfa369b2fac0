"""typing.overload without its registry.

The registry keeps every overloaded function, and so its module, until after the interpreter's end. Compiled objects
that such a module holds would then be reported as leaked.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing import overload as overload
else:
    _Function = TypeVar("_Function", bound=Callable[..., Any])

    def overload(function: _Function) -> _Function:
        """Marks one of several signatures of a function for type checkers."""
        return function
