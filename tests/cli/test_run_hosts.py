"""`hocket run --hosts`, where a script instead of ssh runs the command line on this host, in a session of its own.

So nothing but the end of its standard input tells an agent that the launcher has ended, as on another host.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_run import FOREVER, PREAMBLE, STAY
from tests.waiting import numbers_left, state_of, wait_for_end, wait_until

IGNORE = PREAMBLE + "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
ENDS_SECONDS = 5.0  # promised: what runs on hosts ends so soon after the launcher


def connecting(folder: Path, script: str) -> str:
    """Return a command for --ssh that runs this shell script; "$host" and "$command" are what ssh would get."""
    file = folder / "connect"
    file.write_text(f'#!/bin/sh\nhost=$1; shift; command="$*"\n{script}\n')
    file.chmod(0o755)
    return str(file)


def command(folder: Path, program: str, *options: str, script: str = "") -> list[str]:
    (folder / "script.py").write_text(program)
    ssh = connecting(folder, script + '\nexec setsid sh -c "exec $command"')
    chosen = options if "--hosts" in options else ("--hosts", "a,b", *options)
    return [sys.executable, "-m", "hocket", "run", *chosen, "--ssh", ssh, "--", str(folder / "script.py")]


def run_hosts(folder: Path, program: str, *options: str, script: str = "") -> "subprocess.CompletedProcess[str]":
    line = command(folder, program, *options, script=script)
    return subprocess.run(line, capture_output=True, text=True, check=False)


def start(folder: Path, program: str, *options: str) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    # In a new session, so that no signal of the test reaches other processes.
    return subprocess.Popen(
        command(folder, program, *options), stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def test_ranks_are_numbered_host_by_host_and_meet_on_the_first(tmp_path: Path) -> None:
    names = "HOCKET_RANK HOCKET_SIZE HOCKET_LOCAL_RANK HOCKET_LOCAL_SIZE RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE"
    program = PREAMBLE + (
        f"print(*(os.environ[name] for name in {names.split()}), os.environ['HOCKET_ADDRESS'].rpartition(':')[0], "
        "os.environ['MASTER_ADDR'], int(os.environ['HOCKET_ADDRESS'].rpartition(':')[2]) > 0, os.getcwd())"
    )
    done = run_hosts(tmp_path, program, "--hosts", "me@a,b", "-n", "2", "--directory", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] {rank} 4 {rank % 2} 2 {rank} 4 {rank % 2} 2 a a True {tmp_path}" for rank in range(4)
    ]


@pytest.mark.parametrize(("options", "labels"), [((), ("[0] ", "[1] ")), (("--no-label",), ("", ""))])
def test_each_line_of_hosts_is_labelled_unless_that_is_switched_off(
    options: tuple[str, ...], labels: tuple[str, ...], tmp_path: Path
) -> None:
    program = PREAMBLE + "print('a\\nb')\nprint('c\\nd', file=sys.stderr)"
    done = run_hosts(tmp_path, program, *options)
    assert sorted(done.stdout.splitlines()) == sorted(f"{label}{word}" for label in labels for word in "ab")
    assert sorted(done.stderr.splitlines()) == sorted(f"{label}{word}" for label in labels for word in "cd")


def test_the_key_reaches_ranks_by_a_descriptor_alone(tmp_path: Path) -> None:
    program = PREAMBLE + (
        "import base64\n"
        "key = os.read(int(os.environ['HOCKET_KEY_FD']), 64)\n"
        "files = [f'/proc/{of}/{what}' for of in ('self', os.getppid()) for what in ('cmdline', 'environ')]\n"
        "told = b''.join(Path(file).read_bytes() for file in files)\n"
        "hidden = not any(form in told for form in (key, key.hex().encode(), base64.b64encode(key)))\n"
        "print(len(key), key.hex(), hidden)"
    )
    lines = run_hosts(tmp_path, program, "-n", "2", "--no-label").stdout.splitlines()
    assert len(lines) == 4 and len(set(lines)) == 1, "all ranks have the same key"
    assert lines[0].startswith("32 ") and lines[0].endswith(" True")
    other = run_hosts(tmp_path, program, "--no-label").stdout.splitlines()
    assert other[0] != lines[0], "each job has its own key"


def test_hockets_variables_reach_other_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_ALGO", "ring")
    monkeypatch.setenv("HOCKET_RANK", "7")
    program = PREAMBLE + "print(rank, os.environ['HOCKET_ALGO'])"
    done = run_hosts(tmp_path, program, "--no-label", script="unset HOCKET_ALGO")
    assert sorted(done.stdout.splitlines()) == ["0 ring", "1 ring"]


def test_output_of_hosts_stays_whole_and_in_order(tmp_path: Path) -> None:
    program = PREAMBLE + (
        "for i in range(2000): print(rank, i, 'x' * 1000)\nsys.stdout.buffer.write(b'\\xff no utf-8\\n')\n"
    )
    line = command(tmp_path, program, "--hosts", "a,b,c", "--no-label")
    done = subprocess.run(line, capture_output=True, check=False)
    assert done.returncode == 0
    for rank in range(3):
        mine = [text for text in done.stdout.splitlines() if text.startswith(b"%d " % rank)]
        assert mine == [b"%d %d %s" % (rank, i, b"x" * 1000) for i in range(2000)]
    assert done.stdout.count(b"\xff no utf-8\n") == 3


def test_what_the_shell_of_a_host_prints_disturbs_nothing(tmp_path: Path) -> None:
    done = run_hosts(tmp_path, PREAMBLE + "print('x')", script="echo welcome to $host; echo news >&2; printf half")
    assert (done.returncode, sorted(done.stdout.splitlines()), done.stderr) == (0, ["[0] x", "[1] x"], "")


# --- failures ------------------------------------------------------------------------------------------------------


def test_the_first_failing_rank_is_named_with_its_host(tmp_path: Path) -> None:
    program = PREAMBLE + (
        "from hocket.runtime.ranks.failure_reports import tell_heard\n"
        "if rank != 3:\n"
        "    tell_heard()\n"
        "    leave(f'last word {rank}')\n"
        "    sys.exit(4)\n"
        "for other in range(3): await_end(f'last word {other}')\n"
        "raise KeyError('the mistake')"
    )
    done = run_hosts(tmp_path, program, "-n", "2")
    how, *traceback = done.stderr.splitlines()
    assert how == "hocket run: rank 3 of 4 failed first, with exit code 1 on b:"
    assert traceback[-1] == "[3] KeyError: 'the mistake'" and done.stderr.count("Traceback") == 1
    assert done.returncode == 1


def test_a_mistake_of_all_ranks_is_told_once(tmp_path: Path) -> None:
    done = run_hosts(tmp_path, PREAMBLE + "raise KeyError('the mistake')", "-n", "2")
    assert done.returncode == 1 and done.stderr.count("KeyError: 'the mistake'") == 1
    assert done.stderr.startswith("hocket run: ranks 0-3 of 4 failed, with exit code 1:\n")


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        (
            '[ $host = a ] || { echo "ssh: no route to host b" >&2; exit 255; }',
            [],
            "connect b true` has to work without a question; connect ended with exit code 255: ssh: no route to host b",
        ),
        ("", ["--python", "/no/python"], "/no/python: not found; name its interpreter with --python"),
        (
            f'[ $host = a ] || exec {sys.executable} -S -c "import hocket_of_elsewhere"',
            [],
            f"host b for rank 1 of 2 has no Hocket 0.1.0 for {sys.executable}:\nTraceback",
        ),
        ("", ["--directory", "/no/folder"], ": cannot enter the folder /no/folder: No such file or directory"),
    ],
    ids=["host", "python", "hocket", "folder"],
)
def test_a_host_that_cannot_take_part_is_told_in_its_own_words(
    script: str, options: list[str], words: str, tmp_path: Path
) -> None:
    done = run_hosts(tmp_path, STAY, *options, script=script)
    assert done.returncode == 2 and done.stderr.startswith("hocket run: host "), done.stderr
    assert words in done.stderr and not (tmp_path / "1").exists()


def test_a_host_with_another_version_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    other = "import hocket, runpy; hocket.__version__ = '9.9'; runpy.run_module('$3', run_name='__main__')"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{other}"\n')
    python.chmod(0o755)
    done = run_hosts(tmp_path, STAY, "--python", str(python))
    assert done.returncode == 2 and "has Hocket 9.9, and this host 0.1.0; install the same version" in done.stderr


def test_a_program_that_a_host_does_not_have_gives_the_code_of_a_shell(tmp_path: Path) -> None:
    line = [*command(tmp_path, "")[:-1], "no-such-program"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert "hocket run: host " in done.stderr and "cannot start 'no-such-program'" in done.stderr


def test_a_host_that_only_it_can_reach_cannot_be_the_first(tmp_path: Path) -> None:
    done = run_hosts(tmp_path, STAY, "--hosts", "localhost,b")
    assert done.returncode == 2
    assert "host localhost for rank 0 of 2 is localhost, where b cannot find rank 0" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hosts", "a,,b", "--", "x"], "'a,,b' has '' for a host"),
        (["--hosts", "a,-oProxyCommand=x", "--", "x"], "has '-oProxyCommand=x' for a host"),
        (["--hosts", "a"], "expected a program"),
        (["--ssh", "x", "-n", "2", "--", "x"], "--ssh is for other hosts; give --hosts too"),
        (["--hosts", "a", "--ssh", "'", "--", "x"], "is no command: No closing quotation"),
        (["--hosts", "a", "--ssh", "/no/ssh", "--", "x"], "rank 0 on a: '/no/ssh' cannot be started: No such file"),
    ],
)
def test_bad_command_lines(arguments: list[str], words: str) -> None:
    line = [sys.executable, "-m", "hocket", "run", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_a_lost_host_ends_the_run_and_is_named_with_its_ranks(tmp_path: Path) -> None:
    program = PREAMBLE + "leave(rank)\nleave(f'agent {rank}', os.getppid())\n" + FOREVER
    with start(tmp_path, program, "-n", "2") as run:
        ranks = numbers_left(tmp_path, range(4))
        (agent,) = numbers_left(tmp_path, ["agent 2"])
        os.kill(agent, signal.SIGKILL)
        for process in ranks[2:]:
            wait_for_end(process)
        run.send_signal(signal.SIGTERM)  # sooner than the 5 s that the others have
        _, errors = run.communicate()
    assert "hocket run: lost b with ranks 2, 3 of 4: connect ended by SIGKILL\n" in errors
    for process in ranks:
        wait_for_end(process)


@pytest.mark.slow("the promised 5 s for the other ranks")
def test_the_exit_code_after_a_loss_is_that_of_ssh(tmp_path: Path) -> None:
    program = PREAMBLE + "if rank == 1: os.kill(os.getppid(), signal.SIGKILL)\n" + FOREVER
    done = run_hosts(tmp_path, program)
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stderr == "hocket run: lost b with rank 1 of 2: connect ended by SIGKILL\n"


# --- signals, and what remains -------------------------------------------------------------------------------------


def test_a_run_on_hosts_can_be_limited_in_time(tmp_path: Path) -> None:
    done = run_hosts(tmp_path, PREAMBLE + "if rank:\n    " + FOREVER, "--timeout", "2")
    assert done.returncode == 124
    assert done.stderr == "hocket run: ended after 2 s; ranks still running: 1 of 2\n"


def test_ctrl_c_ends_the_ranks_of_all_hosts(tmp_path: Path) -> None:
    with start(tmp_path, STAY, "-n", "2") as run:
        ranks = numbers_left(tmp_path, range(4))
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate()
    assert run.returncode == 130
    assert errors.startswith("ranks 0-3:\n") and errors.count("KeyboardInterrupt") == 1, errors
    for process in ranks:
        wait_for_end(process)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_remains_on_hosts_whatever_ends_the_launcher(number: signal.Signals, tmp_path: Path) -> None:
    program = IGNORE + (
        "if not os.fork():\n    leave(f'child {rank}')\n    " + FOREVER + "\nleave(f'agent {rank}', os.getppid())\n"
    )
    with start(tmp_path, program + STAY, "-n", "2") as run:
        names = [*range(4), *(f"{what} {rank}" for what in ("child", "agent") for rank in range(4))]
        processes = numbers_left(tmp_path, names)
        began = time.monotonic()
        run.send_signal(number)
        run.communicate()
        for process in processes:
            wait_for_end(process)
        assert time.monotonic() - began < ENDS_SECONDS


def test_ctrl_c_ends_a_run_whose_hosts_do_not_answer(tmp_path: Path) -> None:
    ssh = connecting(tmp_path, 'echo $$ > "$0.number.part"; mv "$0.number.part" "$0.number"; exec sleep 1000')
    line = [sys.executable, "-m", "hocket", "run", "--hosts", "a", "--ssh", ssh, "--", "x"]
    with subprocess.Popen(line, start_new_session=True) as run:
        (connection,) = numbers_left(tmp_path, ["connect.number"])
        run.send_signal(signal.SIGINT)
    assert run.returncode == 130
    wait_for_end(connection)


def test_ctrl_c_ends_hosts_while_nobody_reads_the_output(tmp_path: Path) -> None:
    with start(tmp_path, PREAMBLE + "leave(rank)\nwhile True: print('x' * 1000)") as run:
        ranks = numbers_left(tmp_path, [0, 1])
        run.send_signal(signal.SIGINT)
        run.wait(10)
        run.communicate()
    assert run.returncode == 130
    for process in ranks:
        wait_for_end(process)


def test_stopping_the_launcher_stops_the_ranks_of_all_hosts(tmp_path: Path) -> None:
    with start(tmp_path, STAY) as run:
        processes = [*numbers_left(tmp_path, [0, 1]), run.pid]
        run.send_signal(signal.SIGTSTP)
        wait_until(lambda: all(state_of(process) == "T" for process in processes))
        run.send_signal(signal.SIGCONT)
        wait_until(lambda: all(state_of(process) != "T" for process in processes))
        run.send_signal(signal.SIGINT)
        run.communicate()
    assert run.returncode == 130


def test_an_agent_that_hears_nothing_of_its_launcher_ends_its_ranks(tmp_path: Path) -> None:
    impatient = (
        f"exec {sys.executable} -c 'import runpy; from hocket.runtime.launch import host_messages; "
        "host_messages.SILENCE_SECONDS = 1.0; "
        'runpy.run_module("hocket.runtime.launch.host_agent", run_name="__main__")\''
    )
    with subprocess.Popen(
        command(tmp_path, STAY, "--hosts", "a", script=impatient), stderr=subprocess.PIPE, text=True
    ) as run:
        (rank,) = numbers_left(tmp_path, [0])
        os.kill(run.pid, signal.SIGSTOP)  # a launcher whose host is gone says no more than a stopped one
        try:
            wait_for_end(rank)
        finally:
            os.kill(run.pid, signal.SIGCONT)
        assert run.stderr is not None
        assert "lost a with rank 0 of 1" in run.stderr.read()


def test_ranks_of_two_hosts_meet(tmp_path: Path) -> None:
    program = PREAMBLE + (
        "import numpy, hocket\n"
        "with hocket.init() as comm:\n"
        "    x = numpy.full(3, rank, numpy.float32)\n"
        "    comm.all_reduce(x)\n"
        "    print(comm.size, *x)"
    )
    done = run_hosts(tmp_path, program, "--hosts", "localhost,localhost", "-n", "2", "--no-label")
    assert (done.returncode, done.stdout) == (0, "4 6.0 6.0 6.0\n" * 4), done.stderr
