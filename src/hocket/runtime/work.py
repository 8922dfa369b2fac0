"""Work: the handle of a collective that runs on the communicator's stream."""

from typing import Any

from hocket.errors import CollectiveTimeout

_FOREVER_SECONDS = 1e9


class Work:
    """A launched collective. Its arrays may neither be written nor, where they are results, read until it is done.

    Keeping it is not necessary: the communicator keeps it, and its arrays, alive until it is completed.
    """

    __slots__ = ("_arrays", "_core", "_result", "_what")

    def __init__(self, core: Any, arrays: tuple[Any, ...], result: Any, what: str) -> None:
        self._core, self._arrays, self._result, self._what = core, arrays, result, what

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until the collective is done, and returns its output array.

        Raises what the collective raised. After `timeout` seconds: CollectiveTimeout; the collective goes on, under the
        time-out that it was launched with.
        """
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout is {timeout}; expected seconds of at least 0, or None")
        if not self._core.wait(_FOREVER_SECONDS if timeout is None else timeout):
            raise CollectiveTimeout(
                f"{self._what} was not done within the {timeout:g} s of this wait; it goes on: wait for it again",
                missing=(),
                seconds=timeout or 0.0,
                sequence=0,
            )
        failure = self._core.exception()
        if failure is not None:
            raise failure
        return self._result

    def is_completed(self) -> bool:
        """Whether the collective has ended, well or not."""
        return bool(self._core.is_completed())

    def exception(self) -> BaseException | None:
        """What the collective raised; None while it runs and when it went well."""
        failure: BaseException | None = self._core.exception()
        return failure
