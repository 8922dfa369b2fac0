"""Local SGD and DiLoCo: each rank makes several steps on its own, and then the ranks combine what they have learnt.

For slow links: the ranks communicate once in `every` steps, as many bytes as data parallelism does in each step. Left
out: fragments that are sent one after the other, compression, buffers of a module that are no parameters.

References: Stich 2019, "Local SGD converges fast and communicates little"; Douillard et al. 2023, "DiLoCo: distributed
low-communication training of language models".
"""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hocket.training.strategies.data import share
from hocket.training.strategies.flat import FlatParameters
from hocket.training.strategies.momentum import Momentum
from hocket.training.strategies.strategy import Floats, Indices, Numbers, Optimizer

if TYPE_CHECKING:
    from hocket.runtime import Communicator

OUTER_LEARNING_RATE, OUTER_MOMENTUM = 0.7, 0.9  # of DiLoCo's paper


class LocalSGD:
    """Averages the parameters of all ranks after every `every` steps of each rank's own optimizer.

    parameters: as in FlatParameters; they change in place. All ranks make it and call `step` equally often. It gives
    all ranks the parameters of rank 0. With every=1 and SGD it is data parallelism with the mean of the gradients. The
    state of the inner optimizers stays local. Raises ValueError on all ranks if parameters or `every` differ.
    """

    def __init__(self, parameters: Any, communicator: "Communicator", *, every: int) -> None:
        who = type(self).__name__
        self.every = _count(every, who)
        self._communicator = communicator
        self._parameters = FlatParameters(parameters, who)
        self._parameters.agree(communicator, f"every={self.every}")
        communicator.broadcast(self._parameters.vector, root=0)
        self._parameters.write()
        self._num_steps = 0  # since the ranks have last had equal parameters

    def step(self) -> bool:
        """Counts one step of the inner optimizer; after the last of `every` it synchronizes. Returns whether it did."""
        self._num_steps += 1
        if self._num_steps < self.every:
            return False
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Gives all ranks equal parameters now, unless no rank has made a step since they were equal.

        All ranks call it after the same number of steps, for example at the end of training.
        """
        if self._num_steps:
            self._num_steps = 0
            self._parameters.read()
            self._combine()

    def _combine(self) -> None:
        self._communicator.all_reduce(self._parameters.vector, op="avg")
        self._parameters.write()


class DiLoCo(LocalSGD):
    """Applies an outer optimizer to the mean change of all ranks, after every `every` steps of each inner optimizer.

    The outer gradient is the parameters of the last synchronization minus the mean of those that the ranks have now.
    outer: an object with `step(parameters, gradient)`, as Momentum, for the flat vector of all parameters; or an
    optimizer of torch.optim that was made for these same parameters. By default Nesterov momentum with learning rate
    0.7 and momentum 0.9. All ranks give an equal one. The gradients of the inner optimizer stay as they are.
    """

    def __init__(self, parameters: Any, communicator: "Communicator", *, every: int, outer: Any = None) -> None:
        if outer is not None and not callable(getattr(outer, "step", None)):
            raise TypeError(f"DiLoCo: expected outer with a method step, found {outer!r}; Momentum(0.7, 0.9) is one")
        super().__init__(parameters, communicator, every=every)
        self._outer: Any = outer or Momentum(OUTER_LEARNING_RATE, OUTER_MOMENTUM, nesterov=True)
        if hasattr(self._outer, "param_groups"):
            inside = {id(tensor) for group in self._outer.param_groups for tensor in group["params"]}
            if inside != {id(tensor) for tensor in self._parameters.tensors}:
                raise ValueError(
                    "DiLoCo: expected an outer optimizer of the same parameters, found others in its groups"
                )
        self._start = self._parameters.vector.copy()

    def _combine(self) -> None:
        vector = self._parameters.vector
        change = self._start - vector
        self._communicator.all_reduce(change, op="avg")
        vector[:] = self._start
        if hasattr(self._outer, "param_groups"):
            self._parameters.write()
            self._step_torch(change)
            self._parameters.read()
        else:
            self._outer.step(vector, change)
            self._parameters.write()
        self._start[:] = vector

    def _step_torch(self, change: Floats) -> None:
        """Lends the outer gradient to the parameters for one step of an optimizer of PyTorch."""
        import torch

        tensors = self._parameters.tensors
        inner = [tensor.grad for tensor in tensors]
        for tensor, piece in zip(tensors, self._parameters.pieces(change), strict=True):
            tensor.grad = torch.from_numpy(piece)
        self._outer.step()
        for tensor, gradient in zip(tensors, inner, strict=True):
            tensor.grad = gradient


class LocalTraining:
    """Local SGD or DiLoCo as a strategy of the training loop: each rank updates its own weights with its own gradient.

    make: what is made for the weights, for example `lambda weights: DiLoCo(weights, communicator, every=8)`. An epoch
    ends with a synchronization. The loss of a batch is that of all ranks' parts, each at the weights of its rank.
    """

    def __init__(self, communicator: "Communicator", make: Callable[[Floats], LocalSGD]) -> None:
        self._communicator, self._make = communicator, make
        self._local: LocalSGD | None = None

    def begin(self, parameters: Floats) -> None:
        """Makes the local training of these weights, which gives all ranks those of rank 0."""
        self._local = self._make(parameters)

    def own(self, items: Indices) -> Indices:
        """Returns this rank's part of the items, as `share` does."""
        return share(items, self._communicator.rank, self._communicator.size)

    def update(self, parameters: Floats, message: Floats, optimizer: Optimizer) -> None:
        """Applies this rank's gradient, times the number of ranks: the mean over the ranks is that of the batch."""
        optimizer.step(parameters, message[:-1] * self._communicator.size)
        self._begun().step()

    def settle(self, parameters: Floats, losses: NDArray[np.float64]) -> None:
        """Synchronises, and sums the losses of all ranks' parts."""
        self._begun().synchronize()
        self._communicator.all_reduce(losses)

    def sum(self, numbers: Numbers) -> None:
        """Sums the numbers over all ranks, in place."""
        self._communicator.all_reduce(numbers)

    def seconds(self) -> float:
        """Returns the seconds inside collectives of this communicator."""
        return float(self._communicator.statistics["seconds"])

    def _begun(self) -> LocalSGD:
        if self._local is None:
            raise ValueError("LocalTraining: expected begin before the first update; call begin(parameters)")
        return self._local


def _count(every: Any, who: str) -> int:
    try:
        number = operator.index(every)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{who}: expected every, a number of steps, of at least 1, found {every!r}")
    return number
