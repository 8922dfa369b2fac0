"""Which rank `hocket run` names as the one that failed first: the ranks tell it, not the order in which they end."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_run import PREAMBLE, command, hocket_run

HOCKET = PREAMBLE + "import hocket\ncomm = hocket.init()\n"

FOLLOWERS = {
    "ends without a word": "os._exit(3)",
    "ends by sys.exit": "sys.exit(3)",
    "raises another error": "raise RuntimeError('the training failed')",
    "hides the cause": "raise RuntimeError('the training failed') from None",
}


@pytest.mark.parametrize("leave", ["os.kill(os.getpid(), signal.SIGKILL)", "raise KeyError('the mistake')"])
def test_the_line_in_which_a_rank_waited_for_one_that_failed_is_told(leave: str, tmp_path: Path) -> None:
    program = HOCKET + f"if rank == 1: {leave}\ncomm.barrier()"
    done = hocket_run(tmp_path, program, "-n", "3")
    line = program.count("\n") + 1
    errors = done.stderr.splitlines()
    assert errors[0] == f"hocket run: the failure of rank 1 stopped ranks 0, 2 ({tmp_path}/script.py:{line})"
    assert errors[1].startswith("hocket run: rank 1 of 3 failed first"), done.stderr


@pytest.mark.parametrize("call", ["sys.exit(3)", "sys.exit()"])
def test_the_line_in_which_a_rank_calls_sys_exit_is_told(call: str, tmp_path: Path) -> None:
    program = HOCKET + f"with comm:\n    if rank == 1: {call}\n    comm.barrier()"
    done = hocket_run(tmp_path, program, "-n", "3")
    line = program.count("\n")
    assert f"{call} at {tmp_path}/script.py:{line}" in done.stderr.splitlines()[-1], done.stderr


def test_a_rank_that_ends_too_early_without_an_error_is_named(tmp_path: Path) -> None:
    done = hocket_run(tmp_path, HOCKET + "if rank == 1: os._exit(0)\ncomm.barrier()", "-n", "3")
    told = "hocket run: ranks 0, 2 of 3 failed, with exit code 1; rank 1 ended before, with exit code 0:\n"
    assert done.stderr.startswith(told), done.stderr


@pytest.mark.parametrize("follower", FOLLOWERS)
def test_a_rank_that_follows_and_ends_first_is_not_blamed(follower: str, tmp_path: Path) -> None:
    program = HOCKET + (
        "leave(rank)\n"
        "if rank == 1:\n"
        "    try: comm.barrier()\n"
        f"    except hocket.errors.PeerAborted: {FOLLOWERS[follower]}\n"
        "comm.abort('as planned')\n"
        "await_end('1')\n"
        "raise KeyError('the mistake')"
    )
    done = hocket_run(tmp_path, program, "-n", "2")
    assert done.returncode == 1
    assert "hocket run: rank 0 of 2 failed first, with exit code 1:\n" in done.stderr
    assert done.stderr.endswith("KeyError: 'the mistake'\n")


def test_a_rank_that_fails_first_and_does_not_end_is_named(tmp_path: Path) -> None:
    program = HOCKET + (
        "import threading\n"
        "if rank == 0:\n"
        "    threading.Thread(target=lambda: await_all(['never'])).start()\n"
        "    comm.abort('as planned')\n"
        "    raise KeyError('the mistake')\n"
        "comm.barrier()\n"
    )
    script = command(tmp_path, program)[-1]
    impatient = (
        "import sys\n"
        "from hocket.runtime.launch import supervisor\n"
        "supervisor.GRACE_SECONDS = 0.5\n"
        "sys.exit(supervisor.run_command(2, sys.argv[1:]))"
    )
    line = [sys.executable, "-c", impatient, sys.executable, script]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "hocket run: rank 0 of 2 failed first, and did not end by itself:\n" in done.stderr
    assert done.stderr.endswith("KeyError: 'the mistake'\n")


def test_of_ranks_that_fail_for_themselves_none_is_said_to_be_first(tmp_path: Path) -> None:
    done = hocket_run(tmp_path, PREAMBLE + "leave(rank)\nawait_all(range(size))\nsys.exit(4 + rank)", "-n", "2")
    first = done.returncode - 4
    assert done.stderr == (
        f"hocket run: ranks 0, 1 of 2 failed, and none tells which was first; rank {first} ended first, with exit code "
        f"{done.returncode}\n"
    )


def test_ranks_that_all_follow_are_said_to_do_so(tmp_path: Path) -> None:
    program = HOCKET + ("if rank == 0: os._exit(0)\ntry: comm.barrier()\nexcept hocket.errors.PeerDied: sys.exit(3)\n")
    done = hocket_run(tmp_path, program, "-n", "2")
    assert done.stderr == "hocket run: rank 1 of 2 failed because of another rank, with exit code 3\n"
