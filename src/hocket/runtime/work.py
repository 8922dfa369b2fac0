"""Work: the handle of a collective that runs on the communicator's stream."""

from typing import Any

from hocket.errors import CollectiveTimeout
from hocket.runtime.failures import name_ranks

_FOREVER_SECONDS = 1e9


class Work:
    """A launched collective. Its arrays may neither be written nor, where they are results, read until it is done.

    Keeping it is not necessary: the communicator keeps it, and its arrays, alive until it is completed.
    """

    __slots__ = ("_arrays", "_communicator", "_result", "_what", "_work")

    def __init__(self, communicator: Any, arrays: tuple[Any, ...], result: Any, what: str) -> None:
        self._communicator, self._arrays, self._result, self._what = communicator, arrays, result, what
        self._work: Any = None

    def start(self, call: tuple[Any, ...]) -> None:
        """Puts the call (arguments of the core's submit) on the stream."""
        try:
            self._work = self._communicator.submit(*call)
        except BaseException:
            self._arrays = ()
            raise

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until the collective is done, and returns its output array.

        Raises what the collective raised. After `timeout` seconds: CollectiveTimeout, whose `missing` are the ranks
        that have not called it; the collective goes on, under the time-out that it was launched with.
        """
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout is {timeout}; expected seconds of at least 0, or None")
        if not self._work.wait(_FOREVER_SECONDS if timeout is None else timeout):
            sequence = self._work.sequence
            missing = self._communicator.behind(sequence) if sequence else ()
            cause = (
                f"waits for {name_ranks(missing)}" if missing else "runs" if sequence else "has to await earlier calls"
            )
            raise CollectiveTimeout(
                f"{self._what} was not done within the {timeout:g} s of this wait: it {cause}; wait for it again",
                missing=missing,
                seconds=timeout or 0.0,
                sequence=sequence,
            )
        failure = self._work.exception()
        if failure is not None:
            raise failure
        return self._result

    def is_completed(self) -> bool:
        """Whether the collective has ended, well or not."""
        return not self._arrays if self._work is None else bool(self._work.is_completed())

    def exception(self) -> BaseException | None:
        """What the collective raised; None while it runs and when it went well."""
        failure: BaseException | None = self._work.exception()
        return failure
