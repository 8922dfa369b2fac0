"""PyTorch over two hosts: process groups on each side and across, as processes that are told that they are apart.

The store is the only means by which they find each other. One test has real hosts and torchrun.
"""

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hocket.runtime.rendezvous import star
from hocket.torch_backend import meeting_place
from tests.hosts.lab import Lab
from tests.torch_backend.ranks import start

pytestmark = [pytest.mark.ring3, pytest.mark.timeout(200)]
LAYOUT = (0, 0, 1, 1)
SIZE = len(LAYOUT)
APART = timedelta(seconds=60)


def be_on(host: int) -> None:
    star.identity = meeting_place.identity = lambda: f"host {host}"  # type: ignore[attr-defined]
    os.environ["HOCKET_SOCKET_IFNAME"] = "lo"


def in_group(rank: int, layout: Sequence[int], port: int, main: Callable[[], Any]) -> Any:
    be_on(layout[rank])
    init(rank, len(layout), port)
    result = main()
    dist.destroy_process_group()
    return result


def init(rank: int, size: int, port: int, timeout: timedelta = APART) -> None:
    dist.init_process_group(
        "hocket", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=timeout
    )


def run(main: Callable[[], Any], layout: Sequence[int] = LAYOUT) -> list[Any]:
    return start(in_group, len(layout), layout, free_port(), main)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def context(group: Any = None) -> Any:
    return (group or dist.group.WORLD).communicator.context


def everything() -> tuple[int, ...]:
    rank = dist.get_rank()
    for count in (1, 3000, 300_001):
        tensor = torch.full((count,), rank + 1.0)
        dist.all_reduce(tensor)
        assert (tensor == 10.0).all()
        gathered = torch.empty(SIZE * count)
        dist.all_gather_into_tensor(gathered, torch.full((count,), float(rank)))
        assert (gathered == torch.arange(SIZE).repeat_interleave(count)).all()
        right, left = (rank + 1) % SIZE, (rank - 1) % SIZE
        received = torch.empty(count)
        works = [dist.isend(torch.full((count,), float(rank)), right), dist.irecv(received, left)]
        works.append(dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True))
        for work in works:
            work.wait()
        assert (received == left).all() and (tensor == 10.0).all()
        if rank == 0:
            dist.send(tensor, 3)
        elif rank == 3:
            dist.recv(received, 0)
            assert (received == 10.0).all()
    objects: list[Any] = [None] * SIZE
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(SIZE)]
    told = ["from rank 3", 3] if rank == 3 else [None, None]
    dist.broadcast_object_list(told, src=3)
    assert told == ["from rank 3", 3]
    dist.group.WORLD.monitored_barrier()
    return context().hosts  # type: ignore[no-any-return]


def test_collectives_messages_and_objects_cross_hosts() -> None:
    assert run(everything) == [LAYOUT] * SIZE


