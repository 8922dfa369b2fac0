"""Ranks make different calls: all get the same error, and no rank gets data that depends on such a call."""

import itertools
import random
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import hocket
from hocket.algorithms import ALGORITHMS
from hocket.errors import CollectiveMismatch
from hocket.runtime import discover, run_ranks

Comm = hocket.Communicator
SMALL, MIDDLE, LARGE = 3, 900, 70_000  # inside the flag's cache line; staged; lent or several pieces


class Call(NamedTuple):
    """The call of one rank."""

    kind: str = "all_reduce"
    count: int = SMALL
    dtype: str = "float64"
    op: str = "sum"
    root: int = 0
    algorithm: str | None = None


def make(comm: Comm, call: Call) -> tuple[Any, Any]:
    """Makes the call; returns the array before it, and the result."""
    x = np.full(call.count, comm.rank + 1, call.dtype)
    keywords: dict[str, Any] = {"algorithm": call.algorithm, "timeout": 60}
    if call.kind == "barrier":
        return None, comm.barrier(**keywords)
    if call.kind in ("broadcast", "reduce"):
        keywords["root"] = call.root
    if call.kind in ("all_reduce", "reduce_scatter", "reduce"):
        keywords["op"] = call.op
    return x.copy(), getattr(comm, call.kind)(x, **keywords)


# The field in which the calls differ, what most ranks call, and what one rank calls.
DIFFERENT = [
    pytest.param(field, most, one, id=f"{field}-{size}-{number}")
    for size, count in (("small", SMALL), ("middle", MIDDLE), ("large", LARGE))
    for number, (field, most, one) in enumerate(
        [
            ("count", Call(count=count), Call(count=count + 1)),
            ("count", Call(count=count), Call(count=0)),
            ("count", Call("broadcast", count=count), Call("broadcast", count=count - 1)),
            ("count", Call("all_gather", count=count), Call("all_gather", count=2 * count)),
            ("count", Call("reduce", count=0), Call("reduce", count=count)),
            # As many bytes.
            ("dtype", Call(count=count), Call(count=count, dtype="int64")),
            ("dtype", Call("broadcast", count=count), Call("broadcast", count=count, dtype="float32")),
            ("dtype", Call("all_gather", count=count, dtype="int32"), Call("all_gather", count=count, dtype="float32")),
            ("op", Call(count=count), Call(count=count, op="max")),
            ("op", Call("reduce", count=count, op="sum"), Call("reduce", count=count, op="avg")),
            ("kind", Call(count=count), Call("broadcast", count=count)),
            ("kind", Call(count=count), Call("barrier")),
            ("kind", Call("all_gather", count=count), Call("reduce", count=count)),
            ("kind", Call("broadcast", count=count), Call("reduce", count=count)),
            ("root", Call("broadcast", count=count), Call("broadcast", count=count, root=1)),
            ("root", Call("reduce", count=count, root=1), Call("reduce", count=count, root=0)),
            ("schedule", Call(count=count, algorithm="ring"), Call(count=count, algorithm="direct")),
            ("schedule", Call("all_gather", count, algorithm="ring"), Call("all_gather", count, algorithm="direct")),
        ]
    )
]


class Report(NamedTuple):
    """What one rank was told."""

    called: Any  # the value of the field in its own call
    when: str  # "call", "next call" or "close"
    field: str
    values: dict[int, Any]
    sequence: int
    text: str


def differ(comm: Comm, field: str, call: Call, num_before: int, then: str) -> Report | None:
    """Makes some right calls, then the different one, then, if that returns, one more call or none, and closes."""
    when = "call"  # or an earlier one, if others are ahead and have failed
    try:
        for turn in range(num_before):
            assert (comm.all_reduce(np.full(5, turn, "int32")) == turn * comm.size).all()
        x, result = make(comm, call)
        may_stay = call.kind == "barrier" or (call.kind == "reduce" and comm.rank != call.root)
        # Only a result that does not depend on the others' calls may come back.
        if call.kind == "broadcast":
            assert call.count == 0 or (result == call.root + 1).all()
        else:
            assert may_stay or call.count == 0, f"rank {comm.rank} got {result} for {x} from {call}"
        if then == "next call":
            when = "next call"
            comm.barrier(timeout=60)
        when = "close"
        comm.close()
    except CollectiveMismatch as error:
        own = {"schedule": call.algorithm}.get(field) or getattr(call, field)
        try:
            comm.barrier()
        except CollectiveMismatch as again:
            assert when == "close" or (again.field, again.values, again.sequence) == (
                error.field,
                error.values,
                error.sequence,
            )
        except hocket.errors.CommunicationError:
            assert when == "close"
        else:
            raise AssertionError("a communicator that has failed went on") from None
        comm.close()  # does not raise again
        return Report(own, when, error.field, error.values, error.sequence, str(error))
    return None


