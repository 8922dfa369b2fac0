"""Handles of operations: what torch.distributed calls a Work, and the futures that DDP and functional code ask for."""

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hocket.errors import CollectiveTimeout, CommunicationError, ForkedUse, HocketError, RendezvousError
from hocket.runtime import InFlight, current_stream, stream
from hocket.torch_backend.compiling import as_they_are
from hocket.torch_backend.tensors import Finish, on_current_stream

_PATIENCE_SECONDS = 0.05  # with the callbacks of a future, while others may have to be set


class BackendError(dist.DistBackendError):
    """What PyTorch's programs catch; __cause__ is Hocket's own error, with its fields."""


class _ToldToTorch:
    """A context that raises Hocket's errors as BackendError; one of contextlib takes a microsecond more."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, HocketError):
            raise backend_error(error) from error


told_to_torch = _ToldToTorch()


def raise_to_torch(error: BaseException) -> None:
    """Raises what a call has raised."""
    with told_to_torch:
        raise error


def backend_error(error: HocketError) -> BackendError:
    """The same in PyTorch's words, by which programs tell a time-out and a closed connection from the rest."""
    if isinstance(error, RendezvousError):
        return BackendError(f"hocket: the ranks of this process group did not meet: {error}")
    if isinstance(error, CollectiveTimeout):
        return BackendError(f"hocket: a timeout ended this operation: {error}")
    if isinstance(error, CommunicationError) and not isinstance(error, ForkedUse):
        return BackendError(f"hocket: the connection is closed now: {error}")
    return BackendError(f"hocket: {error}")


