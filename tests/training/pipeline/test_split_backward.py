"""B and W together compute what the whole backward computes, to the bit, and no multiplication twice."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from hocket.training.pipeline.split_backward import SplitBackward
from tests.training.test_data_parallel import seeded

WIDTH = 6


class Tied(nn.Module):
    """One weight in three multiplications, with another layer between them."""

    def __init__(self) -> None:
        super().__init__()
        self.tied, self.between = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.tied(torch.tanh(self.between(torch.tanh(self.tied(x))))) @ self.tied.weight


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        x = x + self.second(torch.relu(self.first(self.norm(x))))
        left, right = x.chunk(2, dim=-1)
        return torch.cat([right * left, left.exp()], dim=-1)


class Gate(nn.Module):
    """Weights that meet before they meet the input, and one that never does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(2))
        self.unused, self.offset = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Any) -> Any:
        return x @ (self.a @ self.b) + torch.sin(self.offset)


class Apart(nn.Module):
    """The output does not depend on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Any) -> Any:
        return (self.weight * 2).expand(x.shape).clone()


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Any) -> Any:
        return checkpoint(self.inside, x, use_reentrant=False)


class Hooked(nn.Module):
    """Hooks that change gradients: at a fork, before it, and at the output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Any) -> Any:
        h = self.first(x) * self.scale
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient * 0.5)
            h.grad_fn.register_prehook(lambda gradients: (gradients[0] + 1,))
        y = self.second(h.tanh()) + self.second(h)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 3)
        return y


class OwnFunction(torch.autograd.Function):
    """Keeps a field that the nodes of leaves have, too."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.variable = 7
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return OwnFunction.apply(self.linear(OwnFunction.apply(x)))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 9), nn.GELU(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, WIDTH))


def frozen() -> nn.Module:
    module = perceptron()
    for one in (module[0].weight, module[2].bias, module[4].weight):  # type: ignore[index]
        one.requires_grad_(False)
    return module


def attention() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 12, dropout=0.0, batch_first=True)


STAGES: list[Callable[[], nn.Module]] = [
    perceptron, frozen, attention, Tied, Residual, Gate, Apart, Recomputed, Hooked, Own, nn.Identity, nn.Tanh,
]  # fmt: skip


class Counting(TorchDispatchMode):
    """Counts the operations that are run, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def forward(make: Callable[[], nn.Module], has_input: bool) -> tuple[nn.Module, Any, Any, Any]:
    module = seeded(make, 1)
    generator = torch.Generator().manual_seed(2)
    x, above = (torch.randn(3, 5, WIDTH, generator=generator) for _ in range(2))
    x.requires_grad_(has_input)
    return module, x, module(x), above


def gradients(module: nn.Module) -> dict[str, Any]:
    return {name: one.grad for name, one in module.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("has_input", [True, False])
@pytest.mark.parametrize("is_loss", [True, False])
@pytest.mark.parametrize("make", STAGES, ids=lambda make: make.__name__)
def test_both_halves_are_the_whole_to_the_bit(make: Callable[[], nn.Module], is_loss: bool, has_input: bool) -> None:
    whole, x, y, above = forward(make, has_input)
    expected = None
    if y.requires_grad:
        for _ in range(2):  # the second adds to the first
            y = whole(x)
            torch.autograd.backward(y.square().mean() if is_loss else y, None if is_loss else above)
            expected, x.grad = x.grad, None
    split, x, y, above = forward(make, has_input)
    for _ in range(2):
        y = split(x)
        halves = SplitBackward(x if has_input else None, y.square().mean() if is_loss else y)
        before = {name: one.clone() for name, one in gradients(split).items()}
        below = halves.input_gradient(None if is_loss else above)
        assert all(torch.equal(one, before[name]) for name, one in gradients(split).items())
        halves.add_weight_gradients()
    assert (below is None) == (expected is None) and (below is None or torch.equal(below, expected))
    assert x.grad is None
    assert gradients(split).keys() == gradients(whole).keys()
    for name, gradient in gradients(whole).items():
        assert torch.equal(gradients(split)[name], gradient), name


@pytest.mark.parametrize("make", [perceptron, frozen, Residual, Gate, attention])
def test_no_multiplication_is_done_twice(make: Callable[[], nn.Module]) -> None:
    _, _, y, above = forward(make, True)
    with Counting() as whole:
        torch.autograd.backward(y, above)
    _, x, y, above = forward(make, True)
    halves = SplitBackward(x, y)
    with Counting() as first:
        halves.input_gradient(above)
    with Counting() as second:
        halves.add_weight_gradients()
    for name in ("mm", "bmm", "gelu_backward", "tanh_backward"):
        assert first.counts[name] + second.counts[name] == whole.counts[name], name
    assert first.counts["mm"] > 0 and second.counts["mm"] > 0


def test_what_no_weight_needs_is_free_after_the_first_half() -> None:
    module, x, y, above = forward(perceptron, True)
    outputs: list[Any] = []
    for layer in module.children():
        layer.register_forward_hook(lambda _module, _inputs, output: outputs.append(weakref.ref(output)))
    y = module(x)
    halves = SplitBackward(x, y)
    del y
    halves.input_gradient(above)
    gc.collect()
    alive = [one() is not None for one in outputs]
    assert not alive[-1]
    halves.add_weight_gradients()
    assert all(one() is None for one in outputs)
