"""How much memory a rank holds for the state of training: measured from storages, each counted once."""

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import torch


class StateBytes(NamedTuple):
    """Bytes of memory that one rank holds at a moment."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """The sum of all three."""
        return sum(self)

    @classmethod
    def of(cls, parameters: Iterable[Any], gradients: Iterable[Any], optimizers: Iterable[Any]) -> Self:
        """Measures tensors of parameters and of gradients, and the state of optimizers of PyTorch."""
        states = [state for optimizer in optimizers for state in optimizer.state.values()]
        values = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
        return cls(_bytes_of(parameters), _bytes_of(gradients), _bytes_of(values))


def _bytes_of(tensors: Iterable[Any]) -> int:
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): int(storage.nbytes()) for storage in storages}.values())
