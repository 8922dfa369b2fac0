"""A trace has the collectives of a process group as for NumPy, also repeated ones and those of DDP."""

from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hocket
from hocket.runtime.traces import trace_file
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
        assert Counter(one["name"] for one in slices if one["cat"] == "compute") == {"step": 3}
        gradients = [one["args"] for one in communicating if one["name"] == "all_reduce"]
        assert {said["dtype"] for said in gradients} == {"float32"} and all(said["algorithm"] for said in gradients)
        assert max(said["elements_in"] for said in gradients) == 8 * 2 + 2
