"""Two hosts with two cables each: both carry bytes, and a cable that leads nowhere is done without."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.errors import PeerDied
from hocket.runtime.network import doorkeeper
from tests.hosts import calls
from tests.hosts.lab import Host, Lab
from tests.hosts.pretended import LIMIT_SECONDS, Job, mark, run

pytestmark = pytest.mark.timeout(2 * LIMIT_SECONDS)
COUNT = 1 << 20


@pytest.fixture(autouse=True)
def both_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_SOCKET_IFNAME", "eth0,eth1")


def long_messages(comm: hocket.Communicator) -> None:
    for turn in range(4):
        calls.check(comm, "all_reduce", COUNT, turn)


def every_kind(comm: hocket.Communicator) -> None:
    for turn, kind in enumerate(calls.KINDS):
        calls.check(comm, kind, 5000, turn)
    if comm.rank == 0:
        comm.send(np.arange(300_000), 2, tag=1)
    elif comm.rank == 2:
        assert (comm.recv(np.empty(300_000, np.int64), 0, tag=1)[0] == np.arange(300_000)).all()


def sent(host: Host) -> list[int]:
    """Return the bytes that each interface of the host has sent."""
    with host.network():
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    found = {name.strip(): numbers.split() for name, _, numbers in (line.partition(":") for line in lines)}
    return [int(found[f"eth{rail}"][8]) for rail in range(len(host.rails))]


def test_both_cables_carry_the_bytes(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2, rails=2)
    outcomes = run(long_messages, lab=lab)
    assert [one.error for one in outcomes] == [None] * 4
    for host in lab.hosts:
        first, second = sent(host)
        assert first + second > 4 * 8 * COUNT and 0.9 < first / second < 1.1


def test_all_calls_go_over_rails(make_lab: Callable[..., Lab]) -> None:
    outcomes = run(every_kind, lab=make_lab(2, rails=2))
    assert [one.error for one in outcomes] == [None] * 4


@pytest.mark.long("a cut is noticed after 4 s")
def test_ranks_whose_rail_is_cut_are_lost_to_each_other(make_lab: Callable[..., Lab]) -> None:
    def program(comm: hocket.Communicator) -> None:
        x, turn = np.ones(300_000), 0
        while True:
            comm.all_reduce(x, op="max")
            turn += 1
            mark(comm, turn)

    lab = make_lab(2, rails=2)
    with Job(program, lab=lab) as job:
        job.await_mark(20)
        lab.cut(lab.hosts[1], rail=1)
        errors = [one.error for one in job.outcomes()]
    assert all(isinstance(error, PeerDied) and " on host " in str(error) for error in errors), errors


def test_a_rail_that_leads_nowhere_takes_another_way(
    make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorkeeper, "_CONNECT_SECONDS", 0.2)
    lab = make_lab(2, rails=2)
    lab.cut(lab.hosts[1], rail=1)
    outcomes = run(every_kind, lab=lab)
    assert [one.error for one in outcomes] == [None] * 4
    assert sent(lab.hosts[1])[1] < 10_000 < sent(lab.hosts[1])[0]
