"""Connections that break while both ends live: bytes may be lost, so the communicator fails, and names the ranks."""

import os
import time

import numpy as np
import pytest

import hocket
from hocket.errors import PeerDied
from tests.hosts.pretended import LIMIT_SECONDS, Outcome, run
from tests.hosts.resets import reset_data, reset_link

pytestmark = pytest.mark.timeout(2 * LIMIT_SECONDS)
TOLD_SECONDS = 10.0


def errors_of(outcomes: list[Outcome]) -> list[PeerDied]:
    assert [one.signal for one in outcomes] == [0] * len(outcomes)
    assert all(isinstance(one.value, PeerDied) for one in outcomes), outcomes
    return [one.value for one in outcomes]


@pytest.mark.parametrize("count", [1, 1 << 20])
def test_a_data_connection_that_breaks_ends_the_call_on_all_hosts(count: int) -> None:
    def program(comm: hocket.Communicator) -> BaseException:
        x = np.ones(count)
        begun = time.monotonic()
        with pytest.raises(PeerDied) as died:
            comm.all_reduce(x)  # on others it may not be done yet
            if comm.rank == 2:
                assert reset_data(comm) > 0
            while True:
                comm.all_reduce(x, op="max")
        assert time.monotonic() - begun < TOLD_SECONDS
        with pytest.raises(PeerDied):
            comm.barrier()
        return died.value

    errors = errors_of(run(program))
    assert len({error.rank for error in errors}) == 1
    assert all("its connection with rank" in str(error) and " on host " in str(error) for error in errors), errors


def test_a_message_whose_connection_breaks_ends_on_both_sides() -> None:
    def program(comm: hocket.Communicator) -> BaseException:
        x, received = np.ones(8), np.empty(8)
        for _ in range(2):
            comm.sendrecv(x, 1 - comm.rank, received, 1 - comm.rank)
        if comm.rank == 1:
            assert reset_data(comm) == 2
        with pytest.raises(PeerDied) as died:
            while True:
                comm.sendrecv(x, 1 - comm.rank, received, 1 - comm.rank, timeout=TOLD_SECONDS)
        return died.value

    errors = errors_of(run(program, (0, 1)))
    assert all("its connection with rank" in str(error) for error in errors), errors


def test_a_receive_that_waits_hears_that_its_connection_has_broken() -> None:
    def program(comm: hocket.Communicator) -> BaseException | None:
        x = np.ones(8)
        if comm.rank == 0:
            comm.send(x, 1)
            comm.recv(x, 1)
            assert reset_data(comm) == 2
            with pytest.raises(PeerDied) as died:  # nothing is to be sent here
                comm.recv(x, 1, timeout=TOLD_SECONDS)
        else:
            comm.recv(x, 0)
            comm.send(x, 0)
            with pytest.raises(PeerDied) as died:
                comm.recv(x, 0, timeout=TOLD_SECONDS)
        return died.value

    errors_of(run(program, (0, 1)))


def test_a_broken_connection_that_nobody_needs_any_more_is_no_failure() -> None:
    def program(comm: hocket.Communicator) -> int:
        x = np.ones(1000)
        for _ in range(3):
            comm.all_reduce(x, op="max")
        comm.barrier()
        return reset_data(comm) if comm.rank == 1 else 0

    outcomes = run(program, (0, 1))
    assert [one.error for one in outcomes] == [None, None] and outcomes[1].value > 0, outcomes


def test_a_root_whose_last_bytes_are_lost_hears_of_it_as_it_closes() -> None:
    told, tells = os.pipe()

    def program(comm: hocket.Communicator) -> BaseException:
        x = np.zeros(100_000)
        comm.broadcast(x)
        comm.barrier()
        if comm.rank == 1:
            reset_data(comm)
            os.write(tells, b"\0")
        else:
            os.read(told, 1)
        with pytest.raises(PeerDied) as died:
            comm.broadcast(x, timeout=TOLD_SECONDS)
            comm.close()
        return died.value

    errors_of(run(program, (0, 1)))


def test_the_link_of_a_leader_that_breaks_ends_the_job_on_both_sides() -> None:
    def program(comm: hocket.Communicator) -> BaseException:
        x = np.ones(1000)
        begun = time.monotonic()
        with pytest.raises(PeerDied) as died:
            comm.all_reduce(x)  # on others it may not be done yet
            if comm.rank == 2:
                assert reset_link(comm) == 1
            while True:
                comm.all_reduce(x, op="max")
        assert time.monotonic() - begun < TOLD_SECONDS
        return died.value

    errors = errors_of(run(program))
    assert [error.rank // 2 for error in errors] == [1, 1, 0, 0], "each side names a rank of the other"
