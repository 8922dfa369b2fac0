"""Traces: what every rank does and when, in one file that Perfetto, Chrome and `hocket trace` read.

    with hocket.trace("out.json"):
        with hocket.span("forward"):
            ...
        comm.all_reduce(x)

All ranks trace into the same file. Each adds its own part when it stops, so if a rank dies, only its own part is lost.
HOCKET_TRACE=out.json traces a program from hocket.init() on.
"""

import itertools
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hocket import _core
from hocket.runtime.ranks.per_rank import PerRank
from hocket.runtime.traces import trace_file
from hocket.runtime.variables import TRACE


class _Tracing:
    """The state of one rank's traces."""

    def __init__(self) -> None:
        self.recorder = _core.Recorder()
        self.rank, self.size, self.job = 0, 1, secrets.token_hex(4)  # until it has met the other ranks
        self.num_traces = 0
        self.trace: Trace | None = None  # the trace under way

    def end(self) -> None:
        if self.trace is not None:
            self.trace.stop()


_tracing = PerRank(_Tracing, _Tracing.end)
_under_way: set["Trace"] = set()  # of all ranks of this process: a look at it costs less than one at the recorder
_watchers: list[Callable[[], Callable[[], None]]] = []


def watch_traces(begin: Callable[[], Callable[[], None]]) -> None:
    """Calls `begin` for each trace that a rank of this process starts, and for the calling rank's present one.

    When such a trace stops, what `begin` has returned is called.
    """
    _watchers.append(begin)
    if (under_way := _tracing().trace) is not None:
        under_way.watched.append(begin())


def trace(file: str | os.PathLike[str], *, steps: bool = False) -> "Trace":
    """Traces this rank inside a `with`, or between start() and stop(): calls, waits, messages, spans, streams.

    All ranks give the same file. The last rank to stop completes it; the trace of an earlier run is overwritten. A file
    whose name ends in .gz is compressed. `steps` adds what each instruction of a schedule moves, piece by piece. The
    end of a rank stops its trace. A rank can record 4 million records; when they or the memory are full, its trace ends
    early, and `hocket trace summary` says so.
    """
    return Trace(file, steps)


class Trace:
    """A trace of the calling rank: see trace()."""

    def __init__(self, file: str | os.PathLike[str], steps: bool) -> None:
        self.file, self._steps = Path(file).absolute(), steps
        self.watched: list[Callable[[], None]] = []  # called when it stops

    def start(self) -> Self:
        """Starts recording. Raises RuntimeError if this rank already traces, OSError if the file cannot be written."""
        tracing = _tracing()
        if tracing.trace is not None:
            raise RuntimeError(f"this rank traces into {tracing.trace.file} already; stop that trace first")
        with self.file.open("ab"):  # a bad file raises now rather than at the end
            pass
        from hocket.runtime.traces.trace_events import Events

        self._events_of = Events  # loaded now: stop() would hold up ranks of this process that are still traced
        tracing.recorder.start(self._steps)
        tracing.num_traces += 1
        tracing.trace = self
        _under_way.add(self)
        self.watched = [begin() for begin in _watchers]
        return self

    def stop(self) -> None:
        """Writes the records. Raises RuntimeError unless this trace is under way on this rank, OSError if it fails."""
        tracing = _tracing()
        if tracing.trace is not self:
            raise RuntimeError(f"the trace into {self.file} is not under way on this rank")
        tracing.trace = None
        _under_way.discard(self)
        for end in self.watched:
            end()
        records, lanes, names, ended_early = tracing.recorder.take()
        events = self._events_of(tracing.rank, records, lanes, names)
        said = {
            "rank": tracing.rank,
            "size": tracing.size,
            "process": os.getpid(),
            "clock": "CLOCK_MONOTONIC",
            "boot": trace_file.boot(),
            "ended_early": ended_early,
            "communicators": events.communicators(),
        }
        of_rank = {"ph": "M", "pid": tracing.rank, "tid": 0, "name": "rank", "args": said}
        run = f"{tracing.job}-{tracing.num_traces}"
        trace_file.append(self.file, run, itertools.chain([of_rank], events))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class span:  # noqa: N801
    """Names what a thread computes inside a `with`, in the trace of the rank that makes the span.

    It does nothing if the rank does not trace. Raises TypeError unless the name is a text.
    """

    __slots__ = ("_begin", "_name", "_recorder")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"span: expected its name in traces as text, found {name!r}")
        self._name, self._recorder = name, _tracing().recorder

    def __enter__(self) -> None:
        self._begin = self._recorder.now() if self._recorder.is_on else 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._begin:
            self._recorder.span(self._name, self._begin)


def recorder() -> Any:
    """Returns the core's recorder of the calling rank."""
    return _tracing().recorder


def note_event(what: str, event: int, stream: Any = None) -> None:
    """Records in the trace what the calling thread does to an event, and for which stream; event: its number, or 0."""
    if not _under_way:
        return
    own = recorder()
    if own.is_on:
        own.instant(what if stream is None else f"{what} on {stream.name}", event)


def waited(wait: Callable[[], bool], name: str, event: int = 0) -> bool:
    """Returns the result of wait(), and records in the trace that the calling thread has waited (for this event)."""
    own = recorder()
    begin = own.now() if own.is_on else 0
    try:
        return wait()
    finally:
        if begin:
            own.wait(name, begin, event)


def joined(rank: int, size: int, job: str) -> None:
    """Notes that the calling rank has met the others, and starts the trace of HOCKET_TRACE, if set.

    job: a text that only the ranks of this job share.
    """
    tracing = _tracing()
    tracing.rank, tracing.size, tracing.job = rank, size, job
    file = os.environ.get(TRACE)
    if file and tracing.trace is None and tracing.num_traces == 0:
        try:
            trace(file).start()
        except OSError as error:
            error.add_note(f"{TRACE} asks for a trace into this file; name one that can be written, or unset it.")
            raise
