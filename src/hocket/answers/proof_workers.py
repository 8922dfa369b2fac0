"""Calls a function of Hocket for many values, in processes that do not import the main program.

A process of concurrent.futures imports the main program first. That runs a script without a `__main__` guard once more,
and fails for a program that Python reads from standard input. So nothing that only the main program has defined is
known here.
"""

import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from hocket.errors import ResourceError

_Value = TypeVar("_Value")
_Result = TypeVar("_Result")


def in_processes(
    function: Callable[[_Value], _Result], values: Sequence[_Value], num_processes: int
) -> Iterator[tuple[_Value, _Result | ResourceError]]:
    """Yields every value with the function's result, as they come; ResourceError instead if its process died.

    function: one at the top of a module of Hocket. An exception of the function is raised here. No process remains when
    the iterator ends.
    """
    ended: queue.SimpleQueue[tuple[_Value, Any, BaseException | None]] = queue.SimpleQueue()
    waiting: queue.SimpleQueue[_Value] = queue.SimpleQueue()
    for value in values:
        waiting.put(value)
    workers = [_Worker() for _ in range(num_processes)]

    def feed(worker: _Worker) -> None:
        with suppress(queue.Empty):
            while True:
                value = waiting.get_nowait()
                try:
                    ended.put((value, *worker.call(function, value)))
                except BaseException as error:
                    ended.put((value, None, error))

    threads = [threading.Thread(target=feed, args=(worker,), daemon=True) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        for _ in values:
            value, result, error = ended.get()
            if error is not None:
                raise error
            yield value, result
    finally:
        with suppress(queue.Empty):
            while True:
                waiting.get_nowait()
        for worker in workers:
            worker.end()
        for thread in threads:
            thread.join()
        for worker in workers:
            worker.close()


class _Worker:
    """One process after another, each until it dies; one thread calls, and `end` may come from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the three below
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._has_ended = False

    def call(self, function: Callable[[Any], Any], value: Any) -> tuple[Any, BaseException | None]:
        """Returns the result, or a ResourceError as the result if the process dies, and what the function raised."""
        process, connection = self._started()
        try:
            connection.send((function, value))
            result, error = connection.recv()
        except (EOFError, OSError):
            return self._died(process), None
        return result, error

    def end(self) -> None:
        """Kills the process; a call that waits for it returns."""
        with self._lock:
            self._has_ended = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def close(self) -> None:
        """Gives up the connection, once no thread calls."""
        if self._connection is not None:
            self._connection.close()

    def _died(self, process: subprocess.Popen[bytes]) -> ResourceError:
        status = process.wait()
        how = f"signal {-status}, {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._process = self._connection = None
        return ResourceError(
            f"the process of this proof ended with {how}, perhaps because memory is too small; ask for fewer ranks",
            errno=0,
            call="prove",
        )

    def _started(self) -> tuple[subprocess.Popen[bytes], Connection]:
        with self._lock:
            if self._has_ended:
                raise EOFError
            if self._process is None or self._connection is None:
                self._process, self._connection = _start()
            return self._process, self._connection


def _start() -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = Pipe()
    # Modules are found as they are here; a program that Python reads from standard input stays in this process.
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; from hocket.answers.proof_workers import serve; "
        f"serve({theirs.fileno()})"
    )
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, *flags, "-c", program], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        except OSError as error:
            ours.close()
            raise ResourceError(
                f"verify cannot start a process: {error.strerror}; see `hocket doctor`",
                errno=error.errno or 0,
                call="start a process",
            ) from error
    return process, ours


def serve(descriptor: int) -> None:
    """Runs the whole life of a process: calls what it is sent, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    with Connection(descriptor) as connection, suppress(EOFError, BrokenPipeError):
        while True:
            function, value = connection.recv()
            try:
                answer: tuple[Any, Exception | None] = (function(value), None)
            except Exception as error:
                answer = (None, error)
            connection.send(answer)
