"""Networks that lose, delay, cut and break up what they carry: right results, or an error that names who is gone."""

import os
import time
from collections.abc import Callable

import numpy as np
import pytest

import hocket
from hocket.errors import PeerDied
from tests.hosts import calls
from tests.hosts.lab import Lab
from tests.hosts.one_byte_proxy import put_before_doors
from tests.hosts.pretended import LIMIT_SECONDS, Job, Outcome, is_told, mark, run

pytestmark = pytest.mark.timeout(4 * LIMIT_SECONDS)
NAMED_SECONDS = 6.0


def every_kind(counts: tuple[int, ...]) -> Callable[[hocket.Communicator], None]:
    def program(comm: hocket.Communicator) -> None:
        for count in counts:
            for turn, kind in enumerate(calls.KINDS):
                calls.check(comm, kind, count, turn)

    return program


def all_went_well(outcomes: list[Outcome]) -> bool:
    return all(one.error is None and one.signal == 0 for one in outcomes)


def until_told(comm: hocket.Communicator) -> tuple[int, BaseException | None, float]:
    """Make checked calls until the ranks are told to end, or fail."""
    turn = 0
    try:
        goes_on = True
        while goes_on:
            goes_on = comm.all_reduce(np.array([not is_told()]), op="min")[0] != 0
            calls.check(comm, "all_reduce", 50_000, turn)
            turn += 1
            mark(comm, turn)
    except PeerDied as error:
        return turn, error, time.monotonic()
    return turn, None, time.monotonic()


def test_bytes_may_come_one_by_one() -> None:
    outcomes = run(every_kind((8, 500)), before=lambda rank: put_before_doors())
    assert all_went_well(outcomes), outcomes


@pytest.mark.long("some seconds for each of 14 kinds")
def test_all_kinds_are_right_where_packets_are_lost(make_lab: Callable[..., Lab]) -> None:
    outcomes = run(every_kind((8, 8192, 262_144)), lab=make_lab(2, delay_seconds=0.0005, loss=0.01))
    assert all_went_well(outcomes), outcomes


@pytest.mark.long("a cable is out for 2 s")
def test_a_cable_that_is_out_for_a_short_time_does_no_harm(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2)
    with Job(until_told, lab=lab) as job:
        job.await_mark(2)
        lab.cut(lab.hosts[1])
        time.sleep(2.0)  # so long it is out
        lab.mend(lab.hosts[1])
        job.await_mark(1 + max(job.marks()))
        job.tell()
        outcomes = job.outcomes()
    assert all_went_well(outcomes) and all(one.value[1] is None for one in outcomes), outcomes


@pytest.mark.long("the program ss looks at all connections of a host")
def test_connections_that_are_reset_from_outside_end_the_job(make_lab: Callable[..., Lab]) -> None:
    told, tells = os.pipe()

    def program(comm: hocket.Communicator) -> tuple[int, BaseException | None, float]:
        door = comm.context._door
        if comm.rank == 0 and door is not None:
            os.write(tells, str(door.addresses[0][1]).encode())
        return until_told(comm)

    lab = make_lab(2)
    with Job(program, lab=lab) as job:
        port = int(os.read(told, 16))
        job.await_mark(5)
        begun = time.monotonic()
        assert lab.reset(lab.hosts[0], port) > 0
        outcomes = job.outcomes()
    assert all(one.signal == 0 and isinstance(one.value[1], PeerDied) for one in outcomes), outcomes
    assert all("its connection with rank" in str(one.value[1]) for one in outcomes), outcomes
    assert max(one.value[2] for one in outcomes) - begun < NAMED_SECONDS, outcomes


@pytest.mark.long("a host is dead after 4 s of silence")
@pytest.mark.parametrize("dies", [False, True], ids=["cut cable", "dead host"])
@pytest.mark.parametrize("waits", [False, True], ids=["in calls", "idle"])
def test_a_host_that_cannot_be_reached_is_named_on_all_others(
    make_lab: Callable[..., Lab], dies: bool, waits: bool
) -> None:
    def idle(comm: hocket.Communicator) -> tuple[int, BaseException | None, float]:
        comm.barrier()
        mark(comm, 2)
        with pytest.raises(PeerDied) as died:
            comm.recv(np.ones(1), (comm.rank + 1) % comm.size)
        return 0, died.value, time.monotonic()

    lab = make_lab(3)
    with Job(idle if waits else until_told, (0, 0, 1, 1, 2, 2), lab=lab) as job:
        job.await_mark(2)
        begun = time.monotonic()
        lab.cut(lab.hosts[2])
        if dies:
            job.kill(4, 5)
        outcomes = job.outcomes()
    survivors = outcomes[:4] if dies else outcomes
    assert all(one.signal == 0 and isinstance(one.value[1], PeerDied) for one in survivors), outcomes
    assert all("on host host2" in str(one.value[1]) for one in outcomes[:4]), outcomes
    assert max(one.value[2] for one in survivors) - begun < NAMED_SECONDS, outcomes
    assert max(one.ended for one in outcomes) - begun < 2 * NAMED_SECONDS
