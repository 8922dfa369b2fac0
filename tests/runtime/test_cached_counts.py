"""Repeated calls with the same counts skip Python; they do what the Python methods do."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.runtime import run_ranks
from tests.runtime.repeating import SIZE, Arguments, by_python, count_misses, outcome, values

FORMS: list[Callable[[list[int]], Any]] = [
    list,
    tuple,
    np.array,
    lambda rows: [np.int64(one) for one in rows],
    lambda rows: [*rows, 0],
    sum,
]


def uneven(rank: int, form: Callable[[list[int]], Any]) -> list[tuple[str, Callable[[], Arguments]]]:
    """Returns calls with counts for 2 ranks; both refuse them, or none."""
    x, y = (lambda n: values(rank, n)), (lambda n: np.zeros(n, "float32"))
    calls: list[tuple[str, Callable[[], Arguments]]] = []
    for rows in ([2, 3], [3, 2], [0, 5], [-2, -3], [1 << 62, 1]):
        mine = max(rows[rank], 0) % 100
        calls += [
            ("all_gather_v", lambda rows=rows, mine=mine: ((x(mine), form(rows)), {"out": y(5)})),
            ("reduce_scatter_v", lambda rows=rows, mine=mine: ((x(5), form(rows)), {"op": "max", "out": y(mine)})),
        ]
    for both in (([[1, 2], [1, 3]], [[3, 4], [2, 4]]), ([[1, 0], [1, 1]], [[1, 2], [0, 2]])):
        sent, got = both[rank]
        all_sent, all_got = ([sum(one[way]) for one in both] for way in (0, 1))
        calls += [
            ("all_to_all_v", lambda s=sent, g=got: ((x(sum(s)), form(s), form(g)), {"out": y(sum(g))})),
            ("gather_v", lambda s=sent, n=all_sent: ((x(sum(s)), n), {"out": y(sum(n))})),
            ("scatter_v", lambda g=got, n=all_got: ((x(sum(n)), n), {"out": y(sum(g))})),
        ]
    return calls


def test_a_cached_call_with_counts_does_what_the_python_method_does() -> None:
    """Calls in random order, each with the same call through Python alone; results, arrays and errors are equal."""

    def main() -> None:
        with hocket.init() as comm:
            calls = [one for form in FORMS for one in uneven(comm.rank, form)]
            order = [at for at in range(len(calls)) for _ in range(4)]
            random.Random(5).shuffle(order)  # the same on all ranks
            for at in order:
                name, build = calls[at]
                found = outcome(getattr(comm, name), build())
                expected = outcome(by_python(comm, name), build())
                assert found == expected, (name, build())

    run_ranks(main, SIZE, kind="thread")


def test_counts_that_come_again_skip_python_and_others_take_no_place() -> None:
    def main() -> None:
        with hocket.init() as comm:
            missed, x = count_misses(comm), np.ones(2)
            comm.all_reduce(x)
            counts, given = [1, 2], values(comm.rank, 3)
            mine = counts[comm.rank]
            for number, (name, args, got) in enumerate(
                [
                    ("all_gather_v", (given[:mine], counts), 3),
                    ("gather_v", (given[:mine], counts), 3),
                    ("scatter_v", (given, tuple(counts)), mine),
                    ("reduce_scatter_v", (given, counts), mine),
                    ("all_to_all_v", (given, *[[[1, 2], [2, 1]][comm.rank]] * 2), 3),
                ]
            ):
                results = []
                for turn in range(5):
                    out = np.zeros(got, "float32")
                    getattr(comm, name)(*args, out=out)
                    results.append(out.tolist())
                    assert len(missed) == 1 + 2 * number + min(turn + 1, 2)
                assert results == results[:1] * 5
                assert name != "reduce_scatter_v" or results[0] == [[3.0], [5.0, 7.0]][comm.rank]
            for length in range(5000):  # more than the cache holds
                mine = np.ones(length if comm.rank == 0 else 1, "int8")
                comm.all_gather_v(mine, (length, 1), out=np.zeros(length + 1, "int8"))
            assert len(missed) == 5011
            comm.all_reduce(x)
            assert len(missed) == 5011

    run_ranks(main, SIZE, kind="thread")


def test_many_calls_with_counts_that_take_turns_are_all_remembered() -> None:
    with hocket.init(0, 1) as comm:
        missed, x = count_misses(comm), np.ones(60)
        for turn in range(4):
            for rows in range(1, 61):
                assert comm.all_gather_v(x[:rows], [rows]).size == rows
            assert len(missed) == 60 * min(turn + 1, 2)


def test_a_list_that_has_changed_makes_another_call() -> None:
    """The same arrays and lists are passed again and again, with other counts for the same lengths."""

    def main() -> None:
        with hocket.init() as comm:
            missed = count_misses(comm)
            rows, x, out = [0, 0], np.arange(3) + 10 * (comm.rank + 1), np.zeros(3, "int64")
            for kept, given in [(1, 2)] * 4 + [(2, 1)] * 4 + [(1, 2), (2, 1)] * 2:
                if comm.rank == 0:
                    rows[:], expected = (kept, given), [*range(10, 10 + kept), *range(20, 20 + given)]
                else:
                    rows[:], expected = (given, kept), [*range(10 + kept, 13), *range(20 + given, 23)]
                assert comm.all_to_all_v(x, rows, rows, out=out) is out
                assert out.tolist() == expected
            assert len(missed) == 4  # each is cached when it comes again

    run_ranks(main, SIZE, kind="thread")


def test_a_list_that_changes_while_it_is_read_is_not_remembered() -> None:
    """Changes it like another thread: after the key is made, before the counts are read."""

    def main() -> None:
        with hocket.init() as comm:
            missed, rows = count_misses(comm), [1, 1]
            check = comm._check_counts

            def changing(*args: Any) -> list[int]:
                rows[:] = [2, 0]
                return check(*args)

            def call() -> list[float]:
                rows[:] = [1, 1]
                out = np.zeros([2, 0][comm.rank], "float32")
                comm.reduce_scatter_v(values(comm.rank, 2), rows, out=out)
                return list(out)

            comm._check_counts = changing  # type: ignore[method-assign]
            assert [call() for _ in range(3)] == [[[3.0, 5.0], []][comm.rank]] * 3
            assert missed == ["reduce_scatter_v"] * 3
            comm._check_counts = check  # type: ignore[method-assign]
            with pytest.raises(ValueError, match="expected out with 1 elements"):
                call()

    run_ranks(main, SIZE, kind="thread")
