"""`run_ranks`: calls one function as n ranks, in processes or in threads, and returns the results as a list.

The ranks get rank and size from `hocket.init()`. If one fails, the others have a little time to notice and end by
themselves; then they are stopped. No process remains, whatever happens to this one. `supervisor` runs commands
(`hocket run`).
"""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import Pipe, spawn
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from hocket.errors import PeerDied, ResourceError
from hocket.runtime.launch import rank_process
from hocket.runtime.launch.outcomes import GRACE_SECONDS, Outcome, Outcomes
from hocket.runtime.ranks.cores import bound
from hocket.runtime.ranks.environment import Environment, new_address, rank_scope, rank_variables
from hocket.runtime.ranks.failure_reports import follows_from_another
from hocket.runtime.ranks.program_frames import debugging, without_own_frames

TERMINATE_SECONDS = 2.0  # between SIGTERM and SIGKILL
INTERRUPT_SECONDS = 0.5  # between Ctrl-C and SIGKILL; for threads, after their communicators are aborted

_MAIN_KEYS = {"init_main_from_path", "init_main_from_name"}  # in multiprocessing's description of the main program


def run_ranks(function: Callable[..., Any], n: int, *, args: Sequence[Any] = (), kind: str | None = None) -> list[Any]:
    """Calls function(*args) once as each of n ranks and returns the results in rank order; blocks until all ended.

    kind: "process" (function, args and results must be picklable, so use a function at the top of a module) or "thread"
    (no such limit, but the ranks share one interpreter); by default processes, in a notebook threads. The caller gets
    the exception of the first rank that failed, with a note of its place, or of the rank if the message does not name
    it; PeerDied if a process ended without an exception. The other ranks have GRACE_SECONDS to end by themselves. Then
    processes are killed. Threads cannot be killed: their communicators are aborted, and a thread that does not end then
    goes on. Each process is bound to its share of the cores; with more ranks than cores, neighbours share a core.
    """
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"n is {n!r}; expected an int, the number of ranks")
    if n < 1:
        raise ValueError(f"n is {n}; expected at least one rank")
    if not callable(function):
        raise TypeError(f"function is {function!r}; expected a function for each rank to call")
    if not isinstance(args, Iterable):
        raise TypeError(f"args is {args!r}; expected a tuple of arguments, such as ({args!r},)")
    if kind not in (None, "process", "thread"):
        raise ValueError(f'kind is {kind!r}; expected "process", "thread" or None')
    if rank_process.preparing:
        raise RuntimeError(
            "run_ranks was called while a rank process imported the main program; put the call under `if __name__ == "
            '"__main__":`'
        )
    in_threads = kind == "thread" or (kind is None and "ipykernel" in sys.modules)
    run = _run_threads if in_threads else _run_processes
    try:
        outcomes = run(function, n, tuple(args))
        error = outcomes.failure()
    except (TypeError, ResourceError) as refused:  # before any rank ran: the caller's line says where
        error = refused if debugging() else refused.with_traceback(None)
    if error is not None:
        error.__traceback__ = without_own_frames(error.__traceback__)
        raise error
    return [outcomes.by_rank[rank].value for rank in range(n)]


# --- threads -------------------------------------------------------------------------------------------------------


def _run_threads(function: Callable[..., Any], size: int, args: tuple[Any, ...]) -> Outcomes:
    address, cancel = new_address(), threading.Event()
    ended: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()

    def run(rank: int) -> None:
        environment = Environment(rank, size, address, "threads", rank, size, cancel=cancel)
        try:
            with rank_scope(environment):
                outcome = Outcome(value=function(*args))
        except BaseException as error:
            outcome = Outcome(failed=True, error=error, follows=follows_from_another(error))
            if isinstance(error, SystemExit):
                outcome.error = RuntimeError(f"the rank function called sys.exit({error.code!r})")
                outcome.failed = error.code not in (None, 0)
        ended.put((rank, outcome))

    # Daemon threads, so that the interpreter can exit even if a rank never returns.
    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    outcomes = Outcomes(size)
    try:
        while len(outcomes.by_rank) < size:
            left = None if outcomes.deadline is None else max(0.0, outcomes.deadline - time.monotonic())
            try:
                rank, outcome = ended.get(timeout=left)
            except queue.Empty:
                break
            outcomes.add(rank, outcome)
            if outcome.failed:
                cancel.set()
    finally:
        cancel.set()
        if len(outcomes.by_rank) < size:
            _abort(threads, cancel)
    for rank, thread in enumerate(threads):
        if rank in outcomes.by_rank:
            thread.join()
    return outcomes


def _abort(threads: Sequence[threading.Thread], cancel: threading.Event) -> None:
    """Aborts the calls of ranks for which run_ranks no longer waits.

    Otherwise the interpreter, at exit, would end such a thread as it returns from a call, and the C++ frames below
    would turn that into an abort of the process.
    """
    communicators = sys.modules.get("hocket.runtime.communicator.communicator")  # not loaded if no rank has one
    if communicators is None or not communicators.abort_threads(cancel, "run_ranks waits for this rank no longer"):
        return
    deadline = time.monotonic() + INTERRUPT_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


# --- processes -----------------------------------------------------------------------------------------------------


