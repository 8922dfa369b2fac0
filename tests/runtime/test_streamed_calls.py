"""Collectives and messages in streams: what they wait for, what waits for them, and how errors spread."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CommunicationError, PeerAborted
from hocket.runtime import run_ranks
from hocket.runtime.communicator import calls
from hocket.runtime.traces import trace_file
from tests.waiting import PATIENCE_SECONDS


def in_threads(size: int, function: Callable[[hocket.Communicator], Any]) -> list[Any]:
    def main() -> Any:
        with hocket.init() as comm:
            return function(comm)

    return run_ranks(main, size, kind="thread")


class Gate:
    """A gate at which a stream waits until the test opens it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.open = self._event.set

    def wait(self) -> None:
        assert self._event.wait(PATIENCE_SECONDS)


# --- order ---------------------------------------------------------------------------------------------------------


def test_a_call_comes_after_what_is_in_the_current_stream() -> None:
    def main(comm: hocket.Communicator) -> None:
        s, gate, x = hocket.Stream(), Gate(), np.zeros(1000)
        s.submit(gate.wait)
        s.submit(x.fill, comm.rank + 1)
        with hocket.stream(s):
            work = comm.all_reduce(x, async_op=True)
        assert not work.is_completed() and (x == 0).all()
        gate.open()
        assert work.wait() is x and (x == 6).all()

    in_threads(3, main)


def test_a_trace_says_for_what_a_stream_waits(tmp_path: Path) -> None:
    file, gate = tmp_path / "out.json", Gate()

    def main(comm: hocket.Communicator) -> None:
        stream, x = hocket.Stream("compute"), np.ones(10)
        if comm.rank == 1:
            gate.wait()  # until the stream of rank 0 has been told to wait
            comm.all_reduce(x)
            comm.send(x, 0)
            return
        with hocket.trace(file):
            works = [comm.all_reduce(x, async_op=True), comm.irecv(np.empty(10), 1)]
            with hocket.stream(stream):
                for work in works:
                    work.wait()
            gate.open()
            stream.synchronize()

    in_threads(2, main)
    events = trace_file.read(file).events
    [lane] = [one["tid"] for one in events if one["ph"] == "M" and one["args"].get("name") == "compute"]
    waits = [one["name"] for one in events if one["ph"] == "X" and one["tid"] == lane]
    assert waits == ["wait for all_reduce", "wait for irecv"]
    told = [one["name"] for one in events if one["ph"] == "i"]
    assert told == ["wait for all_reduce on compute", "wait for irecv on compute"]


