"""Data parallelism of PyTorch modules and of arrays: in every manner it is what one process does with the whole batch.

In float64, the largest difference of every gradient and of 20 losses is at most 1e-10 of their largest value.
"""

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hocket.training import DataParallel
from tests.training.test_data import on_ranks

NUM_STEPS, NUM_SAMPLES, NUM_RANKS = 20, 37, 4
TOLERANCE = 1e-10
MANNERS: tuple[dict[str, Any], ...] = (
    {},
    {"buckets": None},
    {"buckets": "one"},
    {"buckets": 500},
    {"buckets": None, "overlap": False},
    {"buckets": "one", "overlap": False},
    {"buckets": 300, "overlap": False},
)
_seeding = threading.Lock()  # held by the rank that draws weights: the generator belongs to the process


pytestmark = pytest.mark.usefixtures("one_thread_per_rank")


def seeded(make: Callable[[], Any], seed: int) -> Any:
    with _seeding:
        torch.manual_seed(seed)
        return make()


def perceptron() -> nn.Module:
    layers = nn.Linear(13, 31), nn.Tanh(), nn.Linear(31, 17), nn.Tanh(), nn.Linear(17, 3)
    return nn.Sequential(*layers).double()


def samples(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of a step: 37 samples, which no number of ranks but 37 divides."""
    generator = torch.Generator().manual_seed(step)
    return tuple(torch.randn(NUM_SAMPLES, size, generator=generator, dtype=torch.float64) for size in (13, 3))  # type: ignore[return-value]


def part(x: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    return x[len(x) * rank // size : len(x) * (rank + 1) // size]


def gradients_of(network: nn.Module) -> list[Any]:
    return [None if one.grad is None else one.grad.detach().double().numpy().copy() for one in network.parameters()]


def weights_of(network: nn.Module) -> np.ndarray:
    return np.concatenate([one.detach().double().numpy().ravel() for one in network.parameters()])


Losses = Callable[[Callable[[Any], Any], Any, Any, int, int], Any]


def squares(forward: Any, x: Any, y: Any, step: int, rank: int) -> Any:
    return ((forward(x) - y) ** 2).sum()


class Trained:
    """What training has left: losses, gradients of every step, and the network."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.losses: list[Any] = []
        self.gradients: list[list[Any]] = []

    def steps(
        self, forward: Any, ranks: range, size: int, loss_of: Losses = squares, set_to_none: bool = True
    ) -> "Trained":
        """Makes 20 steps with the parts of these ranks, among so many; one process has all of them."""
        trained = [one for one in self.network.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1)
        for step in range(NUM_STEPS):
            x, y = samples(step)
            optimizer.zero_grad(set_to_none)
            losses = [loss_of(forward, part(x, rank, size), part(y, rank, size), step, rank) for rank in ranks]
            loss = sum(losses) / NUM_SAMPLES
            loss.backward()
            self.gradients.append(gradients_of(self.network))
            optimizer.step()
            self.losses.append(loss.detach())
        return self


def alone(
    make: Callable[[], Any], loss_of: Losses = squares, set_to_none: bool = True, size: int = NUM_RANKS
) -> Trained:
    network = seeded(make, 0)
    return Trained(network).steps(network, range(size), size, loss_of, set_to_none)


def together(
    make: Callable[[], Any],
    loss_of: Losses = squares,
    set_to_none: bool = True,
    size: int = NUM_RANKS,
    **manner: Any,
) -> list[Trained]:
    def program(comm: Any) -> Trained:
        network = seeded(make, comm.rank)  # equal only after the broadcast
        with DataParallel(network, comm, op="sum", **manner) as model:
            found = Trained(network).steps(model, range(comm.rank, comm.rank + 1), size, loss_of, set_to_none)
            found.losses = list(comm.all_reduce(torch.stack(found.losses)))
        return found

    return on_ranks(program, size)


def assert_near(found: Any, expected: Any, what: str, tolerance: float = TOLERANCE) -> None:
    if expected is None or found is None:
        assert found is None and expected is None, what
        return
    limit = tolerance * np.abs(expected).max(initial=0)
    assert np.abs(found - expected).max(initial=0) <= limit, what


def assert_equal(found: list[Trained], expected: Trained) -> None:
    for rank, one in enumerate(found):
        assert_near(torch.stack(one.losses).numpy(), torch.stack(expected.losses).numpy(), f"losses, rank {rank}")
        for step in range(NUM_STEPS):
            pairs = zip(one.gradients[step], expected.gradients[step], strict=True)
            for number, (gradient, right) in enumerate(pairs):
                assert_near(gradient, right, f"rank {rank}, step {step}, gradient {number}")
        assert_near(weights_of(one.network), weights_of(expected.network), f"weights, rank {rank}")
    assert len({weights_of(one.network).tobytes() for one in found}) == 1


# --- equality --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_train_as_one_process_does(size: int) -> None:
    """37 samples: the parts of the ranks differ in length."""
    assert_equal(together(perceptron, size=size), alone(perceptron, size=size))


def test_a_bucket_size_that_changes_bits_is_impossible_in_invariant_order() -> None:
    """The bits are those of one and the same sum, whatever the buckets, with overlap and without."""
    expected, bits = alone(perceptron), set()
    for manner in MANNERS:
        found = together(perceptron, order="invariant", **manner)
        assert_equal(found, expected)
        bits |= {weights_of(one.network).tobytes() for one in found}
    assert len(bits) == 1
    assert weights_of(together(perceptron, order="rank")[0].network).tobytes() not in bits, "another order, other bits"


def test_the_mean_over_ranks_is_the_gradient_of_the_whole_batch() -> None:
    def program(comm: Any) -> nn.Module:
        network = seeded(perceptron, comm.rank)
        with DataParallel(network, comm) as model:
            train(model, network, lambda x: part(x, comm.rank, comm.size))
        return network

    def train(forward: Any, network: nn.Module, share: Callable[[Any], Any]) -> None:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        for step in range(NUM_STEPS):
            x, y = (share(each[:36]) for each in samples(step))
            optimizer.zero_grad()
            nn.functional.mse_loss(forward(x), y).backward()
            optimizer.step()

    network = seeded(perceptron, 0)
    train(network, network, lambda x: x)
    for found in on_ranks(program, NUM_RANKS):
        assert_near(weights_of(found), weights_of(network), "weights")


@pytest.mark.parametrize("calls_sync", [False, True])
def test_ranks_without_samples(calls_sync: bool) -> None:
    """3 samples on 4 ranks: a rank without any has an empty batch, or no pass at all and calls sync()."""

    def steps(forward: Any, network: nn.Module, share: Callable[[Any], Any], sync: Callable[[], None]) -> None:
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
        for step in range(NUM_STEPS):
            x, y = (share(each[:3]) for each in samples(step))
            optimizer.zero_grad()
            if len(x) or not calls_sync:
                (squares(forward, x, y, step, 0) / 3).backward()
            else:
                sync()
            optimizer.step()

    def program(comm: Any) -> nn.Module:
        network = seeded(perceptron, comm.rank)
        with DataParallel(network, comm, op="sum", buckets=500) as model:
            steps(model, network, lambda x: part(x, comm.rank, comm.size), model.sync)
        return network

    network = seeded(perceptron, 0)
    steps(network, network, lambda x: x, lambda: None)
    for found in on_ranks(program, NUM_RANKS):
        assert_near(weights_of(found), weights_of(network), "weights")


class Branches(nn.Module):
    """A trunk, a branch that some samples use, and a branch that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.branch, self.unused = nn.Linear(13, 3), nn.Linear(13, 3), nn.Linear(13, 3)
        self.double()

    def forward(self, x: torch.Tensor, uses_branch: bool) -> torch.Tensor:
        return self.trunk(x) + self.branch(x) if uses_branch else self.trunk(x)  # type: ignore[no-any-return]


def branching(forward: Any, x: Any, y: Any, step: int, rank: int) -> Any:
    """Rank 1 never uses the branch; in every third step no rank does; in every fifth rank 2 does not."""
    uses = rank != 1 and step % 3 != 0 and not (step % 5 == 0 and rank == 2)
    return ((forward(x, uses) - y) ** 2).sum()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("manner", [{}, {"buckets": None}, {"overlap": False}])
def test_parameters_that_are_unused_on_one_rank_or_on_all(set_to_none: bool, manner: dict[str, Any]) -> None:
    """A gradient is None where one process has none; so AdamW does not decay the weights of an unused branch."""
    expected = alone(Branches, branching, set_to_none)
    found = together(Branches, branching, set_to_none, **manner)
    assert_equal(found, expected)
    assert [gradients[2] is None for gradients in expected.gradients[:3]] == [True, False, False]
    first = weights_of(seeded(Branches, 0))[-42:]
    assert np.array_equal(weights_of(found[1].network)[-42:], first), "nothing decays what is never used"


class Tied(nn.Module):
    """An embedding whose weights are also the head's, a convolution that is frozen, and one that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.frozen, self.convolution = nn.Conv1d(6, 6, 3, padding=1), nn.Conv1d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen.requires_grad_(False)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = (x * 100).long().abs() % 11
        return self.head(self.convolution(self.frozen(self.embedding(words).mT)).mT)  # type: ignore[no-any-return]


def words(forward: Any, x: Any, y: Any, step: int, rank: int) -> Any:
    target = (x * 10).long().abs() % 11
    return nn.functional.cross_entropy(forward(x).flatten(0, 1), target.flatten(), reduction="sum")


@pytest.mark.parametrize("manner", [{"buckets": None}, {"buckets": 700}])
def test_embeddings_do_not_come_untied_and_frozen_weights_stay(manner: dict[str, Any]) -> None:
    found, expected = together(Tied, words, **manner), alone(Tied, words)
    assert_equal(found, expected)
    for one in found:
        assert one.network.head.weight is one.network.embedding.weight
        assert all(parameter.grad is None for parameter in one.network.frozen.parameters())
        assert torch.equal(one.network.frozen.weight, seeded(Tied, 0).frozen.weight), "rank 0's, and unchanged"


def images() -> nn.Module:
    """Weights that do not lie in memory in the order of their dims."""
    layers = nn.Unflatten(1, (1, 1, 13)), nn.Conv2d(1, 4, (1, 3)), nn.Conv2d(4, 4, (1, 3)), nn.BatchNorm2d(4)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 3)).double().to(memory_format=torch.channels_last)


