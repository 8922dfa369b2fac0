"""Errors explain themselves, if possible before anything is sent, and never hang or kill."""

import contextlib
import os
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

import hocket
from hocket.errors import CollectiveMismatch, CollectiveTimeout, PeerAborted, RendezvousError
from hocket.torch_backend import _create
from hocket.torch_backend.roll_call import call_roll, come
from tests.torch_backend.ranks import given_to, run


def bad_arguments() -> None:
    size = dist.get_world_size()
    with FakeTensorMode():  # CUDA memory without CUDA
        on_cuda, without_memory = torch.ones(2, device="cuda"), torch.ones(2)
    bad: list[tuple[Any, str]] = [
        (lambda: dist.all_reduce(torch.ones(2, device="meta")), "CPU memory, found one on meta"),
        (lambda: dist.all_reduce(on_cuda), r"CPU memory, found one on cuda:0; pass x\.cpu\(\)"),
        (lambda: dist.all_reduce(without_memory), "a tensor with memory, found"),
        (lambda: dist.broadcast(torch.ones(2).to_sparse(), 0), r"found a torch\.sparse_coo one; pass x\.to_dense"),
        (lambda: dist.all_reduce(torch.ones(2).to_sparse(), dist.ReduceOp.MAX), r"a sum of torch\.sparse_coo ones"),
        (lambda: dist.all_gather([torch.ones(1)] * (size + 1), torch.ones(1)), f"a list of {size} tensors"),
        (lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)), "that 2 ranks can split evenly"),
        (lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2), [1, 2], [1, 1]), "with the sum 2, the rows"),
        (lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [4, -1], [1, 2]), "output_split_sizes as 2 numb"),
        (
            lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1, 2], [2, 1]),
            r"part \d of input and output, which this rank keeps, to have the same length; found \d and \d elements",
        ),
        (lambda: dist.all_gather([torch.ones(2)] * size, torch.ones(3)), r"with 3 elements.* at index \d; found 2"),
        (lambda: dist.reduce_scatter(torch.ones(3), [torch.ones(2)] * size), r"list with 3 elements"),
        (lambda: dist.all_to_all([torch.ones(2)] * size, [torch.ones(3)] * size), r"list with 3 elements"),
        (lambda: dist.send(torch.ones(2), 7), "^send: expected dst from 0 to 1, found 7"),
        (lambda: dist.recv(torch.ones(2), 7), "^recv: expected src from 0 to 1"),
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG), "avg"),
        (lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND), "band"),
        (lambda: dist.group.WORLD.allreduce([torch.ones(1), torch.ones(1)]), "a list of one tensor, found 2"),
        (lambda: dist.all_gather_into_tensor(torch.ones(3), torch.ones(1)), "expected out with 2 elements"),
        (lambda: dist.all_reduce(torch.ones(1).expand(2)), r"memory of their own, .* strides \(0,\)"),
        (lambda: dist.all_gather([torch.ones(1).expand(2)] * size, torch.ones(2)), "memory of their own"),
        (lambda: dist.group.WORLD.allreduce([torch.ones(1)], "max"), "expected a torch.distributed.ReduceOp, or"),
    ]
    for call, words in bad:
        with pytest.raises((ValueError, TypeError), match=words):
            call()
    tensor = torch.ones(1)  # nothing was sent, so the group goes on
    dist.all_reduce(tensor)
    assert tensor.item() == size


def test_bad_arguments_are_told_before_anything_is_sent() -> None:
    run(bad_arguments, 2)


def differing() -> None:
    with pytest.raises(dist.DistBackendError, match=r"^hocket: rank.*the ranks differ in count") as caught:
        dist.all_reduce(torch.ones(1 + dist.get_rank()))
    assert type(caught.value) is hocket.torch_backend.BackendError
    assert isinstance(caught.value.cause, CollectiveMismatch)
    assert "pass tensors of one length" in str(caught.value)
    # The consequence comes last, once, and with the word that programs look for.
    assert str(caught.value).endswith("This communicator can only be closed by destroy_process_group()")
    assert str(caught.value).count("can only be") == 1


def split_on_one() -> None:
    splits = [2, 2] if dist.get_rank() == 0 else None
    with pytest.raises(dist.DistBackendError, match=r"split sizes of all_to_all_single\) on all ranks or on none"):
        dist.all_to_all_single(torch.empty(4), torch.ones(4), splits, splits)


