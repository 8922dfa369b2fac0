import json
import subprocess
import sys

import pytest

from hocket.algorithms import ALGORITHMS
from hocket.cli import main


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["show", *arguments])
    return code, capsys.readouterr().out


def test_the_steps_of_a_ring(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, "ring", "-n", "3")
    assert code == 0
    assert text.startswith("all_reduce ring, 3 ranks\n")
    assert "4 steps; data in 3 chunks; a rank sends at most 1.333 times the data" in text
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]
    assert rows == [
        ["0", "c1 += r2", "c2 += r0", "c0 += r1"],
        ["1", "c0 += r2", "c1 += r0", "c2 += r1"],
        ["2", "c2 = r2", "c0 = r0", "c1 = r1"],
        ["3", "c1 = r2", "c2 = r0", "c0 = r1"],
    ]
    assert text.endswith("laws 1, 2, 4, 5 hold; law 3: hocket verify\n")
    assert "--collective all_gather" in text and "--collective reduce_scatter" in text


def test_a_reduction_of_many_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = show(capsys, "direct", "-n", "3")
    assert text.count("c0 = r0 + r1 + r2") == 3


def test_many_ranks_are_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, "ring", "--collective", "all_gather", "-n", "9")
    assert code == 0
    assert "step 0\n  rank 0: c8 = r8\n  rank 1: c0 = r0\n" in text


@pytest.mark.parametrize("root", [0, 3])
def test_a_rooted_collective(root: int, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, "binomial", "--collective", "broadcast", "-n", "4", "--root", str(root))
    assert code == 0
    assert text.startswith(f"broadcast binomial, 4 ranks, root {root}\n")


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
@pytest.mark.parametrize("num_ranks", ["1", "4"])
def test_every_algorithm_can_be_shown(
    collective: str, name: str, num_ranks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = show(capsys, name, "--collective", collective, "-n", num_ranks)
    assert code == 0 and text.startswith(f"{collective} {name}, {num_ranks} rank")
    code, text = show(capsys, name, "--collective", collective, "-n", num_ranks, "--json")
    shown = json.loads(text)
    assert code == 0 and len(shown["steps"]) == shown["num_steps"]
    assert (shown["collective"], shown["name"], shown["breach"]) == (collective, name, None)
    assert shown["laws"] == [1, 2, 4, 5]


def test_json_has_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = show(capsys, "ring", "--collective", "all_gather", "-n", "2", "--json")
    shown = json.loads(text)
    assert [(row["src"], row["dst"], row["src_chunk"], row["reduce"]) for row in shown["steps"][0]] == [
        (0, 1, 0, False),
        (1, 0, 1, False),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnig"], "or FILE.py:NAME; found 'rnig'"),
        (["ring", "--collective", "broadcast"], "for broadcast, one of binomial or FILE.py:NAME; found 'ring'"),
        (["ring", "-n", "0"], "expected at least 1 rank"),
        (["binomial", "--root", "4"], "expected a root from 0 to 3"),
        (["no_such_file.py"], "no_such_file.py"),
    ],
)
def test_bad_requests(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["show", "ring", "-n", "16"], ["verify", "ring", "--ranks", "2"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    program = [sys.executable, "-m", "hocket", *arguments]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