def test_without_the_launch_s_mark_a_call_reads_what_is_not_written_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hazard that the mark prevents: the same program as above, without it."""
    monkeypatch.setattr(calls, "launch_mark", lambda stream: None)

    def main(comm: hocket.Communicator) -> None:
        s, gate, x, out = hocket.Stream(), Gate(), np.zeros(1000), np.zeros(1000)
        s.submit(gate.wait)
        s.submit(x.fill, comm.rank + 1)
        with hocket.stream(s):
            work = comm.all_reduce(x, out=out, async_op=True)
        work.wait()  # before the stream has written x
        gate.open()
        s.synchronize()
        assert (out == 0).all() and (x == comm.rank + 1).all()

    in_threads(3, main)


def test_a_blocking_call_of_a_stream_returns_at_once_and_the_stream_goes_on_after_it() -> None:
    def main(comm: hocket.Communicator) -> None:
        s, gate, seen = hocket.Stream(), Gate(), []
        x = np.zeros(1000)
        with hocket.stream(s):
            s.submit(gate.wait)
            s.submit(x.fill, comm.rank + 1)
            assert comm.all_reduce(x) is x
            s.submit(lambda: seen.append(x.copy()))
            s.submit(x.fill, 1)
            gathered = comm.all_gather(x[:1])
            assert gathered.shape == (3,) and comm.barrier() is None
            assert comm.reduce(x, root=1) is (x if comm.rank == 1 else None)
        assert not s.query() and (x == 0).all()
        gate.open()
        s.synchronize()
        assert (seen[0] == 6).all() and (gathered == 1).all() and (x == (3 if comm.rank == 1 else 1)).all()

    in_threads(3, main)


def test_wait_makes_the_current_stream_wait_and_blocks_only_as_the_host() -> None:
    others_may_call = Gate()

    def main(comm: hocket.Communicator) -> None:
        x, doubled = np.full(1000, 1.0), np.zeros(1000)
        if comm.rank != 0:
            others_may_call.wait()
            comm.all_reduce(x)
            return
        s = hocket.Stream()
        work = comm.all_reduce(x, async_op=True)
        with hocket.stream(s):
            assert work.wait() is x  # at once
            with pytest.raises(ValueError, match="timeout is -1"):
                work.wait(-1)
        s.submit(np.add, x, x, doubled)
        assert not s.query() and not work.is_completed()
        others_may_call.open()
        s.synchronize()
        assert work.is_completed() and (doubled == 6).all()

    in_threads(3, main)


def test_any_stream_may_wait_for_a_work() -> None:
    others_may_call = Gate()

    def main(comm: hocket.Communicator) -> None:
        x, seen = np.full(10, 1.0), []
        if comm.rank != 0:
            others_may_call.wait()
            comm.all_reduce(x)
            return
        s, other = hocket.Stream(), hocket.Stream()
        with hocket.stream(other):
            work = comm.all_reduce(x, async_op=True)
        s.wait(work)
        s.submit(lambda: seen.append(x[0]))
        assert other.query() and not s.query()
        others_may_call.open()
        s.synchronize()
        assert seen == [2]

    in_threads(2, main)


def test_two_communicators_of_two_streams_run_beside_each_other() -> None:
    """The calls of the two ranks have different orders, which would not work in one stream."""

    def main(comm: hocket.Communicator) -> None:
        one, two = comm.dup(), comm.dup()
        first, second = hocket.Stream(), hocket.Stream()
        x, y = np.full(100, 1.0), np.full(100, 2.0)
        pairs = [(first, one, x), (second, two, y)]
        for s, group, array in pairs if comm.rank == 0 else reversed(pairs):
            with hocket.stream(s):
                group.all_reduce(array)
        first.synchronize()
        second.synchronize()
        assert (x == 2).all() and (y == 4).all()

    in_threads(2, main)


def test_repeated_calls_of_the_host_and_of_streams_take_turns() -> None:
    """Calls of the host go to the core without Python; those of a stream must not."""

    def main(comm: hocket.Communicator) -> None:
        s, x, out = hocket.Stream(), np.zeros(64), np.zeros(64)
        for turn in range(60):
            x.fill(turn)
            if turn % 3 != 1:
                assert comm.all_reduce(x, out=out) is out
            else:
                gate = Gate()
                with hocket.stream(s):
                    s.submit(gate.wait)
                    assert comm.all_reduce(x, out=out) is out
                    assert not s.query()
                gate.open()
                s.synchronize()
            assert (out == 2 * turn).all()

    in_threads(2, main)


def test_ranks_may_differ_in_which_calls_are_of_a_stream() -> None:
    def main(comm: hocket.Communicator) -> None:
        s, works = hocket.Stream(), []
        for turn in range(60):
            x = np.full(300, turn)
            with hocket.stream(s if (turn + comm.rank) % 3 == 0 else None):
                works.append((turn, x, comm.all_reduce(x, async_op=(turn + comm.rank) % 2 == 0)))
        s.synchronize()
        comm.barrier()
        assert all((x == 4 * turn).all() for turn, x, _ in works)

    in_threads(4, main)


def test_what_the_host_reads_itself_is_awaited_by_it() -> None:
    def main(comm: hocket.Communicator) -> None:
        s, gate = hocket.Stream(), Gate()
        with hocket.stream(s):
            s.submit(gate.wait)
            half = comm.split(comm.rank % 2)
            same = comm.dup()
            assert half is not None and (half.size, same.size) == (2, 4) and not s.query()
            x = np.full(10, 1)
            half.all_reduce(x)
            same.all_reduce(x)
        gate.open()
        s.synchronize()
        assert (x == 8).all()

    in_threads(4, main)


def test_close_waits_for_what_streams_have_launched() -> None:
    arrays = [np.zeros(1000) for _ in range(2)]

    def main() -> None:
        comm, s = hocket.init(), hocket.Stream()
        x = arrays[comm.rank]
        for _ in range(10):
            s.submit(x.fill, 1)
            with hocket.stream(s):
                comm.all_reduce(x)
        comm.close()
        s.synchronize()

    run_ranks(main, 2, kind="thread")
    assert all((x == 2).all() for x in arrays)


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "raise KeyError('mine')"])
def test_a_process_ends_with_calls_of_streams_under_way(ending: str) -> None:
    program = f"""
