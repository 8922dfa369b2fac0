"""Calls on the stream: their handles, their order, and the memory that they need."""

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveTimeout, CommunicationError, PeerAborted
from hocket.runtime import run_ranks
from tests.waiting import PATIENCE_SECONDS, wait_until


def in_threads(size: int, function: Callable[[hocket.Communicator], Any]) -> list[Any]:
    def main() -> Any:
        with hocket.init() as comm:
            return function(comm)

    return run_ranks(main, size, kind="thread")


def test_wait_gives_the_output_array_as_often_as_asked() -> None:
    def main(comm: hocket.Communicator) -> None:
        x, out = np.full(1000, comm.rank + 1.0), np.zeros(1000)
        work = comm.all_reduce(x, out=out, async_op=True)
        assert isinstance(work, hocket.Work)
        assert work.wait() is out and (out == 6).all() and work.wait(0) is out
        assert work.is_completed() and work.exception() is None
        gathered = comm.all_gather(x[:2], async_op=True).wait()
        assert (gathered == [1, 1, 2, 2, 3, 3]).all()
        assert comm.reduce(x, root=1, async_op=True).wait() is (x if comm.rank == 1 else None)
        assert comm.barrier(async_op=True).wait() is None

    in_threads(3, main)


def test_a_call_that_waits_for_others_is_not_completed() -> None:
    others_may_call = threading.Event()

    def main(comm: hocket.Communicator) -> None:
        x = np.full(10, comm.rank + 1)
        if comm.rank != 0:
            assert others_may_call.wait(PATIENCE_SECONDS)
            comm.all_reduce(x)
            return
        work = comm.all_reduce(x, async_op=True)
        assert not work.is_completed() and work.exception() is None
        with pytest.raises(CollectiveTimeout, match=r"on rank 0 was not done within the 0\.01 s of this wait"):
            work.wait(0.01)
        with pytest.raises(CollectiveTimeout, match="within the 0 s"):
            work.wait(timeout=0)
        others_may_call.set()
        assert (work.wait(PATIENCE_SECONDS) == 6).all()

    in_threads(3, main)


def test_many_in_flight_end_in_order() -> None:
    def main(comm: hocket.Communicator) -> None:
        arrays = [np.full(1 + 97 * (turn % 300), turn, "int64") for turn in range(1000)]
        works = [comm.all_reduce(x, async_op=True) for x in arrays]
        works[500].wait()
        assert all(work.is_completed() for work in works[:501])
        for turn, work in enumerate(works):
            assert (work.wait() == turn * comm.size).all()

    in_threads(3, main)


@pytest.mark.parametrize("count", [1, 1000, 100_000])
def test_a_blocking_call_comes_after_what_was_launched_before(count: int) -> None:
    """The second call reads what the first one writes."""

    def main(comm: hocket.Communicator) -> None:
        for turn in range(20):
            x = np.full(count, 1.0)
            work = comm.all_reduce(x, async_op=True)
            assert comm.all_reduce(x) is x and (x == 4).all(), turn
            assert work.is_completed()
            comm.all_reduce(x, async_op=True)
            assert (comm.all_reduce(x, async_op=True).wait() == 16).all()

    in_threads(2, main)


def test_ranks_may_differ_in_which_calls_they_wait_for() -> None:
    def main(comm: hocket.Communicator) -> None:
        for turn in range(50):
            x = np.full(300, turn)
            result = comm.all_reduce(x, async_op=(turn + comm.rank) % 3 == 0)
            if isinstance(result, hocket.Work):
                result.wait()
            assert (x == turn * 4).all()

    in_threads(4, main)


