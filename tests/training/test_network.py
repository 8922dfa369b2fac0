"""The backward pass against finite differences, and that parts of a batch add up to the whole."""

import numpy as np
import pytest

from hocket.training.model import Classifier


def some_batch(count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    return random.normal(size=(count, 5)), random.integers(0, 3, count)


@pytest.mark.parametrize("sizes", [(5, 3), (5, 7, 3), (5, 4, 6, 3)])
def test_gradient_is_the_slope_of_the_loss(sizes: tuple[int, ...]) -> None:
    network = Classifier(sizes, seed=0, dtype=np.float64)
    images, labels = some_batch()
    gradient, unused = np.empty_like(network.parameters), np.empty_like(network.parameters)
    network.gradient(images, labels, batch_size=12, out=gradient)

    slopes, step = np.empty_like(gradient), 1e-6
    for index in range(len(slopes)):
        kept = network.parameters[index]
        network.parameters[index] = kept + step
        above = network.gradient(images, labels, batch_size=12, out=unused)
        network.parameters[index] = kept - step
        below = network.gradient(images, labels, batch_size=12, out=unused)
        network.parameters[index] = kept
        slopes[index] = (above - below) / (2 * step)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("cuts", [(6,), (1, 2), (0, 12), (5, 5, 9)])
def test_parts_of_a_batch_add_up_to_the_whole(cuts: tuple[int, ...]) -> None:
    network = Classifier((5, 7, 3), seed=0, dtype=np.float64)
    images, labels = some_batch()
    whole, part, total = (np.zeros_like(network.parameters) for _ in range(3))
    loss = network.gradient(images, labels, batch_size=12, out=whole)
    sum_of_losses = 0.0
    for some, of in zip(np.split(images, cuts), np.split(labels, cuts), strict=True):
        sum_of_losses += network.gradient(some, of, batch_size=12, out=part)
        total += part
    np.testing.assert_allclose(total, whole, atol=1e-15)
    assert sum_of_losses == pytest.approx(loss)


def test_loss_is_the_mean_cross_entropy_even_for_huge_scores() -> None:
    network = Classifier((5, 3), seed=0)
    network.parameters[:] = 0
    images, labels = some_batch()
    out = np.empty_like(network.parameters)
    assert network.gradient(images, labels, batch_size=12, out=out) == pytest.approx(np.log(3))
    network.parameters[:] = 1e4
    assert np.isfinite(network.gradient(images, labels, batch_size=12, out=out)) and np.isfinite(out).all()


def test_parameters_are_the_network() -> None:
    ours, other = Classifier((5, 4, 3), seed=0), Classifier((5, 4, 3), seed=1)
    images, labels = some_batch()
    assert not np.array_equal(ours.logits(images), other.logits(images))
    ours.parameters[:] = other.parameters
    np.testing.assert_array_equal(ours.logits(images), other.logits(images))
    assert ours.parameters.shape == (5 * 4 + 4 + 4 * 3 + 3,) and ours.parameters.dtype == np.float32
    assert ours.correct(images, ours.logits(images).argmax(axis=1)) == len(labels)
    assert ours.logits(images[:0]).shape == (0, 3) and ours.correct(images[:0], labels[:0]) == 0
