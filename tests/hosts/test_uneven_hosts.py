"""Ranks on four hosts that have different numbers of them: every kind of collective is right to the bit."""

from collections.abc import Callable

import pytest

import hocket
from tests.hosts import calls
from tests.hosts.lab import Lab
from tests.hosts.pretended import LIMIT_SECONDS, run

pytestmark = pytest.mark.timeout(2 * LIMIT_SECONDS)


@pytest.mark.parametrize("layout", [(0, 0, 1, 2, 2, 3), (0, 1, 2, 2, 3, 0)], ids=["in order", "mixed"])
def test_every_kind_is_right_on_four_hosts_of_two_one_two_and_one_ranks(
    make_lab: Callable[..., Lab], layout: tuple[int, ...]
) -> None:
    def program(comm: hocket.Communicator) -> tuple[int, ...]:
        for number, kind in enumerate(calls.KINDS):
            for root in (number, number + 3):  # on another host
                for count in (5, 30_000):
                    calls.check(comm, kind, count, root)
        return comm.context.hosts

    outcomes = run(program, layout, lab=make_lab(4))
    assert [(one.error, one.signal, one.value) for one in outcomes] == [(None, 0, layout)] * 6
