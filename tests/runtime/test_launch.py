"""run_ranks: results, failures, and no leftovers."""

import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveMismatch, PeerAborted, PeerDied
from hocket.runtime import discover, run_ranks
from hocket.runtime.communicator import communicator
from hocket.runtime.launch import launcher, outcomes
from hocket.runtime.ranks.environment import at_rank_end
from tests.waiting import numbers_left, wait_for_end, wait_for_files

KINDS = ("process", "thread")


def rank() -> int:
    return discover().rank


def place(*args: Any) -> tuple[Any, ...]:
    found = discover()
    return (found.rank, found.size, *args)


def always_fail() -> None:
    raise ValueError(f"rank {rank()} failed")


def fail_as_rank_2() -> None:
    if rank() == 2:
        raise CollectiveMismatch("counts differ", field="count", values={0: 1, 2: 3}, sequence=7)


def fail_as_followers_first(folder: Path) -> None:
    """Rank 1 is the cause; rank 0 only reports it, and mostly fails first; either order is right."""
    if rank() == 0:
        write_number(folder)
        raise PeerAborted("rank 1 left", rank=1, reason="ValueError")
    wait_for_files(folder, [0])
    raise ValueError("the cause")


def leave_rank_0_alone_at_a_rendezvous() -> None:
    if rank() == 1:
        raise PeerAborted("rank 7 left", rank=7, reason="ValueError")
    hocket.init(address=discover().address + "-of-two", rank=0, size=2)


class UnpicklableError(Exception):
    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} is not {right}")


def fail_unpicklably() -> None:
    raise UnpicklableError(1, 2)


def return_a_lambda() -> Callable[[], int]:
    return lambda: 1


def leave(code: Any) -> None:
    sys.exit(code)


def leave_at_once() -> None:
    os._exit(3)


def kill_itself_as_rank_1() -> None:
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def write_number(folder: Path) -> None:
    """Writes the process number to a file that is complete as soon as it exists."""
    unfinished = folder / f".{rank()}"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(folder / str(rank()))


def fail_or_ignore_everything(folder: Path) -> None:
    if rank() == 0:
        numbers_left(folder, range(1, 3))
        raise ValueError("rank 0 failed")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write_number(folder)
    while True:
        time.sleep(60)  # until the test ends it


def register_end(folder: Path) -> None:
    assert at_rank_end(lambda failure: (folder / f"{rank_at_start}").write_text(repr(failure)))
    rank_at_start = rank()
    if rank_at_start == 1:
        raise KeyError("x")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 3])
def test_results_come_in_rank_order(n: int, kind: str) -> None:
    assert run_ranks(place, n, args=("x", 2), kind=kind) == [(rank, n, "x", 2) for rank in range(n)]


def test_threads_are_the_default_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert run_ranks(os.getpid, 2) == [os.getpid()] * 2


def test_processes_are_the_default_elsewhere() -> None:
    (process,) = run_ranks(os.getpid, 1)
    assert process != os.getpid()


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_is_raised_with_its_attributes_and_its_rank(kind: str) -> None:
    with pytest.raises(CollectiveMismatch, match="counts differ") as caught:
        run_ranks(fail_as_rank_2, 3, kind=kind)
    assert (caught.value.field, caught.value.values, caught.value.sequence) == ("count", {0: 1, 2: 3}, 7)
    (note,) = caught.value.__notes__
    assert note.startswith("This was rank 2 of 3")
    assert ("in fail_as_rank_2\n" in note) == (kind == "process"), "the place in the other process"


def test_a_rendezvous_that_ends_as_another_rank_failed_is_not_the_cause() -> None:
    with pytest.raises(PeerAborted, match="rank 7 left"):
        run_ranks(leave_rank_0_alone_at_a_rendezvous, 2, kind="thread")


