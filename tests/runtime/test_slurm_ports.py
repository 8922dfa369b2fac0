"""The board of Slurm: the first host of the step, and ports that follow from the step."""

import pytest

from hocket.errors import RendezvousError
from hocket.runtime.rendezvous.boards.slurm_ports import NUM_PORTS, SlurmPorts


def test_all_ports_of_rank_0_are_named_one_after_the_other() -> None:
    first, other = SlurmPorts("hx[01-02],hy", "77.0", 0), SlurmPorts("hx[01-02],hy", "77.0", 1)
    first.publish("whatever")
    assert first.ports == other.ports and len(first.ports) == NUM_PORTS
    expected = [f"hx01:{port}" for port in first.ports]
    found = [other.find(0.0) for _ in range(2 * NUM_PORTS)]
    assert found[::2] == expected[:1] * NUM_PORTS, "rank 0 is nearly always there, but often later than this rank"
    assert found[1::2] == [*expected[1:], expected[1]]


def test_steps_have_ports_of_their_own_that_need_no_rights_and_are_not_given_to_connections() -> None:
    steps = [SlurmPorts("hxa", f"{job}.{step}", 0).ports for job in range(100) for step in range(3)]
    assert all(min(ports) > 1024 and max(ports) < 32768 for ports in steps)
    assert len({min(ports) for ports in steps}) > 250


def test_rank_0_on_another_host_than_the_first_is_an_error() -> None:
    with pytest.raises(RendezvousError, match=r"rank 0 is on host number 2 .* first, hxa; tell .* HOCKET_ADDRESS"):
        SlurmPorts("hxa,hxb,hxc", "77.0", 2).publish("whatever")