def test_a_dropped_handle_keeps_its_arrays_until_it_is_done() -> None:
    others_may_call = threading.Event()

    def main(comm: hocket.Communicator) -> None:
        if comm.rank != 0:
            assert others_may_call.wait(PATIENCE_SECONDS)
            assert (comm.all_reduce(np.full(5000, 1.0)) == 3).all()
            comm.barrier()
            return
        x = np.full(5000, 1.0)
        alive = weakref.ref(x)
        comm.all_reduce(x, async_op=True)
        del x
        gc.collect()
        assert alive() is not None
        others_may_call.set()
        comm.barrier()
        assert comm.barrier(async_op=True).wait() is None  # a launch releases completed works
        wait_until(lambda: alive() is None)

    def main_and_one_more(comm: hocket.Communicator) -> None:
        main(comm)
        if comm.rank != 0:
            comm.barrier()

    in_threads(3, main_and_one_more)


def test_close_waits_for_what_was_launched() -> None:
    arrays = [[np.full(60_000, rank + turn) for turn in range(20)] for rank in range(3)]

    def main() -> None:
        comm = hocket.init()
        for x in arrays[comm.rank]:
            comm.all_reduce(x, async_op=True)
        comm.close()

    run_ranks(main, 3, kind="thread")
    for mine in arrays:
        for turn, x in enumerate(mine):
            assert (x == 3 * turn + 3).all()


def test_close_after_a_failure_on_the_stream_does_not_raise_it_again() -> None:
    aborted = threading.Event()

    def main() -> None:
        comm = hocket.init()
        if comm.rank == 0:
            works = [comm.all_reduce(np.ones(3), async_op=True) for _ in range(3)]
            comm.abort("enough")
            aborted.set()
            failures = []
            for work in works:
                with pytest.raises(PeerAborted, match="this rank itself gave up: enough") as caught:
                    work.wait()
                failures.append(caught.value)
            assert all(failure.rank == 0 and failure.reason == "enough" for failure in failures)
            assert isinstance(works[0].exception(), PeerAborted)
        else:
            assert aborted.wait(PATIENCE_SECONDS)
            with pytest.raises(PeerAborted, match="rank 0 gave up: enough"):
                comm.barrier()
        comm.close()

    run_ranks(main, 2, kind="thread")


def test_a_time_out_on_the_stream_counts_from_its_turn() -> None:
    others_may_end = threading.Event()

    def main() -> None:
        comm = hocket.init()
        if comm.rank == 1:
            assert others_may_end.wait(PATIENCE_SECONDS)
        else:
            work = comm.all_reduce(np.ones(3), timeout=0.1, async_op=True)
            with pytest.raises(CollectiveTimeout, match=r"rank 1 has not come within 0\.1 s") as caught:
                work.wait()
            assert caught.value.missing == (1,) and caught.value.seconds == 0.1
            with pytest.raises(CollectiveTimeout):
                comm.barrier()
            others_may_end.set()
        try:
            comm.close()
        except CollectiveTimeout as error:
            assert comm.rank == 1 and error.missing == (1,)

    run_ranks(main, 2, kind="thread")


def test_threads_of_one_rank_share_a_communicator() -> None:
    """Threads that all make the same call need no order among them."""
    num_threads, num_turns = 4, 50

    def main(comm: hocket.Communicator) -> None:
        failures: list[BaseException] = []

        def one(number: int) -> None:
            try:
                for turn in range(num_turns):
                    x = np.full(2000, 1.0)
                    result = comm.all_reduce(x, async_op=(turn + number) % 2 == 0)
                    if isinstance(result, hocket.Work):
                        if turn % 3 == 0:
                            continue  # without a wait it is kept, too
                        result.wait()
                    assert (x == 2).all()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        comm.barrier()
        assert comm.statistics["calls"] == num_threads * num_turns + 1

    in_threads(2, main)


