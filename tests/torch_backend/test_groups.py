"""Process groups: made, used side by side, and ended, for every way to start ranks."""

import contextlib
import io
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

import hocket
from hocket.torch_backend import Options
from tests.torch_backend.ranks import SECONDS, descriptors, run


def total(group: Any = None) -> float:
    tensor = torch.tensor([2.0 ** dist.get_rank()])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def side_by_side() -> None:
    rank = dist.get_rank()
    even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
    mine = even if rank % 2 == 0 else odd
    assert total(mine) == (5.0 if rank % 2 == 0 else 10.0)
    assert total() == 15.0
    assert dist.get_rank(mine) == rank // 2 and dist.get_global_rank(mine, 1) == 2 + rank % 2
    assert dist.get_backend(mine) == "hocket"
    pairs, _ = dist.new_subgroups(2)
    assert total(pairs) == (3.0 if rank < 2 else 12.0)
    dist.destroy_process_group(mine)
    assert total() == 15.0
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    assert total(mesh["b"].get_group()) == (3.0 if rank < 2 else 12.0)


def test_groups_side_by_side() -> None:
    run(side_by_side, 4)


def again(path: str) -> None:
    for number in range(20):
        rank = dist.get_rank()
        assert total() == 3.0
        dist.destroy_process_group()
        with pytest.raises(ValueError, match="not been initialized"):
            dist.all_reduce(torch.ones(1))
        dist.init_process_group("hocket", init_method=f"file://{path}/{number}", rank=rank, world_size=2)


def test_destroyed_and_made_again(tmp_path: Path) -> None:
    run(again, 2, str(tmp_path))


def with_options() -> tuple[Any, ...]:
    algorithms = {}
    for options in (None, Options(algorithm="ring"), Options(order="rank", timeout=7.5)):
        group = dist.new_group(pg_options=options)
        dist.all_reduce(torch.ones(1000), group=group)
        algorithms[options] = set(group.communicator.statistics["algorithms"])
    assert algorithms[Options(algorithm="ring")] == {"all_reduce:ring"}
    with pytest.raises(TypeError, match=r"expected hocket\.torch_backend\.Options"):
        dist.new_group(pg_options={"algorithm": "ring"})
    return ()


def test_options_of_a_group() -> None:
    run(with_options, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": "rnig"}, "Options: found 'rnig'; did you mean 'ring'"),
        ({"algorithm": 3}, "Options: expected algorithm as a registered name"),
        ({"order": "rnk"}, "Options: expected order to be one of .*; found 'rnk'; did you mean 'rank'"),
        ({"timeout": -1}, "Options: timeout is -1; expected seconds above 0"),
        ({"timeout": timedelta(seconds=-1)}, "Options: timeout is -1.0"),
        ({"timeout": "1"}, "Options: timeout is a str"),
    ],
)
def test_bad_options_are_told_where_they_are_written(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        Options(**options)


def test_the_timeout_of_options_may_be_a_timedelta() -> None:
    assert Options(timeout=timedelta(seconds=7)).seconds() == Options(timeout=7).seconds() == 7.0


def of_no_other_backend() -> None:
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.all_gather_object([None, None], 1)
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))(torch.ones(1, 2)).sum().backward()
    assert dist.group.WORLD._get_backend_name() == "hocket"
    assert not threads_of_gloo()
    group = dist.new_group(backend="gloo")
    assert threads_of_gloo()  # a group of Gloo is noticed, whatever made it
    dist.destroy_process_group(group)