def _run_processes(function: Callable[..., Any], size: int, args: tuple[Any, ...]) -> Outcomes:
    call = _pickle_call(function, args)
    preparation = _preparation(call)
    outcomes = Outcomes(size)
    with _Processes() as processes:
        address = new_address()
        for rank in range(size):
            variables = rank_variables(rank, size, address)  # reads all cores, so it comes before binding
            with bound(rank, size):
                processes.start(variables)
        for connection in processes.connections:
            # A process that has already ended is noticed below.
            with contextlib.suppress(OSError):
                connection.send_bytes(preparation)
                connection.send_bytes(call)
        terminated: float | None = None
        while len(outcomes.by_rank) < size:
            now = time.monotonic()
            if outcomes.deadline is not None and now > outcomes.deadline:
                if terminated is not None:
                    break
                terminated = now
                outcomes.deadline = now + TERMINATE_SECONDS
                processes.signal(signal.SIGTERM)
            for rank in processes.ended(outcomes.deadline, outcomes.by_rank):
                outcome = processes.outcome(rank)
                if outcome.failed and terminated is not None:
                    outcome.follows = True  # run_ranks itself ended this rank
                outcomes.add(rank, outcome)
        if not outcomes.failed:
            processes.wait(GRACE_SECONDS)
    return outcomes


def _pickle_call(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    name = getattr(function, "__qualname__", repr(function))
    advice = 'use a function at the top of a module, or kind="thread"'
    try:
        call = pickle.dumps((function, args))
    except Exception as error:
        raise TypeError(f"run_ranks cannot send {name} and its args to other processes ({error}); {advice}") from None
    if _needs_main(call) and not _can_import_main():
        raise TypeError(f"run_ranks cannot send {name}: it was typed in or piped in, and is in no file; {advice}")
    return call


def _can_import_main() -> bool:
    """Whether other processes can import the main program: it is a module, or a file rather than standard input."""
    data = spawn.get_preparation_data("rank")
    return "init_main_from_name" in data or Path(data.get("init_main_from_path", "")).is_file()


def _needs_main(call: bytes) -> bool:
    return b"__main__" in call or b"__mp_main__" in call


def _preparation(call: bytes) -> bytes:
    data = spawn.get_preparation_data("rank")
    unwanted = {"authkey", "start_method", "log_to_stderr", "log_level"}
    if not _needs_main(call):
        # Importing the main program again takes time, and repeats its actions if it has no __main__ guard.
        unwanted |= _MAIN_KEYS
    return pickle.dumps({name: value for name, value in data.items() if name not in unwanted})


class _Processes:
    """The rank processes, each with its own process group. None of them remains when the context ends."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connections: list[Connection] = []
        self._pidfds: list[int] = []

    def __enter__(self) -> "_Processes":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.signal(signal.SIGINT)
            self.wait(INTERRUPT_SECONDS)
        for connection in self.connections:
            connection.close()
        # The whole group, for processes that a rank started. Its number is reused only after the rank is waited for.
        self.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        for pidfd in self._pidfds:
            os.close(pidfd)

    def start(self, variables: dict[str, str]) -> None:
        ours, theirs = Pipe()
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from hocket.runtime.launch.rank_process import serve; "
            f"serve({theirs.fileno()}, {os.getpid()})"
        )
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self.connections.append(ours)
        # The rank inherits the mask: Ctrl-C waits until `serve` has set its effect, and never interrupts imports.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, *flags, "-c", program],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=os.environ | variables,
                    process_group=0,
                )
            self.processes.append(process)
            self._pidfds.append(os.pidfd_open(process.pid))
        except OSError as error:
            raise ResourceError(
                f"run_ranks cannot start rank {len(self.connections) - 1}: {error.strerror}; see `hocket doctor`",
                errno=error.errno or 0,
                call="start a process",
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def ended(self, deadline: float | None, known: dict[int, Outcome]) -> Iterator[int]:
        """Waits for ranks without a known outcome; yields those that have sent one or died."""
        ranks = [rank for rank in range(len(self.processes)) if rank not in known]
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = set(wait([source for rank in ranks for source in (self.connections[rank], self._pidfds[rank])], left))
        for rank in ranks:
            if self.connections[rank] in ready or self._pidfds[rank] in ready:
                yield rank

    def outcome(self, rank: int) -> Outcome:
        try:
            if self.connections[rank].poll():
                outcome: Outcome = pickle.loads(self.connections[rank].recv_bytes())
                return outcome
        except (EOFError, OSError):
            pass
        process = self.processes[rank]
        wait([self._pidfds[rank]], GRACE_SECONDS)
        status = os.waitid(os.P_PIDFD, self._pidfds[rank], os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            how = "closed its connection to run_ranks"
        elif status.si_code == os.CLD_EXITED:
            how = f"ended with exit code {status.si_status} before the function returned"
        else:
            how = f"was killed by {signal.Signals(status.si_status).name}"
        text = f"rank {rank} of {len(self.processes)} (process {process.pid}) {how}"
        return Outcome(failed=True, error=PeerDied(text, rank=rank))

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for pidfd in self._pidfds:
            wait([pidfd], max(0.0, deadline - time.monotonic()))
