"""What `hocket run` prints of one mistake: once, in few lines, with the line of the program, and the cause last."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_run import PREAMBLE, hocket_run

MISTAKES = {
    "wrong dtype": "comm.all_reduce(np.ones(4, 'int32' if comm.rank == 2 else 'int64'))  # the mistake",
    "unknown algorithm": "comm.all_reduce(np.ones(4), algorithm='rign')  # the mistake",
    "broken algorithm": (
        "@hocket.algorithm('all_reduce', name='broken', chunks='P', steps='P - 1', sent='(P - 1) / P')\n"
        "def broken(schedule):\n"
        "    p, rank = schedule.num_ranks, schedule.ranks\n"
        "    for i in schedule.repeat(p - 1):\n"
        "        schedule.copy(src=rank, dst=(rank + 1) % p, chunk=(rank - i) % p)\n"
        "comm.all_reduce(np.ones(4), algorithm='broken')  # the mistake"
    ),
    "error in an algorithm": (
        "@hocket.algorithm('all_reduce', name='broken', chunks='P', steps='P - 1', sent='(P - 1) / P')\n"
        "def broken(schedule):\n"
        "    schedule.no_such_method()  # the mistake\n"
        "comm.all_reduce(np.ones(4), algorithm='broken')"
    ),
    "one rank raises": "if comm.rank == 1: raise KeyError('no such key')  # the mistake\ncomm.barrier()",
}


def check_told_once(done: "subprocess.CompletedProcess[str]", num_lines: int, last: str) -> None:
    lines = [line for line in done.stderr.splitlines() if line not in ("", "Traceback (most recent call last):")]
    assert len(done.stderr.splitlines()) <= num_lines, done.stderr
    assert len(set(lines)) == len(lines), done.stderr
    assert any(line.endswith("# the mistake") for line in lines), done.stderr
    assert last in "\n".join(lines[-2:]), "the cause comes last"


@pytest.mark.parametrize(
    ("mistake", "last"),
    [
        ("wrong dtype", "the ranks differ in dtype"),
        ("unknown algorithm", "found 'rign'"),
        ("broken algorithm", "law 2"),
        ("error in an algorithm", "no_such_method"),
        ("one rank raises", "KeyError: 'no such key'"),
    ],
)
def test_a_mistake_is_told_once(mistake: str, last: str, tmp_path: Path) -> None:
    program = f"import hocket\nimport numpy as np\ncomm = hocket.init()\n{MISTAKES[mistake]}"
    check_told_once(hocket_run(tmp_path, program, "-n", "4"), 14, last)


def test_two_places_that_differ_are_told_with_one_message(tmp_path: Path) -> None:
    program = (
        "import hocket\nimport numpy as np\ncomm = hocket.init()\n"
        "if comm.rank == 2: comm.all_reduce(np.ones(4, 'int32'))  # the mistake\n"
        "else: comm.all_reduce(np.ones(4))  # the other place"
    )
    done = hocket_run(tmp_path, program, "-n", "4")
    check_told_once(done, 6, "the ranks differ in dtype")
    file = tmp_path / "script.py"
    assert done.stderr.startswith(
        "hocket run: ranks 0-3 of 4 failed, with exit code 1; the same error: "
        f"ranks 0, 1, 3 ({file}:5), rank 2 ({file}:4):\n"
    )


ONE_CAUSE = {
    "other calls": "if comm.rank != 2: comm.all_reduce(np.ones(4))\ncomm.barrier()  # the mistake",
    "other length of a message": (
        "if comm.rank == 0: comm.send(np.ones(4), 1)\n"
        "if comm.rank == 1: comm.recv(np.ones(3), 0)  # the mistake\n"
        "comm.barrier()"
    ),
    "other root": "comm.broadcast(np.ones(4), root=int(comm.rank == 3))  # the mistake\ncomm.barrier()",
    "other algorithms": "comm.all_reduce(np.ones(4), algorithm='direct' if comm.rank == 2 else 'ring')  # the mistake",
}


@pytest.mark.parametrize("mistake", ONE_CAUSE)
def test_a_cause_of_several_calls_is_told_once_with_their_places(mistake: str, tmp_path: Path) -> None:
    program = f"import hocket\nimport numpy as np\ncomm = hocket.init()\n{ONE_CAUSE[mistake]}"
    done = hocket_run(tmp_path, program, "-n", "4")
    check_told_once(done, 6, "differ")
    assert done.stderr.count("differ") == 1, done.stderr
    assert done.stderr.startswith("hocket run: ranks 0-3 of 4 failed, with exit code 1"), done.stderr


ENDINGS = {
    "SyntaxError": "x = = 1  # the mistake",
    "SyntaxError of a module": "import broken  # the mistake",
    "usage": "import argparse\nargparse.ArgumentParser().parse_args(['# the mistake'])",
    "chain": "try: {}[0]\nexcept KeyError: raise OSError('lost')  # the mistake",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_equal_last_words_of_ranks_are_told_once_without_blank_lines(ending: str, tmp_path: Path) -> None:
    program = ENDINGS[ending] if ending == "SyntaxError" else PREAMBLE + ENDINGS[ending]
    (tmp_path / "broken.py").write_text("x = = 1")
    done = hocket_run(tmp_path, program, "-n", "4")
    lines = done.stderr.splitlines()
    assert lines[0] == f"hocket run: ranks 0-3 of 4 failed, with exit code {2 if ending == 'usage' else 1}:"
    assert done.stderr.count("# the mistake") == 1 and "" not in lines, done.stderr


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ([], {"hocket: ranks 0-2 have waited 5 s in barrier for rank 3", "hocket: rank 3 has waited 5 s in barrier"}),
        (["--label"], {f"[{rank}] hocket: rank {rank} has waited 5 s in barrier for rank 3" for rank in range(3)}),
    ],
)
def test_ranks_that_wait_for_the_same_are_told_in_one_line(label: list[str], told: set[str], tmp_path: Path) -> None:
    program = PREAMBLE + (
        "print(f'hocket: rank {rank} has waited 5 s in barrier' + ' for rank 3' * (rank < 3), file=sys.stderr)"
    )
    assert told <= set(hocket_run(tmp_path, program, "-n", "4", *label).stderr.splitlines())


def test_what_ranks_find_as_they_close_is_told_once(tmp_path: Path) -> None:
    program = PREAMBLE + "print(f'hocket: rank {rank}: x differs', file=sys.stderr)\n"
    assert hocket_run(tmp_path, program, "-n", "3").stderr == "hocket: ranks 0-2: x differs\n"
    done = hocket_run(tmp_path, program + "if rank == 1: raise OSError('rank 1: x differs')", "-n", "3")
    assert done.stderr.startswith("hocket: ranks 0-2: x differs\n"), done.stderr

    program = "import hocket, numpy\ncomm = hocket.init()\ncomm.broadcast(numpy.ones(4), root=int(comm.rank == 2))"
    done = hocket_run(tmp_path, program, "-n", "4")
    assert done.stderr.count("the ranks differ in root") == 1, done.stderr


def test_a_programs_own_message_is_told_of_each_rank_and_its_place_once(tmp_path: Path) -> None:
    done = hocket_run(tmp_path, PREAMBLE + "assert rank > 9, f'rank {rank} is small'", "-n", "3")
    assert sorted(re.findall(r"AssertionError: (.*)", done.stderr)) == [f"rank {rank} is small" for rank in range(3)]
    assert done.stderr.count("line ") == 1, done.stderr


def test_a_rank_that_leaves_a_call_out_is_named_last(tmp_path: Path) -> None:
    program = (
        "import hocket\nimport numpy as np\n"
        "with hocket.init() as comm:\n"
        "    if comm.rank != 2:\n"
        "        comm.all_reduce(np.ones(4))  # the mistake"
    )
    done = hocket_run(tmp_path, program, "-n", "4")
    check_told_once(done, 6, "rank 2 left without all_reduce (call 1), which ranks 0, 1, 3 (")
    assert "are in: does every rank call it?" in done.stderr
    assert done.stderr.startswith("hocket run: ranks 0, 1, 3 of 4 failed, with exit code 1:\n")
