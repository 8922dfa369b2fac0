"""What the training loop asks of a strategy, and the strategy of one process alone."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Numbers = NDArray[np.number]


class Strategy(Protocol):
    """Who begins with which weights, who sees which images, and how gradients come together. Equal calls on all ranks.

    Each method blocks and may raise CommunicationError.
    """

    def begin(self, parameters: Numbers) -> None:
        """Makes the weights what training starts from, in place."""

    def own(self, items: Indices) -> Indices:
        """This rank's part of these images."""

    def sum(self, numbers: Numbers) -> None:
        """Sums what each rank found on its own part, in place."""

    def seconds(self) -> float:
        """Wall seconds that this rank has spent communicating so far, waiting for the others included."""


class Alone:
    """One process that does everything itself."""

    def begin(self, parameters: Numbers) -> None:
        """Nothing: the weights are what they are."""

    def own(self, items: Indices) -> Indices:
        """All of them."""
        return items

    def sum(self, numbers: Numbers) -> None:
        """Nothing: the numbers are the sum."""

    def seconds(self) -> float:
        """None."""
        return 0.0
