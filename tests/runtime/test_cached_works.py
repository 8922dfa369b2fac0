"""Repeated isend and irecv, and waits for them, skip Python: they must do exactly what Python does."""

import gc
import inspect
import os
import random
import signal
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import ANY_SOURCE, ANY_TAG, _core
from hocket.errors import CollectiveTimeout, CommunicationError, ForkedUse, PeerAborted
from hocket.runtime import Work, run_ranks
from hocket.runtime.streams.work import InFlight, MessageWork
from tests.runtime.repeating import (
    Arguments,
    Comm,
    by_python,
    count_misses,
    frozen,
    in_threads,
    repeat,
    wait_beside_a_thread,
)

PATIENCE_SECONDS = 60.0


def begin_and_wait(comm: Comm, x: Any, y: Any, tag: int) -> None:
    other = 1 - comm.rank
    receiving, sending = comm.irecv(y, other, tag=tag), comm.isend(x, other, tag=tag)
    assert type(receiving) is type(sending) is MessageWork
    assert sending.wait() is None and receiving.wait() is y
    assert receiving.is_completed() and receiving.exception() is None and receiving.wait(0) is y
    assert (receiving.source, receiving.tag) == (other, tag)
    assert sending.source is None and sending.tag is None
    assert len(comm._works) == 0


