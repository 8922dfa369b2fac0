"""`hocket run`, as a stranger meets it: a process, its output and its exit code."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import numbers_left, state_of, wait_for_end, wait_until

PREAMBLE = """
import os, signal, sys, time
from pathlib import Path
rank, size = int(os.environ["HOCKET_RANK"]), int(os.environ["HOCKET_SIZE"])
folder = Path(sys.argv[0]).parent

def leave(name, number=None):
    (folder / f".{name}").write_text(str(number or os.getpid()))
    (folder / f".{name}").rename(folder / str(name))

def await_all(names):
    while not all((folder / str(name)).exists() for name in names):
        time.sleep(0.005)  # between two looks

def await_end(name):
    await_all([name])
    state = Path(f"/proc/{(folder / name).read_text()}/stat")
    try:
        while ") Z " not in state.read_text():
            time.sleep(0.005)  # between two looks
    except OSError:
        pass  # it has ended, and its launcher knows
"""

FOREVER = "while True: time.sleep(60)"  # until the test ends it
STAY = PREAMBLE + "leave(rank)\n" + FOREVER


def command(folder: Path, program: str, *options: str, arguments: tuple[str, ...] = ()) -> list[str]:
    script = folder / "script.py"
    script.write_text(program)
    return [sys.executable, "-m", "hocket", "run", *options, "--", str(script), *arguments]


def hocket_run(folder: Path, program: str, *options: str, **more: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(folder, program, *options), capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload, no-any-return]


def start(folder: Path, program: str, *options: str) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    # In a new session, so that no signal of the test reaches other processes.
    return subprocess.Popen(
        command(folder, program, *options), stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def test_output_is_passed_on_unchanged_and_nothing_is_added(tmp_path: Path) -> None:
    program = PREAMBLE + "print(rank, size, sys.argv[1:])\nprint('error', rank, file=sys.stderr)"
    line = command(tmp_path, program, "-n", "3", arguments=("--label", "x y"))
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [f"{rank} 3 ['--label', 'x y']" for rank in range(3)]
    assert sorted(done.stderr.splitlines()) == [f"error {rank}" for rank in range(3)]


def test_labels_go_in_front_of_each_line(tmp_path: Path) -> None:
    program = PREAMBLE + "print('a\\nb')\nprint('end', end='', file=sys.stderr)"
    done = hocket_run(tmp_path, program, "-n", "2", "--label")
    assert sorted(done.stdout.splitlines()) == ["[0] a", "[0] b", "[1] a", "[1] b"]
    assert sorted(done.stderr.splitlines()) == ["[0] end", "[1] end"]
    errors = hocket_run(tmp_path, "raise KeyError", "-n", "2", "--label").stderr.splitlines()
    assert errors[0].startswith("hocket run: ") and all(line.startswith("[0, 1] ") for line in errors[1:]), errors


def test_lines_stay_whole_and_in_order(tmp_path: Path) -> None:
    program = PREAMBLE + "for i in range(2000): print(rank, i, 'x' * 100)"
    lines = hocket_run(tmp_path, program, "-n", "3").stdout.splitlines()
    for rank in range(3):
        mine = [line for line in lines if line.startswith(f"{rank} ")]
        assert mine == [f"{rank} {i} {'x' * 100}" for i in range(2000)]
    assert len(lines) == 6000


def test_output_appears_while_the_program_runs(tmp_path: Path) -> None:
    program = PREAMBLE + "print('first')\nawait_all(['go on'])"
    with start(tmp_path, program, "-n", "2") as run:
        assert run.stdout is not None
        assert [run.stdout.readline(), run.stdout.readline()] == ["first\n", "first\n"]
        (tmp_path / "go on").touch()
    assert run.returncode == 0


def test_output_can_go_to_a_file(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w") as file:
        subprocess.run(command(tmp_path, PREAMBLE + "print('x')", "-n", "2"), stdout=file, check=True)
    assert (tmp_path / "output").read_text() == "x\nx\n"


def test_rank_0_reads_standard_input_and_the_others_have_none(tmp_path: Path) -> None:
    program = PREAMBLE + "print(rank, repr(sys.stdin.read()))"
    done = hocket_run(tmp_path, program, "-n", "2", input="a line\n")
    assert sorted(done.stdout.splitlines()) == ["0 'a line\\n'", "1 ''"]


def test_a_reader_that_leaves_ends_the_run(tmp_path: Path) -> None:
    with start(tmp_path, PREAMBLE + "leave(rank)\nwhile True: print('x' * 1000)", "-n", "2") as run:
        ranks = numbers_left(tmp_path, [0, 1])
        assert run.stdout is not None
        run.stdout.close()
    assert run.returncode == 128 + signal.SIGPIPE
    for process in ranks:
        wait_for_end(process)


@pytest.mark.parametrize("program", [["-m", "this"], ["-c", "import this"], ["python3", "-c", "import this"]])
def test_modules_and_commands_can_be_run(program: list[str]) -> None:
    line = [sys.executable, "-m", "hocket", "run", "-n", "2", "--", *program]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("Zen of Python")) == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "required: -n"),
        (["-n", "2"], 2, "expected a program"),
        (["-n", "0", "--", "x"], 2, "'0' is not a number of ranks"),
        (["-n", "99999999", "--", "true"], 2, "expected at most 1024 on one host; found 99999999"),
        (["-n", "2", "--timeout", "-1", "--", "x"], 2, "'-1' is not a time"),
        (["-n", "2", "--", "no-such-program"], 127, "cannot start 'no-such-program'"),
        (
            ["-n", "2", "--", "no-such-script.py"],
            127,
            "cannot start 'no-such-script.py': no such file; expected a Python file",
        ),
        (["-n", "2", "--", "/"], 126, "cannot start '/'"),
    ],
)
def test_bad_command_lines(arguments: list[str], code: int, words: str) -> None:
    line = [sys.executable, "-m", "hocket", "run", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr


def test_ranks_are_counted_as_mpirun_counts_them(tmp_path: Path) -> None:
    assert hocket_run(tmp_path, PREAMBLE + "print(size)", "-np", "2").stdout == "2\n2\n"


@pytest.mark.parametrize(
    ("program", "executable", "output"),
    [("import sys; print(sys.argv[1])", False, "x\n"), ("#!/bin/sh\necho $1", True, "x\n"), ("echo 'no", False, "")],
    ids=["python", "executable", "neither"],
)
def test_a_file_of_this_folder_needs_no_suffix(program: str, executable: bool, output: str, tmp_path: Path) -> None:
    (tmp_path / "program").write_text(program)
    (tmp_path / "program").chmod(0o755 if executable else 0o644)
    line = [sys.executable, "-m", "hocket", "run", "-n", "1", "--", "program", "x"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0 if output else 126, output)
    assert output or "cannot start 'program': Permission denied" in done.stderr


# --- failures ------------------------------------------------------------------------------------------------------


def test_the_first_failing_ranks_traceback_comes_last(tmp_path: Path) -> None:
    program = PREAMBLE + "if rank == 1: raise KeyError('from here')\nprint('fine')"
    done = hocket_run(tmp_path, program, "-n", "3")
    assert done.returncode == 1
    assert done.stdout == "fine\nfine\n"
    first, second, *_, last = done.stderr.splitlines()
    assert first == "hocket run: rank 1 of 3 failed first, with exit code 1:"
    assert second == "Traceback (most recent call last):"
    assert last == "KeyError: 'from here'"


@pytest.mark.parametrize(
    ("statement", "code", "how"),
    [
        ("sys.exit(7)", 7, "exit code 7"),
        ("os._exit(3)", 3, "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL"),
        ("os.abort()", 134, "SIGABRT"),
    ],
)
def test_the_exit_code_is_kept(statement: str, code: int, how: str, tmp_path: Path) -> None:
    done = hocket_run(tmp_path, PREAMBLE + f"if rank == 1: {statement}", "-n", "2")
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == f"hocket run: rank 1 of 2 failed first, with {how}"


def test_who_only_reports_another_failure_is_not_blamed(tmp_path: Path) -> None:
    program = PREAMBLE + (
        "from hocket.errors import PeerDied\n"
        "if rank == 0:\n"
        "    leave('last word')\n"
        "    raise PeerDied('rank 1 died', rank=1)\n"
        "await_end('last word')\n"
        "sys.exit(9)"
    )
    done = hocket_run(tmp_path, program, "-n", "2")
    assert done.returncode == 9
    assert done.stderr.endswith("hocket run: rank 1 of 2 failed first, with exit code 9\n")


def test_what_ranks_say_beside_a_traceback_is_passed_on_at_once_and_in_order(tmp_path: Path) -> None:
    program = PREAMBLE + (
        "import logging\n"
        "print('before', rank, file=sys.stderr)\n"
        "await_all(['read'])\n"
        "if rank == 1: raise KeyError('last')\n"
        "try: {}['a']\n"
        "except KeyError: logging.exception('logged')\n"
        "print('after', file=sys.stderr)"
    )
    with start(tmp_path, program, "-n", "2") as run:
        assert run.stderr is not None
        assert sorted(run.stderr.readline() for _ in range(2)) == ["before 0\n", "before 1\n"]
        (tmp_path / "read").touch()
        errors = run.stderr.read()
    logged = errors.index("ERROR:root:logged\nTraceback")
    assert logged < errors.index("KeyError: 'a'\nafter\n") < errors.index("hocket run: rank 1 of 2 failed first")
    assert errors.endswith("KeyError: 'last'\n") and errors.count("KeyError: 'last'") == 1


def test_a_traceback_of_a_rank_that_goes_on_is_passed_on(tmp_path: Path) -> None:
    program = PREAMBLE + (
        "import traceback\n"
        "try: {}['a']\n"
        "except KeyError: traceback.print_exc()\n"
        "while not (folder / 'read').exists():\n"
        "    print('going on')\n"
        "    time.sleep(0.1)  # between two lines"
    )
    with start(tmp_path, program, "-n", "1", "--label") as run:
        assert run.stderr is not None
        assert run.stderr.readline() == "[0] Traceback (most recent call last):\n"
        (tmp_path / "read").touch()
        run.communicate()
    assert run.returncode == 0


def test_the_others_may_end_by_themselves(tmp_path: Path) -> None:
    program = PREAMBLE + "if rank == 0: sys.exit(5)\ntime.sleep(0.5)\nprint('saved')"  # a rank with work left
    done = hocket_run(tmp_path, program, "-n", "3")
    assert (done.returncode, done.stdout) == (5, "saved\nsaved\n")


@pytest.mark.slow("the promised 5 s for the others, and then 2 s between SIGTERM and SIGKILL")
def test_who_does_not_end_is_terminated_and_then_killed(tmp_path: Path) -> None:
    program = (
        PREAMBLE
        + (
            "if rank == 1: signal.signal(signal.SIGTERM, lambda *_: print('terminated', flush=True))\n"
            "leave(rank)\n"
            "await_all(range(size))\n"
            "if rank == 0: sys.exit(5)\n"
        )
        + FOREVER
    )
    began = time.monotonic()
    done = hocket_run(tmp_path, program, "-n", "3")
    assert time.monotonic() - began >= 5.0
    assert (done.returncode, done.stdout) == (5, "terminated\n")
    for process in numbers_left(tmp_path, [0, 1, 2]):
        wait_for_end(process)


def test_a_run_can_be_limited_in_time(tmp_path: Path) -> None:
    done = hocket_run(tmp_path, PREAMBLE + "if rank:\n    " + FOREVER, "-n", "3", "--timeout", "1")
    assert done.returncode == 124
    assert done.stderr == "hocket run: ended after 1 s; ranks still running: 1, 2 of 3\n"


# --- signals, and what remains -------------------------------------------------------------------------------------


def test_ctrl_c_ends_all_within_a_second(tmp_path: Path) -> None:
    with start(tmp_path, STAY, "-n", "3") as run:
        ranks = numbers_left(tmp_path, [0, 1, 2])
        began = time.monotonic()
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate()
        assert time.monotonic() - began < 1.0
    assert run.returncode == 130
    assert errors.startswith("ranks 0-2:\n") and errors.endswith("\nKeyboardInterrupt\n"), errors
    assert errors.count("KeyboardInterrupt") == 1, "each rank is interrupted, and this is told once"
    for process in ranks:
        wait_for_end(process)


def test_ctrl_c_ends_also_who_ignores_it(tmp_path: Path) -> None:
    ignore = PREAMBLE + "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
    with start(tmp_path, ignore + STAY, "-n", "3") as run:
        ranks = numbers_left(tmp_path, [0, 1, 2])
        began = time.monotonic()
        run.send_signal(signal.SIGINT)
        run.communicate()
        assert time.monotonic() - began < 1.0
    assert run.returncode == 130
    for process in ranks:
        wait_for_end(process)


def test_ctrl_c_ends_all_while_nobody_reads_the_output(tmp_path: Path) -> None:
    with start(tmp_path, PREAMBLE + "leave(rank)\nwhile True: print('x' * 1000)", "-n", "2") as run:
        ranks = numbers_left(tmp_path, [0, 1])
        run.send_signal(signal.SIGINT)
        run.wait(10)
        run.communicate()
    assert run.returncode == 130
    for process in ranks:
        wait_for_end(process)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_are_passed_on(number: signal.Signals, tmp_path: Path) -> None:
    program = PREAMBLE + f"signal.signal({int(number)}, lambda *_: (print('heard'), os._exit(0)))\n" + STAY
    with start(tmp_path, program, "-n", "2") as run:
        numbers_left(tmp_path, [0, 1])
        run.send_signal(number)
        output, _ = run.communicate()
    assert (run.returncode, output) == (128 + number, "heard\nheard\n")


WITH_CHILD = PREAMBLE + ("child = os.fork()\nif child: leave(f'child{rank}', child)\nif child: leave(rank)\n") + FOREVER


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_remains_whatever_ends_the_launcher(number: signal.Signals, tmp_path: Path) -> None:
    with start(tmp_path, WITH_CHILD, "-n", "2") as run:
        processes = numbers_left(tmp_path, [0, 1, "child0", "child1"])
        group = os.getpgid(processes[0])
        assert {os.getpgid(process) for process in processes} == {group}
        run.send_signal(number)
        run.communicate()
    for process in [*processes, group]:
        wait_for_end(process)


def test_what_ranks_leave_behind_is_ended(tmp_path: Path) -> None:
    program = PREAMBLE + ("child = os.fork()\nif child: leave(f'child{rank}', child)\nelse:\n    ") + FOREVER
    done = hocket_run(tmp_path, program, "-n", "2")
    assert done.returncode == 0
    for process in numbers_left(tmp_path, ["child0", "child1"]):
        wait_for_end(process)


def test_a_process_that_left_the_group_does_not_hold_the_run(tmp_path: Path) -> None:
    program = (
        PREAMBLE
        + (
            "child = os.fork()\n"
            "if child: leave('child', child); await_all(['left'])\n"
            "else:\n"
            "    os.setsid(); leave('left')\n"
            "    "
        )
        + FOREVER
    )
    done = hocket_run(tmp_path, program, "-n", "1")
    (child,) = numbers_left(tmp_path, ["child"])
    os.kill(child, signal.SIGKILL)
    assert done.returncode == 0


def test_stopping_the_launcher_stops_the_ranks(tmp_path: Path) -> None:
    with start(tmp_path, STAY, "-n", "2") as run:
        processes = [*numbers_left(tmp_path, [0, 1]), run.pid]
        run.send_signal(signal.SIGTSTP)
        wait_until(lambda: all(state_of(process) == "T" for process in processes))
        run.send_signal(signal.SIGCONT)
        wait_until(lambda: all(state_of(process) != "T" for process in processes))
        run.send_signal(signal.SIGINT)
        run.communicate()
    assert run.returncode == 130


def test_no_socket_or_shared_memory_is_left(tmp_path: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    done = hocket_run(tmp_path, PREAMBLE + "print(os.environ['HOCKET_ADDRESS'])", "-n", "2")
    (address,) = set(done.stdout.split())
    assert not re.search(re.escape(address), Path("/proc/net/unix").read_text())
    assert set(Path("/dev/shm").iterdir()) <= before
