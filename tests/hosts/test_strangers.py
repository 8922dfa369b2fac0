"""Strangers at every listener of a job: results, ranks that come meanwhile, and descriptors."""

import os
import resource
import socket
import time
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket import _core
from hocket.runtime.network.handshake import Credentials, Purpose
from hocket.runtime.rendezvous import star
from tests.hosts.pretended import KEY, LIMIT_SECONDS, Job, is_told, mark, told
from tests.hosts.siege import COMMUNICATOR, Siege, recorded, recorded_at_doors
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(4 * LIMIT_SECONDS)
MEETING_SECONDS = 15.0  # under attack; half a second, where nothing else runs
MOST_KIB = 16 << 10
GO_ON, REST, END = 1, 2, 3  # what the ranks are told
AT_REST = 1 << 32  # the mark of a rank that makes no more groups


def num_kib(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * (os.sysconf("SC_PAGE_SIZE") >> 10)


def leave_descriptors(number: int) -> None:
    """Let this process open so many more, however many it has inherited."""
    here = {int(one.name) for one in Path("/proc/self/fd").iterdir()}
    limit, free = 0, 0
    while free < number:
        free += limit not in here
        limit += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


class Besieged:
    """A program of ranks that make checked calls, and groups with new connections, from GO_ON to REST.

    They rest before and after, so that their descriptors can be counted.
    """

    def __init__(self) -> None:
        self._told, self._tells = os.pipe()

    def __call__(self, comm: hocket.Communicator) -> int:
        door = comm.context._door
        assert door is not None
        let_in: set[int] = set()
        hand_over = door._hand_over

        def note(connection: socket.socket, purpose: Purpose, greeting: bytes) -> None:
            let_in.add(purpose.communicator)
            hand_over(connection, purpose, greeting)

        door._hand_over = note  # type: ignore[method-assign]
        doors = comm.all_gather_object(tuple(door.addresses[0]))
        if comm.rank == 0:
            os.write(self._tells, " ".join([door._job.name, *(f"{host}:{port}" for host, port in doors)]).encode())
        x, turn, goes_on = np.empty(10_000), 0, True
        while goes_on:
            group = comm.subgroup(range(comm.size))
            assert group is not None
            with group:
                for _ in range(10):
                    x[:] = comm.rank + turn
                    group.all_reduce(x)
                    assert (x == sum(range(comm.size)) + comm.size * turn).all()
                    turn += 1
            goes_on = comm.all_reduce(np.array([told() < REST]), op="min")[0] != 0
            mark(comm, turn)
            wait_until(lambda: told() >= GO_ON)  # from now on there are no connections to come but those of groups
        mark(comm, AT_REST)
        wait_until(lambda: told() >= END)
        assert let_in and COMMUNICATOR not in let_in, "a recorded handshake is let in"
        return turn

    def doors(self) -> tuple[list[tuple[str, int]], list[bytes]]:
        """Return where the ranks listen, and what each heard of a rank that it let in."""
        name, *places = os.read(self._told, 4096).decode().split()
        found = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in places)]
        return found, recorded_at_doors(Credentials(bytes.fromhex(KEY), name, len(found), _core.LAYOUT))


@pytest.mark.parametrize(
    "num_strangers",
    [1200, pytest.param(10_000, marks=pytest.mark.long("10,000 connections, of which many are idle"))],
)
def test_strangers_at_all_doors_change_no_bit_and_leave_nothing(num_strangers: int) -> None:
    program = Besieged()
    with Job(program, limit=3 * LIMIT_SECONDS) as job:
        doors, answers = program.doors()
        job.await_mark(1)
        descriptors = job.num_descriptors()
        job.tell(GO_ON)
        job.await_mark(20)
        kib = list(map(num_kib, job.processes))
        begun = max(job.marks())
        with Siege(doors, answers, most=num_strangers) as siege:
            siege.wait()
            assert siege.num_connected > num_strangers // 2, "the strangers came"
            assert siege.num_refused > 0, "recorded handshakes are ended"
        job.await_mark(begun + 20)
        grown = [num_kib(one) - was for one, was in zip(job.processes, kib, strict=True)]
        assert max(grown) < MOST_KIB, grown
        job.tell(REST)
        job.await_mark(AT_REST)
        wait_until(lambda: all(now <= was for now, was in zip(job.num_descriptors(), descriptors, strict=True)))
        job.tell(END)
        outcomes = job.outcomes()
    assert [(one.error, one.signal) for one in outcomes] == [(None, 0)] * 4 and len(
        {one.value for one in outcomes}
    ) == 1


@pytest.mark.parametrize("has_few", [False, True], ids=["", "with few descriptors"])
def test_ranks_meet_while_strangers_besiege_rank_0(has_few: bool) -> None:
    def before(rank: int) -> None:
        if rank == 0 and has_few:
            leave_descriptors(45)  # fewer than it may have strangers
        if rank != 0:
            wait_until(is_told)

    def program(comm: hocket.Communicator) -> float:
        return float(comm.all_reduce(np.ones(1))[0])

    heard = recorded(Credentials(bytes.fromhex(KEY), "", 0, 0), Purpose(star._MEETING, 1, 0))
    with Job(program, before=before) as job, Siege([job.address], [heard]) as siege:
        wait_until(lambda: siege.num_connected > 200 and siege.num_refused + siege.num_admitted > 0)
        begun = time.monotonic()
        job.tell()
        outcomes = job.outcomes()
    assert [(one.error, one.value) for one in outcomes] == [(None, 4.0)] * 4
    assert max(one.seconds for one in outcomes) - begun < MEETING_SECONDS
    assert siege.num_refused > 0 == siege.num_admitted, "what was said before does not help"