def judge(reports: list[Report | None], field: str, sequence: int) -> None:
    assert None not in reports, [report and report.when for report in reports]
    told = [report for report in reports if report is not None]
    assert {report.field for report in told} == {field}, told
    assert {report.sequence for report in told} == {sequence}
    for report in told:
        assert report.values == told[0].values, "all ranks are told the same values"
        what = "called different collectives" if field == "kind" else f"differ in {field}"
        assert f"the ranks {what.replace('schedule', 'algorithm')} at call {sequence}" in report.text
    values = told[0].values
    assert len(set(values.values())) == 2
    if field != "schedule":
        assert all(value == told[rank].called for rank, value in values.items())
        assert all(str(value) in told[0].text for value in values.values())
    else:
        by_name: dict[Any, set[Any]] = {}
        for rank, value in values.items():
            by_name.setdefault(told[rank].called, set()).add(value)
        assert all(len(digests) == 1 for digests in by_name.values()) and len(by_name) == 2


def differ_at(size: int, most: Call, one: Call) -> bool:
    """Returns whether the calls differ: for two ranks, two algorithms can be the same schedule."""
    names = [call.algorithm for call in (most, one) if call.algorithm is not None]
    return len({ALGORITHMS[most.kind, name].build(size).digest for name in names}) != 1


@pytest.mark.parametrize(("field", "most", "one"), DIFFERENT)
def test_all_ranks_are_told_the_same(field: str, most: Call, one: Call) -> None:
    for size in (size for size in (2, 3, 4) if differ_at(size, most, one)):
        variants = list(itertools.product((0, size - 1), (0, 11), ("next call", "close")))

        def main(size: int = size, variants: Any = variants) -> list[Report | None]:
            reports = []
            for number, (odd, num_before, then) in enumerate(variants):
                comm = hocket.init(address=f"{discover().address}-{number}")
                call = one if comm.rank == odd else most
                reports.append(differ(comm, field, call, num_before, then))
            return reports

        by_rank = run_ranks(main, size, kind="thread")
        for number, (_, num_before, _) in enumerate(variants):
            judge([reports[number] for reports in by_rank], field, num_before + 1)


def differ_in_all_ways() -> list[tuple[str, Report | None]]:
    reports = []
    for number, parameters in enumerate(DIFFERENT):
        field, most, one = parameters.values
        if not differ_at(discover().size, most, one):
            continue
        comm = hocket.init(address=f"{discover().address}-{number}")
        then = ("next call", "close")[number % 2]
        reports.append((field, differ(comm, field, one if comm.rank == number % comm.size else most, 2, then)))
    return reports


@pytest.mark.parametrize("size", [2, 3])
def test_processes_are_told_the_same(size: int) -> None:
    by_rank = run_ranks(differ_in_all_ways, size, kind="process")
    for one in zip(*by_rank, strict=True):
        judge([report for _, report in one], one[0][0], 3)


@pytest.mark.parametrize("count", [0, 1, SMALL, MIDDLE])
@pytest.mark.parametrize("ahead", [3, 7, 8, 9, 15, 16, 17, 40, 63, 64, 65, 100])
def test_a_root_far_ahead_of_a_rank_that_calls_something_else(ahead: int, count: int) -> None:
    """The root is as far ahead as possible when the other rank makes its first call."""

    def main() -> Any:
        comm = hocket.init()
        try:
            if comm.rank == 0:
                try:
                    for _ in range(ahead):
                        comm.broadcast(np.ones(count, "float32"), timeout=60)
                        made.release()
                finally:
                    made.release(ahead)
            else:
                for _ in range(min(ahead, 6)):
                    made.acquire()
                comm.broadcast(np.ones(SMALL, "int32"), timeout=60)
            comm.close()
        except CollectiveMismatch as error:
            return error.field, error.values, error.sequence
        return None

    made = threading.Semaphore(0)
    found = run_ranks(main, 2, kind="thread")
    assert found == [("dtype", {0: "float32", 1: "int32"}, 1)] * 2


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("number", [1, 31, 32, 33, 63, 64, 65, 128, 129])
def test_calls_without_data_that_differ_are_found_while_ranks_go_on(number: int, size: int) -> None:
    """There are no messages, so only the records of the ranks show the difference, before they are overwritten."""

    def main() -> Any:
        comm = hocket.init()
        for i in range(1, 400):
            dtype = "int32" if comm.rank == 1 and i == number else "float32"
            try:
                comm.broadcast(np.empty(0, dtype), timeout=60)
            except CollectiveMismatch as error:
                return error.field, error.values[0], error.values[1], error.sequence, i <= number + 192
        return None

    assert run_ranks(main, size, kind="thread") == [("dtype", "float32", "int32", number, True)] * size