@as_they_are
class FinishedWork(dist.Work):
    """Of an operation that was over when it returned."""

    def __init__(self, tensors: Sequence[Any] = ()) -> None:
        super().__init__()
        self._tensors = list(tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Nothing is left to wait for."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def exception(self) -> None:
        """None."""

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    def block_current_stream(self) -> None:
        """Nothing is left to wait for."""

    def result(self) -> list[Any]:
        """The tensors that were written."""
        return self._tensors

    def get_future(self) -> Any:
        """One that has the tensors that were written."""
        future = torch.futures.Future()
        future.set_result(self._tensors)
        return future


@as_they_are
class RunningWork(dist.Work):
    """Of an operation under way: one or several works of the communicator, and how their results get into place."""

    kept_by: InFlight | None = None

    def __init__(
        self,
        works: Sequence[Any],
        tensors: Sequence[Any],
        finishes: Sequence[Finish],
        futures: "Futures",
        in_order: bool = True,
    ) -> None:
        super().__init__()
        self.works, self.tensors, self.in_order = works, list(tensors), in_order
        self._futures = futures
        self._finishes = [finish for finish in finishes if finish is not None]
        self._has_finishes = bool(self._finishes)
        self._future: Any = None
        self._lock = threading.RLock()  # guards _finishes and _future

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Makes hocket's current stream wait until the result is in place.

        Where that is the host it blocks, and raises what ended the operation, as BackendError.
        """
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        with told_to_torch:
            for work in self.works:
                work.wait(seconds if seconds > 0 else None)
        on_current_stream(self._finish if self._has_finishes else None)
        if current_stream() is None:
            self._leave()
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        try:
            if not all(work.is_completed() for work in self.works):
                return False
        except HocketError as error:
            raise backend_error(error) from error
        if self._failure() is None:
            self._finish()
        self._leave()
        return True

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self._failure() is None

    def exception(self) -> Any:
        """What ended it, None while it runs and when it went well."""
        failure = self._failure() if self.is_completed() else None
        return backend_error(failure) if isinstance(failure, HocketError) else failure

    def synchronize(self) -> None:
        """As wait."""
        self.wait()

    def block_current_stream(self) -> None:
        """As wait."""
        self.wait()

    def result(self) -> list[Any]:
        """The tensors that were written, as soon as wait returns."""
        self.wait()
        return self.tensors

    def source_rank(self) -> int:
        """The rank in the group that sent what was received, for which the host has to wait."""
        with stream(None):
            self.wait()
        source: int | None = self.works[0].source
        return -1 if source is None else source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """One that gets the tensors that were written, or raises in PyTorch's way what wait() raises."""
        with self._lock:
            if self._future is None:
                # A future with set_exception counts as a success in C++; one whose callback raises does not.
                begun = torch.futures.Future()
                future = begun.then(self._outcome)
                self._futures.complete(begun, future, self)
                self._future = future
        return self._future

    def rest(self, seconds: float | None = None) -> None:
        """Blocks until it has ended, well or not, or so long for each of its works."""
        for work in self.works:
            with contextlib.suppress(Exception), stream(None):
                work.wait(seconds)

    def _outcome(self, _: Any) -> list[Any]:
        self.wait()
        return self.tensors

    def _leave(self) -> None:
        if self.kept_by is not None:
            self.kept_by.discard(self)

    def _failure(self) -> Any:
        return next((failure for work in self.works if (failure := work.exception()) is not None), None)

    def _finish(self) -> None:
        if not self._has_finishes:
            return
        with self._lock:  # who comes second waits for the first one to be done
            finishes, self._finishes = self._finishes, []
            for finish in finishes:
                finish()


class Futures:
    """Completes futures: those of collectives in their order, in a thread that starts with the first one.

    It runs their callbacks, too, of which one may wait for a later future. So where one takes long another thread goes
    on in its place; yet callbacks run one after the other. None may wait for what those of a later future do.
    Messages end in any order, and one may wait for what the future of another starts: each has a thread of its own.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[tuple[Any, RunningWork, _Turn] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()  # guards the fields below, and the order of _items
        self._leader: threading.Thread | None = None  # takes what is in _items; None before the first one and at last
        self._running: _Turn | None = None  # whose callbacks the leader runs
        self._watches = False  # whether somebody sees to it that they do not run for long
        self._threads: list[threading.Thread] = []
        self._callbacks = _Turn(None)  # what no callback has started

    def complete(self, begun: Any, future: Any, work: RunningWork) -> None:
        """Sets `begun`, and by that the future which follows from it, once the work has ended."""
        if work.is_completed():
            begun.set_result(None)
            return
        with self._changed:
            if not work.in_order:
                self._start(lambda: _set(begun, work, _Turn(None)))
                return
            turn = (_here.turn or self._callbacks).next_inside()
            future.add_done_callback(lambda _: self._begin_callbacks(turn))  # the first one, before the program's
            self._items.put((begun, work, turn))
            if self._leader is None:
                self._leader = self._start(self._lead)
                self._start(self._watch)
            elif self._running is not None and self._running is _here.turn:
                self._replace_leader()  # a callback may wait for what it starts, as PowerSGD's do
            elif not self._watches:
                self._changed.notify()

    def close(self) -> None:
        """Ends the threads, once all is set; works that cannot end have to be aborted before."""
        self._items.put(None)
        with self._changed:
            self._changed.notify()
        while _here.turn is None:  # a callback may end the group, and those of others may wait for it
            with self._changed:
                threads, self._threads = self._threads, []
            if not threads:
                return
            for thread in threads:
                thread.join()

    def _start(self, run: Callable[[], None]) -> threading.Thread:
        """Starts a thread; the caller has the lock."""
        thread = threading.Thread(target=run, name="hocket futures", daemon=True)
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        thread.start()
        return thread

    def _lead(self) -> None:
        """Sets one future after the other, until another thread does."""
        while (item := self._items.get()) is not None:
            _set(*item)
            del item  # while nothing is to be done, nothing is kept
            with self._changed:
                if self._leader is not threading.current_thread():
                    return
                self._running = None
        with self._changed:
            self._leader = None
            self._changed.notify()

    def _begin_callbacks(self, turn: "_Turn") -> None:
        """Returns, in the leader, when the callbacks that follow may run."""
        with self._changed:
            self._running = turn
            if not turn.await_previous(0.0):
                self._replace_leader()
        turn.await_previous()

    def _replace_leader(self) -> None:
        """Leaves the callbacks to the thread that runs them; the caller has the lock."""
        self._running = None
        self._leader = self._start(self._lead)

    def _watch(self) -> None:
        """Replaces a leader whose callbacks take long. It looks now and then, which costs those that do not nothing."""
        seen: _Turn | None = None
        with self._changed:
            while self._leader is not None:
                if seen is not None and seen is self._running:
                    self._replace_leader()
                seen = self._running
                self._watches = seen is not None or not self._items.empty()
                self._changed.wait(_PATIENCE_SECONDS if self._watches else None)


class _Turn:
    """Of the callbacks of one future, which run after those of the future before it, and what these have started.

    So callbacks start collectives in one order on every rank.
    """

    def __init__(self, previous: "_Turn | None") -> None:
        self._previous = previous
        self._last_inside: _Turn | None = None
        self._has_returned = threading.Event()

    def next_inside(self) -> "_Turn":
        """Of the next future that these callbacks have started."""
        self._last_inside = _Turn(self._last_inside)
        return self._last_inside

    def await_previous(self, seconds: float | None = None) -> bool:
        """Whether the callbacks may run: blocks until then, or so long for each that has to return before."""
        turn = self._previous
        while turn is not None:
            if not turn._has_returned.wait(seconds):
                return False
            turn = turn._last_inside
        self._previous = None
        return True

    def end(self) -> None:
        """The callbacks have returned."""
        self._has_returned.set()


class _Here(threading.local):
    turn: _Turn | None = None  # whose callbacks the thread runs


_here = _Here()


def _set(begun: Any, work: RunningWork, turn: _Turn) -> None:
    work.rest()
    _here.turn = turn
    try:
        begun.set_result(None)
    finally:
        _here.turn = None
        turn.end()