import time
import numpy as np
import hocket
comm, s, x = hocket.init(0, 1), hocket.Stream(), np.zeros(3)
with hocket.stream(s):
    s.submit(time.sleep, 0.2)  # work that is under way at the end
    s.submit(x.fill, 7)
    comm.all_reduce(x)
    comm.isend(x, 0)
    comm.irecv(x)
    s.submit(lambda: print(x))
{ending}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    if "KeyError" in ending:  # the communicator fails, and so do actions after its call
        assert ended.returncode == 1 and ended.stdout == "" and "KeyError: 'mine'" in ended.stderr.splitlines()
    else:
        code = 3 if ending else 0
        assert (ended.returncode, ended.stdout, ended.stderr) == (code, "[7. 7. 7.]\n", "")


# --- messages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 1_000_000])
def test_messages_come_after_what_is_in_the_current_stream(count: int) -> None:
    def main(comm: hocket.Communicator) -> None:
        s, gate, x, y = hocket.Stream(), Gate(), np.zeros(count), np.full(count, -1.0)
        other, seen = 1 - comm.rank, []
        with hocket.stream(s):
            s.submit(gate.wait)
            s.submit(x.fill, comm.rank + 5)
            s.submit(lambda: seen.append(y.copy()))
            outgoing, incoming = comm.isend(x, other), comm.irecv(y)
            incoming.wait()
            s.submit(y.__imul__, 2)
        assert not outgoing.is_completed() and not incoming.is_completed() and incoming.source is None
        gate.open()
        s.synchronize()
        outgoing.wait()
        assert (seen[0] == -1).all() and (y == 2 * (other + 5)).all() and (incoming.source, incoming.tag) == (other, 0)

    in_threads(2, main)


def test_blocking_messages_of_a_stream_return_at_once() -> None:
    def main(comm: hocket.Communicator) -> None:
        s, gate, other = hocket.Stream(), Gate(), 1 - comm.rank
        x, y, z, w = np.zeros(10), np.zeros(10), np.zeros(10), np.zeros(10)
        with hocket.stream(s):
            s.submit(gate.wait)
            s.submit(x.fill, comm.rank + 1)
            comm.send(x, other, tag=3)
            assert comm.recv(y, other, tag=3) == (y, other, 3)
            assert comm.sendrecv(y, other, z, hocket.ANY_SOURCE, recv_tag=hocket.ANY_TAG) == (z, -1, -1)
            [nothing, received] = comm.batch([hocket.Send(z, other), hocket.Recv(w, other)])
            assert nothing is None and received == (w, other, 0)
        assert not s.query() and not y.any()
        gate.open()
        s.synchronize()
        assert (y == other + 1).all() and (z == comm.rank + 1).all() and (w == other + 1).all()

    in_threads(2, main)


def test_messages_begin_in_the_order_in_which_they_were_launched() -> None:
    """Also those of the host, though nothing else delays them; so equal tags cannot overtake each other."""

    def main(comm: hocket.Communicator) -> None:
        arrays = [np.full(5, turn) for turn in range(8)]
        if comm.rank == 0:
            gates, works = [Gate() for _ in arrays], []
            for turn, (x, gate) in enumerate(zip(arrays, gates, strict=True)):
                with hocket.stream(None if turn % 4 == 3 else hocket.Stream()) as s:
                    if s is not None:
                        s.submit(gate.wait)
                    works.append(comm.isend(x, 1))
            for gate in reversed(gates):
                assert not any(work.is_completed() for work in works)
                gate.open()
            comm.send(np.full(5, 8), 1)
            for work in works:
                work.wait()
        else:
            for turn in range(9):
                x = np.zeros(5, int)
                comm.recv(x, 0)
                assert (x == turn).all()

    in_threads(2, main)


def test_messages_and_collectives_of_a_stream_are_in_order() -> None:
    def main(comm: hocket.Communicator) -> None:
        s, x, y = hocket.Stream(), np.full(2000, comm.rank + 1.0), np.zeros(2000)
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        with hocket.stream(s):
            for _ in range(20):
                comm.sendrecv(x, right, y, left)
                s.submit(np.copyto, x, y)
                comm.all_reduce(x, op="max")
                s.submit(np.add, x, comm.rank, x)
        s.synchronize()
        assert (x == 3 + 19 * 2 + comm.rank).all()

    in_threads(3, main)


# --- trouble -------------------------------------------------------------------------------------------------------


def fail() -> None:
    raise KeyError("mine")


