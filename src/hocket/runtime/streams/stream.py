"""Streams and events: computing beside communicating, with the semantics of CUDA's streams, on threads of the CPU.

A stream is a queue whose work is done in order by a thread of its own. An event marks a point of it. The current stream
of a thread is the host, which is the thread itself, unless `with hocket.stream(s)` says otherwise. A collective that is
launched reads and writes its arrays after all that is in the current stream by then, and Work.wait() makes the current
stream wait for it; so only who waits as the host blocks.

Errors. A stream fails with what a callable raises, with the error of an event or work that it waits for. Then it skips
what is submitted to it, its events fail with the same error, and so does what waits for those: other streams, and
communicators, which this rank gives up. Each of them raises the error, the very object, with a note of where the
callable was submitted, when it is synchronized or waited for as the host. After Stream.synchronize has raised it, the
stream runs again what is submitted from then on.

At the end of the process streams do what was submitted to them, as threads do; after an uncaught exception, or Ctrl-C,
only what they are doing.
"""

import itertools
import os
import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from hocket import _core
from hocket.runtime.ranks.environment import scope_entry
from hocket.runtime.ranks.process_end import at_process_end
from hocket.runtime.traces.trace import recorder, waited

FOREVER_SECONDS = 1e9
_numbers = itertools.count(1)


class Marked:
    """Something that ends at a point in time: what a stream can wait for."""

    __slots__ = ()
    _mark: Any  # of the core; None where there is nothing to wait for


