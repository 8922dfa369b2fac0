"""What `hocket run` says of ranks that failed: the same whichever of them ended first, the cause last."""

from collections.abc import Sequence

import pytest

from hocket.runtime.launch.failure_text import FailedRanks
from hocket.runtime.launch.tracebacks import reports_another

E = "hocket.errors.CollectiveMismatch"


def traceback(line: int, message: str) -> str:
    return f'Traceback (most recent call last):\n  File "/a.py", line {line}, in <module>\n{message}'


def told(tracebacks: dict[int, str], causes: Sequence[int], suspects: Sequence[int] = ()) -> list[str]:
    ways = dict.fromkeys(causes, "with exit code 1")
    following = {rank for rank, text in tracebacks.items() if reports_another(text)}
    failed = FailedRanks(4, tracebacks, {}, causes, following, suspects, ways, lambda _: "", [], False)
    return failed.text().splitlines()


@pytest.mark.parametrize("causes", [[0, 1, 2, 3], [3, 1, 2, 0], [2, 3, 0, 1]])
@pytest.mark.parametrize(("suspects", "first"), [([], "ranks 0, 2, 3"), ([1], "rank 1"), ([7], "ranks 0, 2, 3")])
def test_one_error_at_two_places_is_told_of_the_suspect(causes: list[int], suspects: list[int], first: str) -> None:
    tracebacks = {rank: traceback(9 if rank == 1 else 7, f"{E}: rank {rank}: they differ") for rank in causes}
    assert told(tracebacks, causes, suspects) == [
        "hocket run: ranks 0-3 of 4 failed, with exit code 1; the same error: ranks 0, 2, 3 (/a.py:7), rank 1 "
        "(/a.py:9):",
        "Traceback (most recent call last):",
        f'  File "/a.py", line {9 if suspects == [1] else 7}, in <module>',
        f"{E}: {first}: they differ",
    ]


@pytest.mark.parametrize("causes", [[0, 2], [2, 0]])
def test_ranks_that_were_stopped_are_told_in_one_line_without_a_message(causes: list[int]) -> None:
    tracebacks = {rank: traceback(9, "TypeError: no such argument") for rank in causes}
    for rank, line in ((1, 4), (3, 5)):
        tracebacks[rank] = traceback(
            line, f"hocket.errors.PeerAborted: rank {rank}: rank 0 gave up: TypeError: no such"
        )
    lines = told(tracebacks, causes)
    assert lines[0] == "hocket run: the failure of ranks 0, 2 stopped rank 1 (/a.py:4), rank 3 (/a.py:5)"
    assert lines[1] == "hocket run: ranks 0, 2 of 4 failed, with exit code 1:" and lines[-1].startswith("TypeError")
    assert len(lines) == 5


def test_where_the_cause_wrote_nothing_the_ranks_that_it_stopped_say_why() -> None:
    closed = (
        "hocket.errors.PeerAborted: rank 1: rank 2 gave up: sys.exit(3) at a.py:8. This communicator can only be closed"
    )
    assert told({1: traceback(9, closed)}, [2]) == [
        "hocket run: the failure of rank 2 stopped rank 1 (/a.py:9)",
        "hocket run: rank 2 of 4 failed first, with exit code 1: sys.exit(3) at a.py:8",
    ]
