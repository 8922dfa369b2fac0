"""A small network of dense layers; its forward and backward pass are written out in NumPy.

All weights are one flat vector, and the gradient is another, so one collective moves either. Left out: convolutions,
activations other than tanh, automatic differentiation.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.floating]


class Classifier:
    """Dense layers with tanh between them; softmax and cross-entropy at the end.

    sizes: the widths from the input features to the classes. parameters: the flat vector of all weights, of shape
    (num_parameters,); the layers are views of it, so a write to it (for example by a broadcast) changes the network.
    """

    def __init__(self, sizes: Sequence[int], *, seed: int, dtype: DTypeLike = np.float32) -> None:
        self.sizes = tuple(sizes)
        num_parameters = sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(self.sizes))
        self.parameters: Array = np.zeros(num_parameters, dtype)
        self._layers = self._views(self.parameters)
        random = np.random.default_rng(seed)
        for weights, _ in self._layers:  # Glorot and Bengio 2010: keeps the variance of activations and gradients
            weights[:] = random.normal(0.0, np.sqrt(2.0 / sum(weights.shape)), weights.shape)

    def _views(self, flat: Array) -> list[tuple[Array, Array]]:
        """Returns (weights, biases) of every layer as views of a flat vector."""
        views, at = [], 0
        for fan_in, fan_out in pairwise(self.sizes):
            weights = flat[at : at + fan_in * fan_out].reshape(fan_in, fan_out)
            at += fan_in * fan_out
            views.append((weights, flat[at : at + fan_out]))
            at += fan_out
        return views

    def logits(self, images: Array) -> Array:
        """Returns scores of shape (len(images), classes) for images of shape (any, features)."""
        return self._forward(images)[-1]

    def correct(self, images: Array, labels: NDArray[np.int64]) -> int:
        """Returns the number of images whose highest score is at their label."""
        return int(np.count_nonzero(self.logits(images).argmax(axis=1) == labels))

    def gradient(self, images: Array, labels: NDArray[np.int64], *, batch_size: int, out: Array) -> float:
        """Writes the gradient of the loss into `out` (shape of `parameters`) and returns the loss.

        Both are sums over these images divided by `batch_size`. So the results of the parts of a batch add up to the
        mean over the batch, even if parts are unequal or empty.
        """
        activations = self._forward(images)
        scores = activations.pop()
        scores -= scores.max(axis=1, keepdims=True)
        exponentials = np.exp(scores)
        totals = exponentials.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = float((np.log(totals[:, 0]) - scores[rows, labels]).sum()) / batch_size

        error = exponentials / totals  # gradient of softmax with cross-entropy: probabilities minus the one-hot label
        error[rows, labels] -= 1
        error /= batch_size
        gradients = self._views(out)
        for layer in reversed(range(len(self._layers))):
            weights, biases = gradients[layer]
            np.matmul(activations[layer].T, error, out=weights)
            error.sum(axis=0, out=biases)
            if layer:
                error = (error @ self._layers[layer][0].T) * (1 - activations[layer] ** 2)
        return loss

    def _forward(self, images: Array) -> list[Array]:
        """Returns the inputs of every layer, then the scores."""
        values = [np.asarray(images, self.parameters.dtype)]
        for layer, (weights, biases) in enumerate(self._layers):
            total = values[-1] @ weights + biases
            values.append(total if layer == len(self._layers) - 1 else np.tanh(total))
        return values
