"""Faults of data parallelism that nobody is told of in other systems, and failures that leave no rank waiting.

The first ones are wrong sums: of gradients in another order, of stale weights, of sums that are summed again.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hocket.errors import CollectiveMismatch, PeerAborted
from hocket.training import DataParallel
from tests.training.test_data import on_ranks
from tests.training.test_data_parallel import (
    NUM_RANKS,
    NUM_SAMPLES,
    NUM_STEPS,
    TOLERANCE,
    Branches,
    alone,
    assert_equal,
    assert_near,
    gradients_of,
    part,
    perceptron,
    samples,
    seeded,
    squares,
    together,
    weights_of,
)

pytestmark = pytest.mark.usefixtures("one_thread_per_rank")


class Ordered(nn.Module):
    """Four branches that a rank may compute in any order; a backward pass goes through them the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(13, 3) for _ in range(4)).double()

    def forward(self, x: torch.Tensor, order: list[int]) -> torch.Tensor:
        outputs = {number: self.branches[number](x) for number in order}
        return outputs[0] + outputs[1] + outputs[2] + outputs[3]  # type: ignore[no-any-return]


@pytest.mark.parametrize("manner", [{"buckets": None}, {"buckets": 400}])
def test_gradients_that_ranks_produce_in_different_order(manner: dict[str, Any]) -> None:
    produced: list[Any] = [[] for _ in range(NUM_RANKS)]

    def turned(forward: Any, x: Any, y: Any, step: int, rank: int) -> Any:
        order = [(number + rank) % 4 for number in range(4)]
        if isinstance(forward, DataParallel) and step == 0:
            for number, branch in enumerate(forward.module.branches):
                branch.weight.register_post_accumulate_grad_hook(lambda _, number=number: produced[rank].append(number))
        return ((forward(x, order if rank % 2 else order[::-1]) - y) ** 2).sum()

    assert_equal(together(Ordered, turned, **manner), alone(Ordered, turned))
    assert len({tuple(order[:4]) for order in produced}) == NUM_RANKS, "each rank has another order"


def test_no_rank_uses_stale_weights() -> None:
    """The forward pass uses weights in another order than they are registered; each sees those of the last step."""

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.middle, self.first = nn.Linear(17, 3), nn.Linear(31, 17), nn.Linear(13, 31)
            self.double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.setdefault(threading.get_ident(), []).append(weights_of(self))
            return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))  # type: ignore[no-any-return]

    seen: dict[int, list[np.ndarray]] = {}
    together(Backwards, buckets=300)
    ranks = list(seen.values())
    seen.clear()
    alone(Backwards)
    assert [len(rank) for rank in ranks] == [NUM_STEPS] * NUM_RANKS
    expected = next(iter(seen.values()))[::NUM_RANKS]  # one process makes a forward pass for each rank
    for step in range(NUM_STEPS):
        for rank in ranks:
            assert_near(rank[step], expected[step], f"step {step}")
        assert step == 0 or np.abs(expected[step] - expected[step - 1]).max() > 1e-3, "a step changes weights"


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("manner", [{}, {"buckets": None}, {"overlap": False}])
def test_accumulated_gradients_are_not_scaled(op: Any, manner: dict[str, Any]) -> None:
    """Three parts of each batch, of which the last one communicates; the norm that clip() returns is the whole one."""
    num_parts, max_norm = 3, 0.7

    def program(comm: Any) -> Any:
        network = seeded(perceptron, comm.rank)
        norms = []
        with DataParallel(network, comm, op=op, **manner) as model:
            optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
            for step in range(NUM_STEPS):
                x, y = (part(each, comm.rank, comm.size) for each in samples(step))
                optimizer.zero_grad(set_to_none=step % 2 == 0)
                for number in range(num_parts):
                    inputs, targets = part(x, number, num_parts), part(y, number, num_parts)
                    with model.no_sync(unless=number == num_parts - 1):
                        loss = squares(model, inputs, targets, step, comm.rank) / NUM_SAMPLES
                        (loss if op == "sum" else loss * comm.size).backward()
                norms.append(model.clip(max_norm))
                optimizer.step()
            assert model.report().num_negotiated + model.report().num_replayed == NUM_STEPS
        return norms, network

    network, norms = seeded(perceptron, 0), []
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for step in range(NUM_STEPS):
        x, y = samples(step)
        optimizer.zero_grad()
        (squares(network, x, y, step, 0) / NUM_SAMPLES).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(network.parameters(), max_norm)))
        optimizer.step()
    assert max(norms) > max_norm
    for found, trained in on_ranks(program, NUM_RANKS):
        np.testing.assert_allclose(found, norms, rtol=TOLERANCE)
        assert_near(weights_of(trained), weights_of(network), "weights")


