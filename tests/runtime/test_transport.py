"""The contract of the transports, and the executor on each of them with all ranks in one thread."""

import threading
import time
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.algorithms import ALGORITHMS
from hocket.runtime import discover
from hocket.schedule import reference
from hocket.testing import (
    assert_same_bits,
    check_schedule,
    check_transport,
    random_block_lengths,
    random_inputs,
    run_ranks,
    transports,
)
from tests.runtime import world


def in_threads(ends: list[Any]) -> None:
    size = len(ends)
    meeting = threading.Barrier(size)
    failures: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            check_transport(ends[rank], rank, size, lambda: meeting.wait(60))
        except BaseException as error:
            failures.append(error)
            meeting.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def over_shared_memory() -> None:
    """Runs one rank; a second group of the same ranks has the barrier."""
    with hocket.init() as comm, hocket.init(address=discover().address + "-barrier") as other:
        check_transport(
            comm._core.transport, comm.rank, comm.size, other.barrier, lambda count: hocket.empty(count, "uint8")
        )


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_one_byte_stream_keeps_the_contract(size: int) -> None:
    in_threads(world.byte_streams(size))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_shared_memory_keeps_the_contract_between_threads(size: int) -> None:
    cores = world.shared_memory(size)
    in_threads([core.transport for core in cores])


@pytest.mark.parametrize("size", [2, 3, 5])
def test_connections_keep_the_contract(size: int) -> None:
    in_threads(world.tcp(size))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_several_transports_keep_the_contract_as_one(size: int) -> None:
    cores = world.shared_memory(size)
    in_threads(world.mixed(cores, seed=size))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_shared_memory_keeps_the_contract_between_processes(size: int) -> None:
    run_ranks(over_shared_memory, size, kind="process")


class Breaking:
    """A transport that is right except for one method."""

    def __init__(self, inner: Any, **broken: Any) -> None:
        self.inner, self.broken = inner, broken

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name == "windows":
            return Unreliable(method, self.broken[name]) if name in self.broken else method
        return (lambda *args: self.broken[name](method, *args)) if name in self.broken else method


def swap_bytes(view: Any, peer: int) -> Any:
    data, tag = view(peer)
    return data[::-1], tag


def lose_tag(view: Any, peer: int) -> Any:
    return view(peer)[0], 0


def come_late(post: Any, peers: Any, data: Any, *how: Any) -> Any:
    if len(data) == 1:
        time.sleep(0.1)  # so the peer has read all there was, and looks in vain
    return post(peers, data, *how)


def lend_always(post: Any, peers: Any, data: Any, tag: int, *how: Any) -> Any:
    return post(peers, data, tag, "lend")


def take_without_sending(post: Any, *how: Any) -> Any:
    taken, lent = post(*how)
    return taken or 1, lent


def lose_head(post: Any, peers: Any, data: Any, tag: int, way: str, *how: Any) -> Any:
    return post(peers, data, tag, way)


def copy_other(copy: Any, peer: int, num_bytes: int) -> Any:
    return bytes(num_bytes)


def tell_nobody(tell: Any, *how: Any) -> None:
    pass


def come_never(is_coming: Any, peer: int) -> bool:
    return True


class Unreliable:
    """Windows that are right except for one method."""

    def __init__(self, inner: Any, name: str) -> None:
        self.inner, self.name = inner, name

    def __getattr__(self, name: str) -> Any:
        return (lambda *_, **__: None) if name == self.name else getattr(self.inner, name)


def test_a_rank_may_come_late_to_a_full_channel() -> None:
    prompt, late = (core.transport for core in world.shared_memory(2))
    in_threads([prompt, Breaking(late, post=come_late)])


@pytest.mark.parametrize(
    "broken",
    [
        {"view": swap_bytes},
        {"view": lose_tag},
        {"post": lend_always},
        {"post": take_without_sending},
        {"post": lose_head},
        {"copy": copy_other},
        {"tell": tell_nobody},
        {"is_coming": come_never},
        {"windows": "revoke"},
        {"withdraw": tell_nobody},
    ],
    ids=["order", "tag", "loan", "loss", "head", "copy", "number", "arrival", "revoke", "withdraw"],
)
def test_the_suite_finds_a_broken_transport(broken: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "_PATIENCE_SECONDS", 1.0)  # for the rank whose peer has already failed
    cores = world.shared_memory(2)
    with pytest.raises((AssertionError, threading.BrokenBarrierError)):
        in_threads([Breaking(core.transport, **broken) for core in cores])


# One byte at a time takes long. Algorithms that take no odd rank count have even ones instead.
SIZES = {
    "bytes": ((2, 3), (2, 4)),
    "tcp": ((3, 5), (4, 6)),
    "mixed": ((3, 5), (4, 6)),
    "memory": ((1, 2, 3, 5), (1, 2, 4, 6)),
}
WORLDS = [
    pytest.param(*key, size, kind, id=f"{'-'.join(key)}-{size}-{kind}")
    for key, one in ALGORITHMS.items()
    for kind, (any_size, even) in SIZES.items()
    for size in filter(one.allows, any_size if one.allows(3) else even)
]


@pytest.mark.parametrize(("collective", "name", "size", "kind"), WORLDS)
def test_the_executor_computes_the_reference_in_any_order(collective: str, name: str, size: int, kind: str) -> None:
    schedule = ALGORITHMS[collective, name].build(size, size - 1)
    blocks = (1, 13, 1000) if kind in ("bytes", "mixed") else (1, 1000, 70_001)
    for number, block in enumerate(blocks):
        dtype = ("float32", "int64", "uint8")[number]
        op = "max" if collective == "barrier" else "sum"
        for in_place in (False, True):
            lengths = random_block_lengths(schedule, seed=number, in_place=in_place, most=block)
            if collective == "barrier":
                inputs: list[Any] = [np.full(1, rank, np.uint8) for rank in range(size)]
            else:
                inputs = random_inputs(schedule, seed=number, dtype=dtype, block=block, block_lengths=lengths)
            expected = reference.run(schedule, inputs, block_lengths=lengths)
            cores = world.shared_memory(size) if kind in ("mixed", "memory") else []
            ends = [core.transport for core in cores]
            if not cores:
                ends = world.tcp(size) if kind == "tcp" else world.byte_streams(size)
            for seed in range(3):
                if kind == "mixed":
                    ends = world.mixed(cores, seed)
                found = world.run_world(
                    schedule,
                    inputs,
                    op,
                    transports=ends,
                    in_place=in_place,
                    seed=seed,
                    block_lengths=lengths,
                    patience=60.0 if kind in ("tcp", "mixed") else 0.0,
                )
                assert_same_bits(found, expected)


@pytest.mark.parametrize(("collective", "name"), list(ALGORITHMS), ids=lambda value: str(value))
def test_check_schedule_accepts_what_is_built_in(collective: str, name: str) -> None:
    certificate = check_schedule(ALGORITHMS[collective, name], 4, 3, seeds=3)
    assert certificate.collective == collective
