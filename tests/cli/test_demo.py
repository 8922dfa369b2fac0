"""`hocket demo`: what it prints, when it fails, and one complete run on four processes."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from hocket.cli import demo, main
from hocket.errors import PeerDied
from hocket.training import Demonstration, History, Start
from hocket.training.demonstration import FreshProof

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
    proof=FreshProof(("same_on_all_ranks",), "symbolic", 0.0123),
    communication_share=0.42,
    training_seconds=0.31,
    one_process_seconds=0.05,
    first_all_reduce=Start(0.66, "cached", cold_seconds=0.71, cold_proof_seconds=0.0214),
)


def run(monkeypatch: pytest.MonkeyPatch, arguments: list[str], result: Demonstration | Exception = FOUND) -> int:
    def demonstrate(*_: Any, **__: Any) -> Demonstration:
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr("hocket.training.demonstrate", demonstrate)
    return main(["demo", *arguments])


def test_report_for_a_person(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, []) == 0
    printed = capsys.readouterr().out
    for expected in (
        "weights equal on all ranks: yes",
        "same losses as one process: yes",
        "0.975",
        "42% of that time",
        "The network is tiny: a step computes for ",
        "so the share of communication says little about larger networks.\n",
        "ring all_reduce",
        "first all_reduce:           0.66 s after the command, 4 processes started, the proof cached\n",
        "first all_reduce, cold:     0.71 s (started again with an empty cache; the proof took 0.021 s of it)\n",
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
    assert found["first_all_reduce_seconds"] == 0.66 and found["first_all_reduce_proof"] == "cached"
    assert found["first_all_reduce_cold_seconds"] == 0.71 and found["first_all_reduce_cold_proof_seconds"] == 0.0214


@pytest.mark.parametrize(
    ("start", "proof", "cold"),
    [
        (
            Start(0.7, "made now", 0.7, 0.03),
            "the proof made now\n",
            "cold:     0.70 s (this run; the proof took 0.030 s of it)\n",
        ),
        (Start(0.7, "cached"), "the proof cached\n", None),
    ],
)
def test_where_the_proof_came_from_is_said(
    start: Start, proof: str, cold: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, [], dataclasses.replace(FOUND, first_all_reduce=start)) == 0
    printed = capsys.readouterr().out
    assert proof in printed
    assert cold in printed if cold else "cold" not in printed


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
    "error", [ValueError("digits.npz: expected this, found that"), PeerDied("rank 2 was killed", rank=2)]
)
def test_errors_are_one_line_and_exit_code_2_as_in_every_command(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, [], error) == 2
    assert capsys.readouterr() == ("", f"hocket demo: {error}\n")
    assert run(monkeypatch, ["--json"], error) == 2
    assert capsys.readouterr() == (json.dumps({"error": str(error)}) + "\n", f"hocket demo: {error}\n")


def test_progress_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    after_epoch = demo.Progress(4, bar=False)(30)
    for epoch in range(1, 31):
        after_epoch(epoch, History([1 / epoch], [1 - 1 / epoch], seconds=2.0, communication_seconds=0.5))
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "Hocket: training on 4 processes, each with its part of every batch"
    assert len(lines) == 6 and lines[-1] == "  epoch 30/30  loss 0.0333  held-out accuracy 0.967  communicating 25%"
    assert "\x1b" not in "".join(lines)


def test_progress_bar_ends(capsys: pytest.CaptureFixture[str]) -> None:
    after_epoch = demo.Progress(4, bar=True)(2)
    for epoch in (1, 2):
        after_epoch(epoch, History([0.5], [0.75]))
    assert "held-out accuracy 0.750" in capsys.readouterr().out


def command(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "hocket", "demo"]
    return subprocess.run([*start, *arguments], capture_output=True, text=True, timeout=100, check=False, **more)


def result(*arguments: str, **more: Any) -> Any:
    done = command("--json", *arguments, **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_four_processes_train_on_the_digits() -> None:
    found = result()
    assert found["test_accuracy"] >= 0.95
    assert found["weights_equal"] and len(found["weights_sha256"]) == 4
    assert found["losses_equal"] and found["largest_loss_difference"] < 1e-4
    assert found["training_seconds"] > 0 and 0 < found["communication_share"] < 1
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


def test_the_proof_is_made_once_and_then_cached(tmp_path: Path) -> None:
    cache = os.environ | {"HOCKET_CACHE": str(tmp_path)}
    first, second = result("-n", "2", env=cache), result("-n", "2", env=cache)
    assert [found["first_all_reduce_proof"] for found in (first, second)] == ["made now", "cached"]
    assert first["first_all_reduce_cold_seconds"] == first["first_all_reduce_seconds"] > 0
    for found in (first, second):
        assert 0 < found["first_all_reduce_cold_proof_seconds"] < found["first_all_reduce_cold_seconds"]
    assert second["first_all_reduce_seconds"] > 0


def test_a_cache_that_cannot_be_written_is_never_called_cached(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = result("-n", "2", env=os.environ | {"HOCKET_CACHE": str(tmp_path / "file")})
    assert found["first_all_reduce_proof"] == "made now"


SCRIPT = Path(sysconfig.get_path("scripts")) / "hocket"


@pytest.mark.parametrize(
    ("start", "folder", "path", "printed"),
    [
        ([str(SCRIPT)], SCRIPT.parents[2], "/usr/bin:/bin", "/".join(SCRIPT.parts[-3:])),
        ([sys.executable, "-m", "hocket"], SCRIPT.parents[2], "/usr/bin:/bin", "/".join(SCRIPT.parts[-3:])),
        ([str(SCRIPT)], SCRIPT.parent, "/usr/bin:/bin", "./hocket"),
        ([str(SCRIPT)], Path("/usr/bin"), "/usr/bin:/bin", str(SCRIPT)),
        (["hocket"], SCRIPT.parents[2], f"{SCRIPT.parent}:/usr/bin:/bin", "hocket"),
    ],
)
def test_the_next_commands_run_as_printed(start: list[str], folder: Path, path: str, printed: str) -> None:
    env = os.environ | {"PATH": path}
    program = shutil.which(start[0], path=path)
    assert program
    done = subprocess.run(
        [program, *start[1:], "demo", "-n", "1"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    commands = [re.split(r"\s\s+", line.strip())[0] for line in done.stdout.partition("Next, try:\n")[2].splitlines()]
    assert len(commands) == 3 and all(line.startswith(f"{printed} ") for line in commands)
    for line in (commands[0], *(f"{line} --help" for line in commands[1:])):
        again = subprocess.run(line, shell=True, cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert again.returncode == 0, again.stderr


def test_another_hocket_on_the_path_is_not_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = tmp_path / "with space" / "hocket", tmp_path / "other" / "hocket"
    for script in (ours, other):
        script.parent.mkdir()
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(ours)])
    monkeypatch.setenv("PATH", str(other.parent))
    monkeypatch.chdir(tmp_path)
    assert demo._this_program() == "'with space/hocket'"
    monkeypatch.setenv("PATH", str(ours.parent))
    assert demo._this_program() == "hocket"


@pytest.mark.parametrize("lines", [0, 1, 7])
def test_a_reader_that_goes_is_no_error(lines: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "hocket", "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as it:
        assert it.stdout and it.stderr
        for _ in range(lines):
            it.stdout.readline()
        it.stdout.close()
        errors = it.stderr.read()
    assert (errors, it.returncode) == ("", 141)
