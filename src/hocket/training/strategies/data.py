"""Data parallelism: every rank holds all weights, sees its own part of every batch, and the gradients are summed.

Synchronous and lossless: beside rounding it is training in one process. Left out: overlap of computing and
communicating, buckets, sharded weights.
"""

from typing import TYPE_CHECKING

from hocket.training.strategies.strategy import Indices, Numbers

if TYPE_CHECKING:
    import hocket


class DataParallel:
    """A strategy of the training loop, among the ranks of a communicator.

    All ranks start from rank 0's weights and end with equal ones, bit for bit where the all_reduce that runs gives all
    ranks the same bits. Raises CommunicationError.
    """

    def __init__(self, communicator: "hocket.Communicator") -> None:
        self._communicator = communicator

    def begin(self, parameters: Numbers) -> None:
        """Broadcasts rank 0's weights."""
        self._communicator.broadcast(parameters, root=0)

    def own(self, items: Indices) -> Indices:
        """See share."""
        return share(items, self._communicator.rank, self._communicator.size)

    def sum(self, numbers: Numbers) -> None:
        """Sums over all ranks."""
        self._communicator.all_reduce(numbers)

    def seconds(self) -> float:
        """Seconds in collectives of this communicator."""
        return float(self._communicator.statistics["seconds"])


def share(items: Indices, rank: int, size: int) -> Indices:
    """Return the rank's part of `items`: consecutive, disjoint, all covered, lengths equal within one (maybe zero)."""
    return items[len(items) * rank // size : len(items) * (rank + 1) // size]
