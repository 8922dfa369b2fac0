"""A rank that ends without destroy_process_group() completes its work and reports errors, however it was started."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hocket.errors import CollectiveMismatch
from tests.torch_backend.ranks import run

PROGRAM = """
    import multiprocessing.util, os, sys, time, torch, torch.distributed as dist, torch.multiprocessing as mp

    def main(rank, path, ending):
        dist.init_process_group("hocket", init_method=f"file://{path}", rank=rank, world_size=2)
        dist.group.WORLD.monitored_barrier()
        x = torch.ones(1 << 20)
        if ending == "return" and rank == 1:
            dist.all_reduce(x, async_op=True)
            dist.isend(torch.full((1 << 20,), 7.0), 0)
            multiprocessing.util.Finalize(None, open, (path + ".leaving", "w"), exitpriority=0)
        elif ending == "return":
            while not os.path.exists(path + ".leaving"):  # the other has returned from here
                time.sleep(0.001)  # between two looks
            dist.all_reduce(x)
            assert (x == 2.0).all()
            dist.recv(x, 1)
            assert (x == 7.0).all()
        elif rank == 0:
            try:
                dist.all_reduce(x)
            except dist.DistBackendError as error:
                assert error.cause.reason == "ValueError: no luck", error
            else:
                raise AssertionError("the other has ended")
            open(path + ".told", "w").close()
        elif ending == "raise":
            raise ValueError("no luck")
        else:
            try:
                raise ValueError("no luck")
            finally:
                dist.destroy_process_group()

    if __name__ == "__main__":
        method, path, ending = sys.argv[1:]
        if method == "mp.spawn":
            mp.spawn(main, (path, ending), nprocs=2)
        else:
            context = mp.get_context(method)
            ranks = [context.Process(target=main, args=(rank, path, ending)) for rank in range(2)]
            for rank in ranks: rank.start()
            for rank in ranks: rank.join()
            codes = [rank.exitcode for rank in ranks]
            assert codes == ([0, 0] if ending == "return" else [0, 1]), codes
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "mp.spawn"])
@pytest.mark.parametrize("ending", ["return", "raise", "finally"])
def test_a_rank_ends_without_destroy(method: str, ending: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, tmp_path / "program.py", method, tmp_path / "store", ending]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    # torch.multiprocessing.spawn shows what one rank has raised, and ends the others, perhaps before they say more.
    expected = 1 if method == "mp.spawn" and ending != "return" else 0
    assert result.returncode == expected, result.stderr
    assert "AssertionError" not in result.stderr, result.stderr
    assert (tmp_path / "store.told").exists() == (ending != "return") or method == "mp.spawn"


def each_its_own_root() -> str:
    rank = dist.get_rank()
    dist.broadcast(torch.zeros(3), rank)  # a root has not to wait for others
    with pytest.raises(dist.DistBackendError, match="the ranks differ in root") as caught:
        dist.destroy_process_group()
    assert type(caught.value.cause) is CollectiveMismatch
    dist.destroy_process_group()
    return str(caught.value)


@pytest.mark.shared_memory("over connections a root has to wait until it is connected")
def test_calls_that_differ_and_that_no_rank_had_to_wait_in_fail_at_destroy() -> None:
    assert all("0 on rank 0; 1 on rank 1; pass the same root" in told for told in run(each_its_own_root, 2))


RECEIVING = """
    import sys, threading, torch, torch.distributed as dist

    def receive():
        try:
            while True:
                dist.recv(torch.zeros(4), 1 - rank)
                received.release()
        except dist.DistBackendError:
            pass

    dist.init_process_group("hocket")
    rank, received = dist.get_rank(), threading.Semaphore(0)
    threading.Thread(target=receive, daemon=True).start()
    for _ in range(3):
        dist.send(torch.ones(4), 1 - rank)
        received.acquire()
    if sys.argv[1] == "destroy":
        dist.destroy_process_group()
    sys.exit(7)
"""


@pytest.mark.slow("a rank that ends gives messages under way five seconds")
@pytest.mark.parametrize("ending", ["destroy", "exit"])
def test_the_exit_code_is_kept_while_a_daemon_thread_receives(ending: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(RECEIVING))
    command = [sys.executable, "-m", "hocket", "run", "-n", "2", "--", tmp_path / "program.py", ending]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert result.returncode == 7, result.stderr
    assert "terminate called" not in result.stderr, result.stderr


ALLOCATING = """
    import sys, threading, torch
    from hocket import _core  # as all that communicates does

    def allocate():
        while True:
            torch.zeros(4)
            allocated.release()

    sys.setswitchinterval(1e-6)
    allocated = threading.Semaphore(0)
    for _ in range(4):
        threading.Thread(target=allocate, daemon=True).start()
    for _ in range(200):
        allocated.acquire()
    sys.exit(7)
"""


def test_the_exit_code_is_kept_while_daemon_threads_are_inside_pytorch(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(ALLOCATING))
    command = [sys.executable, tmp_path / "program.py"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ, check=False)
    assert result.returncode == 7 and not result.stderr, result.stderr
