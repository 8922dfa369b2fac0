"""Streams and events without ranks: order, what record and wait mean, errors, threads, and the end of a process."""

import functools
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveTimeout, ForkedUse
from tests.waiting import PATIENCE_SECONDS, wait_until


def gate() -> tuple[Callable[[], object], Callable[[], None]]:
    """A gate at which a stream waits until it is opened."""
    event = threading.Event()
    return lambda: event.wait(PATIENCE_SECONDS), event.set


def threads() -> set[str]:
    """Returns the threads of this process, by number."""
    return {path.name for path in Path("/proc/self/task").iterdir()}


# --- order ---------------------------------------------------------------------------------------------------------


def test_work_is_done_in_order_by_another_thread() -> None:
    done: list[object] = []
    s = hocket.Stream()
    for turn in range(1000):
        s.submit(done.append, turn)
    s.submit(lambda: done.append(threading.get_ident()))
    s.synchronize()
    assert done[:-1] == list(range(1000)) and done[-1] != threading.get_ident()


def test_query_is_false_until_all_is_done() -> None:
    wait, open_gate = gate()
    s = hocket.Stream()
    assert s.query()
    s.submit(wait)
    event = s.record()
    assert not s.query() and not event.query()
    open_gate()
    s.synchronize()
    assert s.query() and event.query()


def test_a_stream_without_work_has_no_thread() -> None:
    before = threads()
    s = hocket.Stream()
    event = s.record()
    s.wait(event)
    s.synchronize()
    assert event.query() and threads() <= before
    s.submit(int)
    s.synchronize()
    assert len(threads() - before) == 1


def test_a_stream_that_nobody_has_does_its_work_and_ends_its_thread() -> None:
    before = threads()
    wait, open_gate = gate()
    done: list[int] = []
    s = hocket.Stream()
    s.submit(wait)
    s.submit(done.append, 1)
    event = s.record()
    del s
    open_gate()
    event.synchronize()
    assert done == [1]
    wait_until(lambda: threads() <= before)


def test_arguments_live_until_they_were_used_and_no_longer() -> None:
    class Argument:
        pass

    wait, open_gate = gate()
    s, one = hocket.Stream(), Argument()
    alive = weakref.ref(one)
    s.submit(wait)
    s.submit(id, one)
    event = s.record()
    del one
    gc.collect()
    assert alive() is not None
    open_gate()
    event.synchronize()
    assert alive() is None


def test_streams_run_beside_each_other() -> None:
    """Each waits until the other one runs."""
    meeting = threading.Barrier(2)
    streams = [hocket.Stream(), hocket.Stream()]
    for s in streams:
        s.submit(meeting.wait, PATIENCE_SECONDS)
    for s in streams:
        s.synchronize()


