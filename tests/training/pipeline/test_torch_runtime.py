"""PyTorch's own runtime runs Hocket's tables, over the backend "hocket", to the gradients that Hocket's Runner gets."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hocket.training.pipeline import SCHEDULES, PipelineTable, Runner, build_table, write_torch_csv
from tests.torch_backend.ranks import run
from tests.training.pipeline.runner_cases import gradients_of, make_data, make_stage, placed, squares

NUM_RANKS = {name: 4 if name in ("zb-h1", "dualpipev") else 2 for name in SCHEDULES if name != "dualpipe"}
"""Without dualpipe, which has stages on two ranks."""
NUM_MICROBATCHES = 8  # a power of 2: PyTorch divides the gradients by it at the end, and Hocket the loss


def train_with_torch(table: PipelineTable, path: str, messages: bool) -> tuple[dict[int, Any], list[Any]]:
    """The modules of this rank, and on the last rank the losses."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    modules = {stage: make_stage(stage) for stage in placed(table, dist.get_rank())}
    stages = [PipelineStage(one, stage, table.num_stages, torch.device("cpu")) for stage, one in modules.items()]
    schedule = _PipelineScheduleRuntime(stages, NUM_MICROBATCHES, loss_fn=squares)
    schedule._load_csv(path, format="compute_comms" if messages else "compute_only")
    x, y = make_data(NUM_MICROBATCHES)
    losses: list[Any] = []
    has_last = table.num_stages - 1 in modules
    schedule.step(*([x] if 0 in modules else []), **({"target": y, "losses": losses} if has_last else {}))
    return modules, losses


def train_both_ways(name: str, folder: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    table = build_table(name, size, NUM_MICROBATCHES)
    stages = {stage: make_stage(stage) for stage in placed(table, rank)}
    runner = Runner(table, stages, dist.group.WORLD.communicator, loss=squares)
    loss = runner.step(*make_data(NUM_MICROBATCHES))
    expected = gradients_of(runner, rank)
    for messages in (False, True):
        path = f"{folder}/{messages}-{rank}.csv"
        write_torch_csv(table, path, messages=messages)
        modules, losses = train_with_torch(table, path, messages)
        for stage, module in modules.items():
            for parameter, one in module.named_parameters():
                assert torch.equal(one.grad, expected[rank, stage, parameter]), (messages, stage, parameter)
        if losses:
            assert torch.stack(losses).mean().item() == pytest.approx(loss, rel=1e-12)
        assert bool(losses) == (table.num_stages - 1 in modules)


@pytest.mark.parametrize("name", NUM_RANKS)
def test_pytorchs_runtime_gets_the_same_gradients(name: str, tmp_path: Path) -> None:
    run(train_both_ways, NUM_RANKS[name], name, str(tmp_path))
