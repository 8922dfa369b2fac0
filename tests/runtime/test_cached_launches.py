"""Repeated launches of collectives, and waits for them, skip Python: they must do exactly what Python does."""

import contextlib
import gc
import signal
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveTimeout, CommunicationError
from hocket.runtime import Work, run_ranks
from tests.runtime.repeating import Comm, count_misses

PATIENCE_SECONDS = 60.0


def wait_until_all_have_ended(comm: Comm) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while comm._works.pending():
        assert time.monotonic() < deadline


def launch_again() -> None:
    with hocket.init() as comm:
        missed, size = count_misses(comm), comm.size
        total = size * (size + 1) // 2
        for count in (1, 300, 5000, 300_000):
            for turn in range(4):
                x, out = np.full(count, comm.rank + 1.0), np.zeros(count)
                rows, row = np.full((size, count), comm.rank + 1.0), np.zeros(count)
                counts = [count] * size
                works = [
                    comm.all_reduce(x, out=out, async_op=True),
                    comm.reduce_scatter(rows, out=row, op="max", async_op=True),
                    comm.broadcast(x, 1, async_op=True),
                    comm.all_gather_v(np.full(count, turn), counts, out=rows.astype("i8"), async_op=True),
                ]
                results = [work.wait() for work in (works if turn % 2 else works[::-1])][:: 1 if turn % 2 else -1]
                assert results[0] is out and (out == total).all() and results[1] is row and (row == size).all()
                assert results[2] is x and (x == 2).all() and (results[3] == turn).all()
                assert [type(work) for work in works] == [Work] * 4 and not comm._works
                assert all(work.is_completed() and work.exception() is None for work in works)
                assert len(missed) == 4 if turn == 0 else len(missed) <= 5  # counts that came once are not cached
            missed.clear()


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_only_the_first_of_equal_collectives_goes_through_python(kind: str, size: int) -> None:
    run_ranks(launch_again, size, kind=kind)


def test_what_has_no_array_of_its_own_gets_a_new_one() -> None:
    """The work keeps the arrays that the core reads and writes, even if the communicator is closed at once."""
    with hocket.init(0, 1) as comm:
        missed, x = count_misses(comm), np.ones(3)
        for _ in range(3):
            assert comm.barrier(async_op=True).wait() is None
            assert comm.all_gather(x, async_op=True).wait() is not x
            assert comm.all_reduce(x, op=hocket.premul_sum(2.0), async_op=True).wait() is x
        assert missed == ["barrier", "all_gather", *["all_reduce"] * 3]  # a new op is not a constant
        assert x.tolist() == [8.0] * 3
        comm.barrier(async_op=True)
        comm.all_reduce(x, async_op=True)
        comm.all_reduce(x, async_op=True)
    with pytest.raises(CommunicationError, match="closed"):
        comm.all_reduce(x, async_op=True)


def test_a_launched_collective_is_told_of_as_ever() -> None:
    others_may_call = threading.Event()

    def main() -> None:
        with hocket.init() as comm:
            x = np.ones(3)
            for turn in range(40):
                if comm.rank == 1:
                    if turn == 30:
                        assert others_may_call.wait(PATIENCE_SECONDS)
                    comm.all_reduce(x)
                    continue
                work = comm.all_reduce(x, async_op=True)
                if turn != 30:
                    assert work.wait() is x
                    continue
                with pytest.raises(CollectiveTimeout, match=r"all_reduce on rank 0 was not done .*rank 1") as caught:
                    work.wait(0.01)
                assert caught.value.missing == (1,) and not work.is_completed() and len(comm._works) == 1
                others_may_call.set()
                assert work.wait(PATIENCE_SECONDS) is x and not comm._works
            assert x.tolist() == [2.0**40] * 3

    run_ranks(main, 2, kind="thread")


