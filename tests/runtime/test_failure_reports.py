"""What ranks tell `hocket run` of their failures: which of it counts."""

import pytest

from hocket.errors import CollectiveMismatch, CollectiveTimeout, PeerDied
from hocket.runtime.ranks.environment import new_address
from hocket.runtime.ranks.failure_reports import (
    FailureReports,
    ReportSocket,
    follows_from_another,
    reason_of,
    tell_heard,
    tell_uncaught,
)


def test_how_a_rank_ends_counts_more_than_what_it_has_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    address = new_address()
    monkeypatch.setenv("HOCKET_ADDRESS", address)
    told, reports = ReportSocket(address, 0), FailureReports()
    for rank in (0, 1):
        monkeypatch.setenv("HOCKET_RANK", str(rank))
        monkeypatch.setattr("hocket.runtime.ranks.failure_reports._told", set())
        if rank == 1:
            tell_uncaught(KeyError("the mistake"))
        tell_heard()
    for report in told.read():
        reports.take(report, ending=False)
    assert (reports.by_themselves, reports.follows(0), reports.follows(1)) == ([1], True, False)
    told.close()


def test_a_failure_of_a_rank_that_was_told_to_end_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    address = new_address()
    monkeypatch.setenv("HOCKET_ADDRESS", address)
    monkeypatch.setenv("HOCKET_RANK", "0")
    monkeypatch.setattr("hocket.runtime.ranks.failure_reports._told", set())
    told, reports = ReportSocket(address, 0), FailureReports()
    tell_uncaught(KeyboardInterrupt())
    for report in told.read():
        reports.take(report, ending=True)
    assert reports.by_themselves == []
    told.close()


def test_ranks_tell_where_the_first_rank_of_their_host_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    address = new_address()
    monkeypatch.setenv("HOCKET_ADDRESS", address)
    monkeypatch.setattr("hocket.runtime.ranks.failure_reports._told", set())
    hosts = [ReportSocket(address, first) for first in (0, 2)]
    monkeypatch.setenv("HOCKET_RANK", "3")
    monkeypatch.setenv("HOCKET_LOCAL_RANK", "1")
    tell_heard()
    assert [[report.rank for report in host.read()] for host in hosts] == [[], [3]]
    for host in hosts:
        host.close()


def test_a_group_of_errors_follows_if_all_do() -> None:
    followed = PeerDied("the process of rank 1 ended", rank=1)
    assert follows_from_another(ExceptionGroup("tasks", [followed]))
    assert not follows_from_another(ExceptionGroup("tasks", [followed, KeyError("the mistake")]))


def mismatch(values: dict[int, int]) -> CollectiveMismatch:
    return CollectiveMismatch("rank 0: they differ", field="count", values=values, sequence=1)


def timeout(late: int) -> CollectiveTimeout:
    return CollectiveTimeout("not done", missing=[3], seconds=6, sequence=1, late=late)


@pytest.mark.parametrize(
    ("error", "suspects"),
    [
        (mismatch({0: 4, 1: 3, 2: 4, 3: 4}), {1}),
        (mismatch({0: 8, 1: 3}), {1}),  # a message: its receiver
        (timeout(1), {1}),
        (PeerDied("the process of rank 1 ended", rank=1), {1}),
        (KeyError("rank 1"), set()),
    ],
)
def test_a_rank_tells_which_rank_its_error_points_at(
    error: Exception, suspects: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = new_address()
    monkeypatch.setenv("HOCKET_ADDRESS", address)
    monkeypatch.setenv("HOCKET_RANK", "0")
    monkeypatch.setattr("hocket.runtime.ranks.failure_reports._told", set())
    told, reports = ReportSocket(address, 0), FailureReports()
    outer = RuntimeError("the training failed")
    outer.__cause__ = error
    tell_uncaught(outer)
    for report in told.read():
        reports.take(report, ending=False)
    assert reports.suspects == suspects
    told.close()


def test_other_ranks_are_told_the_first_sentence_of_an_error() -> None:
    refused = TypeError("send has no argument 'dest'; did you mean 'dst'? The call is send(x, dst)")
    assert reason_of(refused) == "TypeError: send has no argument 'dest'; did you mean 'dst'?"
    assert reason_of(ValueError("bad shard a.b. See\nmore")) == "ValueError: bad shard a.b."
    assert reason_of(KeyError(1)) == "KeyError: 1"


def test_other_ranks_are_told_where_sys_exit_was_called() -> None:
    with pytest.raises(SystemExit) as raised:
        raise SystemExit(3)
    assert reason_of(raised.value).startswith("sys.exit(3) at ") and "test_failure_reports.py:" in reason_of(
        raised.value
    )
    assert reason_of(SystemExit()) == "sys.exit()"
