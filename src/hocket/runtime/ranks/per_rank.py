"""Values that each rank has one of, whether ranks are processes or threads of one process."""

import atexit
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from hocket import _core
from hocket.runtime.ranks.environment import Scope, at_rank_end, here

_Value = TypeVar("_Value")


class PerRank(Generic[_Value]):
    """A value that is made when the calling rank first asks for it; a forked child makes another one.

    `end`, if given, is called with the value when the rank ends: when the rank function of run_ranks returns, else when
    the process ends.
    """

    def __init__(self, make: Callable[..., _Value], end: Callable[[_Value], None] | None = None) -> None:
        self._make, self._end = make, end
        self._lock = threading.Lock()  # held as a value is made
        if end is not None:
            atexit.register(self._end_in, here.scope)

    def __call__(self, *arguments: Any) -> _Value:
        """Returns the calling rank's value; if it is not made yet, it is made with these arguments."""
        scope = here.scope
        made: tuple[int, _Value] | None = scope.values.get(self)
        if made is None or made[0] != _core.fork_generation():
            return self._make_in(scope, arguments)
        return made[1]

    def _make_in(self, scope: Scope, arguments: tuple[Any, ...]) -> _Value:
        with self._lock:
            made: tuple[int, _Value] | None = scope.values.get(self)
            if made is None or made[0] != _core.fork_generation():
                made = scope.values[self] = _core.fork_generation(), self._make(*arguments)
                at_rank_end(lambda _: self._end_in(scope))
            return made[1]

    def _end_in(self, scope: Scope) -> None:
        made: tuple[int, _Value] | None = scope.values.get(self)
        if self._end is None or made is None or made[0] != _core.fork_generation():
            return
        try:
            self._end(made[1])
        finally:
            del scope.values[self]