def test_ranks_with_another_number_of_parts_end_the_round_by_sync() -> None:
    def program(comm: Any) -> list[Any]:
        network = seeded(perceptron, comm.rank)
        with DataParallel(network, comm, op="sum") as model:
            for step in range(5):
                network.zero_grad()
                x, y = (part(each, comm.rank, comm.size) for each in samples(step))
                for number in range(comm.rank):  # rank 0 has none
                    with model.no_sync():
                        squares(model, part(x, number, comm.rank), part(y, number, comm.rank), 0, 0).backward()
                model.sync()
        return gradients_of(network)

    network = seeded(perceptron, 0)
    for x, y in [[part(each, rank, 3) for each in samples(4)] for rank in (1, 2)]:
        squares(network, x, y, 0, 0).backward()
    for found in on_ranks(program, 3):
        for gradient, expected in zip(found, gradients_of(network), strict=True):
            assert_near(gradient, expected, "gradient")


def test_a_gradient_stays_through_passes_that_do_not_use_its_parameter() -> None:
    """Only the first pass uses the branch. After three more the order is locked, and each round has all tensors."""

    def steps(forward: Any, share: Callable[[Any], Any]) -> None:
        for step in range(8):
            x, y = (share(each[:36]) for each in samples(step))
            nn.functional.mse_loss(forward(x, step == 0), y).backward()

    def program(comm: Any) -> list[Any]:
        network = seeded(Branches, comm.rank)
        with DataParallel(network, comm) as model:
            steps(model, lambda x: part(x, comm.rank, comm.size))
            assert model.report().num_replayed == 4
        return gradients_of(network)

    network = seeded(Branches, 0)
    steps(network, lambda x: x)
    for found in on_ranks(program, 3):
        for gradient, expected in zip(found, gradients_of(network), strict=True):
            assert_near(gradient, expected, "gradient")


def test_averages_add_up_over_passes_that_all_communicate() -> None:
    """Without no_sync and zero_grad, each pass adds its mean to the last one, as in PyTorch's DDP."""

    def program(comm: Any) -> list[Any]:
        network = seeded(perceptron, comm.rank)
        with DataParallel(network, comm) as model:
            for step in range(5):
                x, y = (part(each[:36], comm.rank, comm.size) for each in samples(step))
                nn.functional.mse_loss(model(x), y).backward()
        return gradients_of(network)

    network = seeded(perceptron, 0)
    for step in range(5):
        x, y = (each[:36] for each in samples(step))
        nn.functional.mse_loss(network(x), y).backward()
    for found in on_ranks(program, 3):
        for gradient, expected in zip(found, gradients_of(network), strict=True):
            assert_near(gradient, expected, "gradient")


@pytest.mark.parametrize("is_clipped", [False, True])
@pytest.mark.parametrize("in_no_sync", [False, True])
def test_a_sum_that_would_be_summed_again_is_refused(is_clipped: bool, in_no_sync: bool) -> None:
    """Each rank would add the same sum once more: the gradient would grow with the number of ranks, silently."""

    def program(comm: Any) -> None:
        network = seeded(perceptron, comm.rank)
        x, y = (part(each, comm.rank, comm.size) for each in samples(0))
        model = DataParallel(network, comm, op="sum")
        squares(model, x, y, 0, 0).backward()
        if is_clipped:
            model.clip(1e-3)
        refused = pytest.raises(RuntimeError, match=r"is already a sum over the ranks.*call zero_grad\(\) before it")
        with refused, model.no_sync(unless=not in_no_sync):
            squares(model, x, y, 0, 0).backward()
        model.close()

    on_ranks(program, 2)


