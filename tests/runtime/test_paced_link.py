"""Slow links for tests: the contract, the same bits, the same settings on all ranks, and waiting without CPU time."""

import contextlib
import os
import time
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import RendezvousError
from hocket.runtime import discover
from hocket.testing import check_transport, paced_link, run_ranks

GIGABYTE, MICROSECOND = 1e9, 1e-6
KINDS = pytest.mark.parametrize("kind", ["thread", "process"])


def keeps_the_contract() -> str:
    """Runs one rank; a second group of the same ranks has the barrier."""
    with hocket.init() as comm, hocket.init(address=discover().address + "-barrier") as other:
        check_transport(
            comm._core.transport, comm.rank, comm.size, other.barrier, lambda count: hocket.empty(count, "uint8")
        )
        return type(comm._core.transport).__name__


@KINDS
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_paced_link_keeps_the_contract_of_transports(size: int, kind: Any) -> None:
    with paced_link(GIGABYTE, 10 * MICROSECOND):
        assert run_ranks(keeps_the_contract, size, kind=kind) == ["PacedTransport"] * size


def everything() -> list[bytes]:
    """Runs one rank: returns the results of collectives, messages and a subgroup as bytes."""
    with hocket.init() as comm:
        found = []
        for count in (1, 1000, 300_000):
            values = np.random.default_rng([comm.rank, count]).normal(size=count).astype(np.float32)
            registered = hocket.empty(count, "float32")
            registered[:] = values
            found.append(comm.all_reduce(registered, op="avg"))
            found.append(comm.all_gather(values))
            found.append(comm.all_to_all(np.resize(values, comm.size * (count // comm.size))))
            right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
            found.append(comm.sendrecv(values, right, np.empty_like(values), left)[0])
        half = comm.split(comm.rank % 2)
        assert half is not None
        found.append(half.all_reduce(values, async_op=True).wait())
        return [np.asarray(one).tobytes() for one in found]


@KINDS
def test_results_are_the_same_bits_as_without(kind: Any) -> None:
    expected = run_ranks(everything, 3, kind=kind)
    with paced_link(GIGABYTE, 10 * MICROSECOND):
        assert run_ranks(everything, 3, kind=kind) == expected


def last_thing(what: str) -> float:
    """Runs one rank: closes right after its last call or message, before the others have received it."""
    with hocket.init() as comm:
        x = np.full(4, float(comm.rank == 0))
        if what == "all_reduce":
            comm.all_reduce(x)
        elif what == "broadcast":
            comm.broadcast(x, root=0)
        elif comm.rank == 0:
            comm.batch([hocket.Send(x, peer) for peer in range(1, comm.size)])
        else:
            comm.recv(x, 0)
        return float(x[0])


@KINDS
@pytest.mark.parametrize("what", ["all_reduce", "broadcast", "messages"])
def test_what_is_on_its_way_arrives_though_its_sender_has_closed(what: str, kind: Any) -> None:
    with paced_link(GIGABYTE, 0.05):
        assert run_ranks(last_thing, 3, args=(what,), kind=kind) == [1.0] * 3


def timed_all_reduce() -> tuple[float, float]:
    """Runs one rank: returns the wall and CPU seconds of an all_reduce of 1 MiB."""
    with hocket.init() as comm:
        x = hocket.empty(1 << 18, "float32")
        comm.all_reduce(x)
        comm.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        comm.all_reduce(x)
        return time.perf_counter() - wall, time.process_time() - cpu


def test_a_call_takes_as_long_as_its_bytes_and_the_cpu_sleeps_meanwhile() -> None:
    bytes_per_second = 4e6  # so slow that nothing else matters: each of two ranks sends 1 MiB in 0.26 s
    with paced_link(bytes_per_second, 0.01):
        times = run_ranks(timed_all_reduce, 2, kind="process")
        # Of the rank that began first: the other may have left the barrier as much later as its message takes.
        assert max(wall for wall, _ in times) >= (1 << 20) / bytes_per_second + 0.01
        assert all(cpu < wall / 2 for wall, cpu in times)  # a rank that polls would use all of it


def under_its_own_link() -> str:
    speed = {"0": 1e9, "1": 2e9}[os.environ["HOCKET_RANK"]]
    with paced_link(speed, 0.0), pytest.raises(RendezvousError) as caught:
        hocket.init()
    return str(caught.value)


def under_a_link_where_odd() -> str:
    with paced_link(1e9, 0.0) if os.environ["HOCKET_RANK"] == "1" else contextlib.nullcontext():
        with pytest.raises(RendezvousError) as caught:
            hocket.init()
        return str(caught.value)


def test_ranks_with_different_links_all_hear_of_it() -> None:
    for text in run_ranks(under_its_own_link, 2, kind="process"):
        assert "rank 0 has a paced link (1000000000.0, 0.0)" in text
        assert "rank 1 a paced link (2000000000.0, 0.0)" in text
    for text in run_ranks(under_a_link_where_odd, 2, kind="process"):
        assert "rank 0 has no paced link" in text and "rank 1 a paced link (1000000000.0, 0.0)" in text


def test_the_block_ends_and_nests() -> None:
    assert "HOCKET_PACED_LINK" not in os.environ
    with paced_link(1e9, 0.0):
        with paced_link(2e9, 1e-6):
            assert os.environ["HOCKET_PACED_LINK"] == "2000000000.0,1e-06"
        assert os.environ["HOCKET_PACED_LINK"] == "1000000000.0,0.0"
    assert "HOCKET_PACED_LINK" not in os.environ


@pytest.mark.parametrize(
    ("speed", "seconds", "named"),
    [(0.0, 0.0, "bytes_per_second is 0.0"), (float("inf"), 0.0, "bytes_per_second"), (1e9, -1.0, "seconds is -1.0")],
)
def test_a_speed_is_above_zero_and_a_time_is_not_below(speed: float, seconds: float, named: str) -> None:
    with pytest.raises(ValueError, match=named), paced_link(speed, seconds):
        raise AssertionError("not entered")
