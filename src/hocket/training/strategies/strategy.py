"""The protocol between the training loop and a strategy, and the strategy of a single process."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Numbers = NDArray[np.number]
Floats = NDArray[np.floating]


class Optimizer(Protocol):
    """An optimizer of one flat array, all of the parameters or a part of them. It keeps its state between steps."""

    def step(self, parameters: Floats, gradient: Floats) -> None:
        """Changes `parameters` in place; both have the same shape and type, and `gradient` stays as it is."""


class Strategy(Protocol):
    """A strategy decides the first weights, the images of each rank, and how gradients become an update.

    All ranks make the same calls. Each method blocks and may raise CommunicationError.
    """

    def begin(self, parameters: Floats) -> None:
        """Sets the weights with which training starts, in place."""

    def own(self, items: Indices) -> Indices:
        """Returns this rank's part of these images."""

    def update(self, parameters: Floats, message: Floats, optimizer: Optimizer) -> None:
        """Makes one update of `parameters`, in place.

        message: the gradient of this rank's part of the batch and, as the last element, the loss of this part; both
        are divided by the size of the whole batch. A strategy may replace the loss by that of more ranks. optimizer:
        for all of the parameters or for the shard that this rank holds, always the same.
        """

    def settle(self, parameters: Floats, losses: NDArray[np.float64]) -> None:
        """Ends an epoch, in place: all ranks have equal parameters, and `losses` are those of whole batches.

        losses: of every batch of the epoch, what `update` has left in its message.
        """

    def sum(self, numbers: Numbers) -> None:
        """Sums the ranks' results on their own parts, in place."""

    def seconds(self) -> float:
        """Returns the wall seconds that this rank has spent in communication so far, including waits."""


class Alone:
    """One process that does everything itself."""

    def begin(self, parameters: Floats) -> None:
        """Leaves the weights as they are."""

    def own(self, items: Indices) -> Indices:
        """Returns all images."""
        return items

    def update(self, parameters: Floats, message: Floats, optimizer: Optimizer) -> None:
        """Applies the gradient."""
        optimizer.step(parameters, message[:-1])

    def settle(self, parameters: Floats, losses: NDArray[np.float64]) -> None:
        """Leaves everything as it is."""

    def sum(self, numbers: Numbers) -> None:
        """Leaves the numbers as they are: they are the sum."""

    def seconds(self) -> float:
        """Returns 0: one process does not communicate."""
        return 0.0
