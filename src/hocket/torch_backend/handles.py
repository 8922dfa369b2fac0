"""Handles of operations: the Work of torch.distributed, and the futures that DDP and functional code use."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from hocket.errors import HocketError
from hocket.runtime import stream
from hocket.torch_backend.compiling import as_they_are
from hocket.torch_backend.tensors import Finish, on_current_stream
from hocket.torch_backend.told_errors import backend_error, raise_to_torch, told_to_torch

_begin_work = dist.Work.__init__
_PATIENCE_SECONDS = 0.05  # for the callbacks of a future, before another thread sets the next futures


def _parked() -> Iterator[None]:
    yield


_PARKED: Any = _parked()  # its frame has no caller


@as_they_are
class FinishedWork(dist.Work):
    """The handle of an operation that was done when the call returned."""

    def __init__(self, tensors: Sequence[Any] = ()) -> None:
        super().__init__()
        self._tensors = list(tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Returns True at once."""
        return True

    def is_completed(self) -> bool:
        """Returns True."""
        return True

    def is_success(self) -> bool:
        """Returns True."""
        return True

    def exception(self) -> None:
        """Returns None."""

    def synchronize(self) -> None:
        """Returns at once."""

    def block_current_stream(self) -> None:
        """Returns at once."""

    def result(self) -> list[Any]:
        """Returns the tensors that were written."""
        return self._tensors

    def get_future(self) -> Any:
        """Returns a completed future with the tensors that were written."""
        future = torch.futures.Future()
        future.set_result(self._tensors)
        return future


@as_they_are
class RunningWork(dist.Work):
    """The handle of an operation under way: works of the communicator, and functions that move results into place."""

    repeatable: Any = None
    """The communicator's work, if this handle adds nothing to it: then calls like this one are remembered."""
    _future: Any = None

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
        self._lock = threading.RLock()  # guards _finishes and _future

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Makes Hocket's current stream wait until the result is in place.

        If the current stream is the host, it blocks, and raises the operation's error as BackendError.
        """
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        with told_to_torch:
            for work in self.works:
                work.wait(seconds if seconds > 0 else None)
        if self._has_finishes:
            on_current_stream(self._finish)
        return True

    def is_completed(self) -> bool:
        """Returns whether the operation has ended, with or without an error."""
        try:
            if not all(work.is_completed() for work in self.works):
                return False
        except HocketError as error:
            raise_to_torch(error)
        if self._failure() is None:
            self._finish()
        return True

    def is_success(self) -> bool:
        """Returns whether the operation has ended without an error."""
        return self.is_completed() and self._failure() is None

    def exception(self) -> Any:
        """Returns the operation's error; None as it runs, and if it had no error."""
        failure = self._failure() if self.is_completed() else None
        return backend_error(failure) if isinstance(failure, HocketError) else failure

    def synchronize(self) -> None:
        """Does the same as wait."""
        self.wait()

    def block_current_stream(self) -> None:
        """Does the same as wait."""
        self.wait()

    def result(self) -> list[Any]:
        """Returns the tensors of the result; they are complete when wait returns."""
        self.wait()
        return self.tensors

    def source_rank(self) -> int:
        """Returns the rank in the group that sent the received message. The host must have waited for the work."""
        with stream(None):
            self.wait()
        source: int | None = self.works[0].source
        return -1 if source is None else source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Returns a future of the written tensors; it raises, in PyTorch's form, the error that wait() raises."""
        with self._lock:
            if self._future is None:
                # C++ counts a future with set_exception as a success, but not one whose callback raises.
                begun = torch.futures.Future()
                future = begun.then(self._outcome)
                self._futures.complete(begun, future, self)
                self._future = future
        return self._future

    def rest(self, seconds: float | None = None) -> None:
        """Blocks until the operation has ended, with or without an error, or `seconds` have passed for each work."""
        for work in self.works:
            rest(work, seconds)

    def _outcome(self, _: Any) -> list[Any]:
        try:
            self.wait()
        except Exception as error:
            # PyTorch puts the innermost frame and all its callers into the text: one frame, the same on all ranks.
            at = TracebackType(None, _PARKED.gi_frame, 0, _PARKED.gi_frame.f_lineno)
            raise error.with_traceback(at) from error.__cause__
        return self.tensors

    def _failure(self) -> Any:
        return next((failure for work in self.works if (failure := work.exception()) is not None), None)

    def _finish(self) -> None:
        if not self._has_finishes:
            return
        with self._lock:  # a second thread waits until the first has finished
            finishes, self._finishes = self._finishes, []
            for finish in finishes:
                finish()


@as_they_are
class RunningMessage(RunningWork):
    """The handle of a send or receive of one tensor, which is in place once the message has ended. Each message makes
    one, so it does as little as it can.
    """

    in_order = _has_finishes = False
    _lock = threading.RLock()  # of all messages: none waits while it holds it

    def __init__(self, futures: "Futures", work: Any, tensor: Any) -> None:
        _begin_work(self)
        self.repeatable, self.works, self.tensors, self._futures = work, (work,), [tensor], futures

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Makes Hocket's current stream wait until the message has ended, as for all handles."""
        if timeout is not None:
            return super().wait(timeout)
        try:
            self.repeatable.wait()
        except HocketError as error:
            raise_to_torch(error)
        return True


