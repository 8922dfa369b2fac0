"""Errors are told once, in the words of PyTorch programs, and without what is inside Hocket."""

import os
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hocket.errors import CollectiveMismatch, HocketError
from hocket.runtime import exception_of
from hocket.torch_backend.told_errors import backend_error
from tests.torch_backend.ranks import run

UNCAUGHT = """
    import torch, torch.distributed as dist
    dist.init_process_group("hocket", store=dist.HashStore(), rank=0, world_size=1)
    dist.group.WORLD.communicator.abort("enough")
    dist.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize("debugging", ["0", "1"])
def test_an_uncaught_error_is_one_traceback_without_frames_of_hocket(debugging: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(UNCAUGHT)]
    environment = os.environ | {"HOCKET_DEBUG": debugging}
    told = subprocess.run(command, capture_output=True, text=True, env=environment, check=False).stderr
    assert told.count("Traceback") == (1 if debugging == "0" else 2), told
    assert ("told_errors.py" in told) == (debugging == "1"), told
    assert "hocket.torch_backend.BackendError: hocket: rank 0, all_reduce" in told.splitlines()[-1]


ONE_FAILS = """
    import torch, torch.distributed as dist
    dist.init_process_group("hocket")
    rank, store = dist.get_rank(), dist.group.WORLD.get_group_store()
    if rank == 1: store.wait(["0", "2"]); raise KeyError("the mistake")
    store.set(str(rank), "")  # else it may still be in init_process_group
    dist.all_reduce(torch.ones(1))
"""


def test_hocket_run_tells_the_ranks_that_another_stopped_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(ONE_FAILS))
    command = [sys.executable, "-m", "hocket", "run", "-n", "3", "--", sys.executable, script]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert told.startswith(f"hocket run: the failure of rank 1 stopped ranks 0, 2 ({script}:7)\n"), told
    assert told.count("Traceback") == 1 and told.endswith("KeyError: 'the mistake'\n"), told


def ring_of_sends() -> str:
    other, group = 1 - dist.get_rank(), dist.new_group(timeout=timedelta(seconds=8))
    dist.barrier()
    with pytest.raises(dist.DistBackendError) as caught:
        dist.send(torch.ones(1 << 20), other, group)
    return str(caught.value)


@pytest.mark.slow("a wait in a circle is told after five seconds")
def test_a_ring_of_sends_is_told_the_call_of_pytorch() -> None:
    for told in run(ring_of_sends, 2):
        assert "use dist.batch_isend_irecv" in told and "sendrecv," not in told


def other_algorithms() -> HocketError:
    calls = {rank: (1, 2, 0, 0, 4, 0, schedule) for rank, schedule in ((0, 7), (1, 8))}
    return exception_of(1, -1, 1, 0.0, 0, (), calls, {}, "", 0, "all_reduce")


def test_options_have_the_name_that_a_process_group_knows() -> None:
    error = other_algorithms()
    assert isinstance(error, CollectiveMismatch) and "pass the same Options(algorithm=...)" in str(backend_error(error))
    assert backend_error(error).cause is error
