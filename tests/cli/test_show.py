import json
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.algorithms import ALGORITHMS
from hocket.cli import main
from hocket.runtime.select import ORDERS, Policy, choose
from hocket.runtime.tuner_file import read
from hocket.schedule.collective import COLLECTIVES


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
    assert "shows it for: all_gather, all_gather_v, reduce_scatter, reduce_scatter_v\n" in text
    assert "scratch memory" not in text


def test_a_reduction_of_many_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = show(capsys, "direct", "-n", "3")
    assert text.count("c0 = r0 + r1 + r2") == 3


def test_input_and_output_have_letters_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, "pairwise", "-n", "3", "--collective", "all_to_all_v")
    assert code == 0 and "2 steps; data in 9 chunks of uneven length" in text
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]
    assert rows == [
        ["0", "o0 = r0.i0", "o1 = r1.i1", "o2 = r2.i2"],
        ["", "o2 = r2.i0", "o0 = r0.i1", "o1 = r1.i2"],
        ["1", "o1 = r1.i0", "o2 = r2.i1", "o0 = r0.i2"],
    ]
    assert "i2, o2, s2: chunk 2 of input, output, scratch memory" in text


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


# --- hocket show choice --------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a tuner file, and an environment that fixes nothing."""
    for name in ("HOCKET_ALGO", "HOCKET_TUNER_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_of_the_choice(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, "choice")
    assert code == 0
    lines = [line.split() for line in text.splitlines()]
    assert lines[1:4] == [
        ["fast", "all_reduce", "up", "to", "2", "up", "to", "4", "MiB", "direct"],
        ["any", "up", "to", "32", "KiB", "direct"],
        ["any", "any", "direct_two_shot"],
    ]
    assert ["rank", "all_reduce", "up", "to", "2", "up", "to", "4", "MiB", "direct"] in lines
    assert ["reduce", "any", "any", "binomial"] in lines
    assert "--ranks N shows what runs in this environment" in text


def test_the_table_of_one_order_and_collective(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = show(capsys, "choice", "--order", "invariant", "--json")
    choices = json.loads(text)["choices"]
    assert {line["order"] for line in choices} == {"invariant"}
    assert {line["collective"] for line in choices} == set(COLLECTIVES)
    _, text = show(capsys, "choice", "--order", "invariant", "--collective", "all_reduce", "--json")
    found = [(line["max_ranks"], line["max_bytes"], line["algorithm"]) for line in json.loads(text)["choices"]]
    assert found == [(2, 4 << 20, "direct"), (None, 4 << 10, "tree"), (None, None, "halving_doubling")]


def test_the_orders_are_those_of_the_choice() -> None:
    from hocket.cli.show_choice import _ORDERS

    assert tuple(ORDERS) == _ORDERS


def test_what_runs_here(elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "hocket_tuner.conf").write_text("allreduce,1000,65536,ring,simple,-1,-1,4\n")
    monkeypatch.setenv("HOCKET_ALGO", "all_gather:^direct;allreduce:^direct_two_shot")
    arguments = ("choice", "-n", "4", "--order", "fast")
    code, text = show(capsys, *arguments, "--json")
    report = json.loads(text)
    assert code == 0 and report["num_ranks"] == 4
    chosen = [
        (line["min_bytes"], line["max_bytes"], line["algorithm"], line["by"])
        for line in report["choices"]
        if line["collective"] in ("all_reduce", "all_gather", "reduce_scatter")
    ]
    assert chosen == [
        (0, 999, "direct", "table"),
        (1000, 65536, "ring", "tuner file"),
        (65537, None, "direct", "HOCKET_ALGO"),
        (0, None, "ring", "HOCKET_ALGO"),
        (0, None, "direct", "table"),
    ]
    _, text = show(capsys, *arguments)
    lines = [line.split() for line in text.splitlines()]
    assert ["above", "999", "B", "up", "to", "64", "KiB", "ring", "tuner", "file"] in lines
    assert ["above", "64", "KiB", "direct", "HOCKET_ALGO"] in lines


def test_a_choice_that_is_refused_is_shown(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_ALGO", "ring")
    code, text = show(capsys, "choice", "-n", "4", "--collective", "reduce", "--order", "rank")
    assert code == 1
    assert ["rank", "reduce", "any", "none"] in [line.split() for line in text.splitlines()]
    assert "reduce: HOCKET_ALGO allows ring, which leaves no algorithm for 4 ranks" in text
    monkeypatch.setenv("HOCKET_ALGO", "rnig")
    assert main(["show", "choice", "-n", "4"]) == 2
    assert "hocket show: HOCKET_ALGO: expected an algorithm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnig"], "or FILE.py:NAME; found 'rnig'"),
        (["ring", "--collective", "broadcast"], "for broadcast, one of binomial, direct or FILE.py:NAME; found 'ring'"),
        (["ring", "-n", "0"], "expected at least 1 rank"),
        (["binomial", "--root", "4"], "expected a root from 0 to 3"),
        (["no_such_file.py"], "no_such_file.py"),
        (["choice", "-n", "0"], "expected at least 1 rank"),
        (["choice", "--collective", "scatter_brain"], "expected a collective"),
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


def test_the_choice_is_written_as_a_tuner_file(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = show(capsys, "choice", "--ranks", "4", "--order", "invariant", "--tuner-file", "mine.csv")
    assert code == 0
    rules = read("mine.csv")
    assert {rule.collective for rule in rules} == set(COLLECTIVES) and all(rule.num_ranks == 4 for rule in rules)
    for num_bytes in (1, 4 << 10, (4 << 10) + 1, 1 << 30):
        for collective in COLLECTIVES:
            expected = choose(collective, 4, num_bytes, "invariant")
            assert choose(collective, 4, num_bytes, "invariant", Policy(rules)) == expected
    code, _ = show(capsys, "choice", "--tuner-file", "mine.csv")
    assert code != 0
