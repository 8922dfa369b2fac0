"""What each rank has one of, whether ranks are processes or threads of one."""

import atexit
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from hocket import _core
from hocket.runtime.environment import at_rank_end

_Value = TypeVar("_Value")


class PerRank(Generic[_Value]):
    """Makes a value when the calling rank first asks for it; in a forked child, another one.

    `end`, where given, is called with it when the rank function that run_ranks called ends, else when the process does.
    """

    def __init__(self, make: Callable[[], _Value], end: Callable[[_Value], None] | None = None) -> None:
        self._make, self._end = make, end
        self._rank = threading.local()  # of a rank that run_ranks called
        self._process: tuple[int, _Value] | None = None  # of a process that is one rank, and of which fork
        self._lock = threading.Lock()  # guards the process's
        if end is not None:
            atexit.register(self._end_of_process)

    def __call__(self) -> _Value:
        """The calling rank's."""
        if hasattr(self._rank, "value"):
            of_rank: _Value = self._rank.value
            return of_rank
        if at_rank_end(lambda _: self._end_of_rank()):
            made = self._rank.value = self._make()
            return made
        with self._lock:
            if self._process is None or self._process[0] != _core.fork_generation():
                self._process = (_core.fork_generation(), self._make())
            return self._process[1]

    def _end_of_rank(self) -> None:
        try:
            if self._end is not None:
                self._end(self._rank.value)
        finally:
            del self._rank.value

    def _end_of_process(self) -> None:
        if self._end is not None and self._process is not None and self._process[0] == _core.fork_generation():
            self._end(self._process[1])
