"""The training loop: SGD with momentum over batches, the same for every strategy, readable from end to end.

Left out: other optimizers, schedules of the learning rate, checkpoints.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from hocket import runtime
from hocket.training.datasets import Dataset
from hocket.training.model import Classifier
from hocket.training.strategies.momentum import Momentum
from hocket.training.strategies.strategy import Alone, Indices, Strategy


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of training, equal on all ranks. The seed fixes the order of the images in every epoch."""

    num_epochs: int
    batch_size: int = 64
    learning_rate: float = 0.1
    momentum: float = 0.9
    seed: int = 0


@dataclass
class History:
    """The history of training: loss of every step, held-out accuracy after every epoch, wall seconds.

    state_bytes: the bytes of parameters, gradient and optimizer state that this rank holds at the end.
    """

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    communication_seconds: float = 0.0
    state_bytes: int = 0


AfterEpoch = Callable[[int, History], None]


def batches(num_images: int, settings: TrainingSettings, epoch: int) -> Iterator[Indices]:
    """Yields the batches of one epoch as indices: every image once, in an order that depends on seed and epoch only."""
    order = np.random.default_rng([settings.seed, epoch]).permutation(num_images)
    for start in range(0, num_images, settings.batch_size):
        yield order[start : start + settings.batch_size]


def train(
    network: Classifier,
    dataset: Dataset,
    settings: TrainingSettings,
    strategy: Strategy | None = None,
    after_epoch: AfterEpoch | None = None,
) -> History:
    """Trains `network` in place by SGD with momentum; the strategy shares the work among ranks. Blocks.

    Every rank of a strategy calls it with the same dataset and settings, and ends with the same weights and history,
    times excepted. Raises CommunicationError.
    """
    strategy = strategy or Alone()
    waited = strategy.seconds()
    started = perf_counter()
    strategy.begin(network.parameters)
    history = History()
    optimizer = Momentum(settings.learning_rate, settings.momentum)
    message = np.zeros(network.parameters.size + 1, network.parameters.dtype)
    gradient, loss = message[:-1], message[-1:]  # one message, so that one collective can sum both
    for epoch in range(settings.num_epochs):
        losses: list[float] = []
        for batch in batches(len(dataset.train_labels), settings, epoch):
            own = strategy.own(batch)
            images, labels = dataset.train_images[own], dataset.train_labels[own]
            with runtime.span("gradient"):
                loss[0] = network.gradient(images, labels, batch_size=len(batch), out=gradient)
            strategy.update(network.parameters, message, optimizer)
            losses.append(float(loss[0]))
        of_epoch = np.array(losses)
        strategy.settle(network.parameters, of_epoch)
        history.losses += of_epoch.tolist()
        history.accuracies.append(held_out_accuracy(network, dataset, strategy))
        history.seconds = perf_counter() - started
        history.communication_seconds = strategy.seconds() - waited
        if after_epoch:
            after_epoch(epoch + 1, history)
    history.state_bytes = network.parameters.nbytes + gradient.nbytes + optimizer.num_bytes
    return history


def held_out_accuracy(network: Classifier, dataset: Dataset, strategy: Strategy) -> float:
    """Returns the fraction of held-out images that the network classifies correctly; each rank tests its own part."""
    own = strategy.own(np.arange(len(dataset.test_labels)))
    correct = np.array([network.correct(dataset.test_images[own], dataset.test_labels[own])])
    strategy.sum(correct)
    return int(correct[0]) / len(dataset.test_labels)
