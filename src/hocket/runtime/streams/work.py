"""Work: the handle of a collective that runs on the communicator's own stream, or of a send or receive."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from hocket import _core
from hocket.errors import CollectiveTimeout
from hocket.runtime.failures import name_ranks
from hocket.runtime.streams.stream import FOREVER_SECONDS, Marked, checked_seconds, current_stream, raise_failure

_Method = TypeVar("_Method", bound=Callable[..., Any])


class InFlight(set[Any]):
    """Works that are under way, whose memory is in use. One that is seen to be done leaves, and its memory with it.

    Who waits for it sees that, and who asks whether it is completed; the rest is looked through now and then. Shared by
    threads: each change of it is one step of the interpreter. The core adds and discards, too.
    """

    __slots__ = ("_num_pending",)

    def __init__(self) -> None:
        super().__init__()
        self._num_pending = 0  # when it was last looked through

    def add(self, work: Any) -> None:
        """Keeps it until it is done. It has `kept_by`, for this, and `is_completed`, which discards it here."""
        if len(self) > 2 * self._num_pending:
            self._num_pending = len(self.pending())
        work.kept_by = self
        super().add(work)

    def pending(self) -> list[Any]:
        """Those that are not done."""
        return [work for work in list(self) if not work.is_completed()]


def _quick(wait: _Method) -> _Method:
    """Puts the core before it: on the host what is waited for without a time-out needs no Python."""
    return cast(_Method, _core.waiting_method(wait))


class Work(_core.WorkFields, Marked):
    """Something launched. Its arrays may neither be written nor, where they are results, read until it is done.

    Keeping it is not necessary: the communicator keeps it, and its arrays, alive until it is completed.
    """

    __slots__ = ()
    _communicator: Any
    _arrays: tuple[Any, ...]  # kept until they are no longer used; none of what could not begin
    _result: Any
    _what: str
    _work: Any  # of the core; None before it has begun
    kept_by: InFlight

    def __init__(self, communicator: Any, arrays: tuple[Any, ...], result: Any, what: str) -> None:
        self._communicator, self._arrays, self._result, self._what = communicator, arrays, result, what

    def start(self, call: tuple[Any, ...]) -> None:
        """Puts the call (arguments of the core's submit, but for the last) on the communicator's stream."""
        try:
            self._communicator.submit(*call, self)
        except BaseException:
            if self._work is None:  # else an interrupt has followed its launch
                self._arrays = ()
            raise

    @_quick
    def wait(self, timeout: float | None = None) -> Any:
        """Makes the current stream wait until it is done; returns the output array, or what was received into.

        The host, where no stream is current, blocks, and raises what it raised. After `timeout` seconds:
        CollectiveTimeout, whose `missing` are the ranks that it waits for; it goes on, under the time-out that it was
        launched with. A stream fails with what it raised, and has no `timeout`.
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
        """Whether it has ended, well or not."""
        is_done = not self._arrays if self._mark is None else bool(self._mark.is_passed())
        if is_done:
            self.kept_by.discard(self)
        return is_done

    def exception(self) -> BaseException | None:
        """What it raised; None while it runs and when it went well."""
        failure: BaseException | None = self._mark.exception() if self._mark.is_passed() else None
        return failure

    @property
    def source(self) -> int | None:
        """The rank that sent what a receive got; None before, and of everything else."""
        return None

    @property
    def tag(self) -> int | None:
        """The tag of what a receive got; None before, and of everything else."""
        return None

    def _await_end(self, seconds: float) -> bool:
        return bool(self._communicator.wait(self._work, seconds))

    def _held_up(self) -> tuple[tuple[int, ...], int, str]:
        """The ranks that it waits for, its number on the communicator, and both in words."""
        sequence = self._work.sequence
        missing = tuple(self._communicator.behind(sequence)) if sequence else ()
        cause = f"waits for {name_ranks(missing)}" if missing else "runs" if sequence else "has to await earlier calls"
        return missing, sequence, cause


class MessageWork(Work):
    """A send or a receive under way: the latter has what is received into as its result.

    The core makes most of them, without __init__.
    """

    __slots__ = ()

    def __init__(self, arrays: tuple[Any, ...], receives: bool, what: str) -> None:
        super().__init__(None, arrays, arrays[0] if receives else None, what)

    def begun(self, work: Any) -> None:
        """It is under way as `work`, the core's handle; None where it could not begin."""
        self._work = self._mark = work
        if work is None:
            self._arrays = ()

    def _await_end(self, seconds: float) -> bool:
        return bool(self._work.wait(seconds))

    @property
    def source(self) -> int | None:
        """As of every Work."""
        return self._work.source if self._is_received() else None

    @property
    def tag(self) -> int | None:
        """As of every Work."""
        return self._work.tag if self._is_received() else None

    def _is_received(self) -> bool:
        return self._result is not None and self.is_completed() and self.exception() is None

    def _held_up(self) -> tuple[tuple[int, ...], int, str]:
        missing = tuple(self._work.missing())
        return missing, 0, f"waits for {name_ranks(missing)}" if missing else "waits"
