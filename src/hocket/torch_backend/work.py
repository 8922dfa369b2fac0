"""Handles of operations: what torch.distributed calls a Work, and the futures that DDP and functional code ask for."""

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hocket.errors import CollectiveTimeout, CommunicationError, HocketError, RendezvousError
from hocket.runtime.stream import current_stream, stream
from hocket.runtime.work import InFlight
from hocket.torch_backend.compiling import as_they_are
from hocket.torch_backend.tensors import Finish, on_current_stream


class BackendError(dist.DistBackendError):
    """What PyTorch's programs catch; __cause__ is Hocket's own error, with its fields."""


@contextlib.contextmanager
def told_to_torch() -> Iterator[None]:
    """Raises Hocket's errors as BackendError."""
    try:
        yield
    except HocketError as error:
        raise backend_error(error) from error


def raise_to_torch(error: BaseException) -> None:
    """Raises what a call has raised."""
    with told_to_torch():
        raise error


def backend_error(error: HocketError) -> BackendError:
    """The same in PyTorch's words, by which programs tell a time-out and a closed connection from the rest."""
    if isinstance(error, RendezvousError):
        return BackendError(f"hocket: the ranks of this process group did not meet: {error}")
    if isinstance(error, CollectiveTimeout):
        return BackendError(f"hocket: a timeout ended this operation: {error}")
    if isinstance(error, CommunicationError):
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
        with told_to_torch():
            for work in self.works:
                work.wait(seconds if seconds > 0 else None)
        on_current_stream(self._finish if self._has_finishes else None)
        if current_stream() is None:
            self._leave()
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        if not all(work.is_completed() for work in self.works):
            return False
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
                self._future = begun.then(self._outcome)
                self._futures.complete(begun, self, self.in_order)
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

    Messages end in any order, and one may wait for what the future of another starts: each has a thread of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._in_order: _Completing | None = None
        self._threads: list[_Completing] = []

    def complete(self, future: Any, work: RunningWork, in_order: bool) -> None:
        """Sets the future once the work has ended."""
        if work.is_completed():
            future.set_result(None)
            return
        here = threading.current_thread()
        if in_order and isinstance(here, _Completing):
            here.complete_inside(future, work)
            return
        with self._lock:
            if in_order and self._in_order is not None:
                thread = self._in_order
            else:
                thread = _Completing()
                self._threads = [*(one for one in self._threads if one.is_alive()), thread]
            thread.complete(future, work)
            if in_order:
                self._in_order = thread
            else:
                thread.no_more()

    def close(self) -> None:
        """Ends the threads, once all is set; works that cannot end have to be aborted before."""
        with self._lock:
            threads, self._threads, self._in_order = self._threads, [], None
        for thread in threads:
            thread.no_more()
            if thread is not threading.current_thread():  # a callback may end the group
                thread.join()


class _Completing(threading.Thread):
    """Completes futures, one after the other.

    What a callback starts is completed by another thread, since the callback may wait for it, as PowerSGD's do; and
    before the next future of this one, so that callbacks start collectives in one order on every rank.
    """

    def __init__(self) -> None:
        super().__init__(name="hocket futures", daemon=True)
        self._queue: queue.SimpleQueue[tuple[Any, RunningWork] | None] = queue.SimpleQueue()
        self._inside: _Completing | None = None
        self.start()

    def complete(self, future: Any, work: RunningWork) -> None:
        """Sets the future once the work has ended and those before it are set."""
        self._queue.put((future, work))

    def complete_inside(self, future: Any, work: RunningWork) -> None:
        """Sets the future of what a callback of this thread has started."""
        if self._inside is None:
            self._inside = _Completing()
        self._inside.complete(future, work)

    def no_more(self) -> None:
        """Lets the thread end after what it has been given."""
        self._queue.put(None)

    def run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            work.rest()
            future.set_result(None)
            del item, future, work  # while nothing is to be done, nothing is kept
            inside, self._inside = self._inside, None
            if inside is not None:
                inside.no_more()
                inside.join()