def test_split_sizes_on_some_ranks_only() -> None:
    run(split_on_one, 2)


def in_a_fork() -> None:
    """A rank with a pending work forks: every call of the child says that it is no member; it can end the groups."""
    work = dist.all_reduce(torch.ones(1), async_op=True) if dist.get_rank() == 0 else None
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            for ask in (work.is_completed, work.get_future, work.get_future, work.wait) if work is not None else ():
                with pytest.raises(dist.DistBackendError, match=r"is a forked child; call init_process_group"):
                    ask()
            with pytest.raises(dist.DistBackendError, match="this process is a forked child"):
                dist.all_reduce(torch.ones(1), async_op=True)
            dist.destroy_process_group()
            code = 0
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    if work is None:
        dist.all_reduce(torch.ones(1))
    else:
        work.wait()


def test_a_forked_child_of_a_rank_with_a_work_under_way() -> None:
    run(in_a_fork, 2)


def test_tensors_that_do_not_match() -> None:
    run(differing, 2)


def alone_in_a_barrier() -> None:
    group = dist.new_group(timeout=timedelta(seconds=0.3))
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError, match=" timeout ") as caught:
            dist.barrier(group)
        assert str(caught.value).endswith("This communicator can only be closed by destroy_process_group()")
        assert isinstance(caught.value.cause, CollectiveTimeout) and caught.value.cause.missing == (1,)
        assert "give the process group a longer timeout" in str(caught.value)
        work = dist.irecv(torch.ones(1), 1)
        with pytest.raises(dist.DistBackendError, match=r"within the 0\.1 s of this wait"):
            work.wait(timedelta(seconds=0.1))
    dist.barrier()
    if dist.get_rank() == 1:
        dist.send(torch.ones(1), 0)
    else:
        work.wait()


def test_a_timeout_names_who_is_missing_and_harms_one_group_only() -> None:
    run(alone_in_a_barrier, 2)


def failing_future() -> None:
    group = dist.new_group(timeout=timedelta(seconds=0.3))
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        with pytest.raises(RuntimeError, match=" timeout ") as caught:
            work.get_future().wait()
        assert len(str(caught.value).splitlines()) <= 4  # PyTorch lists one frame, not the stack of Hocket
        assert "/handles.py(" in str(caught.value)  # the same on all ranks and threads
        assert work.is_completed() and not work.is_success() and "timeout" in str(work.exception())
    dist.barrier()
    # What a callback does may end its group, too.
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda _: dist.destroy_process_group())
    assert future.wait() is None and not dist.is_initialized()


def test_a_future_fails_with_its_operation() -> None:
    run(failing_future, 2)


def aborted() -> None:
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        dist.group.WORLD.abort()
        with pytest.raises(dist.DistBackendError):
            work.wait()
    else:
        with pytest.raises(dist.DistBackendError, match="its process group was aborted") as caught:
            dist.recv(torch.ones(1), 0)
        assert isinstance(caught.value.cause, PeerAborted)


def test_abort_ends_what_others_wait_for() -> None:
    run(aborted, 2)


def monitored() -> None:
    rank, group = dist.get_rank(), dist.group.WORLD
    group.monitored_barrier(timedelta(seconds=30))
    for all_ranks, who in ((False, "Rank 1"), (True, "Ranks 1, 2")):
        if rank == 0:
            with pytest.raises(dist.DistBackendError, match=f"{who} failed to pass monitoredBarrier in 100 ms"):
                group.monitored_barrier(timedelta(seconds=0.1), all_ranks)
        elif rank == 3:
            with pytest.raises(dist.DistBackendError, match="successfully reached monitoredBarrier, but received"):
                group.monitored_barrier(timedelta(seconds=30), all_ranks)
    dist.barrier()  # the group still works


def test_monitored_barrier_names_who_does_not_come() -> None:
    run(monitored, 4)


def monitored_again() -> None:
    """Both ranks have failed, one after the other; what they left in the store does not affect later barriers."""
    rank, group = dist.get_rank(), dist.group.WORLD
    for late in (1, 0):
        if rank != late:
            with pytest.raises(dist.DistBackendError, match="monitoredBarrier"):
                group.monitored_barrier(timedelta(seconds=0.1))
        dist.barrier()
    passed = dist.distributed_c10d._get_default_store()
    for turn in ("first", "second"):
        if rank == 1:
            passed.set(turn, "rank 1 comes")
        group.monitored_barrier(timedelta(seconds=20))
        assert passed.check([turn])