def test_many_threads_may_submit() -> None:
    s = hocket.Stream()
    done: list[tuple[int, int]] = []
    callers = [
        threading.Thread(target=lambda number=number: [s.submit(done.append, (number, turn)) for turn in range(200)])
        for number in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    s.synchronize()
    assert len(done) == 800
    for number in range(4):
        assert [turn for of, turn in done if of == number] == list(range(200))


# --- events --------------------------------------------------------------------------------------------------------


def test_a_stream_waits_for_an_event_of_another() -> None:
    wait, open_gate = gate()
    done: list[str] = []
    first, second = hocket.Stream(), hocket.Stream()
    first.submit(wait)
    first.submit(done.append, "first")
    event = first.record()
    second.wait(event)
    second.submit(done.append, "second")
    assert not second.query()
    open_gate()
    second.synchronize()
    assert done == ["first", "second"]


def test_an_event_that_was_never_recorded_is_over() -> None:
    event, s = hocket.Event(), hocket.Stream()
    assert event.query()
    event.wait()
    event.wait(s)
    event.synchronize()
    assert s.query()


def test_a_wait_means_the_record_before_it() -> None:
    wait_a, open_a = gate()
    wait_b, open_b = gate()
    a, b, waiting, event = hocket.Stream(), hocket.Stream(), hocket.Stream(), hocket.Event()
    a.submit(wait_a)
    b.submit(wait_b)
    event.record(a)
    waiting.wait(event)
    first = waiting.record()
    event.record(b)  # waits that exist still wait for a
    open_a()
    first.synchronize()
    assert not event.query()
    waiting.wait(event)
    second = waiting.record()
    assert not second.query()
    open_b()
    second.synchronize()


def test_an_event_of_the_current_stream_and_of_the_host() -> None:
    wait, open_gate = gate()
    s, event = hocket.Stream(), hocket.Event()
    with hocket.stream(s):
        s.submit(wait)
        event.record()
        assert not event.query()
        other = hocket.Event()
        other.record(s)
        other.wait()  # the stream waits, not the host
    event.record()  # the host's earlier work is done
    assert event.query() and not other.query()
    open_gate()
    other.synchronize()


def test_an_event_s_time_out() -> None:
    wait, open_gate = gate()
    s = hocket.Stream()
    s.submit(wait)
    event = s.record()
    with pytest.raises(CollectiveTimeout, match=r"within 0\.01 s") as caught:
        event.synchronize(0.01)
    assert (caught.value.seconds, caught.value.missing) == (0.01, ())
    with pytest.raises(ValueError, match="timeout is -1; expected seconds"):
        event.synchronize(-1)
    open_gate()
    event.synchronize(PATIENCE_SECONDS)


def test_elapsed_time_is_in_milliseconds() -> None:
    s, start, end = hocket.Stream(), hocket.Event(), hocket.Event()
    before = time.monotonic()
    start.record(s)
    s.submit(time.sleep, 0.02)  # the measured time
    end.record(s)
    with pytest.raises(ValueError, match="end is not over"):
        start.elapsed_time(end)
    s.synchronize()
    after = time.monotonic()
    assert 20 <= start.elapsed_time(end) <= (after - before) * 1e3
    assert end.elapsed_time(start) == -start.elapsed_time(end)


def test_elapsed_time_asks_for_events_that_have_one() -> None:
    recorded, silent = hocket.Event(), hocket.Event(timing=False)
    recorded.record()
    silent.record()
    with pytest.raises(ValueError, match="end was not recorded"):
        recorded.elapsed_time(hocket.Event())
    with pytest.raises(ValueError, match="this event has no time"):
        silent.elapsed_time(recorded)


# --- the current stream --------------------------------------------------------------------------------------------


def test_the_current_stream_belongs_to_a_thread() -> None:
    s, seen = hocket.Stream(), []
    assert hocket.current_stream() is None
    with hocket.stream(s) as entered:
        assert entered is s and hocket.current_stream() is s
        thread = threading.Thread(target=lambda: seen.append(hocket.current_stream()))
        thread.start()
        thread.join()
        with hocket.stream(None):
            assert hocket.current_stream() is None
        assert hocket.current_stream() is s
        s.submit(lambda: seen.append(hocket.current_stream()))
    s.synchronize()
    assert hocket.current_stream() is None and seen == [None, None]


def test_the_current_stream_is_left_with_an_exception_too() -> None:
    with pytest.raises(KeyError), hocket.stream(hocket.Stream()):
        raise KeyError
    assert hocket.current_stream() is None


def test_a_context_may_be_entered_again() -> None:
    s = hocket.Stream()
    context = hocket.stream(s)
    with context, hocket.stream(None), context:
        assert hocket.current_stream() is s
    assert hocket.current_stream() is None


# --- bad arguments -------------------------------------------------------------------------------------------------


def test_bad_arguments_are_refused_at_once() -> None:
    s = hocket.Stream("mine")
    assert repr(s) == "<hocket.Stream 'mine'>"
    with pytest.raises(TypeError, match="submit: expected something that can be called, found 3"):
        s.submit(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"wait: expected a hocket\.Event or a Work, found a Stream"):
        s.wait(s)  # type: ignore[arg-type]
    for use in (hocket.stream, hocket.Event().record, hocket.Event().wait):
        with pytest.raises(TypeError, match=r"expected a hocket\.Stream, found 'mine'"):
            use("mine")  # type: ignore[operator]
    with pytest.raises(TypeError, match=r"record: expected a hocket\.Event, or None for a new one, found 3"):
        s.record(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"elapsed_time: expected a hocket\.Event, found 3"):
        s.record().elapsed_time(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Stream: expected a name, or None, found 3"):
        hocket.Stream(3)  # type: ignore[arg-type]


def test_a_stream_cannot_wait_for_itself_by_what_it_runs() -> None:
    s = hocket.Stream()
    s.submit(s.synchronize)
    with pytest.raises(RuntimeError, match="told that stream to wait for itself"):
        s.synchronize()


# --- errors --------------------------------------------------------------------------------------------------------


def divide(x: float) -> float:
    return 1 / x


def test_an_error_comes_at_the_next_synchronization_with_its_origin() -> None:
    s, done = hocket.Stream(), []
    line = sys._getframe().f_lineno + 1
    s.submit(divide, 0)
    s.submit(done.append, "skipped")
    s.submit(divide, None)  # skipped as well: the first error counts
    with pytest.raises(ZeroDivisionError) as caught:
        s.synchronize()
    assert caught.value.__notes__ == [f"This was divide, submitted to a stream at {__file__}:{line}."]
    assert done == [] and "in divide" in "".join(map(str, caught.traceback))
    s.submit(done.append, "again")
    s.synchronize()
    assert done == ["again"]


class Silent:
    """Has no repr, but can be called."""

    def __call__(self) -> None:
        raise KeyError("mine")

    def __repr__(self) -> str:
        raise AssertionError("nobody has asked")


def test_the_origin_of_an_error_is_named_without_showing_its_data() -> None:
    s = hocket.Stream()
    for function, name in ((functools.partial(divide, "x" * 1000), "divide"), (Silent(), "Silent")):
        s.submit(function)
        with pytest.raises((TypeError, KeyError)) as caught:
            s.synchronize()
        assert caught.value.__notes__[0].startswith(f"This was {name}, submitted to a stream at ")


def test_events_behind_an_error_have_failed_and_those_before_have_not() -> None:
    s = hocket.Stream()
    before = s.record()
    s.submit(int)
    middle = s.record()
    s.submit(divide, 0)
    behind = s.record()
    for event in (before, middle):
        event.synchronize()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            behind.synchronize()
    assert behind.query()
    with pytest.raises(ZeroDivisionError):
        s.record().synchronize()  # the stream is still failed
    with pytest.raises(ZeroDivisionError):
        s.synchronize()
    s.record().synchronize()
    s.synchronize()


def test_what_waits_for_what_failed_fails_with_it() -> None:
    first, second, third, done = hocket.Stream(), hocket.Stream(), hocket.Stream(), []
    first.submit(divide, 0)
    second.wait(first.record())
    second.submit(done.append, "skipped")
    third.submit(done.append, "beside")
    third.synchronize()
    errors = []
    for s in (second, first):
        with pytest.raises(ZeroDivisionError) as caught:
            s.synchronize()
        errors.append(caught.value)
    assert errors[0] is errors[1] and done == ["beside"]
    for s in (first, second):
        s.submit(done.append, "again")
        s.synchronize()
    assert done == ["beside", "again", "again"]


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    program = "import atexit, os, signal, sys, threading, time\nimport hocket\n" + text
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def test_an_error_that_nobody_asks_for_is_told_in_the_end() -> None:
    ended = run_program("s = hocket.Stream('mine')\ns.submit(int, 'x')\n")
    assert ended.returncode == 0
    assert ended.stderr == (
        "hocket: stream 'mine' ended with an error that no call has raised: ValueError: invalid literal for int() "
        "with base 10: 'x'\n"
    )


# --- the end of a process ------------------------------------------------------------------------------------------


def test_a_process_ends_after_what_was_submitted() -> None:
    ended = run_program(
        "a, b = hocket.Stream(), hocket.Stream()\n"
        "a.submit(time.sleep, 0.2)\n"  # work that runs at the end
        "b.wait(a.record())\n"
        "b.submit(print, 'done')\n"
        "del b\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_a_process_ends_after_streams_that_nobody_has_any_more() -> None:
    """Their threads release the interpreter's objects before it ends; several times, because this was a race."""
    for _ in range(5):
        ended = run_program("for _ in range(40):\n    hocket.Stream().submit(time.sleep, 0.05)\n")  # runs at the end
        assert (ended.returncode, ended.stderr) == (0, "")


def test_after_an_uncaught_exception_only_what_runs_is_awaited() -> None:
    ended = run_program(
        "s = hocket.Stream()\n"
        "begun, may_end = threading.Event(), threading.Event()\n"
        "s.submit(lambda: (begun.set(), may_end.wait(), print('ran')))\n"
        "s.submit(print, 'skipped')\n"
        "begun.wait()\n"
        "timer = threading.Timer(0.3, may_end.set)\n"
        "timer.daemon = True\n"
        "atexit.register(timer.start)\n"
        "raise KeyError('mine')\n"
    )
    assert ended.returncode == 1 and ended.stdout == "ran\n"
    assert ended.stderr.splitlines()[-1] == "KeyError: 'mine'"


def test_ctrl_c_ends_a_wait_and_the_wait_at_the_end() -> None:
    ended = run_program(
        "s, may_end = hocket.Stream(), threading.Event()\n"
        "s.submit(may_end.wait)\n"
        "s.submit(print, 'skipped')\n"
        "def interrupt():\n"
        "    for _ in range(2):\n"
        "        time.sleep(0.3)\n"  # until the host waits; nothing shows when
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.5)\n"  # until the second interrupt is handled; nothing shows when
        "    may_end.set()\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
        "try:\n"
        "    s.synchronize()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted\n", "")


def test_a_forked_child_may_not_use_a_stream_and_ends_cleanly() -> None:
    s, other = hocket.Stream(), hocket.Stream()
    wait, open_gate = gate()
    s.submit(wait)
    event = s.record()
    child = os.fork()
    if child == 0:
        code = 7
        try:
            for use in (s.synchronize, s.query, s.record, event.query, event.synchronize, lambda: other.submit(int)):
                with pytest.raises(ForkedUse):
                    use()
            mine = hocket.Stream()
            mine.submit(int)
            mine.synchronize()
            del s, other, event, mine
            code = 0
        finally:
            os._exit(code)
    open_gate()
    s.synchronize()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_ends_as_python_processes_do() -> None:
    ended = run_program(
        "s = hocket.Stream()\n"
        "s.submit(time.sleep, 0.2)\n"  # work that runs when the child ends
        "if os.fork() == 0:\n    sys.exit(0)\n_, status = os.wait()\n"
        "print(status)\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0\n", "")


# --- memory --------------------------------------------------------------------------------------------------------


def test_numpy_computes_in_a_stream_beside_the_host() -> None:
    a, out = np.ones((64, 64)), np.zeros((64, 64))
    s = hocket.Stream()
    s.submit(np.matmul, a, a, out)
    s.synchronize()
    assert (out == 64).all()