def groups() -> None:
    rank = dist.get_rank()
    for _ in range(3):
        inside, _ = dist.new_subgroups(2)
        across = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])[0]
        for group, expected in ((inside, rank // 2 * 4 + 1.0), (across, rank % 2 * 2 + 2.0)):
            tensor = torch.full((1000,), float(rank))
            dist.all_reduce(tensor, group=group)
            assert (tensor == expected).all()
        assert context(inside)._door is None and context(inside).hosts == (0, 0)  # nothing goes through connections
        assert context(across)._door is not None and context(across).hosts == (0, 1)
        dist.destroy_process_group(inside)
        dist.destroy_process_group(across)


def test_a_group_of_ranks_of_one_host_shares_memory() -> None:
    run(groups)


def one_host() -> bool:
    return context()._door is None


def test_ranks_of_one_host_open_no_port() -> None:
    assert run(one_host, (0, 0, 0)) == [True] * 3


def again(rank: int, port: int, rounds: int) -> None:
    be_on(LAYOUT[rank])
    store = dist.TCPStore("127.0.0.1", port, SIZE, is_master=rank == 0)
    for _ in range(rounds):
        dist.init_process_group("hocket", store=store, rank=rank, world_size=SIZE, timeout=APART)
        tensor = torch.full((1,), float(rank))
        dist.all_reduce(tensor)
        assert tensor.item() == 6.0
        dist.destroy_process_group()


def test_groups_over_hosts_are_destroyed_and_made_again_over_one_store() -> None:
    start(again, SIZE, free_port(), 30)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def trained(net: torch.nn.Module, part: slice) -> list[torch.Tensor]:
    inputs = torch.arange(8.0 * 8).reshape(8, 8).sin()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        net(inputs[part]).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def ddp() -> None:
    rank = dist.get_rank()
    found = trained(torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.0001), slice(rank, None, SIZE))
    for one, other in zip(found, trained(model(), slice(None)), strict=True):
        torch.testing.assert_close(one, other)


def test_ddp_over_hosts_trains_as_one_process_does() -> None:
    run(ddp)


def one_fails() -> str:
    rank = dist.get_rank()
    try:
        dist.barrier()  # from which rank 3 may come before another does
        if rank == 3:
            dist.group.WORLD.communicator.abort("the disk is full")
        dist.all_reduce(torch.ones(1))
    except dist.DistBackendError as error:
        return str(error)
    return ""


def test_a_failure_is_told_on_both_hosts() -> None:
    assert all("the disk is full" in told and "rank 3" in told for told in run(one_fails))


def without_rank_2(index: int, port: int) -> tuple[int, ...]:
    rank = (0, 1, 3)[index]
    be_on(LAYOUT[rank])
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    with pytest.raises(dist.DistBackendError, match=r"rank 2 of 4 did not come .* ranks 0, 1, 3 came") as caught:
        dist.init_process_group("hocket", store=store, rank=rank, world_size=SIZE, timeout=timedelta(seconds=1))
    store.set(f"ended/{rank}", "")
    if rank == 0:  # which serves the store
        store.wait(["ended/1", "ended/3"])
    return caught.value.cause.missing  # type: ignore[no-any-return]


def test_a_rank_that_does_not_come_is_named_on_both_hosts() -> None:
    assert start(without_rank_2, 3, free_port()) == [(2,)] * 3


def published(rank: int, port: int, key: str | None) -> str:
    be_on(rank)
    if key is not None:
        os.environ["HOCKET_KEY"] = key
    told: list[str] = []
    publish = meeting_place.StoreBoard.publish

    def note(board: meeting_place.StoreBoard, text: str) -> None:
        told.append(text)
        publish(board, text)

    meeting_place.StoreBoard.publish = note  # type: ignore[method-assign]
    init(rank, 2, port)
    dist.barrier()
    dist.destroy_process_group()
    return "".join(told)


def test_a_key_that_the_ranks_were_given_does_not_come_into_the_store() -> None:
    key = "5a" * 32
    places, _, made = start(published, 2, free_port(), None)[0].partition(";")
    assert places.startswith("127.0.0.1:") and len(bytes.fromhex(made)) == 32
    assert ";" not in start(published, 2, free_port(), key)[0]


def test_ranks_of_other_keys_do_not_meet_through_the_store() -> None:
    assert all(start(with_a_key_of_its_own, 2, free_port()))


def with_a_key_of_its_own(rank: int, port: int) -> bool:
    be_on(rank)
    os.environ["HOCKET_KEY"] = f"{rank}a" * 32
    with pytest.raises(dist.DistBackendError, match="another key" if rank else "rank 1 of 2 did not come"):
        init(rank, 2, port, timedelta(seconds=2))
    return True


PROGRAM = """
    import os, sys, torch, torch.distributed as dist, hocket
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for _ in range(2):
        dist.init_process_group("hocket")
        assert dist.group.WORLD.communicator.context.hosts == (0, 0, 1, 1)
        tensor = torch.full((100_000,), float(rank))
        dist.all_reduce(tensor)
        assert (tensor == 6.0).all()
        inside, _ = dist.new_subgroups(2)
        assert inside.communicator.context.hosts == (0, 0)
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        net(torch.full((2, 4), float(rank))).sum().backward()
        assert (net.module.weight.grad == 3.0).all(), net.module.weight.grad
        dist.barrier()
        dist.destroy_process_group()
    if "HOCKET_KEY_FILE" in os.environ:
        with hocket.init() as comm:
            assert comm.context.hosts == (0, 0, 1, 1)
            assert (comm.all_gather(torch.tensor([rank])) == torch.arange(size)).all()
    sys.stdout.write(f"rank {rank} has ended well\\n")  # in one write: ranks share this file
    sys.stdout.flush()
"""


@pytest.mark.slow("it starts torchrun on two hosts")
@pytest.mark.parametrize(
    "has_key",
    [
        pytest.param(False, id="the store brings the key"),
        pytest.param(True, id="a file has the key", marks=pytest.mark.long("it starts torchrun once more")),
    ],
)
def test_torchrun_on_two_hosts(make_lab: Callable[..., Lab], has_key: bool, tmp_path: Path) -> None:
    """With init_process_group, and with hocket.init() where the ranks have a key: torchrun's store brings it none."""
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "key").write_bytes(os.urandom(32))
    (tmp_path / "key").chmod(0o600)
    lab = make_lab(2)
    env = {"OMP_NUM_THREADS": "1"}
    if has_key:
        env["HOCKET_KEY_FILE"] = str(tmp_path / "key")
    agents = []
    for number, host in enumerate(lab.hosts):
        options = ["--nnodes=2", "--nproc-per-node=2", f"--node-rank={number}"]
        options += [f"--master-addr={lab.hosts[0].address}", "--master-port=29500"]
        command = [sys.executable, "-m", "torch.distributed.run", *options, str(tmp_path / "program.py")]
        agents.append(host.popen(command, env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    told = [agent.communicate(timeout=180)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], told
    for rank in range(SIZE):
        assert f"rank {rank} has ended well" in told[LAYOUT[rank]]
