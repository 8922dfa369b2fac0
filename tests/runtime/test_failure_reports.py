"""What ranks tell `hocket run` of their failures: which of it counts."""

import pytest

from hocket.errors import PeerDied
from hocket.runtime.ranks.environment import new_address
from hocket.runtime.ranks.failure_reports import FailureReports, follows_from_another, tell_heard, tell_uncaught


def test_how_a_rank_ends_counts_more_than_what_it_has_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    address = new_address()
    monkeypatch.setenv("HOCKET_ADDRESS", address)
    reports = FailureReports(address)
    for rank in (0, 1):
        monkeypatch.setenv("HOCKET_RANK", str(rank))
        monkeypatch.setattr("hocket.runtime.ranks.failure_reports._told", set())
        if rank == 1:
            tell_uncaught(KeyError("the mistake"))
        tell_heard()
    reports.read(2, ending=False)
    assert (reports.by_themselves, reports.follows(0), reports.follows(1)) == ([1], True, False)
    reports.close()


def test_a_failure_of_a_rank_that_was_told_to_end_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    address = new_address()
    monkeypatch.setenv("HOCKET_ADDRESS", address)
    monkeypatch.setenv("HOCKET_RANK", "0")
    monkeypatch.setattr("hocket.runtime.ranks.failure_reports._told", set())
    reports = FailureReports(address)
    tell_uncaught(KeyboardInterrupt())
    reports.read(1, ending=True)
    assert reports.by_themselves == []
    reports.close()


def test_a_group_of_errors_follows_if_all_do() -> None:
    followed = PeerDied("the process of rank 1 ended", rank=1)
    assert follows_from_another(ExceptionGroup("tasks", [followed]))
    assert not follows_from_another(ExceptionGroup("tasks", [followed, KeyError("the mistake")]))