def rest(work: Any, seconds: float | None = None) -> None:
    """Blocks until a work of the communicator has ended, with or without an error, or `seconds` have passed."""
    with contextlib.suppress(Exception), stream(None):
        work.wait(seconds)


class Futures:
    """Completes futures: those of collectives in order, in a thread (the leader) that starts with the first future.

    The leader also runs the callbacks of the futures, one after the other. A callback may wait for a later future, so
    if it takes long, another thread becomes the leader. A callback must not wait for callbacks of a later future.
    Messages end in any order, and may wait for each other's callbacks, so each message has a thread of its own.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[tuple[Any, RunningWork, _Turn] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()  # guards the fields below, and the order of _items
        self._leader: threading.Thread | None = None  # takes from _items; None before the first item and after the last
        self._running: _Turn | None = None  # the turn whose callbacks the leader runs
        self._watches = False  # whether _watch checks that they do not run for long
        self._threads: list[threading.Thread] = []
        self._callbacks = _Turn(None)  # the turns that no callback has started

    def complete(self, begun: Any, future: Any, work: RunningWork) -> None:
        """Sets `begun`, and with it the dependent `future`, when the work has ended."""
        if work.is_completed():
            begun.set_result(None)
            return
        with self._changed:
            if not work.in_order:
                self._start(lambda: _set(begun, work, _Turn(None)))
                return
            turn = (_here.turn or self._callbacks).next_inside()
            future.add_done_callback(lambda _: self._begin_callbacks(turn))  # first, before the program's callbacks
            self._items.put((begun, work, turn))
            if self._leader is None:
                self._leader = self._start(self._lead)
                self._start(self._watch)
            elif self._running is not None and self._running is _here.turn:
                self._replace_leader()  # a callback may wait for an operation that it starts, as PowerSGD's do
            elif not self._watches:
                self._changed.notify()

    def close(self) -> None:
        """Ends the threads when all futures are set. The caller first aborts works that cannot end."""
        self._items.put(None)
        with self._changed:
            self._changed.notify()
        while _here.turn is None:  # not in a callback: a callback may end the group while others wait for it
            with self._changed:
                threads, self._threads = self._threads, []
            if not threads:
                return
            for thread in threads:
                thread.join()

    def _start(self, run: Callable[[], None]) -> threading.Thread:
        """Starts a thread. The caller holds the lock."""
        thread = threading.Thread(target=run, name="hocket futures", daemon=True)
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        thread.start()
        return thread

    def _lead(self) -> None:
        """Sets one future after the other, until another thread becomes the leader."""
        while (item := self._items.get()) is not None:
            _set(*item)
            del item  # keeps no memory alive during the next wait
            with self._changed:
                if self._leader is not threading.current_thread():
                    return
                self._running = None
        with self._changed:
            self._leader = None
            self._changed.notify()

    def _begin_callbacks(self, turn: "_Turn") -> None:
        """Waits, in the leader, until the callbacks that follow may run."""
        with self._changed:
            self._running = turn
            if not turn.await_previous(0.0):
                self._replace_leader()
        turn.await_previous()

    def _replace_leader(self) -> None:
        """Starts a new leader; the old one only finishes its callbacks. The caller holds the lock."""
        self._running = None
        self._leader = self._start(self._lead)

    def _watch(self) -> None:
        """Replaces a leader whose callbacks take long. It checks only from time to time, so short ones cost nothing."""
        seen: _Turn | None = None
        with self._changed:
            while self._leader is not None:
                if seen is not None and seen is self._running:
                    self._replace_leader()
                seen = self._running
                self._watches = seen is not None or not self._items.empty()
                self._changed.wait(_PATIENCE_SECONDS if self._watches else None)


class _Turn:
    """The turn of one future's callbacks. They run after those of the previous future and of all that these started.

    So callbacks start collectives in the same order on every rank.
    """

    def __init__(self, previous: "_Turn | None") -> None:
        self._previous = previous
        self._last_inside: _Turn | None = None
        self._has_returned = threading.Event()

    def next_inside(self) -> "_Turn":
        """Returns the turn of the next future that these callbacks start."""
        self._last_inside = _Turn(self._last_inside)
        return self._last_inside

    def await_previous(self, seconds: float | None = None) -> bool:
        """Returns whether the callbacks may run; blocks until then, at most `seconds` for each earlier turn."""
        turn = self._previous
        while turn is not None:
            if not turn._has_returned.wait(seconds):
                return False
            turn = turn._last_inside
        self._previous = None
        return True

    def end(self) -> None:
        """Notes that the callbacks have returned."""
        self._has_returned.set()


class _CurrentTurn(threading.local):
    turn: _Turn | None = None  # the turn whose callbacks the thread runs


_here = _CurrentTurn()


def _set(begun: Any, work: RunningWork, turn: _Turn) -> None:
    work.rest()
    _here.turn = turn
    try:
        begun.set_result(None)
    finally:
        _here.turn = None
        turn.end()
