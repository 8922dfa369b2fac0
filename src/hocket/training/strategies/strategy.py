"""The protocol between the training loop and a strategy, and the strategy of a single process."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Numbers = NDArray[np.number]


class Strategy(Protocol):
    """A strategy decides the first weights and the images of each rank, and how gradients are combined.

    All ranks make the same calls. Each method blocks and may raise CommunicationError.
    """

    def begin(self, parameters: Numbers) -> None:
        """Sets the weights with which training starts, in place."""

    def own(self, items: Indices) -> Indices:
        """Returns this rank's part of these images."""

    def sum(self, numbers: Numbers) -> None:
        """Sums the ranks' results on their own parts, in place."""

    def seconds(self) -> float:
        """Returns the wall seconds that this rank has spent in communication so far, including waits."""


class Alone:
    """One process that does everything itself."""

    def begin(self, parameters: Numbers) -> None:
        """Leaves the weights as they are."""

    def own(self, items: Indices) -> Indices:
        """Returns all images."""
        return items

    def sum(self, numbers: Numbers) -> None:
        """Leaves the numbers as they are: they are the sum."""

    def seconds(self) -> float:
        """Returns 0: one process does not communicate."""
        return 0.0
