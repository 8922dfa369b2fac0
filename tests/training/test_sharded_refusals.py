"""ZeRO refuses what it cannot do, on every rank and before anything changes; a death is told to all."""

import signal
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hocket.errors import CollectiveMismatch
from hocket.training.strategies.sharded import Sharded
from tests.runtime.test_faults import Ranks
from tests.training.test_data import on_ranks
from tests.training.test_sharded import Branches, made, values_of, wide

# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "error", "told"),
    [
        (wide, {"stage": 4}, ValueError, "expected stage 1, 2 or 3, found 4"),
        (wide, {"stage": 1, "order": "fastest"}, ValueError, "expected order to be one of"),
        (wide, {"stage": 2, "bucket_bytes": 0}, ValueError, "bucket_bytes of at least 1 byte, found 0"),
        (wide, {"stage": 2, "op": "max"}, ValueError, "expected op 'sum' or 'avg'"),
        (lambda: np.zeros(3), {"stage": 1}, TypeError, r"expected a torch.nn.Module, found array"),
        (lambda: nn.Linear(2, 2, device="meta"), {"stage": 3}, TypeError, "expected parameters in the memory of the"),
        (nn.ReLU, {"stage": 1}, ValueError, "parameters that need a gradient, found none"),
        (
            lambda: nn.Linear(2, 2).to(torch.float8_e4m3fn),
            {"stage": 1},
            TypeError,
            "that ranks can sum and count in, found",
        ),
    ],
)
def test_wrong_arguments_are_refused(make: Any, options: Any, error: type, told: str) -> None:
    def program(comm: Any) -> None:
        with pytest.raises(error, match=told):
            Sharded(make(), comm, **options)

    on_ranks(program, 1)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: nn.Linear(3, 4, bias=False), "shape"),
        (lambda: nn.Linear(4, 3, bias=True), "name"),
        (lambda: nn.Linear(4, 3, bias=False).requires_grad_(True).double(), "dtype"),
    ],
)
def test_other_models_are_refused_on_every_rank_before_anything_changes(make: Any, field: str, stage: int) -> None:
    def program(comm: Any) -> None:
        module = made(make if comm.rank == 1 else (lambda: nn.Linear(4, 3, bias=False)), comm.rank, None)
        before = {name: (one.data_ptr(), one.clone()) for name, one in module.state_dict().items()}
        with pytest.raises(CollectiveMismatch) as caught:
            Sharded(module, comm, stage=stage)
        assert caught.value.field == field
        for name, one in module.state_dict().items():
            assert one.data_ptr() == before[name][0] and torch.equal(one, before[name][1])

    on_ranks(program, 3)


def test_another_stage_or_a_frozen_weight_on_one_rank_is_refused() -> None:
    def program(comm: Any) -> None:
        with pytest.raises(CollectiveMismatch, match=r"settings differ: stage 1, .* rank 0, stage 2, .* rank 1"):
            Sharded(nn.Linear(2, 2), comm, stage=1 + comm.rank)
        with pytest.raises(CollectiveMismatch, match="'weight' differs in op: avg on rank 0, frozen on rank 1"):
            module = nn.Linear(2, 2)
            module.weight.requires_grad_(comm.rank == 0)
            Sharded(module, comm, stage=3)

    on_ranks(program, 2)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_optimizer_of_the_module_itself_is_refused(stage: int) -> None:
    def program(comm: Any) -> None:
        module = made(Branches, 0, torch.float32)
        early = torch.optim.SGD(module.parameters(), lr=0.1)
        with Sharded(module, comm, stage=stage) as model:
            for optimizer in (early, torch.optim.AdamW(model.module.parameters())):
                model(values_of(torch.float32, (2, 4), 0), range(5)).sum().backward()
                with pytest.raises(RuntimeError, match=r"expected an optimizer of model.shards\(\), found \w+ with"):
                    optimizer.step()
        early.step()  # the model has let go of the module

    on_ranks(program, 2)


def test_stage_3_refuses_what_it_cannot_gather() -> None:
    class Boxed(nn.Linear):
        def forward(self, x: Any) -> Any:
            return [{"box": x}, object()]

    def program(comm: Any) -> None:
        with Sharded(made(Branches, 0, torch.float32), comm, stage=3) as model:
            x = values_of(torch.float32, (2, 4), 0)
            with pytest.raises(RuntimeError, match=r"layers.3.* was called by itself"):
                model.module.layers[3](x)
            model(x, range(5))
            with pytest.raises(RuntimeError, match=r"layers.1.* is used again in a forward pass that has freed it"):
                model(x, [0, 1, 2, 1])
            assert not model(x, range(5)).isnan().any(), "and it goes on"
        with Sharded(Boxed(4, 4), comm, stage=3) as model, pytest.raises(TypeError, match=r"returns tensors, .* found"):
            model(x)

    on_ranks(program, 2)


# --- death -----------------------------------------------------------------------------------------------------------

TRAINED = """
import torch
from torch import nn
from hocket.training.strategies.sharded import Sharded

torch.set_num_threads(1)
comm = hocket.init()
network = nn.Sequential(*(nn.Linear(40, 40) for _ in range(4)))
num_passes = 0

def die(*_):
    if comm.rank == 1 and num_passes == 5:
        os.kill(os.getpid(), signal.SIGKILL)

if "PLACE" == "forward":
    network[2].register_forward_pre_hook(die)
if "PLACE" == "backward":
    network[2].weight.register_hook(die)

def work():
    global num_passes
    with comm, Sharded(network, comm, stage=STAGE, bucket_bytes=4000) as model:
        optimizer = torch.optim.AdamW(model.shards())
        if "PLACE" == "step":
            optimizer.register_step_pre_hook(die)
        while True:
            num_passes += 1
            model(torch.ones(2, 40)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

failing(work)
"""


@pytest.mark.slow("each process imports PyTorch")
@pytest.mark.parametrize(("stage", "place"), [(1, "step"), (2, "backward"), (3, "forward")])
def test_the_others_are_told_of_a_rank_that_dies(stage: int, place: str) -> None:
    with Ranks(TRAINED.replace("STAGE", str(stage)).replace("PLACE", place), 3) as ranks:
        for rank in (0, 2):
            found = ranks.told(rank)
            assert (found["error"], found["rank"]) == ("PeerDied", 1)
            assert ranks.end(rank) == (0, "")
        ranks.processes[1].wait()
        assert ranks.processes[1].returncode == -signal.SIGKILL