def test_arrays_are_kept_while_several_threads_launch_and_drop() -> None:
    """Memory that is freed too early would be used again at once, and a result would be written to it."""

    def main(comm: hocket.Communicator) -> None:
        def launch() -> None:
            for _ in range(150):
                comm.all_reduce(np.full(30_000, 1.0), async_op=True)

        threads = [threading.Thread(target=launch) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            mine = np.full(30_000, 7.0)
            gc.collect(0)
            assert (mine == 7).all()
        for thread in threads:
            thread.join()
        comm.barrier()

    in_threads(2, main)


def test_close_by_one_thread_ends_the_calls_of_another_in_good_order() -> None:
    def main() -> None:
        comm = hocket.init()
        ended: list[BaseException | None] = []

        def call_on() -> None:
            try:
                while True:
                    comm.all_reduce(np.ones(10), async_op=True)
                    time.sleep(0)  # so that other threads get their turn
            except BaseException as error:
                ended.append(error)

        caller = threading.Thread(target=call_on)
        caller.start()
        with contextlib.suppress(CommunicationError):  # the other rank's other thread may be further
            comm.all_gather(np.ones(4))
        with contextlib.suppress(CommunicationError):
            comm.close()
        caller.join(PATIENCE_SECONDS)
        assert not caller.is_alive()
        assert isinstance(ended[0], CommunicationError), ended

    run_ranks(main, 2, kind="thread")


def test_the_interpreter_s_lock_is_free_while_a_call_waits() -> None:
    """Otherwise ranks that are threads would wait for each other forever."""
    others_may_call = threading.Event()

    def main(comm: hocket.Communicator) -> None:
        if comm.rank == 0:
            threading.Timer(0.05, others_may_call.set).start()
            comm.barrier(timeout=PATIENCE_SECONDS)
        else:
            assert others_may_call.wait(PATIENCE_SECONDS)
            comm.barrier()

    in_threads(2, main)


def drop_in_op() -> list[float]:
    held, may_drop, dropped = [hocket.init()], threading.Event(), threading.Event()
    communicator = weakref.ref(held[0])

    def add(left: Any, right: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():  # not when Hocket tries it out
            assert may_drop.wait(PATIENCE_SECONDS)
            held.clear()
            gc.collect()
            dropped.set()
        return left + right

    x = np.ones(4)
    held[0].all_reduce(x, op=hocket.op(add), algorithm="direct", async_op=True)
    may_drop.set()
    assert dropped.wait(PATIENCE_SECONDS)
    wait_until(lambda: communicator() is None)
    return [float(value) for value in x]


def test_an_op_may_drop_the_last_reference_to_the_communicator_that_runs_it() -> None:
    """As the garbage collector may, which runs on any thread. Another thread closes the communicator."""
    assert run_ranks(drop_in_op, 2, kind="process") == [[2.0] * 4] * 2


def test_a_stream_may_drop_the_last_reference_to_a_communicator_that_waits_for_the_stream() -> None:
    def main() -> None:
        held, may_drop, x = [hocket.init()], threading.Event(), np.ones(4)
        communicator = weakref.ref(held[0])

        def drop() -> None:
            assert may_drop.wait(PATIENCE_SECONDS)
            held.clear()

        stream = hocket.Stream()
        stream.submit(drop)
        with hocket.stream(stream):
            held[0].all_reduce(x, async_op=True)
        may_drop.set()
        stream.synchronize()
        wait_until(lambda: communicator() is None)
        assert (x == 2).all()

    run_ranks(main, 2, kind="thread")


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def use_threads_twice() -> None:
    with contextlib.ExitStack() as opened:
        comm = opened.enter_context(hocket.init())
        groups = [opened.enter_context(comm.dup()) for _ in range(10)]
        before = num_threads()
        for _ in range(2):
            for group in groups:
                received = group.irecv(np.zeros(2), 1 - comm.rank)
                assert (group.all_reduce(np.ones(2), async_op=True).wait() == 2).all()
                group.isend(np.ones(2), 1 - comm.rank).wait()
                assert (received.wait() == 1).all()
            wait_until(lambda: num_threads() == before)


def test_the_threads_of_idle_communicators_end_and_start_again() -> None:
    run_ranks(use_threads_twice, 2, kind="process")