@pytest.mark.parametrize(("count", "is_lent"), [(900, False), (20_000, False), (200_000, False), (1_100_000, True)])
def test_memory_that_was_lent_when_a_call_failed_misleads_nobody(count: int, is_lent: bool) -> None:
    """Rank 0 writes its array again as soon as it gets the error; rank 1 may be reading the array.

    Data that fits in caches may be copied for the readers: then rank 0 may return, because its array is not needed.
    """

    def main() -> int:
        num_returned, choose = 0, random.Random(count)  # the same on all ranks
        for number in range(60):
            comm = hocket.init(address=f"{discover().address}-{number}")
            late = choose.random() * 0.001
            x = np.full(count, float(comm.rank == 0))
            try:
                comm.barrier()
                if comm.rank == 2:
                    time.sleep(late)  # at a random moment of the others' call
                    comm.barrier()
                try:
                    comm.broadcast(x)
                finally:
                    if comm.rank == 0:
                        x[:] = 77
                assert comm.rank == 1 or (comm.rank == 0 and not is_lent)
                assert comm.rank == 0 or (x == 1).all()
                num_returned += 1
                comm.close()
            except CollectiveMismatch:
                pass
            comm.close()
        return num_returned

    run_ranks(main, 3, kind="thread")


def test_calls_on_the_stream_fail_like_others() -> None:
    def main() -> None:
        comm = hocket.init()
        good = comm.all_reduce(np.ones(5), async_op=True)
        bad = comm.all_reduce(np.ones(5 + comm.rank), async_op=True)
        after = comm.barrier(async_op=True)
        assert (good.wait() == 2).all()
        for work in (bad, after):
            with pytest.raises(CollectiveMismatch) as caught:
                work.wait()
            assert (caught.value.field, caught.value.values, caught.value.sequence) == ("count", {0: 5, 1: 6}, 2)
            assert isinstance(work.exception(), CollectiveMismatch) and work.is_completed()
        comm.close()

    run_ranks(main, 2, kind="thread")


def test_arrays_that_differ_in_shape_but_not_in_length_agree() -> None:
    def main() -> None:
        with hocket.init() as comm:
            assert (comm.all_reduce(np.ones((6, 1) if comm.rank else (2, 3))) == 2).all()

    run_ranks(main, 2, kind="thread")


def test_a_call_that_one_rank_leaves_out_is_found_at_the_next_that_differs() -> None:
    def main() -> Any:
        comm = hocket.init()
        calls: list[Callable[[], Any]] = [
            lambda: comm.all_reduce(np.ones(4)),
            lambda: comm.broadcast(np.ones(4)),
            lambda: comm.barrier(),
        ]
        with pytest.raises(CollectiveMismatch) as caught:
            for number, call in enumerate(calls):
                if number != 1 or comm.rank != 2:
                    call()
            comm.close()
        comm.close()
        return caught.value.field, caught.value.sequence, caught.value.values[2]

    assert run_ranks(main, 3, kind="thread") == [("kind", 2, "barrier")] * 3


HERE = r"\([^()]*test_mismatch\.py:{}\)"


def line() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def test_the_lines_of_calls_in_another_order_are_named_on_all_sides() -> None:
    lines = {}

    def main() -> str:
        comm = hocket.init()
        with pytest.raises(CollectiveMismatch) as caught:
            if comm.rank == 1:
                lines[1] = line() + 1
                comm.all_reduce(np.ones(4))
                comm.broadcast(np.ones(4))
            else:
                lines[0] = line() + 1
                comm.broadcast(np.ones(4))
                comm.all_reduce(np.ones(4))
        return str(caught.value)

    sides = rf"broadcast on ranks 0, 2 {HERE}; all_reduce on rank 1 {HERE}; all ranks must call"
    for text in run_ranks(main, 3, kind="thread"):
        assert re.search(sides.format(lines[0], lines[1]), text), text


@pytest.mark.parametrize("async_op", [False, True])
def test_the_line_of_a_call_that_has_returned_is_named_when_it_turns_out_wrong(async_op: bool) -> None:
    lines = []

    def main() -> str:
        with pytest.raises(CollectiveMismatch) as caught, hocket.init() as comm:
            lines.append(line() + 1)
            comm.broadcast(np.ones(4), root=comm.rank, async_op=async_op)
        return str(caught.value)

    for text in run_ranks(main, 2, kind="thread"):
        assert re.search(rf"\(broadcast at [^ ]*test_mismatch\.py:{lines[0]}\): 0 on rank 0; 1 on rank 1;", text), text


def call_in_a_thread() -> str:
    comm = hocket.init()
    if comm.rank == 1:
        with pytest.raises(CollectiveMismatch) as caught:
            comm.all_reduce(np.ones(4))
        return str(caught.value)
    threading.excepthook = lambda _: None  # of this process; it would print the same error
    thread = threading.Thread(target=comm.broadcast, args=(np.ones(4),))
    thread.start()
    thread.join()
    return ""


