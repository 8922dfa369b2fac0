"""`hocket demo`: what it prints, when it fails, and once the whole of it on four processes."""

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hocket.cli import demo
from hocket.errors import PeerDied
from hocket.training import demonstration
from hocket.training.data import History
from hocket.training.demonstration import Demonstration, Proof

FOUND = Demonstration(
    data="handwritten digits",
    num_ranks=4,
    num_train=1438,
    num_test=359,
    num_parameters=4810,
    num_epochs=30,
    num_steps=690,
    test_accuracy=0.975,
    weights_equal=True,
    weights_sha256=("ab",) * 4,
    losses_equal=True,
    largest_loss_difference=2.4e-7,
    first_loss=2.3,
    last_loss=0.01,
    algorithm="ring",
    proof=Proof(("same_on_all_ranks",), "symbolic", 0.0123),
    communication_share=0.42,
    training_seconds=0.31,
    one_process_seconds=0.05,
    first_all_reduce_seconds=0.66,
)


def run(monkeypatch: pytest.MonkeyPatch, arguments: list[str], result: Demonstration | Exception = FOUND) -> int:
    def demonstrate(*_: Any, **__: Any) -> Demonstration:
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(demonstration, "demonstrate", demonstrate)
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return demo.run(parser.parse_args(arguments))


def test_report_for_a_person(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, []) == 0
    printed = capsys.readouterr().out
    for expected in (
        "weights equal on all ranks: yes",
        "same losses as one process: yes",
        "0.975",
        "42% of that time",
        "ring all_reduce",
        "0.66 s after the command",
        "0.012 s from scratch",
        "same on all ranks",
        "hocket show ring --collective all_reduce -n 4",
    ):
        assert expected in printed
    assert len(printed.partition("Next, try:\n")[2].splitlines()) == 3
    assert max(map(len, printed.splitlines())) <= 120


def test_report_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, ["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["test_accuracy"] == 0.975 and found["weights_equal"] is True and found["losses_equal"] is True
    assert found["algorithm"] == "ring" and found["communication_share"] == 0.42
    assert found["cold_proof_seconds"] == 0.0123 and found["proof_labels"] == ["same_on_all_ranks"]


@pytest.mark.parametrize("field", ["weights_equal", "losses_equal"])
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_difference_fails_and_is_said(
    field: str, option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    different = {field: False, "largest_loss_difference": float("nan")}
    assert run(monkeypatch, option, dataclasses.replace(FOUND, **different)) == 1
    printed = capsys.readouterr().out
    if option:
        found = json.loads(printed, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert found[field] is False and found["largest_loss_difference"] is None
    else:
        assert ": NO  (" in printed


@pytest.mark.parametrize(
    ("error", "code"),
    [(ValueError("digits.npz: expected this, found that"), 2), (PeerDied("rank 2 was killed", rank=2), 1)],
)
def test_errors_are_one_line(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, ["--json"], error) == code
    out, err = capsys.readouterr()
    assert out == "" and str(error) in err and len(err.splitlines()) == 1


def test_progress_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    after_epoch = demo.Progress(4, bar=False)(30)
    for epoch in range(1, 31):
        after_epoch(epoch, History([1 / epoch], [1 - 1 / epoch]))
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "Hocket: training on 4 processes, each with its part of every batch"
    assert len(lines) == 6 and lines[-1] == "  epoch 30/30  loss 0.0333  held-out accuracy 0.967"
    assert "\x1b" not in "".join(lines)


def test_progress_bar_ends(capsys: pytest.CaptureFixture[str]) -> None:
    after_epoch = demo.Progress(4, bar=True)(2)
    for epoch in (1, 2):
        after_epoch(epoch, History([0.5], [0.75]))
    assert "held-out accuracy 0.750" in capsys.readouterr().out


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "hocket", "demo"]
    return subprocess.run([*start, *arguments], capture_output=True, text=True, timeout=100, check=False)


def test_four_processes_train_on_the_digits() -> None:
    done = command("--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["test_accuracy"] >= 0.95
    assert found["weights_equal"] and len(found["weights_sha256"]) == 4
    assert found["losses_equal"] and found["largest_loss_difference"] < 1e-4
    assert found["training_seconds"] < 5 and 0 < found["communication_share"] < 1
    assert found["algorithm"] and found["cold_proof_seconds"] > 0


@pytest.mark.parametrize("ranks", ["1", "3"])
def test_other_numbers_of_processes_print_plain_lines_into_a_pipe(ranks: str) -> None:
    done = command("-n", ranks)
    assert done.returncode == 0, done.stderr
    assert "weights equal on all ranks: yes" in done.stdout and "same losses as one process: yes" in done.stdout
    assert done.stdout.count("epoch") == 6 and "\x1b" not in done.stdout


def test_a_wrong_file_is_named_before_any_process_starts(tmp_path: Path) -> None:
    done = command("--data", str(tmp_path / "none.npz"))
    assert done.returncode == 2 and "none.npz: expected" in done.stderr and "Traceback" not in done.stderr