@pytest.mark.parametrize("kind", ["collective", "message"])
def test_what_comes_after_an_error_fails_with_it_and_others_are_told(kind: str) -> None:
    def main() -> None:
        comm = hocket.init()
        x, y = np.zeros(10), np.zeros(10)
        if comm.rank == 0:
            s, gate = hocket.Stream(), Gate()
            with hocket.stream(s):
                s.submit(gate.wait)
                s.submit(fail)
                works = [comm.all_reduce(x, async_op=True)] if kind == "collective" else [comm.isend(x, 1)]
                works[0].wait()
                s.submit(y.fill, 1)
            gate.open()
            errors = []
            for ended in (works[0].wait, s.synchronize):
                with pytest.raises(KeyError, match="mine") as caught:
                    ended()
                errors.append(caught.value)
            assert errors[0] is errors[1] and len(errors[0].__notes__) == 1 and (y == 0).all()
            assert works[0].exception() is errors[0]
            with pytest.raises(PeerAborted, match=r"this rank itself gave up: an operation before its .* has failed"):
                comm.barrier()
        else:
            with pytest.raises(
                PeerAborted, match=r"rank 0 gave up: an operation before its .* has failed: KeyError: 'mine'"
            ):
                comm.all_reduce(x) if kind == "collective" else comm.recv(x, 0)
        comm.close()

    run_ranks(main, 2, kind="thread")


@pytest.mark.parametrize("guilty", [0, 1])
def test_abort_cancels_what_waits_for_the_communicator(guilty: int) -> None:
    """Also calls that wait for their turn in a stream, which the stream never reaches."""
    aborted = threading.Event()

    def main() -> None:
        comm = hocket.init()
        if comm.rank == 0:
            hung, waiting, gate, done = hocket.Stream(), hocket.Stream(), Gate(), []
            hung.submit(gate.wait)
            with hocket.stream(hung):
                works = [comm.all_reduce(np.ones(3), async_op=True), comm.isend(np.ones(3), 1)]
            for work in works:
                waiting.wait(work)
            waiting.submit(done.append, 1)
        if comm.rank == guilty:
            comm.abort("enough")
            aborted.set()
        assert aborted.wait(PATIENCE_SECONDS)
        if comm.rank == 0:
            with pytest.raises(PeerAborted, match="enough"):
                waiting.synchronize()
            for work in works:
                with pytest.raises(PeerAborted, match="enough"):
                    work.wait(PATIENCE_SECONDS)
            assert done == [] and not hung.query()
        with contextlib.suppress(CommunicationError):
            comm.close()
        if comm.rank == 0:
            gate.open()
            hung.synchronize()

    run_ranks(main, 2, kind="thread")


@pytest.mark.parametrize("kind", ["collective", "message"])
def test_what_a_stream_runs_cannot_make_a_call_behind_one_that_comes_after_it(kind: str) -> None:
    """It would wait forever: the other call has its turn first, and waits for the stream."""

    def main() -> None:
        comm, s, gate, x = hocket.init(), hocket.Stream(), Gate(), np.ones(3)
        if comm.rank == 1:
            with pytest.raises(PeerAborted, match=r"before its .* has failed: RuntimeError: a function in a stream"):
                comm.all_reduce(x) if kind == "collective" else comm.recv(x, 0)
            return

        def call() -> None:
            gate.wait()
            comm.all_reduce(x) if kind == "collective" else comm.send(x, 1)

        with hocket.stream(s):
            s.submit(call)
            work = comm.all_reduce(x, async_op=True) if kind == "collective" else comm.isend(x, 1)
        gate.open()
        for ended in (s.synchronize, work.wait):
            with pytest.raises(RuntimeError, match="told that stream to wait for itself") as caught:
                ended()
            assert len(caught.value.__notes__) == 1
        with contextlib.suppress(CommunicationError):
            comm.close()

    run_ranks(main, 2, kind="thread")


def test_an_error_of_one_communicator_reaches_another_by_a_stream() -> None:
    def main() -> None:
        world = hocket.init()
        one, two = world.dup(), world.dup()
        if world.rank == 0:
            s = hocket.Stream()
            with hocket.stream(s):
                first = one.all_reduce(np.ones(3), async_op=True)
                first.wait()
                second = two.all_reduce(np.ones(3), async_op=True)
            one.abort("enough")
            for work in (first, second):
                with pytest.raises(PeerAborted, match="this rank itself gave up: enough"):
                    work.wait()
            with pytest.raises(PeerAborted, match="enough"):
                s.synchronize()
        else:
            with pytest.raises(PeerAborted, match="rank 0 gave up: an operation before its call has failed: enough"):
                two.all_reduce(np.ones(3))
        for comm in (one, two):
            with contextlib.suppress(PeerAborted):
                comm.close()
        x = np.ones(3)
        assert (world.all_reduce(x) == 2).all()  # the failure does not affect it
        world.close()

    run_ranks(main, 2, kind="thread")
