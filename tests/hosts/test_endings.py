"""How ranks on several hosts end: leaders that leave early, or die, and what it costs to close."""

import time

import numpy as np
import pytest

import hocket
from hocket.errors import PeerDied
from hocket.runtime.network import agent
from tests.hosts.pretended import LIMIT_SECONDS, Job, is_told, mark, run
from tests.waiting import state_of, wait_until

pytestmark = pytest.mark.timeout(2 * LIMIT_SECONDS)
END_SECONDS = 15.0  # for all processes, once one has died; on a machine with much else to do
CLOSE_SECONDS = 1.0  # some milliseconds, where nothing else runs


def all_but(leaver: int) -> "Job":
    """Start ranks of which one leaves at once, while the others go on until they are told, or fail."""

    def program(comm: hocket.Communicator) -> BaseException | None:
        group = comm.split(int(comm.rank == leaver))
        assert group is not None
        if comm.rank == leaver:
            group.close()
            return None
        try:
            with group:
                goes_on = True
                while goes_on:
                    goes_on = group.all_reduce(np.array([not is_told()]), op="min")[0] != 0
                    mark(comm, 1)
        except PeerDied as error:
            return error
        return None

    return Job(program, before=lambda rank: setattr(agent, "_NOTICE_SECONDS", 0.3))


@pytest.mark.parametrize("leaver", [0, 2], ids=["rank 0", "a leader"])
def test_a_leader_that_ends_early_stays_for_the_others_and_says_so(
    leaver: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with all_but(leaver) as job:
        said = ""

        def has_said() -> bool:
            nonlocal said
            said += capfd.readouterr().err
            return f"rank {leaver} has left, and carries news between hosts until all ranks have left" in said

        wait_until(has_said)
        assert state_of(job.processes[leaver]) not in ("", "Z")
        job.tell()
        outcomes = job.outcomes()
    assert [(one.error, one.value, one.signal) for one in outcomes] == [(None, None, 0)] * 4
    assert outcomes[leaver].ended - max(one.seconds for one in outcomes) < END_SECONDS


@pytest.mark.parametrize("leaver", [0, 2], ids=["rank 0", "a leader"])
def test_a_leader_that_is_killed_after_it_has_left_ends_the_job(leaver: int) -> None:
    others = [rank for rank in range(4) if rank != leaver]
    with all_but(leaver) as job:
        job.await_mark(1, others)
        begun = job.kill(leaver)
        outcomes = job.outcomes()
    for rank in others:
        assert isinstance(outcomes[rank].value, PeerDied) and outcomes[rank].ended - begun < END_SECONDS, outcomes
    # What is cut off by its death is named: the other rank of its host, or on that host a rank elsewhere.
    mates = {leaver ^ 1}
    assert all({outcomes[rank].value.rank} <= mates for rank in others if rank // 2 != leaver // 2), outcomes


@pytest.mark.parametrize("victim", [0, 2], ids=["rank 0", "a leader"])
def test_all_processes_end_when_a_leader_is_killed(victim: int) -> None:
    def program(comm: hocket.Communicator) -> int:
        comm.barrier()
        mark(comm, 1)
        with pytest.raises(PeerDied) as died:
            comm.recv(np.ones(1), (comm.rank + 1) % comm.size)
        raise died.value

    with Job(program) as job:
        job.await_mark(1)
        begun = job.kill(victim)
        outcomes = job.outcomes()
    rest = [one for rank, one in enumerate(outcomes) if rank != victim]
    assert [one.error.rank for one in rest] == [victim] * 3, rest  # type: ignore[union-attr]
    assert all(one.signal == 0 and one.ended - begun < END_SECONDS for one in rest), rest
    # Nobody waits for a decision that cannot come, of rank 0 or of a leader.
    assert max(one.seconds for one in rest) - begun < 1.5, rest


def test_groups_over_hosts_close_at_once() -> None:
    def program(comm: hocket.Communicator) -> float:
        times = []
        for _ in range(50):
            group = comm.subgroup(range(comm.size))
            assert group is not None
            group.all_reduce(np.ones(1))
            begun = time.monotonic()
            group.close()
            times.append(time.monotonic() - begun)
        return float(np.median(times))

    outcomes = run(program)
    assert [one.error for one in outcomes] == [None] * 4
    assert max(one.value for one in outcomes) < CLOSE_SECONDS
