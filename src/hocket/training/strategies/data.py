"""Data parallelism: every rank holds all weights and sees its own part of every batch; the gradients are summed.

It is synchronous and lossless: except for rounding, the result equals training in one process. Left out: overlap of
computation and communication, buckets, sharded weights.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hocket.training.strategies.strategy import Floats, Indices, Numbers, Optimizer

if TYPE_CHECKING:
    from hocket.runtime import Communicator


class DataParallelTraining:
    """Data parallelism among the ranks of a communicator, as a strategy of the training loop.

    All ranks start from rank 0's weights and end with equal weights; equal bit for bit if the all_reduce gives all
    ranks the same bits. Raises CommunicationError.
    """

    def __init__(self, communicator: "Communicator") -> None:
        self._communicator = communicator

    def begin(self, parameters: Floats) -> None:
        """Broadcasts rank 0's weights to all ranks."""
        self._communicator.broadcast(parameters, root=0)

    def own(self, items: Indices) -> Indices:
        """Returns this rank's part of the items, as `share` does."""
        return share(items, self._communicator.rank, self._communicator.size)

    def update(self, parameters: Floats, message: Floats, optimizer: Optimizer) -> None:
        """Sums gradient and loss over all ranks in one collective, and applies the gradient."""
        self._communicator.all_reduce(message)
        optimizer.step(parameters, message[:-1])

    def settle(self, parameters: Floats, losses: NDArray[np.float64]) -> None:
        """Leaves everything as it is: weights and losses are equal on all ranks after every update."""

    def sum(self, numbers: Numbers) -> None:
        """Sums the numbers over all ranks, in place."""
        self._communicator.all_reduce(numbers)

    def seconds(self) -> float:
        """Returns the seconds inside collectives of this communicator."""
        return float(self._communicator.statistics["seconds"])


def share(items: Indices, rank: int, size: int) -> Indices:
    """Returns the rank's part of `items`. Parts are consecutive, cover all items, and differ by at most one item."""
    return items[len(items) * rank // size : len(items) * (rank + 1) // size]
