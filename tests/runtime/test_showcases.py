"""The textbook's programs of streams and events: what can run at the same time, shown with gates instead of times.

examples/streams.py shows how long they take.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.testing import paced_link, run_ranks
from tests.waiting import PATIENCE_SECONDS, wait_until

ON_LINKS = pytest.mark.parametrize("paced", [False, True], ids=["shared memory", "paced link"])


class Gate:
    """A gate at which a stream stops until it is opened."""

    def __init__(self) -> None:
        self._reached, self._open = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self._reached.set()
        assert self._open.wait(PATIENCE_SECONDS)

    def await_reached(self) -> None:
        assert self._reached.wait(PATIENCE_SECONDS)

    def open(self) -> None:
        self._open.set()


def on_ranks(main: Callable[[], Any], paced: bool) -> list[Any]:
    if not paced:
        return run_ranks(main, 2, kind="thread")
    with paced_link(1e9, 20e-6):
        return run_ranks(main, 2, kind="thread")


@ON_LINKS
def test_an_event_and_a_work_are_not_ready_and_then_they_are(paced: bool) -> None:
    may_come = threading.Event()

    def main() -> None:
        with hocket.init() as comm:
            x = np.ones(4)
            if comm.rank == 1:
                assert may_come.wait(PATIENCE_SECONDS)
                comm.all_reduce(x)
                return
            gate, stream = Gate(), hocket.Stream()
            stream.submit(gate)
            event = stream.record()
            work = comm.all_reduce(x, async_op=True)
            assert not event.query() and not work.is_completed()
            gate.open()
            event.synchronize()
            assert event.query() and not work.is_completed()
            may_come.set()
            work.wait()
            assert work.is_completed() and x.tolist() == [2.0] * 4

    on_ranks(main, paced)


def test_a_second_stream_reads_too_early_unless_it_waits_for_the_first() -> None:
    first, second = hocket.Stream(), hocket.Stream()
    read: list[float] = []
    for waits in (False, True):
        x, gate = np.zeros(1), Gate()
        first.submit(gate)
        first.submit(x.fill, 1.0)
        written = first.record()
        if waits:
            written.wait(second)
        second.submit(lambda x=x: read.append(float(x[0])))
        end = second.record()
        gate.await_reached()
        if waits:
            assert not end.query()
        else:
            end.synchronize()
        gate.open()
        end.synchronize()
        first.synchronize()
    assert read == [0.0, 1.0]


@ON_LINKS
def test_op1_to_op5_over_two_communicators(paced: bool) -> None:
    """While rank 1 delays XCCL1: OP2, XCCL2 and OP3 go on, OP4 and OP5 do not; the results are the serial ones."""
    may_come = threading.Event()

    def main() -> list[float]:
        with hocket.init() as comm, comm.dup() as xccl1, comm.dup() as xccl2:
            done: list[str] = []
            sums: list[float] = []
            a, b = np.zeros(1000), np.zeros(1000)
            stream = hocket.Stream()

            def op(name: str, then: Callable[[], Any] = lambda: None) -> None:
                then()
                done.append(name)

            with hocket.stream(stream):
                stream.submit(op, "OP1", lambda: a.fill(1.0 + comm.rank))
                if comm.rank == 1:
                    stream.submit(may_come.wait, PATIENCE_SECONDS)
                first = xccl1.all_reduce(a, async_op=True)
                if comm.rank == 1:
                    with hocket.stream(None):
                        b.fill(20.0)
                        second = xccl2.all_reduce(b, async_op=True)
                else:
                    stream.submit(op, "OP2", lambda: b.fill(10.0))
                    second = xccl2.all_reduce(b, async_op=True)
                stream.submit(op, "OP3")
                first.wait()
                stream.submit(op, "OP4", lambda: sums.append(float(a[0])))
                second.wait()
                stream.submit(op, "OP5", lambda: sums.append(float(b[0])))
            if comm.rank == 0:
                wait_until(lambda: second.is_completed() and "OP3" in done)
                assert done == ["OP1", "OP2", "OP3"] and not first.is_completed() and not stream.query()
                may_come.set()
            stream.synchronize()
            assert done[-2:] == ["OP4", "OP5"]
            return sums

    assert on_ranks(main, paced) == [[3.0, 30.0]] * 2


@ON_LINKS
def test_a_copy_stream_fetches_the_next_batch_and_no_further(paced: bool) -> None:
    """Two slots: batch 1 arrives while batch 0 is processed; batch 2 must wait until its slot is free."""
    num_batches = 5

    def main() -> None:
        with hocket.init() as comm:
            if comm.rank == 1:
                for number in range(num_batches):
                    comm.send(np.full(1000, float(number)), 0)
                return
            copy, compute, gate = hocket.Stream("copy"), hocket.Stream("compute"), Gate()
            slots, used = [np.full(1000, -1.0) for _ in range(2)], [hocket.Event(), hocket.Event()]
            filled, means = [], list[float]()
            for number in range(num_batches):
                slot, free = slots[number % 2], used[number % 2]
                with hocket.stream(copy):
                    free.wait()
                    comm.recv(slot, 1)
                    filled.append(copy.record())
                compute.wait(filled[-1])
                if number == 0:
                    compute.submit(gate)
                compute.submit(lambda slot=slot: means.append(float(slot.mean())))
                compute.record(free)
            gate.await_reached()
            wait_until(filled[1].query)
            assert not filled[2].query() and [float(slot[0]) for slot in slots] == [0.0, 1.0]
            gate.open()
            compute.synchronize()
            assert means == [0.0, 1.0, 2.0, 3.0, 4.0]

    on_ranks(main, paced)