@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract")  # a slower sum, no other
def test_weights_in_another_memory_format_and_buffers_begin_as_on_rank_0() -> None:
    def program(comm: Any) -> Any:
        network = seeded(images, comm.rank)
        network[3].running_mean.fill_(comm.rank)
        network[3].num_batches_tracked.fill_(comm.rank + 7)
        with DataParallel(network, comm) as model:
            begun = [weights_of(network), network[3].running_mean.numpy().copy(), int(network[3].num_batches_tracked)]
            model(samples(0)[0]).sum().backward()  # the same samples on all ranks: so is the mean
        return begun, gradients_of(network)

    network = seeded(images, 0)
    weights = weights_of(network)
    network(samples(0)[0]).sum().backward()
    for (begun, mean, number), gradients in on_ranks(program, 3):
        np.testing.assert_array_equal(begun, weights)
        assert (mean == 0).all() and number == 7
        for gradient, expected in zip(gradients, gradients_of(network), strict=True):
            assert_near(gradient, expected + 0.0, "gradient", 1e-9)


def test_types_are_mixed_in_one_model() -> None:
    """bfloat16 and float64 in one model: each type has the bits of its own sum, in any manner."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(13, 9).bfloat16(), nn.Linear(9, 3).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.tanh(self.first(x.bfloat16())).double())  # type: ignore[no-any-return]

    expected, bits = alone(Mixed), set()
    for manner in MANNERS[:4]:
        found = together(Mixed, order="rank", **manner)
        bits |= {weights_of(one.network).tobytes() for one in found}
        for number, tolerance in enumerate((0.05, 0.05, 0.02, 0.02)):  # of the first step: bfloat16 has 8 digits
            gradient = torch.stack([torch.from_numpy(one.gradients[0][number]) for one in found])
            assert_near(gradient.numpy(), expected.gradients[0][number][None], f"gradient {number}", tolerance)
    assert len(bits) == 1


# --- the end, and bad arguments --------------------------------------------------------------------------------------


def test_a_closed_model_is_a_model_of_its_own_again() -> None:
    def program(comm: Any) -> bool:
        network = seeded(perceptron, comm.rank)
        x, y = (part(each, comm.rank, comm.size) for each in samples(0))
        model = DataParallel(network, comm, op="sum")
        squares(model, x, y, 0, 0).backward()
        model.close()
        model.close()
        common = gradients_of(network)
        network.zero_grad()
        squares(network, x, y, 0, 0).backward()
        own = gradients_of(network)
        return bool(np.abs(common[0] - own[0]).max() > 0)

    assert on_ranks(program, 2) == [True, True]


def test_bad_arguments() -> None:
    def program(comm: Any) -> None:
        for buckets in (0, -1, 1.5, "two"):
            with pytest.raises(ValueError, match=f"expected buckets as bytes, 'one' or None, found {buckets!r}"):
                DataParallel(perceptron(), comm, buckets=buckets)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"expected a torch.nn.Module, or arrays by name, found \[1\]"):
            DataParallel([1], comm)
        with pytest.raises(TypeError, match="expected parameters in the memory of the host, found bias on meta"):
            DataParallel(nn.Linear(2, 2, device="meta"), comm)
        with pytest.raises(ValueError, match="expected op 'avg' or 'sum'"):
            DataParallel(perceptron(), comm, op="max")  # type: ignore[arg-type]
        assert comm.all_reduce(np.ones(1))[0] == 1

    on_ranks(program, 1)


# --- arrays ----------------------------------------------------------------------------------------------------------

ARRAYS = """
import sys
sys.modules["torch"] = None  # so that `import torch` fails
import numpy as np
import hocket
from hocket.training import Coordinator, DataParallel

