"""What schedules are written with: the operations of a rank, as arrays.

Operations are int32 arrays of shape (n, 4). Columns: kind, stage, micro-batch, and 1 where an operation overlaps the
one before it, else 0.
"""

import numpy as np

from hocket.training.pipeline.table import FORWARD, FULL_BACKWARD, INPUT_BACKWARD, WEIGHT_BACKWARD, Ints


class OperationQueue:
    """The operations of one kind and stage: `take` hands out the next ones, in the order of the micro-batches.

    microbatches: how many, or which.
    """

    def __init__(self, kind: int, stage: int, microbatches: int | range) -> None:
        numbers = range(microbatches) if isinstance(microbatches, int) else microbatches
        self._left = np.zeros((len(numbers), 4), np.int32)
        self._left[:, 0], self._left[:, 1], self._left[:, 2] = kind, stage, numbers

    def take(self, count: int | None = None) -> Ints:
        """The next `count` operations; fewer if fewer are left, and all of them by default."""
        taken, self._left = self._left[:count], self._left[len(self._left) if count is None else count :]
        return taken


def forward(stage: int, microbatches: int | range) -> OperationQueue:
    """F of a stage for these micro-batches."""
    return OperationQueue(FORWARD, stage, microbatches)


def backward(stage: int, microbatches: int | range) -> OperationQueue:
    """B of a stage for these micro-batches; `full` makes G of them, and `weight` gives the W that belong to them."""
    return OperationQueue(INPUT_BACKWARD, stage, microbatches)


def _changed(operations: Ints, column: int, value: int) -> Ints:
    changed = operations.copy()
    changed[:, column] = value
    return changed


def full(operations: Ints) -> Ints:
    """The full backward G in the place of each B."""
    return _changed(operations, 0, FULL_BACKWARD)


def weight(operations: Ints) -> Ints:
    """The weight backward W that belongs to each B."""
    return _changed(operations, 0, WEIGHT_BACKWARD)


def overlapped(operations: Ints) -> Ints:
    """The same operations, each of which forms an overlapped pair with the operation before it."""
    return _changed(operations, 3, 1)


def alternate(*parts: Ints) -> Ints:
    """The first operation of each part, then the second of each, and so on. ValueError if lengths differ."""
    if len({len(part) for part in parts}) > 1:
        raise ValueError(f"expected parts of equal length, found {', '.join(str(len(part)) for part in parts)}")
    return np.stack(parts, axis=1).reshape(-1, 4)
