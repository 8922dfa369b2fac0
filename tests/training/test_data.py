"""Data parallelism does what training in one process does: the same batches and losses, equal weights everywhere."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hocket
from hocket.training.datasets import Dataset, load
from hocket.training.loop import TrainingSettings, batches, train
from hocket.training.model import Classifier
from hocket.training.strategies.data import DataParallelTraining, share

Result = TypeVar("Result")
SETTINGS = TrainingSettings(num_epochs=3)


def on_ranks(program: Callable[[Any], Result], size: int) -> list[Result]:
    def rank() -> Result:
        with hocket.init() as communicator:
            return program(communicator)

    return hocket.run_ranks(rank, size, kind="thread")


def network_of(dataset: Dataset, seed: int, dtype: type = np.float32) -> Classifier:
    return Classifier((dataset.num_features, 16, dataset.num_classes), seed=seed, dtype=dtype)


@given(st.integers(0, 300), st.integers(1, 40))
def test_shares_are_disjoint_complete_and_even(length: int, size: int) -> None:
    parts = [share(np.arange(length), rank, size) for rank in range(size)]
    np.testing.assert_array_equal(np.concatenate(parts), np.arange(length))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_an_epoch_shows_every_image_once_and_each_epoch_in_another_order() -> None:
    first, again, second = (list(batches(1437, SETTINGS, epoch)) for epoch in (0, 0, 1))
    assert [len(batch) for batch in first] == [64] * 22 + [29]
    np.testing.assert_array_equal(np.sort(np.concatenate(first)), np.arange(1437))
    np.testing.assert_array_equal(np.concatenate(first), np.concatenate(again))
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))


class Recording:
    """A communicator that records what this rank of `train` gives to all_reduce, and the weights at that time."""

    def __init__(self, communicator: Any, network: Classifier) -> None:
        self.rank, self.size, self.statistics = communicator.rank, communicator.size, communicator.statistics
        self.broadcast, self._communicator, self._network = communicator.broadcast, communicator, network
        self.gradients: list[np.ndarray] = []
        self.losses: list[float] = []
        self.weights: list[np.ndarray] = []

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        if array.size == self._network.parameters.size + 1:  # not the number of right answers
            self.gradients.append(array[:-1].copy())
            self.losses.append(float(array[-1]))
            self.weights.append(self._network.parameters.copy())
        return self._communicator.all_reduce(array)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_in_every_step_each_rank_gives_the_gradient_of_its_own_share_alone(size: int) -> None:
    dataset, settings = load(), TrainingSettings(num_epochs=2)

    def program(communicator: Any) -> Recording:
        network = network_of(dataset, seed=communicator.rank)
        recording = Recording(communicator, network)
        train(network, dataset, settings, DataParallelTraining(recording))
        return recording

    ranks = on_ranks(program, size)
    steps = [batch for epoch in range(2) for batch in batches(len(dataset.train_labels), settings, epoch)]
    assert [len(rank.gradients) for rank in ranks] == [len(steps)] * size
    network = network_of(dataset, seed=0)
    expected, whole = np.empty_like(network.parameters), np.empty_like(network.parameters)
    for step, batch in enumerate(steps):
        local = [rank.gradients[step] for rank in ranks]
        for one in range(size):
            for other in range(one):
                assert np.abs(local[one] - local[other]).max() > 1e-4, f"step {step}: ranks {other} and {one}"
        network.parameters[:] = ranks[0].weights[step]
        for rank in range(size):
            own = share(batch, rank, size)
            images, labels = dataset.train_images[own], dataset.train_labels[own]
            loss = network.gradient(images, labels, batch_size=len(batch), out=expected)
            np.testing.assert_array_equal(local[rank], expected)
            assert ranks[rank].losses[step] == pytest.approx(loss)
        network.gradient(dataset.train_images[batch], dataset.train_labels[batch], batch_size=len(batch), out=whole)
        np.testing.assert_allclose(sum(local), whole, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-13)])
def test_ranks_train_as_one_process_does(size: int, dtype: type, tolerance: float) -> None:
    dataset = load()
    alone = network_of(dataset, seed=0, dtype=dtype)
    expected = train(alone, dataset, SETTINGS)

    def program(communicator: Any) -> tuple[Any, Classifier]:
        network = network_of(dataset, seed=communicator.rank, dtype=dtype)  # equal only after the broadcast
        return train(network, dataset, SETTINGS, DataParallelTraining(communicator)), network

    for history, network in on_ranks(program, size):
        np.testing.assert_allclose(history.losses, expected.losses, atol=tolerance)
        np.testing.assert_allclose(network.parameters, alone.parameters, atol=tolerance)
        np.testing.assert_allclose(history.accuracies, expected.accuracies, atol=0.003)


def test_weights_are_equal_bit_for_bit_on_all_ranks() -> None:
    dataset = load()

    def program(communicator: Any) -> bytes:
        network = network_of(dataset, seed=communicator.rank)
        train(network, dataset, SETTINGS, DataParallelTraining(communicator))
        return network.parameters.tobytes()

    assert len(set(on_ranks(program, 4))) == 1


def test_more_ranks_than_images_in_a_batch() -> None:
    dataset, settings = load(), TrainingSettings(num_epochs=1, batch_size=3, learning_rate=0.01)
    expected = train(network_of(dataset, seed=0), dataset, settings)
    histories = on_ranks(
        lambda group: train(network_of(dataset, seed=0), dataset, settings, DataParallelTraining(group)), 5
    )
    for history in histories:
        np.testing.assert_allclose(history.losses, expected.losses, atol=1e-5)


def test_one_gradient_missed_once_shows_in_the_losses() -> None:
    """The tolerance of the demonstration is far below the error of a single lost contribution."""
    dataset = load()
    expected = np.array(train(network_of(dataset, seed=0), dataset, SETTINGS).losses)

    class Losing:
        """A communicator that loses one gradient of rank 2."""

        def __init__(self, communicator: Any) -> None:
            self.rank, self.size, self.statistics = communicator.rank, communicator.size, communicator.statistics
            self.broadcast, self._communicator, self._calls = communicator.broadcast, communicator, 0

        def all_reduce(self, array: np.ndarray) -> np.ndarray:
            self._calls += 1
            if self._calls == 5 and self.rank == 2:
                array[:-1] = 0  # the gradient, not the loss
            return self._communicator.all_reduce(array)

    def program(communicator: Any) -> list[float]:
        return train(network_of(dataset, seed=0), dataset, SETTINGS, DataParallelTraining(Losing(communicator))).losses

    difference = np.abs(np.array(on_ranks(program, 4)) - expected).max()
    assert difference > 1e-3


def test_training_alone_reaches_the_accuracy_and_reports_every_epoch() -> None:
    dataset, epochs = load(), []
    history = train(
        network_of(dataset, seed=0),
        dataset,
        TrainingSettings(num_epochs=20),
        None,
        lambda epoch, _: epochs.append(epoch),
    )
    assert epochs == list(range(1, 21)) and len(history.accuracies) == 20
    assert history.accuracies[-1] >= 0.95
    assert history.seconds > 0 and history.communication_seconds == 0