def test_a_monitored_barrier_that_failed_may_be_tried_again() -> None:
    run(monitored_again, 2)


def test_a_misspelt_backend_is_told() -> None:
    with pytest.raises((ValueError, AssertionError), match=r"(?i)hockett"), pytest.warns(UserWarning, match="hockett"):
        dist.init_process_group("hockett", store=dist.HashStore(), rank=0, world_size=1)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("tcp://127.0.0.1:1", r"127\.0\.0\.1, 1\)"),
        ("tcp://no-such-host.invalid:29500", r"no-such-host\.invalid, 29500\)"),
        ("tcp://127.0.0.1", "port number missing"),
    ],
)
def test_a_wrong_address_or_port_is_told(method: str, words: str) -> None:
    with pytest.raises((ValueError, dist.DistError), match=words):
        dist.init_process_group("hocket", init_method=method, rank=1, world_size=2, timeout=timedelta(seconds=1))


@pytest.mark.parametrize(
    ("seconds", "error", "words"),
    [
        (0.0005, dist.DistBackendError, r"rank 0 of 2 did not come to the store .* within 0\.001 s, rank 1 came"),
        (0.0, ValueError, "timeout is 0.0; expected seconds above 0"),
    ],
)
def test_the_shortest_timeouts_end(seconds: float, error: type[Exception], words: str, tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 2)
    with pytest.raises(error, match=words):
        _create(second_of_two(store, seconds), None)


def second_of_two(store: Any, seconds: float) -> Any:
    """What torch.distributed passes to rank 1 of a default group of two ranks."""
    return given_to(1, 2, store, seconds)


def test_a_store_that_is_lost_is_no_timeout() -> None:
    class Lost(dist.Store):
        def set(self, key: str, value: str) -> None:
            pass

        def check(self, keys: list[str]) -> bool:
            raise dist.DistNetworkError("connection reset by peer")

    with pytest.raises(dist.DistBackendError, match=r"lost the store .*reset by peer") as caught:
        _create(second_of_two(Lost(), 60.0), None)
    assert caught.value.cause.missing == ()


def test_waiting_for_ranks_prints_no_warnings_of_pytorch(capfd: pytest.CaptureFixture[str]) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(RendezvousError, match="rank 1 did not come within"):
        call_roll(store, "scope", [0, 1], 0, 0.2)
    assert not come(store, ["never"], 0.0)
    assert capfd.readouterr().err == ""


