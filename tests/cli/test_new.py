"""`hocket new`: what it writes is right without a change, and the commands that it prints work as printed."""

import json
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hocket.algorithms import load
from hocket.algorithms.promise import Formula
from hocket.cli import main
from hocket.runtime import run_ranks
from hocket.schedule import COLLECTIVES

RESULTS = {  # of three ranks, by rank
    "all_reduce": ["the sum is 6.0"] * 3,
    "all_gather": ["[0 1 2]"] * 3,
    "reduce_scatter": ["[0]", "[3]", "[6]"],
    "broadcast": ["[1]"] * 3,
    "reduce": ["[6]", "None", "None"],
    "barrier": ["all are here"] * 3,
    "gather": ["[0 1 2]", "None", "None"],
    "scatter": ["[0]", "[1]", "[2]"],
    "all_to_all": ["[0 1 2]"] * 3,
    "all_gather_v": ["[0 1 1 2 2 2]"] * 3,
    "reduce_scatter_v": ["[0]", "[3 6]", "[ 9 12 15]"],
    "gather_v": ["[0 1 1 2 2 2]", "None", "None"],
    "scatter_v": ["[0]", "[1 2]", "[3 4 5]"],
    "all_to_all_v": ["[0 1 1 2 2 2]"] * 3,
}


def new(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["new", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def shell(line: str, folder: Path) -> str:
    program, *arguments = shlex.split(line)
    assert program == "hocket"
    command = [sys.executable, "-m", "hocket", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_next_commands_work_as_printed(tmp_path: Path) -> None:
    printed = shell("hocket new 'my algo.py'", tmp_path).splitlines()
    assert "'my_algo', an all_reduce" in printed[0]
    verify, show, run = (line.partition("#")[0] for line in printed[1:])
    assert "1 of 1 algorithms hold: 16 schedules proved" in shell(verify, tmp_path)
    assert "all_reduce my_algo, 4 ranks" in shell(show, tmp_path)
    assert sorted(shell(run, tmp_path).splitlines()) == [f"rank {rank} of 4: the sum is 10.0" for rank in range(4)]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_promises_are_formulas_as_the_documents_teach(
    collective: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    assert new(capsys, str(file), "--collective", collective)[0] == 0
    text = file.read_text()
    assert "lambda" not in text and "name=" not in text, "the name is that of the function"
    (one,) = load(str(file))
    assert one.name == "mine" and all(isinstance(getattr(one, of), Formula) for of in ("chunks", "steps", "sent"))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_there_is_a_start_for_each_collective(
    collective: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.py"
    code, out, _ = new(capsys, str(file), "--collective", collective.replace("_", "").title())
    assert code == 0 and f" contains 'own', {'an' if collective[0] == 'a' else 'a'} {collective} algorithm" in out
    assert main(["verify", str(file), "--ranks", "1-5"]) == 0
    text = file.read_text()
    assert max(map(len, text.splitlines())) <= 88 and text.count("\n") <= 35
    algorithm, _, program = text.partition('if __name__ == "__main__":\n')
    known: dict[str, object] = {}
    exec(compile(algorithm, file, "exec"), known)
    capsys.readouterr()
    run_ranks(lambda: exec(textwrap.dedent(program), dict(known)), 3, kind="thread")
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == [f"rank {rank} of 3: {result}" for rank, result in enumerate(RESULTS[collective])]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a-b.c.py", "a_b_c"),
        ("2nd.py", "my_2nd"),
        ("ring.py", "my_ring"),  # built in
        ("print.py", "my_print"),  # the program prints
        ("np.py", "my_np"),
        ("lambda.py", "my_lambda"),
        ("größe.py", "größe"),
    ],
)
def test_the_name_is_that_of_the_file_as_far_as_can_be(
    file: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = new(capsys, str(tmp_path / file), "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["file"], report["collective"], report["name"]) == (str(tmp_path / file), "all_reduce", name)
    assert list(report["commands"]) == ["verify", "show", "run"]
    assert main(["verify", str(tmp_path / file), "--ranks", "1-5"]) == 0


def test_it_is_in_the_house_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines are not longer than formatters allow by default, and the file is read in a minute."""
    assert new(capsys, str(tmp_path / "my_algo.py"))[0] == 0
    lines = (tmp_path / "my_algo.py").read_text().splitlines()
    assert max(map(len, lines)) <= 88 and len(lines) <= 35
    assert "hocket verify my_algo.py" in lines[0]


def test_what_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.py"
    file.write_text("mine")
    code, out, err = new(capsys, str(file))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err == f"hocket new: expected a file that does not exist yet; found {file}, which was not changed\n"
    assert file.read_text() == "mine"
    code, out, _ = new(capsys, str(file), "--json")
    assert code == 2 and "which was not changed" in json.loads(out)["error"]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("own", "such as my_algorithm.py; found"),
        ("own.txt", "such as my_algorithm.py; found"),
        (".py", "such as my_algorithm.py; found"),
        ("random.py", "would hide the module random"),
        ("hocket.py", "would hide the module hocket"),
        ("no/own.py", "expected an existing folder"),
    ],
)
def test_names_that_will_not_do(file: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = new(capsys, str(tmp_path / file))
    assert (code, out, err.count("\n")) == (2, "", 1) and words in err
    assert list(tmp_path.iterdir()) == []
