"""Local SGD and DiLoCo: with one local step they are data parallelism, and with more they still learn."""

from typing import Any

import numpy as np
import pytest

from hocket.training.datasets import load
from hocket.training.loop import TrainingSettings, train
from hocket.training.strategies.local import DiLoCo, LocalSGD, LocalTraining
from hocket.training.strategies.momentum import Momentum
from tests.training.test_data import network_of, on_ranks

SHAPES = ((3,), (2, 2))


def gradients_of(rank: int, step: int) -> list[np.ndarray]:
    random = np.random.default_rng([rank, step])
    return [random.normal(size=shape) for shape in SHAPES]


def stepped(parameters: list[np.ndarray], gradients: list[np.ndarray], learning_rate: float) -> list[np.ndarray]:
    return [one - learning_rate * of for one, of in zip(parameters, gradients, strict=True)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_one_local_step_is_data_parallelism(size: int) -> None:
    def program(communicator: Any) -> list[np.ndarray]:
        parameters = [np.full(shape, 1.0 + communicator.rank) for shape in SHAPES]
        local = LocalSGD(parameters, communicator, every=1)
        for step in range(20):
            for one, new in zip(
                parameters, stepped(parameters, gradients_of(communicator.rank, step), 0.1), strict=True
            ):
                one[:] = new
            assert local.step()
        return parameters

    expected = [np.full(shape, 1.0) for shape in SHAPES]
    for step in range(20):
        ranks = [gradients_of(rank, step) for rank in range(size)]
        expected = stepped(expected, [np.mean(of, axis=0) for of in zip(*ranks, strict=True)], 0.1)
    for parameters in on_ranks(program, size):
        for one, other in zip(parameters, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_ranks_differ_between_synchronizations_and_are_equal_after_each() -> None:
    def program(communicator: Any) -> list[Any]:
        parameters = np.zeros(2)
        local = LocalSGD(parameters, communicator, every=3)
        seen = []
        for _ in range(7):
            parameters += 1.0 + communicator.rank
            local.step()
            seen.append(float(parameters[0]))
        local.synchronize()
        local.synchronize()  # nothing has changed since
        return [*seen, float(parameters[0])]

    first, second = on_ranks(program, 2)
    assert first == [1, 2, 4.5, 5.5, 6.5, 9, 10, 10.5]
    assert second == [2, 4, 4.5, 6.5, 8.5, 9, 11, 10.5]


def test_the_outer_step_is_nesterov_on_the_mean_change() -> None:
    """Two outer steps by hand: the mean change of 2 ranks is 1.5 for each of 2 inner steps, so 3 in all."""

    def program(communicator: Any) -> list[float]:
        parameters = [np.zeros(2), np.zeros((1, 1))]
        local = DiLoCo(parameters, communicator, every=2)
        seen = []
        for step in range(4):
            for one in parameters:
                one += 1.0 + communicator.rank
            if local.step():
                assert step % 2 == 1
                seen.append(float(parameters[1][0, 0]))
        np.testing.assert_array_equal(parameters[0], np.full(2, seen[-1]))
        return seen

    first = 0.7 * (3 + 0.9 * 3)
    second = first + 0.7 * (3 + 0.9 * (0.9 * 3 + 3))
    for seen in on_ranks(program, 2):
        assert seen == pytest.approx([first, second])


def test_an_outer_step_of_length_1_without_momentum_is_the_mean() -> None:
    def program(communicator: Any) -> tuple[bytes, bytes]:
        ends = []
        for make in (
            lambda weights: LocalSGD(weights, communicator, every=4),
            lambda weights: DiLoCo(weights, communicator, every=4, outer=Momentum(1.0)),
        ):
            weights = np.arange(5.0)
            local = make(weights)
            for step in range(8):
                weights += communicator.rank + step
                local.step()
            ends.append(weights.tobytes())
        return ends[0], ends[1]

    for one, other in on_ranks(program, 4):
        assert one == other


# --- in the training loop ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3])
def test_one_local_step_trains_as_one_process_does(size: int) -> None:
    """With momentum, too: the mean of the ranks' velocities is that of one process. Batches have unequal parts."""
    dataset, settings = load(), TrainingSettings(num_epochs=3)
    alone = network_of(dataset, seed=0, dtype=np.float64)
    expected = train(alone, dataset, settings)

    def program(communicator: Any) -> Any:
        network = network_of(dataset, seed=communicator.rank, dtype=np.float64)
        strategy = LocalTraining(communicator, lambda weights: LocalSGD(weights, communicator, every=1))
        return train(network, dataset, settings, strategy), network.parameters

    for history, parameters in on_ranks(program, size):
        np.testing.assert_allclose(history.losses, expected.losses, rtol=1e-10)
        np.testing.assert_allclose(parameters, alone.parameters, rtol=1e-9, atol=1e-12)
        assert history.accuracies == expected.accuracies


@pytest.mark.parametrize("method", [LocalSGD, DiLoCo])
def test_several_local_steps_still_learn_the_digits(method: type[LocalSGD]) -> None:
    dataset, settings = load(), TrainingSettings(num_epochs=10, momentum=0.5)

    def program(communicator: Any) -> Any:
        network = network_of(dataset, seed=communicator.rank)
        before = communicator.statistics["calls"]
        strategy = LocalTraining(communicator, lambda weights: method(weights, communicator, every=8))
        history = train(network, dataset, settings, strategy)
        return history, network.parameters.tobytes(), communicator.statistics["calls"] - before

    ends = on_ranks(program, 4)
    for history, _, num_calls in ends:
        assert history.accuracies[-1] >= 0.9 and history.losses[-1] < 0.2 * history.losses[0]
        assert num_calls < 0.4 * len(history.losses), "far fewer collectives than steps"
    assert len({weights for _, weights, _ in ends}) == 1
    assert all(history.losses == ends[0][0].losses for history, _, _ in ends)


# --- PyTorch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [LocalSGD, DiLoCo])
def test_a_module_is_trained_as_its_parameters_in_numpy_are(method: type[LocalSGD]) -> None:
    import torch

    def program(communicator: Any) -> None:
        module = torch.nn.Linear(3, 2, dtype=torch.float64)
        weights = [tensor.detach().clone().numpy() for tensor in module.parameters()]
        outer = {}
        if method is DiLoCo:
            outer["outer"] = torch.optim.SGD(module.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        theirs, ours = method(module, communicator, every=2, **outer), method(weights, communicator, every=2)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for step in range(6):
            module(torch.full((1, 3), 1.0 + communicator.rank + step, dtype=torch.float64)).square().sum().backward()
            for weight, tensor in zip(weights, module.parameters(), strict=True):
                weight -= 0.1 * tensor.grad.numpy()
            optimizer.step()
            kept = [tensor.grad for tensor in module.parameters()]
            assert theirs.step() == ours.step() == (step % 2 == 1)
            assert all(tensor.grad is one for tensor, one in zip(module.parameters(), kept, strict=True))
            optimizer.zero_grad()
            for weight, tensor in zip(weights, module.parameters(), strict=True):
                np.testing.assert_allclose(tensor.detach().numpy(), weight, rtol=1e-10)

    on_ranks(program, 2)


def test_the_outer_optimizer_has_the_same_parameters() -> None:
    import torch

    module, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)

    def program(communicator: Any) -> None:
        with pytest.raises(ValueError, match="an outer optimizer of the same parameters, found others in its groups"):
            DiLoCo(module, communicator, every=2, outer=torch.optim.SGD(other.parameters(), lr=0.7))

    on_ranks(program, 1)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [0, -1, 1.5, None])
def test_bad_numbers_of_steps(every: Any) -> None:
    def program(communicator: Any) -> None:
        for method in (LocalSGD, DiLoCo):
            with pytest.raises(
                ValueError, match=f"^{method.__name__}: expected every, a number of steps, of at least 1"
            ):
                method(np.zeros(3), communicator, every=every)

    on_ranks(program, 2)


@pytest.mark.parametrize(("every", "size"), [(2, 3), (1, 4)])
def test_what_differs_between_ranks_is_refused_on_all_ranks(every: int, size: int) -> None:
    def program(communicator: Any) -> float:
        is_last = communicator.rank == 2
        with pytest.raises(ValueError, match=r"LocalSGD: .* found .* on rank 0 and .* on rank 2"):
            LocalSGD(np.zeros(size if is_last else 3), communicator, every=every if is_last else 1)
        return float(communicator.all_reduce(np.ones(1))[0])

    assert on_ranks(program, 3) == [3.0] * 3


def test_bad_outer_optimizer_and_a_loop_that_has_not_begun() -> None:
    def program(communicator: Any) -> None:
        with pytest.raises(TypeError, match="expected outer with a method step, found 'nesterov'"):
            DiLoCo(np.zeros(3), communicator, every=2, outer="nesterov")
        strategy = LocalTraining(communicator, lambda weights: LocalSGD(weights, communicator, every=1))
        with pytest.raises(ValueError, match="expected begin before the first update"):
            strategy.update(np.zeros(3), np.zeros(4), Momentum(0.1))

    on_ranks(program, 1)
