"""One flat vector in the place of a list of arrays, so that one message or one collective moves all of them.

A single contiguous array is its own vector, and nothing is copied. Left out: parameters of several types, and types
other than float32 and float64, in which updates would be lost to rounding.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hocket.training.strategies.strategy import Floats

if TYPE_CHECKING:
    from hocket.runtime import Communicator


class FlatParameters:
    """The parameters of a model as one vector.

    parameters: a NumPy array, a CPU tensor of PyTorch, a list of them, or a torch module. All have the same type,
    float32 or float64 (TypeError). vector: shape (num_elements,); `read` fills it from the arrays, and `write` fills
    the arrays from it. It shares the memory of a single contiguous array. who: the name in errors.
    """

    def __init__(self, parameters: Any, who: str) -> None:
        self._who = who
        self.tensors = _listed(parameters)
        self._arrays = [_array_of(tensor, f"{who}: parameter {at}") for at, tensor in enumerate(self.tensors)]
        self.shapes = [array.shape for array in self._arrays]
        types = sorted({str(array.dtype) for array in self._arrays})
        if types not in (["float32"], ["float64"]):
            raise TypeError(f"{who}: expected parameters that are all float32 or all float64, found {types or 'none'}")
        for at, array in enumerate(self._arrays):
            if not array.flags.writeable:
                raise ValueError(f"{who}: expected parameters that can be written, parameter {at} is read-only")
        first = self._arrays[0]
        is_alone = len(self._arrays) == 1 and first.flags.c_contiguous
        self.vector: Floats = first.reshape(-1) if is_alone else np.concatenate([one.ravel() for one in self._arrays])
        self._places = [] if is_alone else self.pieces(self.vector)

    def pieces(self, vector: Floats) -> list[Floats]:
        """Returns views of a vector of the same length, in the shapes of the parameters."""
        ends = np.cumsum([array.size for array in self._arrays])
        parts = np.split(vector, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def read(self) -> None:
        """Copies the arrays into the vector."""
        for place, array in zip(self._places, self._arrays, strict=bool(self._places)):
            np.copyto(place, array)

    def write(self) -> None:
        """Copies the vector into the arrays."""
        for place, array in zip(self._places, self._arrays, strict=bool(self._places)):
            np.copyto(array, place)

    def flat(self, gradients: Any, where: str) -> Floats:
        """Returns gradients, shaped and typed like the parameters, as one vector; it may share their memory.

        A gradient that is None counts as zeros. Raises ValueError or TypeError, which begin with `where`, if number,
        shape or type are others.
        """
        listed = _listed(gradients)
        if len(listed) != len(self._arrays):
            raise ValueError(
                f"{where}: expected {len(self._arrays)} gradients, one for each parameter, found {len(listed)}"
            )
        found = [
            np.zeros_like(array) if one is None else _array_of(one, f"{where}: gradient {at}")
            for at, (one, array) in enumerate(zip(listed, self._arrays, strict=True))
        ]
        for at, (one, array) in enumerate(zip(found, self._arrays, strict=True)):
            if one.shape != array.shape or one.dtype != array.dtype:
                raise ValueError(
                    f"{where}: expected gradient {at} like its parameter, {array.dtype} {array.shape}, "
                    f"found {one.dtype} {one.shape}"
                )
        return found[0].reshape(-1) if len(found) == 1 else np.concatenate([one.ravel() for one in found])

    def agree(self, communicator: "Communicator", settings: str) -> None:
        """Raises ValueError on all ranks if parameters or settings of the ranks differ. All ranks call it."""
        if not hasattr(communicator, "all_gather_object"):
            raise TypeError(f"{self._who}: expected a communicator, found {communicator!r}")
        said = (len(self.shapes), str(self.vector.dtype), *self.shapes, settings)
        ranks: list[tuple[object, ...]] = communicator.all_gather_object(said)
        for rank, other in enumerate(ranks):
            if other != ranks[0]:
                here, there = next(pair for pair in zip(ranks[0], other, strict=False) if pair[0] != pair[1])
                raise ValueError(
                    f"{self._who}: expected the same parameters and settings on all ranks, found {here} on rank 0 and "
                    f"{there} on rank {rank}"
                )


def _listed(parameters: Any) -> Sequence[Any]:
    """Returns the arrays of a list, of a module, or of a single array."""
    if hasattr(parameters, "named_parameters"):  # a torch module
        return list(parameters.parameters())
    if hasattr(parameters, "dtype") or not isinstance(parameters, Iterable):
        return [parameters]
    return list(parameters)


def _array_of(tensor: Any, where: str) -> NDArray[Any]:
    """Returns a NumPy array with the memory of a NumPy array or a CPU tensor. Raises TypeError for anything else."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if hasattr(tensor, "detach"):
        try:
            array: NDArray[Any] = tensor.detach().numpy()
        except (TypeError, RuntimeError) as error:
            raise TypeError(f"{where}: expected a CPU tensor of float32 or float64: {error}") from error
        return array
    raise TypeError(f"{where}: expected a NumPy array or a CPU tensor of PyTorch, found a {type(tensor).__name__}")
