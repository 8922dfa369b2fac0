"""Work: the handle of a collective on the communicator's own stream, or of a send or receive."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from hocket import _core
from hocket.errors import CollectiveTimeout
from hocket.runtime.ranks.rank_names import name_ranks
from hocket.runtime.streams.stream import FOREVER_SECONDS, Marked, checked_seconds, current_stream, raise_failure

_Method = TypeVar("_Method", bound=Callable[..., Any])


class InFlight(set[Any]):
    """The works under way; it keeps their memory alive. A work leaves when it is seen to be done.

    wait() and is_completed() see that; the other works are checked from time to time. Threads share the set: each
    change is one step of the interpreter. The core also adds and discards works.
    """

    __slots__ = ("_num_pending",)

    def __init__(self) -> None:
        super().__init__()
        self._num_pending = 0  # at the last check of all works

    def add(self, work: Any) -> None:
        """Keeps a work until it is done. Its `kept_by` is set to this set; its `is_completed` removes it from here."""
        if len(self) > 2 * self._num_pending:
            self._num_pending = len(self.pending())
        work.kept_by = self
        super().add(work)

    def pending(self) -> list[Any]:
        """Returns the works that are not done."""
        return [work for work in list(self) if not work.is_completed()]


def _quick(wait: _Method) -> _Method:
    """Puts the core before `wait`: a wait of the host without a timeout runs no Python."""
    return cast(_Method, _core.waiting_method(wait))


class Work(_core.WorkFields, Marked):
    """The handle of a launched operation. Until it is done, do not write its arrays, and do not read its results.

    A program need not keep it: the communicator keeps the work and its arrays alive until it is completed.
    """

    __slots__ = ()
    _communicator: Any
    _arrays: tuple[Any, ...]  # kept until they are no longer used; empty if the operation could not begin
    _result: Any
    _what: str
    _work: Any  # the core's handle; None before the operation has begun
    kept_by: InFlight

    def __init__(self, communicator: Any, arrays: tuple[Any, ...], result: Any, what: str) -> None:
        self._communicator, self._arrays, self._result, self._what = communicator, arrays, result, what

    def start(self, call: tuple[Any, ...]) -> None:
        """Puts the call (the arguments of the core's submit, except the last) on the communicator's stream."""
        try:
            self._communicator.submit(*call, self)
        except BaseException:
            if self._work is None:  # else it was launched, and an interrupt came after that
                self._arrays = ()
            raise

    @_quick
    def wait(self, timeout: float | None = None) -> Any:
        """Makes the current stream wait until the operation is done; returns the output array.

        Without a current stream the host blocks, and raises the operation's error. After `timeout` seconds it raises
        CollectiveTimeout, whose `missing` are the ranks for which the operation waits; the operation itself goes on
        until the timeout of its launch. A stream that waits fails with the operation's error; it has no `timeout`.
        """
        seconds = FOREVER_SECONDS if timeout is None else checked_seconds("timeout", timeout)
        stream = current_stream()
        if stream is not None:
            stream.wait(self)
            return self._result
        if not self._await_end(seconds):
            missing, sequence, cause = self._held_up()
            raise CollectiveTimeout(
                f"{self._what} was not done within the {timeout:g} s of this wait: it {cause}; wait for it again",
                missing=missing,
                seconds=timeout or 0.0,
                sequence=sequence,
            )
        self.kept_by.discard(self)
        raise_failure(self._mark)
        return self._result

    def is_completed(self) -> bool:
        """Returns whether the operation has ended, with or without an error."""
        is_done = not self._arrays if self._mark is None else bool(self._mark.is_passed())
        if is_done:
            self.kept_by.discard(self)
        return is_done

    def exception(self) -> BaseException | None:
        """Returns the error of the operation; None as it runs, and if it had no error."""
        failure: BaseException | None = self._mark.exception() if self._mark.is_passed() else None
        return failure

    @property
    def source(self) -> int | None:
        """The rank that sent the message of a receive; None until it is received, and for other operations."""
        return None

    @property
    def tag(self) -> int | None:
        """The tag of the message of a receive; None until it is received, and for other operations."""
        return None

    def __repr__(self) -> str:
        state = "not done"
        if self.is_completed():
            state = "done" if self._mark is None or self.exception() is None else "failed"
        return f"<hocket.Work {self._what}: {state}>"

    def _in_traces(self) -> tuple[str, int]:
        return self._what.partition(" ")[0], 0

    def _await_end(self, seconds: float) -> bool:
        return bool(self._communicator.wait(self._work, seconds))

    def _held_up(self) -> tuple[tuple[int, ...], int, str]:
        """Returns the ranks for which it waits, its number on the communicator, and the cause as text."""
        sequence = self._work.sequence
        missing = tuple(self._communicator.ranks_behind(sequence)) if sequence else ()
        cause = f"waits for {name_ranks(missing)}" if missing else "runs" if sequence else "has to await earlier calls"
        return missing, sequence, cause


class MessageWork(Work):
    """A send or a receive under way. The result of a receive is the array that it fills.

    The core makes most of these objects, without __init__.
    """

    __slots__ = ()

    def __init__(self, arrays: tuple[Any, ...], receives: bool, what: str) -> None:
        super().__init__(None, arrays, arrays[0] if receives else None, what)

    def begun(self, work: Any) -> None:
        """Notes the core's handle `work`, now that the message is under way; None if it could not begin."""
        self._work = self._mark = work
        if work is None:
            self._arrays = ()

    def _await_end(self, seconds: float) -> bool:
        return bool(self._work.wait(seconds))

    @property
    def source(self) -> int | None:
        """The rank that sent the message of a receive; None until it is received, and for a send."""
        return self._work.source if self._is_received() else None

    @property
    def tag(self) -> int | None:
        """The tag of the message of a receive; None until it is received, and for a send."""
        return self._work.tag if self._is_received() else None

    def _is_received(self) -> bool:
        return self._result is not None and self.is_completed() and self.exception() is None

    def _held_up(self) -> tuple[tuple[int, ...], int, str]:
        missing = tuple(self._work.missing())
        instead = self._work.found_instead()
        cause = f"waits for {name_ranks(missing)}" if missing else "waits"
        return missing, 0, f"{cause}; {instead}" if instead else cause
