"""`hocket train`: every strategy trains the digits, and says how it compares with one process."""

import json
from pathlib import Path
from typing import Any

import pytest

from hocket.cli import main
from hocket.training import Trial, TrialOptions, try_strategy
from hocket.training.trial import STRATEGIES

FOUND = Trial(
    strategy="zero2",
    data="handwritten digits",
    num_ranks=2,
    num_parameters=4810,
    num_epochs=30,
    num_steps=690,
    test_accuracy=0.975,
    accuracies=(0.9, 0.975),
    first_loss=2.3,
    last_loss=0.01,
    is_synchronous=True,
    losses_equal=True,
    largest_loss_difference=2.4e-7,
    weights_equal=True,
    state_bytes_per_rank=(38480, 38480),
    communication_share=0.42,
    training_seconds=0.31,
)


def run(monkeypatch: pytest.MonkeyPatch, arguments: list[str], **changes: Any) -> int:
    trial = Trial(**{**vars(FOUND), **changes})
    monkeypatch.setattr("hocket.training.try_strategy", lambda *_, **__: trial)
    return main(["train", "digits", *arguments])


def test_a_person_reads_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, []) == 0
    printed = capsys.readouterr().out
    for expected in ("zero2 on 2 processes", "0.975", "42%", "38,480 38,480", "same losses as one process:"):
        assert expected in printed


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"weights_equal": False}, 1),
        ({"losses_equal": False}, 1),
        ({"losses_equal": False, "is_synchronous": False}, 0),
    ],
)
def test_the_exit_code_is_1_if_something_differs_that_should_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], changes: dict[str, bool], code: int
) -> None:
    assert run(monkeypatch, [], **changes) == code
    assert ("not synchronous" in capsys.readouterr().out) == (code == 0)


def test_a_loss_that_is_not_a_number_is_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, ["--json"], last_loss=float("nan")) == 0
    assert json.loads(capsys.readouterr().out)["last_loss"] is None


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_learns_the_digits(strategy: str) -> None:
    trial = try_strategy(strategy, 3, kind="thread")
    assert trial.test_accuracy >= 0.9 and trial.weights_equal
    assert trial.losses_equal or not trial.is_synchronous
    assert trial.is_synchronous == (strategy not in ("async", "local"))
    assert len(trial.state_bytes_per_rank) == 3 and 0 < trial.communication_share < 1
    whole = 16 * trial.num_parameters
    if strategy == "zero3":
        assert max(trial.state_bytes_per_rank) < 0.6 * whole


def test_the_command_trains_in_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--strategy", "server", "-n", "3", "--servers", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["strategy"] == "server" and found["losses_equal"] and found["weights_equal"]
    assert found["test_accuracy"] > 0.9 and len(found["state_bytes_per_rank"]) == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--strategy", "zero4"], "invalid choice"),
        (["--strategy", "async", "-n", "1"], "found 1 servers and 1 ranks; start more ranks"),
        (["--strategy", "server", "--servers", "4"], "found 4 servers and 4 ranks"),
        (["--strategy", "local", "--every", "0"], "expected every of at least 1, found 0"),
        (["--strategy", "server", "--staleness", "-1"], "expected staleness of at least 0, found -1"),
        (["--strategy", "async", "--staleness", "2"], "strategy async has no staleness, found 2; see server"),
        (["-n", "0"], "number of ranks: expected at least 1, found 0"),
        (["--data", "/nowhere"], "/nowhere: expected"),
    ],
)
def test_wrong_options(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    try:
        code = main(["train", "digits", *arguments])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2 and expected in capsys.readouterr().err


def test_without_torch_it_says_which_strategies_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.training.trial.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"data needs PyTorch: .* or take one of server, async, local"):
        try_strategy("data", 2)


def test_local_steps_that_are_averaged_each_time_are_synchronous(tmp_path: Path) -> None:
    trial = try_strategy("local", 2, options=TrialOptions(every=1), kind="thread")
    assert trial.is_synchronous