class Event(Marked):
    """A point of a stream. `wait` and `synchronize` mean the one that was recorded last; before, they mean nothing."""

    __slots__ = ("_mark", "_timing")

    def __init__(self, timing: bool = True) -> None:
        self._mark, self._timing = None, timing

    def record(self, stream: "Stream | None" = None) -> None:
        """Marks the point behind all that is in the stream by now; of the current one if it is None."""
        stream = current_stream() if stream is None else _checked(stream)
        self._mark = _core.passed_mark() if stream is None else stream._record(self._timing)

    def query(self) -> bool:
        """Whether the stream has come there, well or not; True where it was never recorded."""
        return self._mark is None or bool(self._mark.is_passed())

    def wait(self, stream: "Stream | None" = None) -> None:
        """Makes the stream wait for it, the current one if it is None; where that is the host, as synchronize.

        What is recorded later does not change what the stream waits for.
        """
        stream = current_stream() if stream is None else _checked(stream)
        if stream is None:
            self.synchronize()
        else:
            stream.wait(self)

    def synchronize(self, timeout: float | None = None) -> None:
        """Blocks until the stream has come there, at most for `timeout` seconds: TimeoutError.

        Raises the error that the stream has failed with before.
        """
        if self._mark is None:
            return
        seconds = FOREVER_SECONDS if timeout is None else checked_seconds("timeout", timeout)
        if not waited(partial(self._mark.wait, seconds), "event"):
            raise TimeoutError(f"the stream did not come to the event within {timeout:g} s; synchronize it again")
        raise_failure(self._mark)

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds from here to `end`, as in CUDA.

        Both have to be recorded by streams that have come there, and made with timing=True: ValueError.
        """
        if not isinstance(end, Event):
            raise TypeError(f"elapsed_time: expected a hocket.Event, found {end!r}")
        for name, one in (("this event", self), ("end", end)):
            if one._mark is None or not one._timing or not one._mark.is_passed():
                found = "was not recorded" if one._mark is None else "has no time" if not one._timing else "is not over"
                raise ValueError(f"elapsed_time: {name} {found}; make it with timing=True, record and synchronize it")
        return float(end._mark.seconds - self._mark.seconds) * 1e3


class Stream:
    """A queue whose work is done in order by a thread of its own, which starts when it is first needed.

    That thread belongs to the rank that makes the stream. Any thread may use it. What was submitted is done also when
    nobody has the stream any more. `name` is for messages and traces. In a forked child every use is a ForkedUse.
    """

    __slots__ = ("__weakref__", "_core")

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"Stream: expected a name, or None, found {name!r}")
        self._core = _core.Stream(f"stream {next(_numbers)}" if name is None else name, recorder(), scope_entry())

    @property
    def name(self) -> str:
        """What it was called."""
        return str(self._core.name)

    def submit(self, function: Callable[..., Any], *args: Any) -> None:
        """Calls function(*args) when its turn comes, in the stream's thread, for which the current stream is the host.

        What it returns is dropped: results go into arrays, as those of kernels. It may not wait for what comes behind
        it: not for an event that is recorded here later, nor by a call of a communicator on which something was
        launched here later, as calls take turns; a blocking one raises RuntimeError then. TypeError if it cannot be
        called; ResourceError if no thread can be started.
        """
        if not callable(function):
            raise TypeError(f"submit: expected something that can be called, found {function!r}")
        caller = sys._getframe(1)
        self._core.submit(function, args, caller.f_code, caller.f_lineno)

    def record(self, event: Event | None = None) -> Event:
        """Records the event here, a new one if it is None, and returns it."""
        event = Event() if event is None else event
        if not isinstance(event, Event):
            raise TypeError(f"record: expected a hocket.Event, or None for a new one, found {event!r}")
        event._mark = self._record(event._timing)
        return event

    def wait(self, what: Marked) -> None:
        """What is submitted from here on comes after an event, or after the end of a Work. Does not block."""
        if not isinstance(what, Marked):
            raise TypeError(f"wait: expected a hocket.Event or a Work, found a {type(what).__name__}")
        if what._mark is not None:
            self._await(what._mark)

    def query(self) -> bool:
        """Whether all that was submitted is done, well or not."""
        return bool(self._core.is_idle())

    def synchronize(self) -> None:
        """Blocks until all that was submitted is done. Raises the error that the stream has failed with."""
        waited(partial(self._record(False).wait, FOREVER_SECONDS), self.name)
        failure: Any = self._core.take_exception()
        if failure is not None:
            raise failure

    def _record(self, timing: bool) -> Any:
        return self._core.record(timing)

    def _await(self, mark: Any) -> None:
        self._core.wait(_of_core(mark))

    def __repr__(self) -> str:
        return f"<hocket.Stream {self.name!r}>"


def current_stream() -> Stream | None:
    """The current stream of this thread; None: the host."""
    found: Any = _core.current_stream()
    current: Stream | None = found
    return current


class stream:  # noqa: N801
    """`with hocket.stream(s)`: s is the current stream of this thread; None: the host."""

    __slots__ = ("_outer", "_stream")

    def __init__(self, stream: Stream | None) -> None:
        self._stream = None if stream is None else _checked(stream)
        self._outer: list[Stream | None] = []  # it may be entered again inside

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
    """What an operation that is launched now has to come after: it reads what the stream writes before."""
    return None if stream is None else _of_core(stream._record(False))


def _of_core(mark: Any) -> Any:
    """Streams of other devices have marks of their own."""
    return mark if isinstance(mark, _core.Mark) else mark.on_host()


def raise_failure(mark: Any) -> None:
    """Raises what a mark that is passed has failed with."""
    failure = mark.exception()
    if failure is not None:
        raise failure


def checked_seconds(name: str, seconds: float) -> float:
    """Seconds of at least 0; TypeError, ValueError."""
    try:
        is_time = seconds >= 0
    except TypeError:
        raise TypeError(f"{name} is {seconds!r}; expected seconds of at least 0, or None") from None
    if not is_time:
        raise ValueError(f"{name} is {seconds}; expected seconds of at least 0, or None")
    return min(seconds, FOREVER_SECONDS)  # an int may be too large for a float


# A thread that is new to the interpreter holds a lock of it for a moment, which Python 3.11 leaves locked in a child
# that is forked then: the child would hang inside of fork().
os.register_at_fork(before=_core.await_started_streams)


@at_process_end
def _end_all(error: BaseException | None) -> None:
    try:
        _core.end_streams(at_once=error is not None)
    except KeyboardInterrupt:
        _core.end_streams(at_once=True)