def test_no_line_is_named_of_a_thread_that_runs_nothing_of_the_program() -> None:
    _, text = run_ranks(call_in_a_thread, 2)
    assert re.search(rf"broadcast on rank 0; all_reduce on rank 1 {HERE.format('[0-9]+')}", text), text


def test_a_difference_of_works_that_nobody_waits_for_is_raised_as_they_close() -> None:
    def main() -> str:
        with pytest.raises(CollectiveMismatch) as caught, hocket.init() as comm:
            call = comm.all_gather if comm.rank == 0 else comm.all_reduce
            works = [call(np.ones(4), async_op=True) for _ in range(2)]
        assert all(isinstance(work.exception(), CollectiveMismatch) for work in works)
        return str(caught.value)

    for text in run_ranks(main, 2, kind="thread"):
        assert "all_gather on rank 0" in text and "all_reduce on rank 1" in text


def test_a_difference_that_a_work_has_raised_is_not_raised_again() -> None:
    def main() -> None:
        comm = hocket.init()
        call = comm.all_gather if comm.rank == 0 else comm.all_reduce
        works = [call(np.ones(4), async_op=True) for _ in range(2)]
        with pytest.raises(CollectiveMismatch):
            works[comm.rank].wait()
        comm.close()

    run_ranks(main, 2, kind="thread")


@pytest.mark.parametrize("async_op", [False, True])
def test_of_a_repeated_call_which_runs_no_python_the_line_of_the_first_is_named(async_op: bool) -> None:
    lines = {}

    def main() -> str:
        comm = hocket.init()
        x, longer = np.ones(4), np.ones(5)
        with pytest.raises(CollectiveMismatch) as caught:
            for number in range(5):
                if comm.rank == 1 and number == 3:
                    lines[1] = line() + 1
                    work = comm.all_reduce(longer, async_op=async_op)
                else:
                    lines[0] = line() + 1
                    work = comm.all_reduce(x, async_op=async_op)
                if async_op:
                    work.wait()
        return str(caught.value)

    for text in run_ranks(main, 2, kind="thread"):
        sides = f"4 on rank 0 {HERE.format(f'{lines[0]}, repeated')}; 5 on rank 1 {HERE.format(lines[1])};"
        assert re.search(rf"at call 4 \(all_reduce\): {sides}", text), text


def test_a_repeated_call_is_named_when_it_turns_out_later_that_it_differs() -> None:
    lines = []

    def main() -> str:
        x = np.ones(4)
        with pytest.raises(CollectiveMismatch) as caught, hocket.init() as comm:
            for _ in range(3):
                lines.append(line() + 1)
                comm.broadcast(x)
            comm.broadcast(x, root=comm.rank)
        return str(caught.value)

    for text in run_ranks(main, 2, kind="thread"):
        first, other = HERE.format(f"{lines[0]}, repeated"), HERE.format(lines[0] + 1)
        assert re.search(rf"\(broadcast\): 0 on rank 0 {first}; 1 on rank 1 {other};", text), text


def test_algorithms_that_differ_are_named_by_the_ranks_that_run_them() -> None:
    def main() -> str:
        comm = hocket.init()
        with pytest.raises(CollectiveMismatch) as caught:
            comm.all_reduce(np.ones(4), algorithm="direct" if comm.rank == 1 else "ring")
        return str(caught.value)

    texts = run_ranks(main, 3, kind="thread")
    assert "rank 0, all_reduce by ring" in texts[0] and "rank 1, all_reduce by direct" in texts[1]
    for text in texts:
        assert "the ranks differ in algorithm at call 1" in text
        assert "one on ranks 0, 2; another on rank 1; pass the same algorithm=" in text


CALLS = {
    "split": lambda comm: comm.split(0),
    "broadcast_object": lambda comm: comm.broadcast_object(root=1),
    "all_gather_object": lambda comm: comm.all_gather_object(1),
    "gather_object": lambda comm: comm.gather_object(1),
    "scatter_object": lambda comm: comm.scatter_object(root=1),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_rank_names_what_the_program_called_and_not_what_that_is_made_of(name: str) -> None:
    def main() -> str:
        comm = hocket.init()
        with pytest.raises(CollectiveMismatch) as caught:
            if comm.rank == 0:
                CALLS[name](comm)
            comm.barrier()
        return str(caught.value)

    texts = run_ranks(main, 2, kind="thread")
    assert texts[0].startswith(f"rank 0, {name} (call 1): the ranks called different collectives at call 1"), texts
    assert texts[1].startswith("rank 1, barrier (call 1): the ranks called different collectives at call 1"), texts
