"""Data parallelism: every rank holds all weights, sees its own part of every batch, and the gradients are summed.

Synchronous and lossless: beside rounding it is training in one process, which the same function does without a
communicator. Left out: overlap of computing and communicating, buckets, sharded weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import hocket
from hocket.training.dataset import Dataset
from hocket.training.network import Network

if TYPE_CHECKING:
    from hocket.runtime.communicator.communicator import Communicator

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Settings:
    """How to train. Equal on all ranks: the seed orders the images of every epoch, the same everywhere."""

    num_epochs: int
    batch_size: int = 64
    learning_rate: float = 0.1
    momentum: float = 0.9
    seed: int = 0


@dataclass
class History:
    """What training did: the loss of every step, held-out accuracy after every epoch, and where the time went."""

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    communication_seconds: float = 0.0


AfterEpoch = Callable[[int, History], None]


def batches(num_images: int, settings: Settings, epoch: int) -> Iterator[Indices]:
    """Yield the batches of one epoch as indices: every image once, in an order that depends on seed and epoch only."""
    order = np.random.default_rng([settings.seed, epoch]).permutation(num_images)
    for start in range(0, num_images, settings.batch_size):
        yield order[start : start + settings.batch_size]


def share(items: Indices, rank: int, size: int) -> Indices:
    """Return the rank's part of `items`: consecutive, disjoint, all covered, lengths equal within one (maybe zero)."""
    return items[len(items) * rank // size : len(items) * (rank + 1) // size]


def train(
    network: Network,
    dataset: Dataset,
    settings: Settings,
    communicator: "Communicator | None" = None,
    after_epoch: AfterEpoch | None = None,
) -> History:
    """Train `network` in place by SGD with momentum; with a communicator, together with the other ranks.

    All ranks start from rank 0's weights and end with equal ones, bit for bit where the all_reduce that runs gives all
    ranks the same bits. Blocks; every rank calls it with the same dataset and settings. Raises CommunicationError.
    """
    rank, size = (communicator.rank, communicator.size) if communicator else (0, 1)
    waited = _seconds(communicator)
    started = perf_counter()
    if communicator:
        communicator.broadcast(network.parameters, root=0)
    history = History()
    velocity = np.zeros_like(network.parameters)
    message = np.zeros(network.parameters.size + 1, network.parameters.dtype)
    gradient, loss = message[:-1], message[-1:]  # one collective sums both
    for epoch in range(settings.num_epochs):
        for batch in batches(len(dataset.train_labels), settings, epoch):
            own = share(batch, rank, size)
            images, labels = dataset.train_images[own], dataset.train_labels[own]
            with hocket.span("gradient"):
                loss[0] = network.gradient(images, labels, batch_size=len(batch), out=gradient)
            if communicator:
                communicator.all_reduce(message)
            history.losses.append(float(loss[0]))
            with hocket.span("update"):
                velocity *= settings.momentum
                velocity += gradient
                network.parameters -= settings.learning_rate * velocity
        history.accuracies.append(held_out_accuracy(network, dataset, communicator))
        history.seconds = perf_counter() - started
        history.communication_seconds = _seconds(communicator) - waited
        if after_epoch:
            after_epoch(epoch + 1, history)
    return history


def held_out_accuracy(network: Network, dataset: Dataset, communicator: "Communicator | None" = None) -> float:
    """Return the fraction of held-out images that the network names right; each rank looks at its part of them."""
    rank, size = (communicator.rank, communicator.size) if communicator else (0, 1)
    own = share(np.arange(len(dataset.test_labels)), rank, size)
    correct = np.array([network.correct(dataset.test_images[own], dataset.test_labels[own])])
    if communicator:
        communicator.all_reduce(correct)
    return int(correct[0]) / len(dataset.test_labels)


def _seconds(communicator: "Communicator | None") -> float:
    """Wall seconds that this rank has spent inside collectives so far, waiting for the others included."""
    return float(communicator.statistics["seconds"]) if communicator else 0.0
