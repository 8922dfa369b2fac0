"""ZeRO: all stages give the bits of data parallelism, hold the bytes that they promise, and leave no rank waiting."""

import contextlib
import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hocket.training.strategies.data_parallel import DataParallel
from hocket.training.strategies.sharded import Sharded
from tests.training.test_data import on_ranks

RANDOM = threading.Lock()  # PyTorch has one generator for all threads
NUM_TOKENS = 11


pytestmark = pytest.mark.usefixtures("one_thread_per_rank")


class Network(nn.Module):
    """Tied embedding and head, a frozen layer, one that is unused now and then, one that always is; odd shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(NUM_TOKENS, 7), nn.Linear(7, NUM_TOKENS, bias=False)
        self.head.weight = self.embed.weight
        self.up, self.norm, self.down = nn.Linear(7, 13), nn.LayerNorm(13), nn.Linear(13, 7)
        self.sometimes, self.never, self.frozen = nn.Linear(7, 7), nn.Linear(3, 5), nn.Linear(7, 7)
        self.frozen.requires_grad_(False)

    def forward(self, tokens: Any, skips: bool = False) -> Any:
        x = self.embed(tokens)
        x = self.frozen(x + self.down(torch.tanh(self.norm(self.up(x)))))
        return self.head(x if skips else x + self.sometimes(x))


def made(make: Callable[[], Any], seed: int, dtype: Any) -> Any:
    with RANDOM:
        torch.manual_seed(seed)
        return make() if dtype is None else make().to(dtype)


def wrapped(module: Any, comm: Any, stage: int, op: Any = "avg") -> tuple[Any, list[Any]]:
    """Returns the model and what an optimizer updates; stage 0 is data parallelism. Units are small, so several."""
    if stage == 0:
        return DataParallel(module, comm, order="invariant", op=op), [
            one for one in module.parameters() if one.requires_grad
        ]
    model = Sharded(module, comm, stage=stage, order="invariant", op=op, bucket_bytes=400)
    return model, model.shards()


def tokens_of(*seed: int) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, NUM_TOKENS, 5))


def values_of(dtype: Any, shape: Sequence[int], *seed: int) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).to(dtype)


def state_of(model: Any) -> dict[str, Any]:
    whole = contextlib.nullcontext(model.module.state_dict()) if isinstance(model, DataParallel) else model.gathered()
    with whole as state:
        return {name: value.clone() for name, value in state.items()}


def different(ends: Sequence[dict[str, Any]], expected: dict[str, Any]) -> list[str]:
    """Returns the names of the weights that differ between ranks, or from those expected, in a bit."""
    assert all(value.isfinite().all() for value in expected.values())
    return [name for name, value in expected.items() if not all(torch.equal(end[name], value) for end in ends)]


def trained(comm: Any, stage: int, dtype: Any, num_parts: int = 1, clip: float | None = None) -> Any:
    """Makes 20 steps of AdamW. The last rank leaves `sometimes` out, in every fifth step all ranks do."""
    model, updated = wrapped(made(Network, comm.rank, dtype), comm, stage)
    optimizer, norms = torch.optim.AdamW(updated, lr=1e-2), []
    for step in range(20):
        for part in range(num_parts):
            inputs, targets = (tokens_of(step, part, comm.rank, end) for end in range(2))
            with model.no_sync(unless=part == num_parts - 1):
                scores = model(inputs, skips=comm.rank == comm.size - 1 or step % 5 == 4)
                optimizer.zero_grad() if part == 0 else None
                nn.functional.cross_entropy(scores, targets).backward()
        norms.append(model.clip(clip) if clip else 0.0)
        optimizer.step()
    state, num_replayed = state_of(model), model.report().num_replayed
    num_states = len(optimizer.state)
    model.close()
    return state, norms, num_replayed, num_states


# --- equality --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_all_stages_are_data_parallelism_to_the_bit(size: int, dtype: Any, num_parts: int) -> None:
    expected = on_ranks(lambda comm: trained(comm, 0, dtype, num_parts), size)[0][0]
    for stage in (1, 2, 3):
        ends = on_ranks(lambda comm, stage=stage: trained(comm, stage, dtype, num_parts), size)
        assert different([state for state, *_ in ends], expected) == [], f"stage {stage}"
        assert all(num_replayed > 0 for _, _, num_replayed, _ in ends)
    start = made(Network, 0, dtype).state_dict()
    assert torch.equal(expected["never.weight"], start["never.weight"]), "it has no gradient, so no decay either"
    assert torch.equal(expected["frozen.weight"], start["frozen.weight"])
    assert not torch.equal(expected["sometimes.weight"], start["sometimes.weight"])
    assert torch.equal(expected["head.weight"], expected["embed.weight"])


def test_clipping_is_that_of_data_parallelism() -> None:
    expected, norms, *_ = on_ranks(lambda comm: trained(comm, 0, torch.float64, clip=0.3), 3)[0]
    assert max(norms) > 0.3
    for stage in (1, 2, 3):
        for state, found, *_ in on_ranks(lambda comm, stage=stage: trained(comm, stage, torch.float64, clip=0.3), 3):
            np.testing.assert_allclose(found, norms, rtol=1e-12)
            for name, value in expected.items():
                torch.testing.assert_close(state[name], value, rtol=1e-12, atol=1e-13)


class Checkpointed(nn.Module):
    """Blocks that are computed again in the backward pass, with an operation that writes into a layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 9), nn.ReLU(inplace=True), nn.Linear(9, 6)) for _ in range(3)
        )
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x * self.scale


