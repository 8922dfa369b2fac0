"""Ranks that exchange data through connections (HOCKET_TRANSPORT=tcp), as processes and as threads of one host."""

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveMismatch, PeerDied, RendezvousError
from hocket.runtime.network import handshake
from hocket.runtime.network.gate import MAX_STRANGERS
from hocket.testing import run_ranks

KINDS = ("thread", "process")


@pytest.fixture(autouse=True)
def over_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TRANSPORT", "tcp")


def collectives() -> None:
    with hocket.init() as comm:
        rank, size = comm.rank, comm.size
        for count in (1, 1000, 300_000, 3_000_001):
            given = np.arange(count, dtype=np.int64) + rank
            expected = size * np.arange(count) + size * (size - 1) // 2
            np.testing.assert_array_equal(comm.all_reduce(given.copy()), expected)
            np.testing.assert_array_equal(comm.broadcast(given.copy(), root=size - 1), np.arange(count) + size - 1)
            np.testing.assert_array_equal(
                comm.all_gather(given.copy()), np.concatenate([np.arange(count) + one for one in range(size)])
            )
        for number in range(200):
            assert comm.all_reduce(np.array([number + rank]))[0] == size * number + size * (size - 1) // 2
        assert type(comm._core.transport).__name__ == "Carrier"  # of connections, and of memory for itself


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_collectives(size: int, kind: Any) -> None:
    run_ranks(collectives, size, kind=kind)


def messages() -> None:
    with hocket.init() as comm:
        for count in (1, 5_000, 100_000, 2_000_000):
            given = np.arange(count, dtype=np.float32) + comm.rank
            after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
            found = np.empty_like(given)
            comm.sendrecv(given, after, found, before)
            np.testing.assert_array_equal(found, np.arange(count, dtype=np.float32) + before)
            works = [comm.isend(given, after, tag=1), comm.irecv(found, before, tag=1)]
            for work in works:
                work.wait()
            np.testing.assert_array_equal(found, np.arange(count, dtype=np.float32) + before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3])
def test_messages(size: int, kind: Any) -> None:
    run_ranks(messages, size, kind=kind)


def send_and_close() -> None:
    with hocket.init() as comm:
        data = np.arange(60_000, dtype=np.int32)
        if comm.rank == 0:
            for tag in range(3):
                comm.send(data + tag, 1, tag=tag)
        else:
            time.sleep(0.2)  # the sender has closed by then, and the system holds what it can
            for tag in range(3):
                found = np.empty_like(data)
                comm.recv(found, 0, tag=tag)
                np.testing.assert_array_equal(found, data + tag)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_sent_arrives_though_its_sender_closes_at_once(kind: Any) -> None:
    run_ranks(send_and_close, 2, kind=kind)


def groups() -> None:
    with hocket.init() as comm:
        for number in range(20):
            group = comm.split(comm.rank % 2)
            assert group is not None
            with group:
                total = group.all_reduce(np.full(1000, comm.rank + number))
                assert (total == sum(range(comm.rank % 2, comm.size, 2)) + number * group.size).all()


def test_groups_have_connections_of_their_own() -> None:
    run_ranks(groups, 4, kind="process")


def sleepers() -> float:
    """Return the median time to hear from a rank that slept when it was asked."""
    times = []
    with hocket.init() as comm:
        data = np.zeros(1)
        for _ in range(15):
            if comm.rank == 0:
                time.sleep(0.05)  # the other one sleeps by then
                begun = time.monotonic()
                comm.send(data, 1)
                comm.recv(data, 1)
                times.append(time.monotonic() - begun)
            else:
                comm.recv(data, 0)
                comm.send(data, 0)
    return float(np.median(times)) if times else 0.0


def test_what_comes_wakes_a_rank_that_sleeps() -> None:
    assert max(run_ranks(sleepers, 2, kind="process")) < 0.03, "who is not woken looks ten times a second"


def one_way() -> float:
    with hocket.init() as comm:
        data = np.full(16 << 20, comm.rank, np.uint8)
        comm.barrier()
        begun = time.monotonic()
        for _ in range(4):
            if comm.rank == 1:
                time.sleep(0.02)  # by then the system has no room, and the sender sleeps
            comm.broadcast(data)
        assert (data == 0).all()
        return time.monotonic() - begun


def test_room_wakes_a_rank_that_sleeps() -> None:
    assert max(run_ranks(one_way, 2, kind="process")) < 2.0, "who is not woken sends one buffer in a tenth of a second"


def dying() -> None:
    with hocket.init() as comm:
        data = np.ones(4_000_000, np.float32)
        for number in range(100):
            if comm.rank == 1 and number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                comm.all_reduce(data)
            except PeerDied as error:
                assert error.rank == 1
                raise


def test_a_death_is_named() -> None:
    with pytest.raises(PeerDied, match=r"rank 1 of 3 .* was killed by SIGKILL"):
        run_ranks(dying, 3, kind="process")


def differing() -> None:
    with hocket.init() as comm, pytest.raises(CollectiveMismatch):
        comm.all_reduce(np.ones(8 + comm.rank, np.float32))


def test_a_mismatch_is_found() -> None:
    run_ranks(differing, 2, kind="process")


def only_one() -> None:
    os.environ["HOCKET_TRANSPORT"] = "tcp" if os.environ["HOCKET_RANK"] == "0" else "shm"
    with pytest.raises(RendezvousError, match="rank 0 has HOCKET_TRANSPORT=tcp, rank 1 HOCKET_TRANSPORT=shm"):
        hocket.init()


def test_all_ranks_have_one_kind_of_transport() -> None:
    run_ranks(only_one, 2, kind="process")


def test_another_name_of_a_transport_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TRANSPORT", "udp")
    with pytest.raises(ValueError, match="HOCKET_TRANSPORT is 'udp'; expected shm"):
        hocket.init(0, 1)


def attacked() -> None:
    """Rank 0 is besieged by connections that say nothing, nonsense, and what others have said."""
    with hocket.init() as comm:
        doors = comm.all_gather_object(comm.context._door.addresses[0])
        stop = threading.Event()
        attempts: list[int] = []

        def besiege() -> None:
            idle: list[socket.socket] = []
            while not stop.is_set():
                stranger = socket.create_connection(doors[0])
                idle.append(stranger)
                with contextlib.suppress(OSError):  # it was dropped
                    if len(idle) % 3 == 0:
                        stranger.sendall(bytes(len(idle)))
                    elif len(idle) % 3 == 1:
                        challenged = stranger.recv(handshake.CHALLENGE_BYTES, socket.MSG_WAITALL)
                        stranger.sendall(challenged + bytes(200))
                        attempts.append(len(challenged))
                if len(idle) > 2 * MAX_STRANGERS:
                    idle.pop(0).close()
            for one in idle:
                one.close()

        besieger = threading.Thread(target=besiege)
        if comm.rank == 1:
            besieger.start()
        try:
            for number in range(20):
                group = comm.subgroup(range(comm.size))
                assert group is not None
                with group:  # which has connections of its own
                    assert group.all_reduce(np.array([number]))[0] == number * comm.size
        finally:
            stop.set()
            if comm.rank == 1:
                besieger.join()
                assert attempts.count(handshake.CHALLENGE_BYTES) > 5, "it was besieged"
        assert len(list(Path("/proc/self/fd").iterdir())) < 200, "who was dropped is closed"


def test_strangers_do_no_harm() -> None:
    run_ranks(attacked, 2, kind="process")
