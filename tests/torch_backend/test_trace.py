"""A trace has the collectives of a process group as for NumPy, also repeated ones and those of DDP."""

import contextlib
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hocket
from hocket.runtime.traces import trace_file
from hocket.view import Timeline, summarise
from tests.torch_backend.ranks import run


def train(file: str) -> None:
    model = DistributedDataParallel(torch.nn.Linear(8, 2))
    with hocket.trace(file):
        for _ in range(3):
            with hocket.span("step"):
                model(torch.ones(4, 8)).sum().backward()
        for _ in range(4):  # the last ones skip Python
            dist.all_gather_into_tensor(torch.zeros(2 * 5), torch.ones(5))
        dist.send(torch.ones(3), 1, tag=4) if dist.get_rank() == 0 else dist.recv(torch.ones(3), 0, tag=4)


def test_a_process_group_is_traced(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    run(train, 2, str(file))
    trace = trace_file.read(file)
    for rank in range(2):
        slices = [one for one in trace.events if one["ph"] == "X" and one["pid"] == rank]
        communicating = [one for one in slices if one["cat"] == "communication"]
        named = Counter(one["name"] for one in communicating)
        assert named["all_reduce"] >= 3 and named["all_gather"] == 4
        assert named["send to 1" if rank == 0 else "recv from 0"] == 1
        computing = Counter(one["name"] for one in slices if one["cat"] == "compute")
        assert computing == {"step": 3, "forward": 3, "backward": 3}
        gradients = [one["args"] for one in communicating if one["name"] == "all_reduce"]
        assert {said["dtype"] for said in gradients} == {"float32"} and all(said["algorithm"] for said in gradients)
        assert max(said["elements_in"] for said in gradients) == 8 * 2 + 2


class Refusing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no luck")


def compute(file: str) -> None:
    inner = torch.nn.Linear(3, 3)
    model = torch.nn.Sequential(inner, torch.nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = torch.autograd.backward, torch.autograd.grad
    with hocket.trace(file):
        with contextlib.suppress(ValueError):
            Refusing()(torch.ones(3))
        with contextlib.suppress(RuntimeError):
            optimizer.step(closure=lambda: torch.ones(3).backward())
        for _ in range(2):
            model(torch.ones(3)).sum().backward()
            optimizer.step()
        torch.autograd.grad(inner(torch.ones(3)).sum(), inner.weight)
        dist.all_reduce(torch.ones(3))
    assert (torch.autograd.backward, torch.autograd.grad) == before
    assert not torch.nn.modules.module._has_any_global_hook()  # as before


def test_forward_backward_and_steps_of_optimizers_are_seen_as_computing(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    run(compute, 1, str(file))
    summary = summarise(Timeline.read(file))
    found = {row["name"]: row["occurrences"] for row in summary["names"] if row["category"] == "compute"}
    assert found == {"forward": 4, "backward": 4, "optimizer step": 2}
    assert summary["ranks"][0]["computing_seconds"] > 0


def test_a_program_whose_computing_is_not_seen_has_no_hidden_share(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    run(only_communicate, 1, str(file))
    [rank] = summarise(Timeline.read(file))["ranks"]
    assert (rank["computing_seconds"], rank["hidden_seconds"], rank["exposed_seconds"]) == (None, None, None)


def only_communicate(file: str) -> None:
    with hocket.trace(file):
        dist.all_reduce(torch.ones(3))