class Loop(nn.Module):
    """A layer that is used several times in a pass, and one that returns tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.after = nn.GRUCell(6, 6), nn.LSTM(6, 5, 2)

    def forward(self, x: Any) -> Any:
        state = torch.zeros_like(x[0])
        for _ in range(3):
            state = self.cell(x[0], state)
        outputs, (_, memory) = self.after(x + state)
        return outputs + memory[-1]


class Images(nn.Module):
    """A convolution with a buffer of statistics, and weights in two types."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(4, 3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(4, 2))
        self.shift = nn.Parameter(torch.zeros(2, dtype=torch.float32))

    def forward(self, x: Any) -> Any:
        return self.layers(x) + self.shift


def transformer() -> Any:
    layer = nn.TransformerEncoderLayer(6, 2, 10, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@pytest.mark.parametrize("make", [transformer, Checkpointed, Loop, Images])
def test_usual_modules_train_as_in_data_parallelism(make: Callable[[], Any]) -> None:
    """Two forward passes for each backward pass, so that every layer is used twice in it."""

    def program(comm: Any, stage: int) -> tuple[dict[str, Any], Any]:
        model, updated = wrapped(made(make, comm.rank, torch.float64), comm, stage)
        optimizer = torch.optim.SGD(updated, lr=0.05, momentum=0.9)
        for step in range(5):
            one, other = (model(values_of(torch.float64, (3, 4, 6), step, comm.rank, end)) for end in range(2))
            optimizer.zero_grad()
            (one - other).square().mean().backward()
            optimizer.step()
        model.module.eval()
        with torch.no_grad():
            output = model(values_of(torch.float64, (3, 4, 6), 99))
        state = {name: value for name, value in state_of(model).items() if "running" not in name}  # each rank's own
        model.close()
        return state, output if make is not Images else 0.0

    expected, output = on_ranks(lambda comm: program(comm, 0), 2)[0]
    for stage in (1, 2, 3):
        ends = on_ranks(lambda comm, stage=stage: program(comm, stage), 2)
        assert different([state for state, _ in ends], expected) == [], f"stage {stage}"
        assert make is Images or all(torch.equal(found, output) for _, found in ends), f"stage {stage}"


class Branches(nn.Module):
    """Layers in the order that the caller gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))

    def forward(self, x: Any, order: Sequence[int]) -> Any:
        for number in order:
            x = torch.tanh(self.layers[number](x))
        return x


@pytest.mark.parametrize("op", ["avg", "sum"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_ranks_may_use_layers_in_any_order_or_none(stage: int, op: str) -> None:
    """Ranks that produce gradients in different orders (DeepSpeed #2343), and skip layers, get the same sums."""

    def program(comm: Any, stage: int) -> dict[str, Any]:
        model, updated = wrapped(made(Branches, comm.rank, torch.float64), comm, stage, op)
        optimizer = torch.optim.AdamW(updated)
        for step in range(8):
            random = np.random.default_rng((step, comm.rank))
            order = random.permutation(5)[: random.integers(0, 6)].tolist()
            optimizer.zero_grad()
            output = model(values_of(torch.float64, (2, 4), step, comm.rank), order)
            if order:
                output.square().sum().backward()
            else:
                model.sync()
            optimizer.step()
        state = state_of(model)
        model.close()
        return state

    expected = on_ranks(lambda comm: program(comm, 0), 3)[0]
    assert different(on_ranks(lambda comm: program(comm, stage), 3), expected) == []


def test_a_backward_pass_adds_to_the_gradients_that_the_shards_have() -> None:
    def program(comm: Any, stage: int) -> dict[str, Any]:
        model, updated = wrapped(made(Branches, 0, torch.float64), comm, stage)
        optimizer = torch.optim.SGD(updated, lr=0.1)
        for part in range(2):
            model(values_of(torch.float64, (2, 4), part, comm.rank), range(5 - part)).sum().backward()
        optimizer.step()
        state = state_of(model)
        model.close()
        return state

    expected = on_ranks(lambda comm: program(comm, 0), 2)[0]
    for stage in (1, 2, 3):
        for state in on_ranks(lambda comm, stage=stage: program(comm, stage), 2):
            for name, value in expected.items():
                torch.testing.assert_close(state[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_that_zero_grad_has_discarded_do_not_come_back(stage: int, to_none: bool) -> None:
    """Also not those of layers that the next pass does not use."""

    def train(model: Any, no_sync: Any, updated: Any, ranks: Sequence[int]) -> None:
        optimizer = torch.optim.SGD(updated, lr=0.1)
        for discards in (True, False):
            first, second = (torch.cat([values_of(torch.float64, (2, 4), end, r) for r in ranks]) for end in range(2))
            with no_sync():
                (model(first, range(5)).sum() / len(ranks)).backward()
            output = model(second, range(3))
            if discards:
                optimizer.zero_grad(set_to_none=to_none)
            (output.sum() / len(ranks)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)

    def program(comm: Any) -> dict[str, Any]:
        model, updated = wrapped(made(Branches, 0, torch.float64), comm, stage)
        train(model, model.no_sync, updated, [comm.rank])
        state = state_of(model)
        model.close()
        return state

    alone = made(Branches, 0, torch.float64)
    train(alone, contextlib.nullcontext, alone.parameters(), [0, 1])
    for state in on_ranks(program, 2):
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-12, atol=1e-12)


# --- weights ---------------------------------------------------------------------------------------------------------


def test_nobody_sees_stale_weights_after_a_step() -> None:
    """In stages 1 and 2 also the parameters themselves are new, without another forward pass (Megatron #950)."""

    def program(comm: Any, stage: int) -> tuple[Any, Any, Any]:
        model, updated = wrapped(made(Branches, 0, torch.float64), comm, stage)
        optimizer = torch.optim.AdamW(updated)
        model(values_of(torch.float64, (2, 4), comm.rank), range(5)).sum().backward()
        optimizer.step()
        parameters = [parameter.detach().clone() for parameter in model.module.parameters()]
        with torch.no_grad():
            output = model.module(values_of(torch.float64, (2, 4), 99), range(5))
        model.close()
        return torch.cat([one.reshape(-1) for one in parameters]), output, stage

    expected, output, _ = on_ranks(lambda comm: program(comm, 0), 3)[0]
    for stage in (1, 2, 3):
        for parameters, found, _ in on_ranks(lambda comm, stage=stage: program(comm, stage), 3):
            assert torch.equal(found, output)
            assert parameters.isnan().all() if stage == 3 else torch.equal(parameters, expected)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gathered_weights_are_for_one_rank_alone_and_can_be_loaded(stage: int) -> None:
    saved = made(Branches, 7, torch.float64).state_dict()

    def program(comm: Any) -> tuple[Any, dict[str, Any]]:
        with Sharded(made(Branches, comm.rank, torch.float64), comm, stage=stage) as model:
            with model.gathered() as state, model.gathered(), torch.no_grad():
                start = model(values_of(torch.float64, (2, 4), 0), [3]) if comm.rank == 1 else state["layers.3.weight"]
                start = start.clone()
            before = {name: value.clone() for name, value in state.items()}
            with model.gathered():
                model.module.load_state_dict(saved)
            if stage == 3:
                assert different([state], before) == [], "tensors that the program keeps stay readable"
            return start, state_of(model)

    first, second, _ = on_ranks(program, 3)
    assert different([first[1], second[1]], saved) == []
    network = made(Branches, 0, torch.float64)
    assert torch.equal(first[0], network.layers[3].weight)
    assert torch.equal(second[0], network(values_of(torch.float64, (2, 4), 0), [3]))


# --- memory ----------------------------------------------------------------------------------------------------------

WIDTH, NUM_LAYERS = 120, 10


def wide() -> Any:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)))


