"""The parent's conclusions from the reports of ranks. tests/cli/test_demo.py runs the whole demonstration."""

import hashlib
from typing import Any

import numpy as np
import pytest

from hocket.training import Start, demonstration
from hocket.training.datasets import Dataset, load
from hocket.training.demonstration import FirstAllReduce, RankReport, choose_settings, judge, new_network, waited
from hocket.training.loop import train

FIRST = FirstAllReduce(at=12.5, proof_seconds=0.0)
START = Start(0.5, "cached", cold_seconds=0.6, cold_proof_seconds=0.02)


def reports(dataset: Dataset, num_ranks: int = 2) -> list[RankReport]:
    """Reports of ranks that did exactly what one process does, with a tenth of the time in communication."""
    settings = choose_settings(dataset)
    network = new_network(dataset, seed=settings.seed)
    history = train(network, dataset, settings)
    history.communication_seconds = history.seconds / 10
    digest = hashlib.sha256(network.parameters.tobytes()).hexdigest()
    algorithms = {"broadcast:binomial": 1, "all_reduce:direct": 30, "all_reduce:ring": 690}
    return [RankReport(history, digest, dict(algorithms), FIRST) for _ in range(num_ranks)]


@pytest.fixture
def no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstration, "prove", lambda name, num_ranks: None)


def judged(ranks: list[RankReport]) -> Any:
    dataset = load()
    return judge(dataset, choose_settings(dataset), ranks, START)


@pytest.mark.usefixtures("no_proof")
def test_ranks_that_agree() -> None:
    found = judged(reports(load()))
    assert found.weights_equal and found.losses_equal and found.largest_loss_difference == 0
    assert found.test_accuracy >= 0.95
    assert found.algorithm == "ring"  # the one that ran most often
    assert found.communication_share == pytest.approx(0.1)
    assert found.first_all_reduce == START
    assert (found.num_ranks, found.num_train, found.num_test, found.num_steps) == (2, 1438, 359, 690)


@pytest.mark.usefixtures("no_proof")
def test_one_bit_of_one_weight_is_noticed() -> None:
    dataset = load()
    ranks = reports(dataset)
    network = new_network(dataset, seed=0)
    network.parameters.view(np.uint32)[-1] ^= 1
    digest = hashlib.sha256(network.parameters.tobytes()).hexdigest()
    ranks[1] = RankReport(ranks[1].history, digest, ranks[1].algorithms, FIRST)
    found = judged(ranks)
    assert not found.weights_equal and found.losses_equal


@pytest.mark.usefixtures("no_proof")
@pytest.mark.parametrize("wrong", [lambda loss: loss + 1e-3, lambda loss: float("nan")])
def test_one_loss_of_one_rank_is_noticed(wrong: Any) -> None:
    ranks = reports(load())
    history = ranks[1].history
    losses = [*history.losses[:-1], wrong(history.losses[-1])]
    changed = type(history)(losses, history.accuracies, history.seconds, history.communication_seconds)
    ranks[1] = RankReport(changed, ranks[1].weights_sha256, ranks[1].algorithms, FIRST)
    found = judged(ranks)
    assert found.weights_equal and not found.losses_equal


def test_the_wait_is_that_of_the_last_rank_and_cached_only_if_no_rank_proved() -> None:
    assert waited([FirstAllReduce(3.0, 0.0), FirstAllReduce(2.5, 0.0)], 1.0) == Start(2.0, "cached")
    assert waited([FirstAllReduce(3.0, 0.0), FirstAllReduce(2.5, 0.01)], 1.0) == Start(2.0, "made now", 2.0, 0.01)


def test_settings_fit_the_data() -> None:
    digits = choose_settings(load())
    assert digits.num_epochs == 30 and digits.learning_rate == pytest.approx(0.1, rel=0.01)
    bright = Dataset("bright", np.ones((60_000, 784), np.float32), np.zeros(60_000, np.int64), *2 * (np.zeros(0),))
    assert choose_settings(bright).num_epochs == 1 and choose_settings(bright).learning_rate < 0.01


def test_ranks_start_from_different_weights() -> None:
    dataset = load()
    assert not np.array_equal(new_network(dataset, seed=0).parameters, new_network(dataset, seed=1).parameters)


def test_number_of_ranks_is_checked() -> None:
    with pytest.raises(ValueError, match="number of ranks: expected at least 1, found 0"):
        demonstration.demonstrate(0)
