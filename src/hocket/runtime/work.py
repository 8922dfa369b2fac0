"""Work: the handle of a collective that runs on the communicator's own stream, or of a send or receive."""

from typing import Any

from hocket.errors import CollectiveTimeout
from hocket.runtime.failures import name_ranks
from hocket.runtime.stream import FOREVER_SECONDS, Marked, checked_seconds, current_stream, raise_failure


class InFlight:
    """Works that are under way, whose memory is in use. One that is seen to be done leaves, and its memory with it.

    Who waits for it sees that, and who asks whether it is completed; the rest is looked through now and then.
    """

    __slots__ = ("_num_pending", "_works")

    def __init__(self) -> None:
        self._works: set[Any] = set()  # shared by threads: each change of it is one step of the interpreter
        self._num_pending = 0  # when it was last looked through

    def add(self, work: Any) -> None:
        """Keeps it until it is done. It has `kept_by`, for this, and `is_completed`, which discards it here."""
        if len(self._works) > 2 * self._num_pending:
            self._num_pending = len(self.pending())
        work.kept_by = self
        self._works.add(work)

    def discard(self, work: Any) -> None:
        """It is done."""
        self._works.discard(work)

    def pending(self) -> list[Any]:
        """Those that are not done."""
        return [work for work in list(self._works) if not work.is_completed()]

    def clear(self) -> None:
        """All are done."""
        self._works.clear()


class Work(Marked):
    """Something launched. Its arrays may neither be written nor, where they are results, read until it is done.

    Keeping it is not necessary: the communicator keeps it, and its arrays, alive until it is completed.
    """

    __slots__ = ("_arrays", "_communicator", "_result", "_what", "_work", "kept_by")
    kept_by: InFlight

    def __init__(self, communicator: Any, arrays: tuple[Any, ...], result: Any, what: str) -> None:
        self._communicator, self._arrays, self._result, self._what = communicator, arrays, result, what
        self._work: Any = None
        self._mark = None

    def start(self, call: tuple[Any, ...]) -> None:
        """Puts the call (arguments of the core's submit) on the communicator's stream."""
        try:
            self._work = self._communicator.submit(*call)
        except BaseException:
            self._arrays = ()
            raise
        self._mark = self._work.end

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
        return bool(self._work.wait(seconds))

    def _held_up(self) -> tuple[tuple[int, ...], int, str]:
        """The ranks that it waits for, its number on the communicator, and both in words."""
        sequence = self._work.sequence
        missing = tuple(self._communicator.behind(sequence)) if sequence else ()
        cause = f"waits for {name_ranks(missing)}" if missing else "runs" if sequence else "has to await earlier calls"
        return missing, sequence, cause


class MessageWork(Work):
    """A send or a receive under way."""

    __slots__ = ("_receives",)

    def __init__(self, arrays: tuple[Any, ...], receives: bool, what: str) -> None:
        super().__init__(None, arrays, arrays[0] if receives else None, what)
        self._receives = receives

    def begun(self, work: Any) -> None:
        """It is under way as `work`, the core's handle; None where it could not begin."""
        self._work = self._mark = work
        if work is None:
            self._arrays = ()

    @property
    def source(self) -> int | None:
        """As of every Work."""
        return self._work.source if self._is_received() else None

    @property
    def tag(self) -> int | None:
        """As of every Work."""
        return self._work.tag if self._is_received() else None

    def _is_received(self) -> bool:
        return self._receives and self.is_completed() and self.exception() is None

    def _held_up(self) -> tuple[tuple[int, ...], int, str]:
        missing = tuple(self._work.missing())
        return missing, 0, f"waits for {name_ranks(missing)}" if missing else "waits"