def test_ranks_that_do_not_come_are_named(tmp_path: Path) -> None:
    program = """
        import sys, torch.distributed as dist
        from datetime import timedelta
        rank = int(sys.argv[1])
        store = dist.FileStore(sys.argv[2], 3)
        try:
            dist.init_process_group("hocket", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=1))
        except dist.DistBackendError as error:
            print(error.cause.missing)
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    command = [sys.executable, str(tmp_path / "program.py")]
    ranks = [
        subprocess.Popen([*command, rank, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True) for rank in "02"
    ]
    assert [rank.communicate(timeout=100)[0].strip() for rank in ranks] == ["(1,)", "(1,)"]


PROGRAM = """
    import os, sys, time, torch, torch.distributed as dist
    rank, what = int(sys.argv[1]), sys.argv[3]
    dist.init_process_group("hocket", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
    dist.all_reduce(torch.ones(1))
    dist.group.WORLD.monitored_barrier()  # the other is out of the collective, too: to give up would end it
    if what == "unanswered":
        work = dist.irecv(torch.ones(1), 1 - rank)
        work.get_future()
    elif what == "alone" and rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.get_future()
    elif what == "exception" and rank == 0:
        dist.all_reduce(torch.ones(1), async_op=True)
        raise SystemExit("told to the other")
    elif what == "exception":
        dist.all_reduce(torch.ones(1))
        try:
            dist.all_reduce(torch.ones(1))
        except dist.DistBackendError:
            pass
    elif what == "finally" and rank == 0:
        try:
            dist.all_reduce(torch.ones(1), async_op=True)
            raise RuntimeError("no luck")
        finally:
            dist.destroy_process_group()
    elif what == "finally":
        try:
            dist.recv(torch.ones(1), 0)
        except dist.DistBackendError as error:
            assert error.cause.reason == "RuntimeError: no luck", error
    elif what == "finally, ahead" and rank == 0:
        try:
            dist.broadcast(torch.full((1,), 7.0), 0)
            raise RuntimeError("no luck")
        finally:
            dist.destroy_process_group()
            open(sys.argv[2] + ".left", "w").close()
    elif what == "finally, ahead":
        while not os.path.exists(sys.argv[2] + ".left"):
            time.sleep(0.001)  # between two checks
        x = torch.ones(1)
        dist.broadcast(x, 0)  # what the other was done with
        assert x == 7.0
        try:
            dist.all_reduce(x)
        except dist.DistBackendError as error:
            assert error.cause.reason == "RuntimeError: no luck", error
        else:
            raise AssertionError("the other has left")
    elif what == "ahead in many groups":
        for group in [dist.new_group() for _ in range(5)]:
            try:
                dist.broadcast(torch.ones(1), 0, group=group) if rank == 0 else dist.recv(torch.ones(1), 0, group)
            except dist.DistBackendError as error:
                assert error.cause.reason == "it closed its communicator", error
    elif rank == 1 and what.startswith("ahead"):
        dist.broadcast(torch.ones(1), 1)
        raise RuntimeError("no luck") if what == "ahead, exception" else SystemExit("it has done enough")
    elif what.startswith("ahead"):
        try:
            dist.recv(torch.ones(1), 1)
        except dist.DistBackendError as error:
            expected = "RuntimeError: no luck" if what == "ahead, exception" else "it closed its communicator"
            assert error.cause.reason == expected, error
    print("end")
"""


WHAT = {  # what a rank does before it ends -> the exit codes of both
    "nothing": [0, 0],
    "unanswered": [0, 0],
    "alone": [0, 0],
    "exception": [1, 0],
    "finally": [1, 0],
    "finally, ahead": [1, 0],
    "ahead": [0, 1],
    "ahead, exception": [0, 1],
    "ahead in many groups": [0, 0],
}


@pytest.mark.parametrize("what", WHAT)
def test_a_process_may_end_with_operations_under_way(what: str, tmp_path: Path) -> None:
    """No hang and no SIGABRT, even without destroy_process_group."""
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(tmp_path / "program.py")]
    ranks = [subprocess.Popen([*command, rank, str(tmp_path / "store"), what], stderr=subprocess.PIPE) for rank in "01"]
    said = [rank.communicate(timeout=100)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == WHAT[what], said


def test_a_group_that_lives_in_a_handler_ends_as_any_other(tmp_path: Path) -> None:
    """Its launched operations complete, though the exception that led to it is still being handled."""
    program = """
        import os, sys, time, torch, torch.distributed as dist
        try:
            raise ImportError("so we do without")
        except ImportError:
            rank = int(sys.argv[1])
            dist.init_process_group("hocket", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
            dist.barrier()
            while rank == 1 and not os.path.exists(sys.argv[2] + ".leaving"):  # rank 0 leaves before rank 1 comes
                time.sleep(0.001)  # between two checks
            x = torch.ones(1)
            work = dist.all_reduce(x, async_op=True)
            if rank == 1:
                work.wait()
            else:
                open(sys.argv[2] + ".leaving", "w").close()
            dist.destroy_process_group()
            assert x == 2
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    command = [sys.executable, str(tmp_path / "program.py")]
    ranks = [subprocess.Popen([*command, rank, str(tmp_path / "store")], stderr=subprocess.PIPE) for rank in "01"]
    said = [rank.communicate(timeout=100)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said


@pytest.mark.slow("four processes import PyTorch")
def test_a_mistake_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch, torch.distributed as dist\n"
        "import hocket.torch_backend\n"
        "dist.init_process_group('hocket')\n"
        "x = torch.ones(4, dtype=torch.int32 if dist.get_rank() == 2 else torch.int64)\n"
        "dist.all_reduce(x)  # the mistake\n"
    )
    command = [sys.executable, "-m", "hocket", "run", "-n", "4", "--", tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    assert len(lines) <= 15 and len(set(lines)) == len(lines), done.stderr
    assert "    dist.all_reduce(x)  # the mistake" in lines
    assert lines[-1].startswith("hocket.torch_backend.BackendError: ") and "differ in dtype" in lines[-1]
