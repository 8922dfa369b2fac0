"""What tests of the runner share: stages, data, one process that trains the same, and ranks that run a pipeline."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hocket.training.pipeline import SCHEDULES, PipelineTable, Runner, build_table
from tests.training.pipeline.pipeline_world import operations_of
from tests.training.test_data import on_ranks
from tests.training.test_data_parallel import seeded

WIDTH, SAMPLES = 5, 3  # samples of a micro-batch
DTYPES = [torch.float32, torch.float64]

Gradients = dict[tuple[int, int, str], Any]
"""By rank, stage and name of the parameter."""


def make_stage(stage: int, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Equal weights on each call."""

    def make() -> nn.Module:
        layers = nn.Linear(WIDTH, WIDTH + 2), nn.Tanh(), nn.Linear(WIDTH + 2, WIDTH), nn.LayerNorm(WIDTH)
        return nn.Sequential(*layers).to(dtype)

    made: nn.Module = seeded(make, stage)
    return made


def make_data(m: int, dtype: torch.dtype = torch.float64, seed: int = 0, samples: int = SAMPLES) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(100 + seed)
    return tuple(torch.randn(m * samples, WIDTH, generator=generator, dtype=dtype) for _ in range(2))  # type: ignore[return-value]


def placed(table: PipelineTable, rank: int) -> list[int]:
    return np.unique(np.nonzero(table.placement == rank)[1]).tolist()


def squares(y: Any, target: Any) -> Any:
    return ((y - target) ** 2).mean()


def through(modules: list[nn.Module], x: Any) -> Any:
    for module in modules:
        x = module(x)
    return x


def one_process(
    table: PipelineTable, modules: list[nn.Module], x: Any, y: Any, loss: Any = squares
) -> tuple[Gradients, float]:
    """Gradients of one process that adds up micro-batches in the order in which the table has W and G on each rank.

    Each micro-batch goes through all stages, and back, at once. Where a stage is on two ranks, the lower one is first.
    """
    m = table.num_microbatches
    names = [(stage, *pair) for stage, module in enumerate(modules) for pair in module.named_parameters()]
    trained = [(stage, name, one) for stage, name, one in names if one.requires_grad]
    values, losses = [], []
    for part, target in zip(x.chunk(m), y.chunk(m), strict=True):
        value = loss(through(modules, part), target)
        losses.append(value.item())
        if trained:
            found = torch.autograd.grad(value / m, [one for _, _, one in trained], allow_unused=True)
        values.append({(stage, name): g for (stage, name, _), g in zip(trained, found, strict=True)} if trained else {})
    sums: Gradients = {}
    for rank, rows in enumerate(operations_of(table)):
        for kind, stage, microbatch, _ in rows:
            for (where, name), gradient in values[microbatch].items() if kind in "WG" else ():
                if where == stage and gradient is not None:
                    key = rank, stage, name
                    sums[key] = sums[key] + gradient if key in sums else gradient
    for stage, name, _ in names:
        homes = sorted(rank for rank, where, what in sums if (where, what) == (stage, name))
        total = sum_of([sums[rank, stage, name] for rank in homes])
        sums |= {(rank, stage, name): total for rank in homes}
    return sums, sum(losses) / m


def sum_of(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else sum_of([parts[0] + parts[1], *parts[2:]]) if parts else None


def gradients_of(runner: Runner, rank: int) -> Gradients:
    return {
        (rank, stage, name): one.grad.clone()
        for stage, module in runner.stages.items()
        for name, one in module.named_parameters()
        if one.grad is not None
    }


Stages = Callable[[int], nn.Module]
Program = Callable[[Runner, Any], Any]


def on_pipeline(
    table: PipelineTable, program: Program, make: Stages = make_stage, loss: Any = squares, tied: Any = None
) -> list[Any]:
    """What a program returns on each rank; it gets the runner and the communicator. tied: from stages to `tied`."""
    made = threading.Barrier(table.num_ranks)  # a rank that fails early must not end the construction on others

    def rank(comm: Any) -> Any:
        stages = {stage: make(stage) for stage in placed(table, comm.rank)}
        runner = Runner(table, stages, comm, loss=loss, tied=tied(stages) if tied else None)
        made.wait(timeout=60)
        return program(runner, comm)

    return on_ranks(rank, table.num_ranks)


def train_once(
    table: PipelineTable, x: Any, y: Any, make: Stages = make_stage, loss: Any = squares, tied: Any = None
) -> tuple[Gradients, list[float]]:
    """The gradients of all ranks after one step, and the losses."""

    def program(runner: Runner, comm: Any) -> tuple[Gradients, float]:
        value = runner.step(x, y)
        return gradients_of(runner, comm.rank), value

    ranks = on_pipeline(table, program, make, loss, tied)
    return {key: one for gradients, _ in ranks for key, one in gradients.items()}, [value for _, value in ranks]


def assert_equal_bits(found: Gradients, expected: Gradients) -> None:
    assert found.keys() == expected.keys() and found
    for key, gradient in expected.items():
        assert found[key].dtype == gradient.dtype
        assert torch.equal(found[key], gradient), f"rank, stage, name {key}"


FEW = [build_table(name, 4, 8) for name in SCHEDULES] + [build_table("zb-h1", 3, 2)]
few = pytest.mark.parametrize("table", FEW, ids=lambda table: f"{table.name}-{table.num_ranks}")
