"""Streams and events: computation beside communication, with the semantics of CUDA's streams, on CPU threads.

A stream is a queue; a thread of its own runs the items in order. An event marks a point of the queue. The current
stream of a thread is set by `with hocket.stream(s)`; without it, the current stream is the host: the thread itself. A
launched collective reads and writes its arrays after all items that are in the current stream at the launch.
Work.wait() makes the current stream wait for the collective. It blocks the thread only if the current stream is the
host.

Errors. A stream fails with the exception of a callable, or with the error of an event or work that it waits for. A
failed stream skips its items, and its events fail with the same error. Streams that wait for those events fail, too;
communicators that wait for them are aborted by this rank. Each of them raises the very same exception object, with a
note that says where the callable was submitted, when the host synchronizes or waits. After Stream.synchronize has
raised the error, the stream runs new items again.

At the end of the process streams finish all items, as threads do. After an uncaught exception or Ctrl-C they finish
only the item that runs.
"""

import itertools
import os
import sys
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from hocket import _core
from hocket.errors import CollectiveTimeout
from hocket.runtime.ranks.environment import scope_entry
from hocket.runtime.ranks.process_end import at_process_end
from hocket.runtime.traces.trace import note_event, recorder, waited

FOREVER_SECONDS = 1e9
_numbers = itertools.count(1)
_event_numbers = itertools.count(1)


class Marked:
    """Something for which a stream can wait: it ends at a point in time."""

    __slots__ = ()
    _mark: Any  # an object of the core; None if there is nothing to wait for

    @abstractmethod
    def _in_traces(self) -> tuple[str, int]:
        """Returns what traces call it, and its number if it is an event, else 0."""


class Event(Marked):
    """A point of a stream. `wait` and `synchronize` refer to the last record(); before the first they do nothing.

    A trace shows as moments what is done to an event, and when its stream has reached it, with the event's number.
    """

    __slots__ = ("_mark", "_number", "_timing")

    def __init__(self, timing: bool = True) -> None:
        self._mark, self._number, self._timing = None, next(_event_numbers), timing

    def _in_traces(self) -> tuple[str, int]:
        return "event", self._number

    def record(self, stream: "Stream | None" = None) -> None:
        """Marks the point after all items that are now in the stream; None means the current stream."""
        stream = current_stream() if stream is None else _checked(stream)
        if stream is not None:
            stream.record(self)
            return
        note_event("record event", self._number)
        self._mark = _core.passed_mark()

    def query(self) -> bool:
        """Returns whether the stream has reached the event, with or without an error; True if it was never recorded."""
        is_passed = self._mark is None or bool(self._mark.is_passed())
        note_event("query event: ready" if is_passed else "query event: not ready", self._number)
        return is_passed

    def wait(self, stream: "Stream | None" = None) -> None:
        """Makes the stream wait for the event; None means the current stream. The host waits as in `synchronize`.

        A later record() does not change what the stream waits for.
        """
        stream = current_stream() if stream is None else _checked(stream)
        if stream is None:
            self.synchronize()
        else:
            stream.wait(self)

    def synchronize(self, timeout: float | None = None) -> None:
        """Blocks until the stream has reached the event; raises CollectiveTimeout after `timeout` seconds.

        Raises the error of the stream if it failed before the event.
        """
        if self._mark is None:
            return
        seconds = FOREVER_SECONDS if timeout is None else checked_seconds("timeout", timeout)
        if not waited(partial(self._mark.wait, seconds), *self._in_traces()):
            raise CollectiveTimeout(
                f"the stream did not reach the event within {timeout:g} s; synchronize it again",
                missing=(),
                seconds=timeout or 0.0,
                sequence=0,
            )
        raise_failure(self._mark)

    def elapsed_time(self, end: "Event") -> float:
        """Returns the milliseconds from this event to `end`, as in CUDA.

        Raises ValueError unless both events were made with timing=True and recorded, and their streams have reached
        them.
        """
        if not isinstance(end, Event):
            raise TypeError(f"elapsed_time: expected a hocket.Event, found {end!r}")
        for name, one in (("this event", self), ("end", end)):
            if one._mark is None or not one._timing or not one._mark.is_passed():
                found = "was not recorded" if one._mark is None else "has no time" if not one._timing else "is not over"
                raise ValueError(f"elapsed_time: {name} {found}; make it with timing=True, record and synchronize it")
        return float(end._mark.seconds - self._mark.seconds) * 1e3