@pytest.mark.parametrize("attach", ["0", "1"])
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_only_the_first_of_equal_ones_goes_through_python(
    kind: str, attach: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_CMA", attach)
    run_ranks(repeat, 2, args=(begin_and_wait, "_begin", ("irecv", "isend")), kind=kind)


def sends(x: Any) -> list[Arguments]:
    return [
        ((x, 0), {"tag": 5}),
        ((x.reshape(2, 3), 0), {"tag": int("5"), "timeout": 9.0}),
        ((), {"x": x, "dst": 0, "tag": 5}),
        ((x, np.int64(0)), {"tag": 5}),
        ((x.copy().data, 0), {"tag": 5}),
    ]


def receives(y: Any) -> list[Arguments]:
    return [
        ((y, 0), {"tag": 5}),
        ((y, 0), {"tag": ANY_TAG}),
        ((y.reshape(3, 2), ANY_SOURCE), {"tag": 5}),
        ((y,), {"tag": 5, "timeout": 7}),
        ((bytearray(24),), {"tag": True + 4}),
    ]


def refused(x: Any) -> list[tuple[str, Arguments]]:
    return [
        ("isend", ((np.ma.masked_array(x, x > 3), 0), {"tag": 5})),
        ("isend", ((x, 1), {"tag": 5})),
        ("isend", ((x, 0), {"tag": -1})),
        ("isend", ((x, 0), {"tag": 1 << 31})),
        ("isend", ((x[::2], 0), {"tag": 5})),
        ("isend", ((x, 0, 5), {})),
        ("isend", ((x, 0), {"tag": 5, "timeout": -1})),
        ("irecv", ((frozen(x.copy()), 0), {"tag": 5})),
        ("irecv", ((x, 1), {"tag": 5})),
        ("irecv", ((x, 0), {"tag": -2})),
        ("irecv", ((x, None), {"tag": 5})),
    ]


def begin(comm: Comm, in_python: bool, name: str, arguments: Arguments) -> Any:
    method = by_python(comm, name) if in_python else getattr(comm, name)
    return method(*arguments[0], **arguments[1])


def facts_of(work: Work) -> Any:
    return type(work), work._communicator, work._what, id(work.kept_by), work.source, work.tag, work.exception()


def test_they_are_what_the_python_methods_make() -> None:
    choose = random.Random(5)
    with hocket.init(0, 1) as comm:
        missed = count_misses(comm, "_begin")
        for turn in range(400):
            x = np.arange(6, dtype="f4") + turn
            to, given = choose.choice(sends(x)), choose.randrange(5)
            facts = []
            for in_python in (False, True):
                y = np.zeros(6, "f4")
                one = receives(y)[given]
                if type(one[0][0]) is bytearray:
                    x, y = x.view("u1"), one[0][0]
                    to = ((x, 0), {"tag": 5})
                receiving, sending = begin(comm, in_python, "irecv", one), begin(comm, in_python, "isend", to)
                assert receiving.wait() is one[0][0] and sending.wait() is None
                assert bytes(y) == x.tobytes()
                facts.append((facts_of(receiving), facts_of(sending)))
            assert facts[0] == facts[1]
            assert not comm._works
        assert 800 < len(missed) < 1200  # 800 of them must go through Python


def test_they_refuse_what_the_python_methods_refuse() -> None:
    with hocket.init(0, 1) as comm:
        x, y = np.arange(6, dtype="f4"), np.zeros(6, "f4")
        for _ in range(3):
            for name, arguments in refused(x):
                errors = []
                for in_python in (False, True):
                    with pytest.raises((TypeError, ValueError)) as caught:
                        begin(comm, in_python, name, arguments)
                    errors.append((caught.type, str(caught.value)))
                assert errors[0] == errors[1]
            comm.irecv(y, 0, tag=5)
            comm.isend(x, 0, tag=5).wait()
        assert not comm._works.pending()


def test_settings_and_closing_are_noticed() -> None:
    with hocket.init(0, 1) as comm:
        x, y = np.ones(3), np.zeros(3)
        for _ in range(3):
            comm.irecv(y, 0)
            comm.isend(x, 0).wait()
        comm.configure("recv", timeout=0.05)
        works = [comm.irecv(y, 0, tag=1), comm.irecv(y, 0, tag=1)]
        for work in works:
            for _ in range(2):
                with pytest.raises(CollectiveTimeout, match=r"0\.05"):
                    work.wait()
    for begin_one in (lambda: comm.isend(x, 0), lambda: comm.irecv(y, 0)):
        with pytest.raises(CommunicationError, match="closed"):
            begin_one()


def test_a_wait_that_is_over_before_it_is_told_as_ever() -> None:
    with hocket.init(0, 1) as comm:
        x, y = np.ones(3), np.zeros(3)
        for turn in range(3):  # the first ones go through Python
            work = comm.irecv(y, 0, tag=turn)
            with pytest.raises(CollectiveTimeout, match=r"^irecv on rank 0 was not done within the 0\.01 s") as caught:
                work.wait(0.01)
            assert caught.value.missing == (0,) and not work.is_completed() and len(comm._works) == 1
            comm.send(x, 0, tag=turn)
            assert work.wait(timeout=PATIENCE_SECONDS) is y and not comm._works


def test_all_who_wait_get_what_ended_it() -> None:
    may_fail = threading.Event()

    def main() -> None:
        with pytest.raises(PeerAborted), hocket.init() as comm:
            y = np.zeros(3)
            if comm.rank == 1:
                assert may_fail.wait(PATIENCE_SECONDS)
                comm.abort("enough")
                comm.barrier()
            works = [comm.irecv(y, 1, tag=tag) for tag in range(3)]
            may_fail.set()
            for work in works:
                with pytest.raises(PeerAborted, match="enough") as caught:
                    work.wait()
                assert work.is_completed() and str(work.exception()) == str(caught.value)
                assert work.source is None and work.tag is None
            assert not comm._works
            comm.irecv(y, 1).wait()

    run_ranks(main, 2, kind="thread")


def test_memory_stays_while_it_is_in_use_and_no_longer() -> None:
    with hocket.init(0, 1) as comm:
        count = 100
        for turn in range(3):
            arrays = [np.zeros(3) for _ in range(count)]
            references = [weakref.ref(y) for y in arrays]
            for tag, y in enumerate(arrays):
                comm.irecv(y, 0, tag=tag)  # the handle is not kept
            del y, arrays
            gc.collect()
            assert all(reference() is not None for reference in references) and len(comm._works) == count
            for tag in range(count):
                comm.send(np.full(3, float(turn)), 0, tag=tag)
            for _ in range(count):  # with new ones, completed works are released now and then
                comm.irecv(np.zeros(3), 0, tag=count)
                comm.isend(np.zeros(3), 0, tag=count)
            assert len(comm._works) < count / 2
            assert len(comm._works.pending()) == 0 and not comm._works
            gc.collect()
            assert [reference() for reference in references] == [None] * count


def test_a_work_in_a_cycle_is_collected() -> None:
    class Array:
        """An object that can be part of a cycle."""

    with hocket.init(0, 1) as comm:
        comm.irecv(np.zeros(3), 0)
        comm.isend(np.ones(3), 0).wait()
        work, other = comm.isend(np.ones(3), 0), Array()
        comm.recv(np.zeros(3), 0)
        assert work.wait() is None
        other.work, work._result = work, other  # type: ignore[attr-defined]
        reference = weakref.ref(other)
        del work, other
        gc.collect()
        assert reference() is None


def test_what_python_does_while_one_begins_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 16 works on, Python checks which are done; it may be interrupted then, or make calls."""
    with hocket.init(0, 1) as comm:
        y = np.zeros(3)
        held = [comm.irecv(y, 0, tag=tag) for tag in range(20)]
        missed, add = count_misses(comm, "_begin"), InFlight.add

        def interrupted(_: Any, work: Any) -> None:
            raise KeyboardInterrupt

        def forgetting(self: Any, work: Any) -> None:
            monkeypatch.setattr(InFlight, "add", add)
            _core.forget_calls(comm)
            held.append(comm.irecv(y, 0, tag=20))
            add(self, work)

        array = np.zeros(3)
        reference = weakref.ref(array)
        monkeypatch.setattr(InFlight, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            comm.irecv(array, 0, tag=77)
        del array
        gc.collect()
        assert reference() is None and len(comm._works) == 20 and missed == []
        monkeypatch.setattr(InFlight, "add", forgetting)
        held.append(comm.irecv(y, 0, tag=21))
        assert missed == ["irecv"] and len(comm._works) == 22
        for tag in range(22):
            comm.send(np.full(3, float(tag)), 0, tag=tag)
        assert [work.wait() is y for work in held] == [True] * 22 and y.tolist() != [0.0] * 3
        assert sorted(work.tag for work in held) == list(range(22)) and not comm._works


def wait_for_a_signal() -> None:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with hocket.init() as comm:
        x = np.zeros(1)
        for tag in range(2):  # the second time without Python
            if comm.rank == 1:
                comm.recv(x, 0)
                comm.send(x, 0, tag=tag)
                continue
            work = comm.irecv(x, 1, tag=tag)
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                work.wait()
            assert not work.is_completed()
            comm.send(x, 1)
            assert work.wait() is x


def test_an_interrupt_ends_the_wait_only() -> None:
    run_ranks(wait_for_a_signal, 2, kind="process")


def test_a_forked_child_may_not_wait() -> None:
    with hocket.init(0, 1) as comm:
        x, y = np.ones(3), np.zeros(3)
        for _ in range(2):
            receiving, sending = comm.irecv(y, 0), comm.isend(x, 0)
        if (child := os.fork()) == 0:
            status = 1
            try:
                for work in (receiving, sending):
                    with pytest.raises(ForkedUse):
                        work.wait()
                for call in (lambda: comm.isend(x, 0), lambda: comm.irecv(y, 0)):
                    with pytest.raises(ForkedUse):
                        call()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert receiving.wait() is y and sending.wait() is None


def test_a_current_stream_waits_instead_of_the_host() -> None:
    with hocket.init(0, 1) as comm:
        x, y, stream, may_go = np.ones(3), np.zeros(3), hocket.Stream(), threading.Event()
        comm.irecv(y, 0)
        comm.isend(x, 0).wait()
        with hocket.stream(stream):
            stream.submit(may_go.wait, PATIENCE_SECONDS)
            stream.submit(lambda: np.copyto(x, 2.0))
            work, sending = comm.irecv(y, 0), comm.isend(x, 0)  # after what is in the stream
            assert work.wait() is y and sending.wait() is None
            stream.submit(lambda: np.multiply(y, 10.0, out=y))
            assert not work.is_completed()
            may_go.set()
        stream.synchronize()
        assert y.tolist() == [20.0] * 3


def exchange_from_threads() -> None:
    with hocket.init() as comm:
        other = 1 - comm.rank

        def talk(number: int) -> None:
            x, y = np.full(4, comm.rank + number, "f8"), np.zeros(4)
            for _ in range(100):
                receiving, sending = comm.irecv(y, other, tag=number), comm.isend(x, other, tag=number)
                assert sending.wait() is None and receiving.wait() is y
                assert (y == other + number).all()

        in_threads(*[partial(talk, number) for number in range(3)])
        assert not comm._works


def test_threads_share_what_is_remembered() -> None:
    for kind in ("thread", "process"):
        run_ranks(exchange_from_threads, 2, kind=kind)


def send_to_the_first(comm: Comm, x: Any, tag: int) -> None:
    comm.isend(x, 0, tag=tag).wait()


def receive_from_the_second(comm: Comm, x: Any, tag: int) -> Callable[[], Any]:
    return comm.irecv(x, 1, tag=tag).wait


def test_other_threads_run_while_a_work_is_awaited() -> None:
    for kind in ("thread", "process"):
        run_ranks(wait_beside_a_thread, 2, args=(send_to_the_first, receive_from_the_second), kind=kind)


@pytest.mark.parametrize("method", [Comm.isend, Comm.irecv, Work.wait])
def test_a_cached_method_reads_as_the_python_method(method: Any) -> None:
    assert method.__qualname__ in ("PointToPoint.isend", "PointToPoint.irecv", "Work.wait")
    assert inspect.signature(method) == inspect.signature(method.__wrapped__)
    assert method.__doc__ == method.__wrapped__.__doc__ is not None