def threads_of_gloo() -> list[str]:
    """Returns the threads of Gloo: each of its process groups has some, even if only C++ knows the group."""
    names = [thread.read_text() for thread in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def test_no_operation_goes_to_gloo() -> None:
    run(of_no_other_backend, 2)


def in_place_of_gloo() -> None:
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(RuntimeError, match=r"runs on Gloo already; call .* before init_process_group"):
        hocket.torch_backend.replace_gloo()
    dist.destroy_process_group()
    hocket.torch_backend.replace_gloo()
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.new_group([0])
    assert told.getvalue() == 'hocket: the backend "gloo" of this program is Hocket (replace_gloo)\n'
    assert type(dist.group.WORLD).__module__ == "hocket.torch_backend.replacing"
    assert dist.get_backend() == "gloo"
    hocket.torch_backend.replace_gloo()  # again, as a second library of the program may
    tensor = torch.ones(3, 2).t()
    dist.all_reduce(tensor)
    dist.monitored_barrier()
    assert total() == 1.0


def test_programs_that_name_gloo() -> None:
    run(in_place_of_gloo, 1)


def start(rank: int, size: int, path: str) -> None:
    # With descriptors of its parent, a child would keep the memory of the parent's ranks and hide deaths of its peers.
    kept = [one for one in descriptors() if "hocket" in one or "memfd" in one]
    dist.init_process_group("hocket", init_method=f"file://{path}", rank=rank, world_size=size)
    assert total() == 3.0
    assert not kept, kept
    dist.destroy_process_group()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_however_ranks_are_started(method: str, tmp_path: Path) -> None:
    """In a program whose own process is a rank, too; the test's process must not be one."""
    program = f"""
        import torch.distributed as dist, torch.multiprocessing, tests.torch_backend.test_groups as here
        if __name__ == "__main__":
            if {method!r} != "fork":
                dist.init_process_group("hocket", store=dist.HashStore(), rank=0, world_size=1)
                assert here.total() == 1.0
            torch.multiprocessing.start_processes(
                here.start, (2, {str(tmp_path / "store")!r}), nprocs=2, start_method={method!r}
            )
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    finish([sys.executable, tmp_path / "program.py"])


def test_ranks_that_a_cell_of_a_notebook_forks() -> None:
    """A function in a cell is in no file, so only a fork can start it."""
    program = """
        import torch, torch.distributed as dist, torch.multiprocessing as mp
        dist.init_process_group("hocket", store=dist.HashStore(), rank=0, world_size=1)  # an earlier cell
        dist.destroy_process_group()
        def main(rank, path, answers):
            dist.init_process_group("hocket", init_method=f"file://{path}", rank=rank, world_size=2)
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            answers.put(tensor.item())
            dist.destroy_process_group()
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            context = mp.get_context("fork")
            answers = context.SimpleQueue()
            ranks = [context.Process(target=main, args=(rank, folder + "/store", answers)) for rank in range(2)]
            for rank in ranks: rank.start()
            for rank in ranks: rank.join()
            assert [rank.exitcode for rank in ranks] == [0, 0]
            assert [answers.get(), answers.get()] == [2.0, 2.0]
    """
    finish([sys.executable, "-c", textwrap.dedent(program)])


def test_under_torchrun(tmp_path: Path) -> None:
    program = """
        import os, time, torch, torch.distributed as dist
        from datetime import timedelta
        rank = int(os.environ["RANK"])
        for turn in range(2):  # over one store, that of torchrun, where the groups of both turns have the same names
            time.sleep(0.5 * turn * (rank == 0))  # so that rank 1 would find what the first one has left there
            dist.init_process_group("hocket", timeout=timedelta(seconds=20))
            for group in (dist.group.WORLD, dist.new_group()):
                tensor = torch.ones(1)
                dist.all_reduce(tensor, group=group)
                assert tensor.item() == int(os.environ["WORLD_SIZE"]) == 2
            if turn == 0:
                dist.group.WORLD.monitored_barrier()
            elif rank == 0:
                try:
                    dist.group.WORLD.monitored_barrier(timedelta(seconds=0.1))
                    raise AssertionError("rank 1 came, in the first turn only")
                except dist.DistBackendError:
                    pass
            dist.barrier()
            dist.destroy_process_group()
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    finish(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", tmp_path / "program.py"]
    )


def test_under_hocket_run(tmp_path: Path) -> None:
    """Calls init_process_group like a program for torchrun, for each backend that it may name."""
    program = """
        import os, sys, torch, torch.distributed as dist
        dist.init_process_group(sys.argv[1])
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == int(os.environ["WORLD_SIZE"]) == 2
        assert dist.get_rank() == int(os.environ["RANK"]) == int(os.environ["LOCAL_RANK"])
        dist.destroy_process_group()
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    for backend in ("hocket", "gloo"):
        run = [sys.executable, "-m", "hocket", "run", "-n", "2", "--", tmp_path / "program.py", backend]
        finish(run, GLOO_SOCKET_IFNAME="lo")


def test_importing_torch_registers_the_backend_and_never_fails_for_it(tmp_path: Path) -> None:
    finish(
        [sys.executable, "-c", "import torch.distributed as dist; assert dist.Backend('hocket') == dist.Backend.HOCKET"]
    )
    alone = "import torch.distributed as dist; assert not hasattr(dist.Backend, 'HOCKET'); import hocket.torch_backend"
    finish(
        [sys.executable, "-c", f"{alone}; assert dist.Backend('hocket') == dist.Backend.HOCKET"],
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    # A backend that cannot be loaded gives a warning.
    program = "import sys; sys.modules['torch.distributed'] = None; import hocket.torch_backend"
    result = finish([sys.executable, "-W", "default", "-c", program])
    assert "hocket cannot be a backend" in result.stderr


def test_importing_hocket_does_not_import_torch() -> None:
    finish([sys.executable, "-c", "import sys, hocket; hocket.init().close(); assert 'torch' not in sys.modules"])


def finish(command: list[Any], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"} | variables
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    return result


def profiled() -> list[str]:
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(torch.ones(3, 2))
        dist.all_gather([torch.ones(1), torch.ones(1)], torch.ones(1), async_op=True).wait()
        dist.barrier()
    events = {event.name: event for event in profile.events() if event.name.startswith("hocket:")}
    assert events["hocket:all_reduce"].input_shapes == [[3, 2]]
    return sorted(events)


def test_the_profiler_shows_operations_with_shapes() -> None:
    assert run(profiled, 2)[0] == ["hocket:all_gather", "hocket:all_reduce", "hocket:barrier"]


def timeouts() -> None:
    group = dist.new_group(timeout=timedelta(seconds=0.2))
    with pytest.raises(dist.DistBackendError, match=" timeout "):
        dist.recv(torch.ones(1), 1 - dist.get_rank(), group=group)
    if dist.get_rank() == 1:
        words = r"rank 0 did not come within 0\.2 s to make the group of ranks \[0, 1\]"
        with pytest.raises(dist.DistBackendError, match=words) as caught:
            dist.new_group([0, 1], timeout=timedelta(seconds=0.2), use_local_synchronization=True)
        assert caught.value.cause.missing == (0,)
    dist.barrier()


def test_the_timeout_of_a_group() -> None:
    run(timeouts, 2)


def without_a_timeout_of_its_own() -> float:
    dist.group.WORLD.set_timeout(timedelta(seconds=0.5))
    words = r"rank 2 did not come within 0\.5 s to make the group of ranks \[1, 2\]"
    if dist.get_rank() == 1:
        with pytest.raises(dist.DistBackendError, match=words):
            dist.new_group([1, 2])
    dist.group.WORLD.set_timeout(timedelta(seconds=SECONDS))
    dist.group.WORLD.monitored_barrier()
    group = dist.new_group([0], timeout=timedelta(seconds=7)) if dist.get_rank() == 0 else None
    return group._met.seconds if group is not None else 0.0


def test_a_new_group_waits_as_long_as_the_default_group_and_names_ranks_of_that() -> None:
    assert run(without_a_timeout_of_its_own, 3) == [7.0, 0.0, 0.0]


def only_its_own_group(backend: str, groups: Sequence[Sequence[int]]) -> float:
    """Returns the sum over the ranks of the list that has this rank; each rank makes no other group."""
    rank = dist.get_rank()
    if backend == "gloo":
        hocket.torch_backend.replace_gloo()
    group = dist.new_group(next(members for members in groups if rank in members), backend=backend)
    tensor = torch.tensor([10.0**rank])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


@pytest.mark.parametrize("backend", ["hocket", "gloo"])
@pytest.mark.parametrize("groups", [[[0, 2], [1, 3]], [[0, 3], [1, 2]]])
def test_ranks_that_each_make_only_their_own_group_meet_their_own_members(
    backend: str, groups: list[list[int]]
) -> None:
    expected = [sum(10.0**other for members in groups if rank in members for other in members) for rank in range(4)]
    assert run(only_its_own_group, 4, backend, groups) == expected


def different_groups(lists: Sequence[Sequence[int]]) -> str:
    rank = dist.get_rank()
    try:
        dist.new_group(lists[rank])
    except dist.DistBackendError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "lists",
    [
        pytest.param([[0, 1, 2], [0, 1], [0, 1, 2]], id="of other sizes"),
        pytest.param([[0, 1], [1, 2], [0, 2]], id="in a circle"),
    ],
)
def test_ranks_that_differ_in_the_members_of_a_group_are_all_told_both_lists(lists: list[list[int]]) -> None:
    for rank, told in enumerate(run(different_groups, 3, lists)):
        assert f"rank {rank} makes one of ranks {lists[rank]}" in told
        assert any(f"rank {other} one of ranks {lists[other]}" in told for other in range(3) if other != rank)