@pytest.mark.parametrize("kind", KINDS)
def test_the_cause_is_raised_and_not_what_follows_from_it(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the cause"):
        run_ranks(fail_as_followers_first, 2, args=(tmp_path,), kind=kind)


def test_one_of_many_failures_is_raised() -> None:
    with pytest.raises(ValueError, match=r"rank \d failed") as caught:
        run_ranks(always_fail, 3, kind="thread")
    assert not hasattr(caught.value, "__notes__"), "the message names the rank"


def test_an_exception_that_cannot_travel_is_told() -> None:
    with pytest.raises(RuntimeError, match="UnpicklableError: 1 is not 2") as caught:
        run_ranks(fail_unpicklably, 1, kind="process")
    assert "in fail_unpicklably\n" in caught.value.__notes__[0]


def test_a_result_that_cannot_travel_is_an_error() -> None:
    with pytest.raises(TypeError, match="returned a function that cannot be pickled"):
        run_ranks(return_a_lambda, 1, kind="process")


@pytest.mark.parametrize("kind", KINDS)
def test_sys_exit_does_not_end_the_caller(kind: str) -> None:
    assert run_ranks(leave, 2, args=(0,), kind=kind) == [None, None]
    with pytest.raises(RuntimeError, match=r"sys.exit\(3\)") as caught:
        run_ranks(leave, 2, args=(3,), kind=kind)
    assert caught.value.__notes__[0][-5:] == "of 2.", "there is no place to tell"


def test_a_process_that_ends_without_a_word_is_named() -> None:
    with pytest.raises(PeerDied, match=r"rank 0 of 1 \(process \d+\) ended with exit code 3") as caught:
        run_ranks(leave_at_once, 1, kind="process")
    assert caught.value.rank == 0


def test_a_killed_process_is_named() -> None:
    with pytest.raises(PeerDied, match=r"rank 1 of 3 \(process \d+\) was killed by SIGKILL") as caught:
        run_ranks(kill_itself_as_rank_1, 3, kind="process")
    assert caught.value.rank == 1


def test_ranks_that_do_not_end_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(launcher, "TERMINATE_SECONDS", 0.1)
    with pytest.raises(ValueError, match="rank 0 failed"):
        run_ranks(fail_or_ignore_everything, 3, args=(tmp_path,), kind="process")
    for process in numbers_left(tmp_path, range(1, 3)):
        assert not Path(f"/proc/{process}").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_run_at_the_end_of_the_rank(kind: str, tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        run_ranks(register_end, 2, args=(tmp_path,), kind=kind)
    assert [(tmp_path / name).read_text() for name in "01"] == ["None", "KeyError('x')"]


def close_what_it_opens() -> bool:
    comm = hocket.init()
    context = weakref.ref(comm.context)
    comm.close()
    del comm
    gc.collect()
    return context() is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_rank_has_closed_is_gone_before_the_rank_ends(kind: str) -> None:
    assert run_ranks(close_what_it_opens, 2, kind=kind) == [True, True]


def test_threads_that_do_not_end_have_their_calls_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "GRACE_SECONDS", 0.1)
    reasons = []

    def main() -> None:
        own = hocket.init().subgroup([rank()])
        if rank() == 0:
            raise ValueError("rank 0 failed")
        try:
            own.recv(np.empty(1), 0)  # from itself, so it waits forever
        except PeerAborted as error:
            reasons.append(error.reason)

    with pytest.raises(ValueError, match="rank 0 failed"):
        run_ranks(main, 2, kind="thread")
    assert reasons == ["run_ranks waits for this rank no longer"]


def test_a_function_that_cannot_travel_is_a_type_error() -> None:
    with pytest.raises(TypeError, match='use a function at the top of a module, or kind="thread"') as caught:
        run_ranks(lambda: 1, 2, kind="process")
    assert [entry.name for entry in caught.traceback] == [
        "test_a_function_that_cannot_travel_is_a_type_error",
        "run_ranks",
    ]
    assert caught.value.__suppress_context__, "the message tells what pickle said"
    assert run_ranks(lambda: 1, 2, kind="thread") == [1, 1]


@pytest.mark.parametrize(
    ("n", "kind", "error", "words"),
    [
        (0, None, ValueError, "n is 0"),
        (2.0, None, TypeError, "n is 2.0"),
        (True, None, TypeError, "n is True"),
        (2, "fork", ValueError, "kind is 'fork'"),
    ],
)
def test_bad_arguments(n: Any, kind: str | None, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run_ranks(rank, n, kind=kind)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_what_cannot_be_called_is_refused(kind: str) -> None:
    with pytest.raises(TypeError, match="function is 5; expected a function for each rank to call"):
        run_ranks(5, 2, kind=kind)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"args is 5; expected a tuple of arguments, such as \(5,\)"):
        run_ranks(rank, 2, args=5, kind=kind)  # type: ignore[arg-type]


# --- programs that use it ------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
from pathlib import Path
from hocket.runtime import discover
from hocket.runtime import run_ranks

class OwnError(Exception):
    pass

def stay(folder):
    place = discover()
    unfinished = folder / f".{place.rank}"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(folder / str(place.rank))
    while True:
        time.sleep(60)  # until the test ends it

def fail():
    raise OwnError("of the program's own class")
"""
GUARDED = PROGRAM + 'if __name__ == "__main__":\n    '


def start(folder: Path, program: str, *arguments: str) -> "subprocess.Popen[str]":
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, str(file), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_functions_and_errors_of_the_main_program_travel(tmp_path: Path) -> None:
    with start(
        tmp_path, GUARDED + "try: run_ranks(fail, 2)\n    except OwnError as error: print('caught', error)"
    ) as it:
        output, errors = it.communicate()
    assert (output, errors, it.returncode) == ("caught of the program's own class\n", "", 0)


MISTAKE = """
import numpy, hocket

def main():
    comm = hocket.init()
    comm.all_reduce(numpy.ones(4, "int32" if comm.rank == 2 else "int64"))  # the mistake

if __name__ == "__main__":
    hocket.run_ranks(main, 4, kind={kind!r})
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_mistake_is_told_once_with_its_line_and_without_frames_of_hocket(kind: str, tmp_path: Path) -> None:
    with start(tmp_path, MISTAKE.format(kind=kind)) as it:
        _, errors = it.communicate()
    lines = errors.splitlines()
    assert len(lines) <= 10 and len(set(lines)) == len(lines), errors
    assert "# the mistake" in errors and errors.count("the ranks differ in dtype") == 1
    assert "in _launch" not in errors


@pytest.mark.parametrize("kind", KINDS)
def test_the_frames_of_hocket_come_back_for_those_who_debug_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_DEBUG", "1")
    with start(tmp_path, MISTAKE.format(kind=kind)) as it:
        _, errors = it.communicate()
    assert "in _launch" in errors


def test_a_main_program_without_a_guard_is_told(tmp_path: Path) -> None:
    with start(tmp_path, PROGRAM + "run_ranks(fail, 2)") as it:
        _, errors = it.communicate()
    assert it.returncode == 1
    assert 'put the call under `if __name__ == "__main__":`' in errors
    assert "multiprocessing" not in errors and "runpy" not in errors, "only the program's own lines are told"


@pytest.mark.parametrize("piped", [False, True])
def test_a_function_that_is_in_no_file_is_a_type_error(piped: bool) -> None:
    program = PROGRAM + "run_ranks(fail, 2)"
    line = [sys.executable, "-"] if piped else [sys.executable, "-c", program]
    it = subprocess.run(line, input=program if piped else "", capture_output=True, text=True, check=False)
    assert "TypeError: run_ranks cannot send fail: it was typed in or piped in" in it.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_rank_outlives_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    with start(tmp_path, GUARDED + "run_ranks(stay, 3, args=(Path(sys.argv[1]),))", str(tmp_path)) as it:
        ranks = numbers_left(tmp_path, range(3))
        it.send_signal(number)
        it.communicate()
    assert it.returncode == -number
    for process in ranks:
        wait_for_end(process)


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_ends_all_within_a_second(kind: str, tmp_path: Path) -> None:
    program = GUARDED + f"run_ranks(stay, 3, args=(Path(sys.argv[1]),), kind={kind!r})"
    with start(tmp_path, program, str(tmp_path)) as it:
        ranks = numbers_left(tmp_path, range(3))
        began = time.monotonic()
        it.send_signal(signal.SIGINT)
        _, errors = it.communicate()
        assert time.monotonic() - began < 1.0
    assert errors.count("Traceback") == 1 and errors.endswith("KeyboardInterrupt\n")
    for process in ranks:
        wait_for_end(process)


# Ranks that are nearly always in the core: if the interpreter ends then, the process may abort.
TALKING = """
import threading, numpy, hocket

def talk(folder):
    comm = hocket.init()
    x, y = numpy.ones(10), numpy.ones(10)
    comm.sendrecv(x, (comm.rank + 1) % 3, y)
    (folder / f".{comm.rank}").touch()
    (folder / f".{comm.rank}").rename(folder / str(comm.rank))
    while True:
        comm.sendrecv(x, (comm.rank + 1) % 3, y)

try:
    run_ranks(talk, 3, args=(Path(sys.argv[1]),), kind="thread")
finally:
    print(*(thread.name for thread in threading.enumerate()))
"""


def test_ctrl_c_ends_threads_amid_their_calls(tmp_path: Path) -> None:
    with start(tmp_path, PROGRAM + TALKING, str(tmp_path)) as it:
        wait_for_files(tmp_path, range(3))
        it.send_signal(signal.SIGINT)
        output, errors = it.communicate()
    assert (output, it.returncode) == ("MainThread\n", -signal.SIGINT), errors
    assert errors.endswith("KeyboardInterrupt\n")


# Runs only in a rank, before its function: writes the process number, and prints a line when it is interrupted.
SLOW_START = """
import os, sys, time
from pathlib import Path
if "HOCKET_RANK" in os.environ:
    folder, rank = Path(os.environ["SLOW_START"]), os.environ["HOCKET_RANK"]
    (folder / f".{rank}").write_text(str(os.getpid()))
    (folder / f".{rank}").rename(folder / rank)
    try:
        time.sleep(60)  # until the test ends it
    except BaseException as error:
        print("Traceback of a rank", repr(error), file=sys.stderr, flush=True)
        raise
"""


@pytest.mark.parametrize("during", ["the start of the interpreter", "the imports of the main program"])
def test_ctrl_c_before_the_function_runs_is_silent_in_the_ranks(
    during: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOW_START", str(tmp_path))
    program = GUARDED + "run_ranks(stay, 3, args=(Path(sys.argv[1]),))"
    if during == "the start of the interpreter":
        (tmp_path / "sitecustomize.py").write_text(SLOW_START)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    else:
        program = SLOW_START + program
    with start(tmp_path, program, str(tmp_path)) as it:
        ranks = numbers_left(tmp_path, range(3))
        began = time.monotonic()
        it.send_signal(signal.SIGINT)
        _, errors = it.communicate()
        assert time.monotonic() - began < 1.0
    assert errors.count("Traceback") == 1 and errors.endswith("KeyboardInterrupt\n")
    for process in ranks:
        wait_for_end(process)


def test_a_rank_whose_reader_has_gone_says_nothing_at_exit(tmp_path: Path) -> None:
    program = PROGRAM + (
        "def talk():\n"
        "    if discover().rank == 0:\n"
        "        print('line', flush=True)\n"
        "    time.sleep(0.5)  # rank 0 ends by itself meanwhile\n"
        'if __name__ == "__main__":\n'
        "    try: run_ranks(talk, 2)\n"
        "    except BrokenPipeError: sys.exit(5)"
    )
    with start(tmp_path, program) as it:
        assert it.stdout and it.stderr
        it.stdout.close()
        errors = it.stderr.read()
    assert (errors, it.returncode) == ("", 5)


def test_ctrl_c_amid_init_is_told_to_the_others_and_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reasons = []

    def interrupt(text: str) -> Any:
        if discover().rank == 1:
            raise KeyboardInterrupt
        return decode(text)

    def rank() -> None:
        try:
            hocket.init().barrier()
        except PeerAborted as error:
            reasons.append(error.reason)
            raise

    decode = communicator.Policy.decode
    monkeypatch.setattr(communicator.Policy, "decode", interrupt)  # the last step of init
    with pytest.raises(KeyboardInterrupt):
        run_ranks(rank, 2, kind="thread")
    gc.collect()
    assert reasons == ["KeyboardInterrupt: "] and capfd.readouterr().err == ""


def test_ctrl_c_amid_a_communicator_s_making_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(communicator, "Cartesian", interrupt)
    with pytest.raises(KeyboardInterrupt):
        hocket.init(0, 1)
    gc.collect()
    assert capfd.readouterr().err == ""