def live_tensors() -> list[Any]:
    """Returns all tensors of this process."""
    gc.collect()
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    return found + [one.grad for one in found if one.is_leaf and one.grad is not None]


def bytes_of(tensors: list[Any]) -> int:
    """Returns the bytes of their storages."""
    storages = [one.untyped_storage() for one in tensors if one.device.type == "cpu"]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_hold_the_bytes_that_the_stages_promise(size: int) -> None:
    """Under AdamW, in float32. Ranks are threads, so the tensors of the process are those of all ranks."""
    layer = WIDTH * (WIDTH + 1)
    num_parameters = NUM_LAYERS * layer

    def program(comm: Any, stage: int) -> tuple[float, int, int]:
        before = live_tensors() if comm.rank == 0 else []  # kept: what other tests have left must not go in between
        comm.barrier()
        module = made(wide, 0, torch.float32)
        model, updated = wrapped(module, comm, stage)
        optimizer = torch.optim.AdamW(updated)
        whole = 0
        for step in range(5):  # the coordinator replays from the fourth on
            model(values_of(torch.float32, (2, WIDTH), step)).sum().backward()
            optimizer.step()
            if step < 4:
                optimizer.zero_grad()
        comm.barrier()
        held = (bytes_of(live_tensors()) - bytes_of(before)) / size if comm.rank == 0 else 0.0
        comm.barrier()
        said = model.state_bytes().total if stage else 0
        if stage == 3:  # from here on the layers look how much is whole during a pass
            seen = []
            for one in module:
                one.register_forward_hook(lambda *_: seen.append(model.state_bytes().parameters))
                one.weight.register_hook(lambda _: seen.append(model.state_bytes().parameters))
            model(values_of(torch.float32, (2, WIDTH), 9)).sum().backward()
            whole = max(seen) - model.state_bytes().parameters
        model.close()
        return held, said, whole

    shares = {0: (16, 0), 1: (8, 8), 2: (4, 12), 3: (0, 16)}
    for stage, (kept, spread) in shares.items():
        promised = (kept + spread / size) * num_parameters
        ends = on_ranks(lambda comm, stage=stage: program(comm, stage), size)
        held = ends[0][0]
        assert promised <= held <= 1.05 * promised + 4 * layer, f"stage {stage}"
        assert stage == 0 or all(held == pytest.approx(said, rel=0.02) for _, said, _ in ends), f"stage {stage}"
        if stage == 3:
            assert all(4 * layer <= whole <= 2.1 * 4 * layer for _, _, whole in ends), "the layer in use and the next"
