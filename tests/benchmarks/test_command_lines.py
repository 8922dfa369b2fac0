"""Each error of a user of benchmarks/compare.py and communicators.py is one line, before anything is measured."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import communicators
import compare
from comparison import goals, report, values
from comparison.results import Row, Run
from peers import USUAL

BENCHMARKS = Path(compare.__file__).parent


@pytest.fixture
def result(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    rows = [Row("all_reduce", 8, "float32", 2, {"hocket": {"touched": [1e-6]}, "impi": {"touched": [2e-6]}})]
    report.write_json(path, Run("a machine", rows), [])
    return path


@pytest.mark.parametrize(
    ("program", "option", "text", "expected"),
    [
        (compare, "--ranks", "0", "expected a whole number from 2 to 64"),
        (compare, "--ranks", "2,x", "'x': expected a whole number"),
        (compare, "--ranks", ",", "expected values, separated by commas"),
        (compare, "--rounds", "-1", "expected a whole number of at least 1"),
        (compare, "--sizes", "10", "expected a positive multiple of 4 bytes"),
        (compare, "--sizes", "K", "expected a positive multiple of 4 bytes"),
        (compare, "--operations", "all_reduce,scan", "'scan': expected one of all_reduce"),
        (compare, "--peers", "nccl", "'nccl': expected one of gloo"),
        (compare, "--settings", "bogus", "'bogus': expected one of default, yield"),
        (compare, "--read", "missing", "'missing' cannot be read: No such file"),
        (compare, "--read", __file__, "is not a result of --json"),
        (compare, "--json", "missing/file", "'missing/file' cannot be written"),
        (compare, "--json", os.fspath(BENCHMARKS), "cannot be written"),
        (compare, "--plot", "missing/file.png", "'missing/file.png' cannot be written"),
        (compare, "--plot", "picture.odt", "expected a name that ends in one of"),
        (communicators, "--ranks", "x", "'x': expected a whole number of at least 1"),
        (communicators, "--count", "0", "'0': expected a whole number of at least 1"),
        (communicators, "--rounds", "0", "'0': expected a whole number of at least 1"),
        (communicators, "--imports", "nan", "'nan' is not a time in seconds; expected a number above 0"),
        (communicators, "--json", "missing/file", "'missing/file' cannot be written"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    program: object,
    option: str,
    text: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["program", option, text])
    with pytest.raises(SystemExit) as ending:
        program.main()
    assert ending.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"program: error: argument {option}: ")
    assert expected in last


@pytest.mark.parametrize(
    "option",
    [
        "--quick",
        "--ranks=2,4",
        "--sizes=8",
        "--operations=reduce",
        "--peers=",
        "--settings=pinned",
        "--rounds=3",
        "--no-costs",
    ],
)
def test_what_says_what_to_measure_is_refused_where_nothing_is(
    option: str, result: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["program", option, "--read", os.fspath(result)])
    with pytest.raises(SystemExit, match="2"):
        compare.main()
    name = option.split("=")[0]
    assert f"argument {name}: says what to measure, but --read measures nothing" in capsys.readouterr().err


def test_everything_is_measured_where_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program"])
    found = compare.parsed()
    assert (found.ranks, found.sizes, found.quick, found.rounds) == ([2, 4, 8], [], False, None)
    assert (found.operations, found.peers) == (list(values.OPERATIONS), list(USUAL))


def test_what_the_ranks_cannot_do_without_is_missed_at_once(
    result: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ml_dtypes" else find(name))
    monkeypatch.setattr(sys, "argv", ["program"])
    with pytest.raises(SystemExit, match="2"):
        compare.parsed()
    assert "has no ml_dtypes: `make compare` installs what it needs" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["program", "--read", os.fspath(result)])
    assert compare.parsed().read, "which measures nothing"


CELL = {"operation": "reduce", "num_bytes": 8, "dtype": "float32", "num_ranks": 2}
REST = {"machine": "a machine", "settings": {}, "absent": {}, "costs": {}}


@pytest.mark.parametrize(
    "found",
    [
        [],
        {"rows": [{"bytes": 8}]},
        {"rows": []},
        {"rows": [CELL | {"seconds": []}], **REST},
        {"rows": [CELL | {"seconds": {"hocket": [1.0]}}], **REST},
        {"rows": [CELL | {"seconds": {"hocket": {"touched": ["x"]}}}], **REST},
        {"rows": [CELL | {"loads": 0.1}], **REST},
    ],
)
def test_other_json_is_no_result(found: object, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(json.dumps(found))
    with pytest.raises(Exception, match="is not a result of --json"):
        report.read_json(os.fspath(tmp_path / "other"))


def test_a_plot_without_matplotlib_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    monkeypatch.setattr(sys, "argv", ["program", "--plot", os.fspath(tmp_path / "picture.png")])
    with pytest.raises(SystemExit, match="2"):
        compare.main()
    assert "needs matplotlib, the extra `plot`" in capsys.readouterr().err


def test_the_summary_is_the_last_line_even_where_nothing_can_be_written(
    result: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["program", "--read", os.fspath(result), "--report-only"]
    monkeypatch.setattr(sys, "argv", command)
    assert compare.main() == 0
    monkeypatch.setattr(sys, "argv", [*command, "--json", "/dev/full"])
    assert compare.main() == 1
    printed = capsys.readouterr()
    assert "/dev/full cannot be written" in printed.err
    assert printed.out.splitlines()[-1] == goals.summary(report.read_json(os.fspath(result)).rows)


@pytest.mark.parametrize(("left_out", "status"), [(["registered"], 0), ([], 1)])
def test_the_exit_status_says_whether_ours_failed_somewhere(
    left_out: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {name: {"touched": [1.0]} for name in ("hocket", "no cma", "impi")}
    cell = Row("reduce", 8, "bfloat16", 2, times, left_out=left_out)  # no goal is about it
    report.write_json(tmp_path / "result", Run("a machine", [cell]), [])
    monkeypatch.setattr(goals, "GOALS", [])
    monkeypatch.setattr(sys, "argv", ["program", "--read", os.fspath(tmp_path / "result")])
    assert compare.main() == status


def test_cells_that_cannot_be_are_left_out_and_named() -> None:
    assert compare.cells(["send_recv"], [8], 3, quick=False) == []
    assert compare.left_out(["send_recv", "broadcast"], 3) == {
        "send_recv of float32, 3 ranks": "the last rank has no peer"
    }
    assert compare.left_out(values.OPERATIONS, 8) == {}
    assert {row.dtype for row in compare.cells(["all_reduce"], [8], 10, quick=False)} == {"float32"}
    assert compare.left_out(["all_reduce"], 10) == {
        "all_reduce of bfloat16, 10 ranks": "sums of so many ranks would not be exact"
    }


@pytest.mark.parametrize(("num_ranks", "exact"), [(values.MOST_RANKS_OF_BFLOAT16, True), (10, False)])
def test_sums_of_bfloat16_are_exact_as_far_as_is_said(num_ranks: int, exact: bool) -> None:
    most = sum(int(values.numbers(rank, "bfloat16").max()) for rank in range(num_ranks))
    assert (most <= 256) is exact  # all whole numbers up to 256 fit in 8 bits of mantissa


def test_a_second_signal_does_not_disturb_the_ending() -> None:
    both = "{signal.SIGINT, signal.SIGTERM}"
    program = f"""
import os, signal, sys, threading
sys.path.insert(0, {os.fspath(BENCHMARKS)!r})
import compare
for number in {both}:
    signal.signal(number, compare.stop)
signal.pthread_sigmask(signal.SIG_BLOCK, {both})
for number in {both}:
    signal.pthread_kill(threading.get_ident(), number)  # not to the process, whose other threads let them through
try:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {both})  # both are there at once
finally:
    signal.raise_signal(signal.SIGTERM)  # and one more
    print("ended what was started")
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert re.fullmatch("ended what was started\n", found.stdout), found.stderr
    assert found.stderr == ""
    assert found.returncode == 130
