"""SGD with momentum against PyTorch, and on parts of a vector as on the whole."""

import numpy as np
import pytest

from hocket.training.strategies.momentum import Momentum


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_steps_are_those_of_pytorch(momentum: float, nesterov: bool) -> None:
    import torch

    random = np.random.default_rng(0)
    parameters = random.normal(size=9)
    theirs = torch.nn.Parameter(torch.tensor(parameters))
    reference = torch.optim.SGD([theirs], lr=0.3, momentum=momentum, nesterov=nesterov)
    optimizer = Momentum(0.3, momentum, nesterov=nesterov)
    for _ in range(5):
        gradient = random.normal(size=9)
        theirs.grad = torch.tensor(gradient)
        reference.step()
        kept = gradient.copy()
        optimizer.step(parameters, gradient)
        np.testing.assert_array_equal(gradient, kept)
        np.testing.assert_allclose(parameters, theirs.detach().numpy(), rtol=1e-13)


def test_a_part_of_the_vector_is_updated_as_in_the_whole() -> None:
    random = np.random.default_rng(1)
    whole = random.normal(size=10).astype(np.float32)
    parts = whole.copy()
    optimizers = [Momentum(0.1, 0.9), Momentum(0.1, 0.9)]
    of_whole = Momentum(0.1, 0.9)
    for _ in range(4):
        gradient = random.normal(size=10).astype(np.float32)
        of_whole.step(whole, gradient)
        for optimizer, part in zip(optimizers, (slice(0, 3), slice(3, 10)), strict=True):
            optimizer.step(parts[part], gradient[part])
    assert whole.tobytes() == parts.tobytes() and whole.dtype == np.float32


@pytest.mark.parametrize(
    ("learning_rate", "momentum", "told"),
    [
        (-0.1, 0.9, "a learning rate of at least 0, found -0.1"),
        (float("nan"), 0.9, "a learning rate of at least 0, found nan"),
        (0.1, 1.0, "a momentum of at least 0 and less than 1, found 1.0"),
        (0.1, -0.5, "a momentum of at least 0 and less than 1, found -0.5"),
    ],
)
def test_bad_settings(learning_rate: float, momentum: float, told: str) -> None:
    with pytest.raises(ValueError, match=f"^Momentum: expected {told}"):
        Momentum(learning_rate, momentum)


def test_an_optimizer_belongs_to_one_array() -> None:
    optimizer = Momentum(0.1)
    optimizer.step(np.zeros(3), np.ones(3))
    for parameters, gradient in ((np.zeros(4), np.ones(4)), (np.zeros(3), np.ones(1))):
        with pytest.raises(ValueError, match=r"shape \(3,\), as in the first step, found .*optimizer of its own"):
            optimizer.step(parameters, gradient)
