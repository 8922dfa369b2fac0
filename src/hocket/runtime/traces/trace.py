"""Traces: what every rank does and when, in one file that Perfetto, Chrome and `hocket trace` read.

    with hocket.trace("out.json"):
        with hocket.span("forward"):
            ...
        comm.all_reduce(x)

Every rank traces into the same file, to which it adds its own part as it stops; so a rank that dies takes only its own
part with it. HOCKET_TRACE=out.json traces a program from hocket.init() on.
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
    """What a rank has for its traces."""

    def __init__(self) -> None:
        self.recorder = _core.Recorder()
        self.rank, self.size, self.job = 0, 1, secrets.token_hex(4)  # until it has met others
        self.num_traces = 0
        self.trace: Trace | None = None  # under way

    def end(self) -> None:
        if self.trace is not None:
            self.trace.stop()


_tracing = PerRank(_Tracing, _Tracing.end)


def trace(file: str | os.PathLike[str], *, steps: bool = False) -> "Trace":
    """Traces this rank inside a `with`, or between start() and stop(): calls, waits, messages, spans, streams.

    All ranks give the same file; the last one to stop completes it, a name in .gz is compressed, and what another run
    left there is overwritten. `steps` adds what each instruction of a schedule moves, piece by piece. A trace that is
    under way when its rank ends is stopped then. There is room for 4 million records of a rank: where they are full, or
    memory is, the trace ends there, and `hocket trace summary` says so.
    """
    return Trace(file, steps)


class Trace:
    """A trace of the calling rank: see trace()."""

    def __init__(self, file: str | os.PathLike[str], steps: bool) -> None:
        self.file, self._steps = Path(file).absolute(), steps

    def start(self) -> Self:
        """From now on everything is recorded. RuntimeError while this rank traces already; OSError for such a file."""
        tracing = _tracing()
        if tracing.trace is not None:
            raise RuntimeError(f"this rank traces into {tracing.trace.file} already; stop that first")
        with self.file.open("ab"):  # now rather than when all is done
            pass
        tracing.recorder.start(self._steps)
        tracing.num_traces += 1
        tracing.trace = self
        return self

    def stop(self) -> None:
        """Writes what was recorded. RuntimeError unless it is under way on this rank; OSError where it cannot."""
        tracing = _tracing()
        if tracing.trace is not self:
            raise RuntimeError(f"the trace into {self.file} is not under way on this rank")
        from hocket.runtime.traces.trace_events import Events

        tracing.trace = None
        records, lanes, names, ended_early = tracing.recorder.take()
        events = Events(tracing.rank, records, lanes, names)
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
    """Names what a thread does inside a `with`, as computing, in the trace of the rank that makes the span.

    Nothing while there is none. TypeError unless the name is a text.
    """

    __slots__ = ("_begin", "_name", "_recorder")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"span: expected a text, its name in traces, found {name!r}")
        self._name, self._recorder = name, _tracing().recorder

    def __enter__(self) -> None:
        self._begin = self._recorder.now() if self._recorder.is_on else 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._begin:
            self._recorder.span(self._name, self._begin)


def recorder() -> Any:
    """The core's recorder of the calling rank."""
    return _tracing().recorder


def waited(wait: Callable[[], bool], name: str) -> bool:
    """What wait() returns, for which the calling thread has waited in the trace."""
    own = recorder()
    begin = own.now() if own.is_on else 0
    try:
        return wait()
    finally:
        if begin:
            own.wait(name, begin)


def joined(rank: int, size: int, job: str) -> None:
    """The calling rank has met others; `job` is a text that only they share. From here on HOCKET_TRACE is followed."""
    tracing = _tracing()
    tracing.rank, tracing.size, tracing.job = rank, size, job
    file = os.environ.get(TRACE)
    if file and tracing.trace is None and tracing.num_traces == 0:
        try:
            trace(file).start()
        except OSError as error:
            error.add_note(f"{TRACE} asks for a trace into this file; name one that can be written, or unset it.")
            raise