class Recomputing(nn.Module):
    """Computes its middle once more in the backward pass, which has a backward pass of its own inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(13, 7), nn.Linear(7, 7), nn.Linear(7, 3)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(lambda x: torch.tanh(self.middle(x)), torch.tanh(self.first(x)), use_reentrant=True)
        return self.last(hidden)  # type: ignore[no-any-return]


def test_a_backward_pass_inside_a_backward_pass() -> None:
    assert_equal(together(Recomputing), alone(Recomputing))


# --- models that differ, failures, the end ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["shape", "dtype", "name"])
def test_models_that_differ_are_refused_on_every_rank_before_anything_changes(kind: str) -> None:
    def program(comm: Any) -> tuple[str, bool]:
        network = seeded(perceptron, comm.rank)
        if comm.rank == 2:
            network[2] = {"shape": nn.Linear(31, 18).double(), "dtype": nn.Linear(31, 17), "name": nn.Tanh()}[kind]
        before = weights_of(network)
        with pytest.raises(CollectiveMismatch, match=r"'2\.bias'") as caught:
            DataParallel(network, comm)
        assert caught.value.field == kind and len(caught.value.values) == comm.size
        network[0](torch.ones(1, 13).double()).sum().backward()  # no hook is left
        assert gradients_of(network)[0] is not None
        comm.barrier()
        return str(caught.value), bool((weights_of(network) == before).all())

    messages = on_ranks(program, 3)
    assert len(set(messages)) == 1 and messages[0][1]


@pytest.mark.parametrize("place", ["loss", "hook", "forward"])
@pytest.mark.parametrize("num_steps", [0, 5])
def test_an_exception_in_one_rank_ends_the_others(place: str, num_steps: int) -> None:
    """In a round that is negotiated, and in a locked one: nobody waits for a rank that has failed."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("the user's own mistake")

    def program(comm: Any) -> None:
        network = seeded(perceptron, comm.rank)
        with DataParallel(network, comm, buckets=300) as model:
            x, y = (part(each, comm.rank, comm.size) for each in samples(0))
            for _ in range(num_steps):
                squares(model, x, y, 0, 0).backward()
            together.wait()  # all ranks have got this far
            try:
                if comm.rank == 1 and place == "loss":
                    fail()
                if comm.rank == 1 and place == "hook":
                    network[2].weight.register_hook(fail)
                if comm.rank == 1 and place == "forward":
                    network[2].register_forward_hook(fail)
                squares(model, x, y, 0, 0).backward()
            except PeerAborted as error:
                told.append((comm.rank, error.rank, "the user's own mistake" in str(error)))
                raise

    told: list[Any] = []
    together = threading.Barrier(3)
    with pytest.raises(ZeroDivisionError, match="the user's own mistake"):
        on_ranks(program, 3)
    assert sorted(told) == [(0, 1, True), (2, 1, True)]


def test_gradients_that_were_zeroed_after_no_sync_do_not_come_back() -> None:
    """A parameter that only the passes inside no_sync use has no gradient after zero_grad(), and none later."""

    def program(comm: Any) -> None:
        network = nn.ModuleList(nn.Linear(3, 3, dtype=torch.float64) for _ in range(2))
        x = torch.ones(2, 3, dtype=torch.float64)
        with DataParallel(network, comm) as model:
            with model.no_sync():
                network[1](network[0](x)).sum().backward()
            network.zero_grad()
            network[0](x).sum().backward()
        assert network[0].weight.grad is not None and network[1].weight.grad is None

    on_ranks(program, 2)