def test_memory_of_a_launched_collective_stays_while_it_is_in_use() -> None:
    others_may_call = threading.Event()

    def main() -> None:
        with hocket.init() as comm:
            for _ in range(3):
                comm.all_reduce(np.ones(5000), async_op=True).wait()
            if comm.rank == 1:
                assert others_may_call.wait(PATIENCE_SECONDS)
                comm.all_reduce(np.ones(5000))
                return
            x = np.ones(5000)
            reference = weakref.ref(x)
            comm.all_reduce(x, async_op=True)
            del x
            gc.collect()
            assert reference() is not None
            others_may_call.set()
            wait_until_all_have_ended(comm)
            gc.collect()
            assert reference() is None

    run_ranks(main, 2, kind="thread")


def close_beside_waiters() -> None:
    with hocket.init() as comm:
        for _ in range(30):
            part, launched = comm.dup(), []

            def play(part: Comm = part, launched: list[Any] = launched) -> None:
                with contextlib.suppress(CommunicationError):
                    while True:
                        works = [part.all_reduce(np.ones(4), async_op=True) for _ in range(3)]
                        launched.extend(works)
                        for work in works[::-1]:
                            work.wait()

            threads = [threading.Thread(target=play) for _ in range(2)]
            for one in threads:
                one.start()
            comm.barrier()
            with contextlib.suppress(CommunicationError):
                part.close()
            assert all(work.is_completed() for work in launched)
            for one in threads:
                one.join()


def test_all_that_was_launched_has_ended_once_it_is_closed() -> None:
    """Also works that other threads wait for, and run themselves."""
    run_ranks(close_beside_waiters, 2, kind="process")


def test_an_interrupt_that_follows_a_launch_lets_go_of_no_array(monkeypatch: pytest.MonkeyPatch) -> None:
    others_may_call = threading.Event()

    def main() -> None:
        with hocket.init() as comm:
            if comm.rank == 1:
                assert others_may_call.wait(PATIENCE_SECONDS)
                comm.all_reduce(np.ones(5000))
                return
            core, x = comm._core, np.ones(5000)

            class Interrupted:
                """The core, with a signal that arrives when submit returns."""

                def __getattr__(self, name: str) -> Any:
                    return getattr(core, name)

                def submit(self, *args: Any) -> None:
                    core.submit(*args)
                    raise KeyboardInterrupt

            reference = weakref.ref(x)
            comm._core = Interrupted()
            with pytest.raises(KeyboardInterrupt):
                comm.all_reduce(x, async_op=True)
            comm._core = core
            del x
            gc.collect()
            assert reference() is not None and len(comm._works.pending()) == 1
            others_may_call.set()
            wait_until_all_have_ended(comm)
            gc.collect()
            assert reference() is None

    run_ranks(main, 2, kind="thread")


def wait_behind_others() -> None:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with hocket.init() as comm:
        x = np.ones(1)
        for _ in range(40):  # so that waiting threads run their calls themselves
            comm.all_reduce(x, op="max", async_op=True).wait()
        if comm.rank == 1:
            for _ in range(20):
                time.sleep(0.05)  # like a rank that computes
                comm.all_reduce(x, op="max")
            return
        works = [comm.all_reduce(x, op="max", async_op=True) for _ in range(20)]
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            works[-1].wait()
        assert not works[10].is_completed()
        works[-1].wait()


def test_an_interrupt_is_heard_between_the_calls_before_the_awaited_one() -> None:
    run_ranks(wait_behind_others, 2, kind="process")


def wait_for_a_signal_in_a_collective() -> None:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with hocket.init() as comm:
        x = np.ones(1)
        for turn in range(3):
            if comm.rank == 1:
                comm.recv(x, 0)
                comm.all_reduce(x)
                continue
            work = comm.all_reduce(x, async_op=True)
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                work.wait()
            assert not work.is_completed()
            comm.send(np.full(1, 2.0**turn), 1)
            assert work.wait() is x and x[0] == 2.0 ** (turn + 1)


def test_an_interrupt_ends_the_wait_for_a_collective_only() -> None:
    run_ranks(wait_for_a_signal_in_a_collective, 2, kind="process")