def main():
    with hocket.init() as comm:
        weights = {"w": np.full((3, 2), comm.rank + 1.0), "b": np.full(2, comm.rank + 1.0, np.float32)}
        with DataParallel(weights, comm, op="sum", buckets=8) as model:
            assert all((array == 1).all() for array in weights.values()), "rank 0's weights"
            for step in range(6):
                for name in ("w", "b") if comm.rank else ("b", "w"):
                    model.gradients[name][:] = step + comm.rank
                    if name == "w" or comm.rank == 2:
                        model.ready(name)
                model.sync()
                assert (model.gradients["w"] == 3 * step + 3).all(), model.gradients
                assert (model.gradients["b"] == step + 2).all(), model.gradients
                assert model.gradients["b"].dtype == np.float32
            norm = model.clip(3.0)
            assert abs(norm - (6 * 18**2 + 2 * 7**2) ** 0.5) < 1e-5, norm
            assert abs(sum(float((g * g).sum()) for g in model.gradients.values()) ** 0.5 - 3) < 1e-5
            assert model.report().num_replayed == 3
        x = np.full(4, comm.rank)
        with Coordinator(comm) as engine:
            engine.register("x", x)
            engine.submit("x")
            engine.flush().wait()
            engine.join()
        assert (x == 3).all()

hocket.run_ranks(main, 3, kind="thread")
print("done")
"""


def test_arrays_by_name_need_no_torch() -> None:
    it = subprocess.run([sys.executable, "-W", "error", "-c", ARRAYS], capture_output=True, text=True, check=False)
    assert (it.returncode, it.stdout, it.stderr) == (0, "done\n", "")