class Stream:
    """A queue; a thread of its own runs the items in order. The thread starts when it is first needed.

    The thread belongs to the rank that makes the stream. Any thread may use the stream. Submitted items run even if the
    program keeps no reference to the stream. `name` appears in messages and traces. In a forked child every use raises
    ForkedUse.
    """

    __slots__ = ("__weakref__", "_core")

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"Stream: expected a name, or None, found {name!r}")
        self._core = _core.Stream(f"stream {next(_numbers)}" if name is None else name, recorder(), scope_entry())

    @property
    def name(self) -> str:
        """The name of the stream."""
        return str(self._core.name)

    def submit(self, function: Callable[..., Any], *args: Any) -> None:
        """Calls function(*args) in the stream's thread when its turn comes; the current stream there is the host.

        The return value is dropped: like a kernel, the function writes its results into arrays. It must not wait for
        anything that comes later in this stream: not for an event that is recorded here later, and not by calling a
        communicator on which a later item was launched from here, because its calls take turns; a blocking call then
        raises RuntimeError. Raises TypeError if function is not callable, ResourceError if no thread can be started.
        """
        if not callable(function):
            raise TypeError(f"submit: expected something that can be called, found {function!r}")
        caller = sys._getframe(1)
        self._core.submit(function, args, caller.f_code, caller.f_lineno)

    def record(self, event: Event | None = None) -> Event:
        """Records the event in this stream, and returns it; None makes a new event."""
        event = Event() if event is None else event
        if not isinstance(event, Event):
            raise TypeError(f"record: expected a hocket.Event, or None for a new one, found {event!r}")
        note_event("record event", event._number, self)
        event._mark = self._record(event._timing, event._number)
        return event

    def wait(self, what: Marked) -> None:
        """Makes all later items wait for an event, or for the end of a Work. Does not block the caller."""
        if not isinstance(what, Marked):
            raise TypeError(f"wait: expected a hocket.Event or a Work, found a {type(what).__name__}")
        if what._mark is None:
            return
        name, event = what._in_traces()
        note_event(f"wait for {name}", event, self)
        self._await(what._mark, name, event)

    def query(self) -> bool:
        """Returns whether all items are done, with or without an error."""
        return bool(self._core.is_idle())

    def synchronize(self) -> None:
        """Blocks until all items are done. Raises the error of the stream if it has failed."""
        waited(partial(self._record(False).wait, FOREVER_SECONDS), self.name)
        failure: Any = self._core.take_exception()
        if failure is not None:
            raise failure

    def _record(self, timing: bool, event: int = 0) -> Any:
        return self._core.record(timing, event)

    def _await(self, mark: Any, name: str, event: int) -> None:
        self._core.wait(_of_core(mark), name, event)

    def __repr__(self) -> str:
        return f"<hocket.Stream {self.name!r}>"


def current_stream() -> Stream | None:
    """Returns the current stream of this thread; None means the host."""
    found: Any = _core.current_stream()
    current: Stream | None = found
    return current


class stream:  # noqa: N801
    """Makes s the current stream of this thread inside `with hocket.stream(s)`; None means the host."""

    __slots__ = ("_outer", "_stream")

    def __init__(self, stream: Stream | None) -> None:
        self._stream = None if stream is None else _checked(stream)
        self._outer: list[Stream | None] = []  # a list, because the same object may be entered again inside

    def __enter__(self) -> Stream | None:
        outer: Any = _core.exchange_current_stream(self._stream)
        self._outer.append(outer)
        return self._stream

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _core.exchange_current_stream(self._outer.pop())


def _checked(stream: Stream) -> Stream:
    if not isinstance(stream, Stream):
        raise TypeError(f"expected a hocket.Stream, found {stream!r}")
    return stream


def launch_mark(stream: Stream | None) -> Any:
    """Returns the mark after which an operation that is launched now may begin: it reads what the stream writes."""
    return None if stream is None else _of_core(stream._record(False))


def _of_core(mark: Any) -> Any:
    """Returns the core's mark of a mark; streams of other devices have marks of their own kind."""
    return mark if isinstance(mark, _core.Mark) else mark.on_host()


def raise_failure(mark: Any) -> None:
    """Raises the error of a mark that is passed, if it has one."""
    failure = mark.exception()
    if failure is not None:
        raise failure


def checked_seconds(name: str, seconds: float) -> float:
    """Returns the seconds as a float. Raises TypeError or ValueError unless they are at least 0."""
    try:
        is_time = seconds >= 0
    except TypeError:
        raise TypeError(f"{name} is {seconds!r}; expected seconds of at least 0, or None") from None
    if not is_time:
        raise ValueError(f"{name} is {seconds}; expected seconds of at least 0, or None")
    return min(seconds, FOREVER_SECONDS)  # an int may be too large for a float


# A new thread holds a lock of the interpreter for a moment. If a process forks then, Python 3.11 leaves the lock held
# in the child, which would hang inside fork().
os.register_at_fork(before=_core.await_started_streams)


@at_process_end
def _end_all(error: BaseException | None) -> None:
    try:
        _core.end_streams(at_once=error is not None)
    except KeyboardInterrupt:
        _core.end_streams(at_once=True)
