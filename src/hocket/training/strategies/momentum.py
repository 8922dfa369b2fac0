"""Stochastic gradient descent with momentum, in NumPy, in place on a flat array.

Left out: weight decay, dampening, schedules of the learning rate, other optimizers.
"""

import numpy as np

from hocket import runtime
from hocket.training.strategies.strategy import Floats


class Momentum:
    """SGD with momentum, plain or as Nesterov's (Sutskever et al. 2013, in the form that PyTorch computes).

    v = momentum * v + gradient; parameters -= learning_rate * v, or learning_rate * (gradient + momentum * v) with
    nesterov. The velocity v belongs to one array, from the first step on, and starts at 0. Arrays are flat, or of any
    one shape, and stay in their type. Raises ValueError unless 0 <= momentum < 1 and learning_rate >= 0.
    """

    def __init__(self, learning_rate: float, momentum: float = 0.0, *, nesterov: bool = False) -> None:
        if not learning_rate >= 0:
            raise ValueError(f"Momentum: expected a learning rate of at least 0, found {learning_rate!r}")
        if not 0 <= momentum < 1:
            raise ValueError(f"Momentum: expected a momentum of at least 0 and less than 1, found {momentum!r}")
        self.learning_rate, self.momentum, self.nesterov = learning_rate, momentum, nesterov
        self._velocity: Floats | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes of the velocity; 0 before the first step."""
        return 0 if self._velocity is None else self._velocity.nbytes

    def step(self, parameters: Floats, gradient: Floats) -> None:
        """Makes one step of `parameters`, in place. Raises ValueError if the shape is not that of the first step."""
        if self._velocity is None:
            self._velocity = np.zeros_like(parameters)
        if not self._velocity.shape == parameters.shape == gradient.shape:
            raise ValueError(
                f"Momentum.step: expected parameters and gradient of shape {self._velocity.shape}, as in the first "
                f"step, found {parameters.shape} and {gradient.shape}; each array needs an optimizer of its own"
            )
        with runtime.span("update"):
            self._velocity *= self.momentum
            self._velocity += gradient
            direction = gradient + self.momentum * self._velocity if self.nesterov else self._velocity
            parameters -= self.learning_rate * direction
