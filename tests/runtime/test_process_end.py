"""Ranks of multiprocessing end like others: pending operations complete, an exception is reported."""

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.errors import CommunicationError, PeerAborted
from hocket.runtime import run_ranks
from tests.waiting import PATIENCE_SECONDS

PROGRAM = """
    import multiprocessing.util, os, sys, threading, time, numpy as np, hocket
    from hocket.errors import PeerAborted
    from hocket.runtime import new_address

    def main(rank, address, ending, leaving):
        comm = hocket.init(rank, 2, address=address)
        if ending == "raise" and rank == 1:
            raise ValueError("no luck")
        if ending == "raise":
            try:
                comm.barrier()
            except PeerAborted as error:
                assert error.reason == "ValueError: no luck", error
            else:
                raise AssertionError("the other has ended")
        elif rank == 1:
            comm.all_reduce(np.ones(1 << 20), async_op=True)
            comm.isend(np.full(1 << 20, 7.0), 0)
            multiprocessing.util.Finalize(None, open, (leaving, "w"), exitpriority=0)
            threading.Thread(target=lambda: comm.all_reduce(np.ones(1 << 20))).start()  # which the process awaits
        else:
            while not os.path.exists(leaving):  # the other has returned from here
                time.sleep(0.001)  # between two looks
            for _ in range(2):
                assert (comm.all_reduce(np.ones(1 << 20)) == 2).all()
            received, _, _ = comm.recv(np.empty(1 << 20), 1)
            assert (received == 7).all()

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        address = new_address()
        ranks = [context.Process(target=main, args=(rank, address, *sys.argv[2:])) for rank in range(2)]
        for rank in ranks: rank.start()
        for rank in ranks: rank.join()
        codes = [rank.exitcode for rank in ranks]
        assert codes == ([0, 1] if sys.argv[2] == "raise" else [0, 0]), codes
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("ending", ["raise", "return"])
def test_a_process_of_multiprocessing_ends_as_any_other(method: str, ending: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, tmp_path / "program.py", method, ending, tmp_path / "leaving"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ, check=False)
    assert result.returncode == 0, result.stderr
    assert ("ValueError: no luck" in result.stderr) == (ending == "raise")


RECEIVING = """
    import sys, threading, numpy as np, hocket

    def receive():
        while True:
            comm.recv(np.zeros(4), 1 - comm.rank)
            received.release()

    comm, received = hocket.init(), threading.Semaphore(0)
    threading.Thread(target=receive, daemon=True).start()
    for _ in range(int(sys.argv[1])):
        comm.send(np.ones(4), 1 - comm.rank)
        received.acquire()
    sys.exit(7)
"""


@pytest.mark.parametrize("num_messages", [0, 3])
def test_the_exit_code_is_kept_while_a_daemon_thread_receives(num_messages: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(RECEIVING))
    command = [sys.executable, "-m", "hocket", "run", "-n", "2", "--", tmp_path / "program.py", str(num_messages)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ, check=False)
    assert result.returncode == 7, result.stderr
    assert "terminate called" not in result.stderr, result.stderr


BACK_LATE = """
    import sys, threading, numpy as np, hocket
    from hocket import _core

    def fold():
        while True:
            _core.fold(*arguments)
            folded.release()

    def add(left, right):
        for _ in range(100):  # the interpreter ends meanwhile
            left = left + right
        return left

    sys.setswitchinterval(1e-6)
    if sys.argv[1] == "core":
        x = np.ones(1 << 24, np.float32)
        arguments = x, [x, x], 0  # long, without the interpreter
    else:
        x = np.zeros(4, np.float32)
        arguments = x, [x, x], _core.OPS.index("custom"), [], 1, (1.0, 0.0, 1), add
    folded = threading.Semaphore(0)
    for _ in range(4):
        threading.Thread(target=fold, daemon=True).start()
    for _ in range(8):
        folded.acquire()
    sys.exit(7)
"""


@pytest.mark.parametrize("fold", ["core", "Python"])
def test_threads_that_come_back_from_the_core_while_the_interpreter_ends_do_no_harm(fold: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(BACK_LATE))
    command = [sys.executable, tmp_path / "program.py", fold]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ, check=False)
    assert result.returncode == 7 and not result.stderr, result.stderr


def close_while_receiving(kind: str) -> str:
    comm, first, told = hocket.init(), threading.Event(), list[CommunicationError]()

    def receive() -> None:
        with pytest.raises(CommunicationError) as caught:
            while True:
                x = np.zeros(4)
                if kind == "recv":
                    comm.recv(x, 1 - comm.rank)
                else:
                    comm.irecv(x, 1 - comm.rank).wait()
                assert (x == 1).all()
                first.set()
        told.append(caught.value)

    thread = threading.Thread(target=receive)
    thread.start()
    comm.send(np.ones(4), 1 - comm.rank)
    assert first.wait(PATIENCE_SECONDS)
    # What was begun, and nobody waits for yet, is waited for by close().
    with contextlib.suppress(PeerAborted) if kind == "irecv" else contextlib.nullcontext():
        comm.close()
    thread.join()
    return str(told[0])


@pytest.mark.parametrize("kind", ["recv", "irecv"])
def test_close_ends_receives_in_which_other_threads_wait(kind: str) -> None:
    """On both ranks: each of them would wait for a message of the other."""
    for told in run_ranks(close_while_receiving, 2, kind="process", args=(kind,)):
        assert "closed" in told
