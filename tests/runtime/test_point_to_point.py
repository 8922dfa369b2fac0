"""Messages between two ranks: what arrives where, together with collectives, and the errors on each side."""

import gc
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import ANY_SOURCE, ANY_TAG, Recv, Send
from hocket.errors import CollectiveTimeout
from hocket.runtime import run_ranks

SIZES = (0, 1, 48, 49, 8 << 10, (8 << 10) + 1, 64 << 10, (64 << 10) + 1, (128 << 10) + 1, 256 << 10, (256 << 10) + 1)
SIZES += ((1 << 20) + 3, (8 << 20) + 5)
PATIENCE_SECONDS = 60.0
KINDS = ("thread", "process")


def in_threads(size: int, function: Callable[[hocket.Communicator], Any]) -> list[Any]:
    def main() -> Any:
        with hocket.init() as comm:
            return function(comm)

    return run_ranks(main, size, kind="thread")


def content(*key: int, num_bytes: int) -> Any:
    return np.random.default_rng(key).integers(0, 256, num_bytes, np.uint8)


# --- what arrives ----------------------------------------------------------------------------------------------------


def ping_pong() -> None:
    with hocket.init() as comm:
        for make in (np.empty, hocket.empty):
            for size in SIZES:
                x, y = make(size, "uint8"), make(size, "uint8")
                x[:] = content(comm.rank, size, num_bytes=size)
                if comm.rank == 0:
                    assert comm.send(x, 1, tag=3) is None
                    found = comm.recv(y, 1, tag=4)
                else:
                    found = comm.recv(y, 0, tag=3)
                    comm.send(x, 0, tag=4)
                assert found[0] is y and found[1:] == (1 - comm.rank, 4 - comm.rank)
                assert (y == content(1 - comm.rank, size, num_bytes=size)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_ping_pong(kind: str) -> None:
    run_ranks(ping_pong, 2, kind=kind)


def test_tags_are_received_in_any_order_and_messages_of_one_tag_in_theirs() -> None:
    def main(comm: hocket.Communicator) -> None:
        x = np.zeros(1)
        if comm.rank == 0:
            for number in range(12):
                comm.isend(np.full(1, float(number)), 1, tag=number % 3)
            return
        for tag in (2, 0, 1):
            for turn in range(4):
                assert comm.recv(x, 0, tag=tag) == (x, 0, tag) and x[0] == 3 * turn + tag

    in_threads(2, main)


def test_wildcards_tell_what_they_took() -> None:
    def main(comm: hocket.Communicator) -> None:
        if comm.rank != 0:
            comm.send(np.full(3, comm.rank), 0, tag=10 * comm.rank)
            return
        x, sources = np.zeros(3, "int64"), set()
        for _ in range(comm.size - 1):
            _, source, tag = comm.recv(x, ANY_SOURCE, tag=ANY_TAG)
            assert (x == source).all() and tag == 10 * source
            sources.add(source)
        assert sources == {1, 2, 3}

    in_threads(4, main)


def test_a_work_tells_source_and_tag_once_it_is_done() -> None:
    may_send = threading.Event()

    def main(comm: hocket.Communicator) -> None:
        x = np.full(5, 7.0)
        if comm.rank == 1:
            assert may_send.wait(PATIENCE_SECONDS)
            work = comm.isend(x, 0, tag=8)
            assert work.wait() is None and work.is_completed() and work.source is None and work.tag is None
            return
        y = np.zeros(5)
        work = comm.irecv(y, tag=ANY_TAG)
        assert isinstance(work, hocket.Work) and not work.is_completed()
        assert work.source is None and work.tag is None and work.exception() is None
        with pytest.raises(CollectiveTimeout, match=r"irecv on rank 0 was not done .* it waits for rank 1") as caught:
            work.wait(0.01)
        assert caught.value.missing == (1,)
        may_send.set()
        assert work.wait() is y and (y == 7).all() and (work.source, work.tag) == (1, 8)

    in_threads(2, main)


def test_an_interrupt_that_follows_the_beginning_lets_go_of_no_array(monkeypatch: pytest.MonkeyPatch) -> None:
    with hocket.init(0, 1) as comm:
        core = comm._core

        class Interrupted:
            def begin_exchange(self, *args: Any) -> None:
                core.begin_exchange(*args)
                raise KeyboardInterrupt

        y = np.zeros(3)
        received = weakref.ref(y)
        monkeypatch.setattr(comm, "_core", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            comm.irecv(y, 0, tag=3)
        monkeypatch.undo()
        del y
        gc.collect()
        assert received() is not None and len(comm._works.pending()) == 1
        comm.send(np.ones(3), 0, tag=3)
        assert comm._works.pending() == []
        gc.collect()
        assert received() is None


def test_messages_to_oneself() -> None:
    def main(comm: hocket.Communicator) -> None:
        for size in SIZES:
            x, y = content(size, num_bytes=size), np.empty(size, "uint8")
            assert comm.sendrecv(x, comm.rank, y, comm.rank, tag=2)[1:] == (comm.rank, 2) and (x == y).all()
        comm.send(np.ones(3), comm.rank)
        assert comm.recv(z := np.zeros(3))[1] == comm.rank and (z == 1).all()

    in_threads(1, main)
    in_threads(2, main)


def test_ranks_and_tags_may_be_any_whole_numbers() -> None:
    with hocket.init(0, 1) as comm:
        x, y = np.arange(3.0), np.zeros(3)
        work = comm.irecv(y, np.int8(-1), tag=np.int64(-1))
        comm.isend(x, np.uint8(0), tag=True).wait()
        assert work.wait() is y and (y == x).all()
        assert (work.source, work.tag) == (0, 1)
        [_, (found, source, tag)] = comm.batch([Send(x, False, np.int16(7)), Recv(y, np.int64(0), 7)])
        assert found is y and (source, tag) == (0, 7)


def test_anything_with_a_buffer() -> None:
    def main(comm: hocket.Communicator) -> None:
        if comm.rank == 0:
            comm.send(b"twelve bytes", 1)
        else:
            x = bytearray(12)
            assert comm.recv(x, 0)[0] is x and x == b"twelve bytes"
            work = comm.irecv(x, 0)
            with pytest.raises(BufferError):
                x.append(1)
            comm.send(b"", 0)
            assert work.wait() == b"other  bytes"
            return
        comm.recv(bytearray(0), 1)
        comm.send(memoryview(b"other  bytes"), 1)

    in_threads(2, main)


def test_a_thousand_small_messages_that_nobody_asked_for() -> None:
    """Messages wait at their sender, except the first few; the receiver's memory does not grow with them."""

    def main(comm: hocket.Communicator) -> None:
        if comm.rank == 0:
            works = [comm.isend(np.full(8, number), 1) for number in range(1000)]
            comm.barrier()
            for work in works:
                work.wait()
            return
        comm.barrier()
        x = np.zeros(8, "int64")
        for number in range(1000):
            comm.recv(x, 0)
            assert (x == number).all()

    in_threads(2, main)


# --- no order that deadlocks -----------------------------------------------------------------------------------------


def short_messages_before_a_barrier() -> None:
    with hocket.init() as comm:
        for count, size in ((17, 8), (32, 8), (32, 4 << 10), (32, 8 << 10)):
            x = np.zeros(size, np.uint8)
            if comm.rank == 1:
                comm.barrier()
            for number in range(count):
                if comm.rank == 0:
                    x[:] = number
                    comm.send(x, 1)
                else:
                    comm.recv(x, 0)
                    assert (x == number).all()
            if comm.rank == 0:
                comm.barrier()
            comm.barrier()  # at most 32 before their receives


@pytest.mark.parametrize("kind", KINDS)
def test_short_messages_do_not_wait_for_the_receive(kind: str) -> None:
    run_ranks(short_messages_before_a_barrier, 2, kind=kind)


def short_messages_behind_long_ones() -> None:
    """Long messages that wait for their receives do not delay short messages that are sent later."""
    with hocket.init() as comm:
        peer = 1 - comm.rank
        for size in ((8 << 10) + 1, 64 << 10, 256 << 10, 1 << 20):
            long, word = content(comm.rank, size, num_bytes=size), np.zeros(8 << 10, np.uint8)
            works = [comm.isend(long, peer, tag=1) for _ in range(5)]
            for number in range(32):
                word[:] = number
                comm.send(word, peer, tag=2)
            for number in range(32):
                comm.recv(word, peer, tag=2)
                assert (word == number).all()
            found = np.empty(size, np.uint8)
            for _ in works:
                comm.recv(found, peer, tag=1)
                assert (found == content(peer, size, num_bytes=size)).all()
            for work in works:
                work.wait()


@pytest.mark.parametrize("kind", KINDS)
def test_short_messages_do_not_wait_behind_long_ones(kind: str) -> None:
    run_ranks(short_messages_behind_long_ones, 2, kind=kind)


def short_messages_both_ways() -> None:
    """Rank 1's messages fill its channel, and rank 0 reads none; rank 0 must still learn what rank 1 has received."""
    with hocket.init() as comm:
        other = comm.subgroup([0, 1])
        assert other is not None
        x, y = np.zeros(1), np.zeros(1)
        for num_back in (9, 12, 16):
            for turn in range(4):
                for _ in range(16 * (comm.rank == 0)):
                    comm.send(x, 1)
                other.barrier()
                for _ in range(num_back * (comm.rank == 1 and turn == 0)):
                    comm.send(x, 0)
                for _ in range(16 * (comm.rank == 1)):
                    comm.recv(y, 0)
                other.barrier()
            if comm.rank == 0:
                comm.send(x, 1)  # the 65th, after all others are received
            comm.barrier()
            for _ in range(num_back if comm.rank == 0 else 1):
                comm.recv(y, 1 - comm.rank)
        other.close()


@pytest.mark.parametrize("kind", KINDS)
def test_credit_does_not_wait_for_room_in_a_channel(kind: str) -> None:
    run_ranks(short_messages_both_ways, 2, kind=kind)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_ring_of_sendrecv(size: int) -> None:
    def main(comm: hocket.Communicator) -> None:
        right, left = (comm.rank + 1) % size, (comm.rank - 1) % size
        for count in (1, 1000, 100_000):
            x, y = np.full(count, float(comm.rank)), np.zeros(count)
            assert comm.sendrecv(x, right, y, left, tag=1, recv_tag=1) == (y, left, 1)
            assert (y == left).all()

    in_threads(size, main)


def hostile_batches() -> None:
    """Every rank sends to and receives from all ranks, also itself, each rank in its own order."""
    with hocket.init() as comm:
        for turn, count in enumerate((1, 3000, 60_000)):
            choose = random.Random(10 * turn + comm.rank)
            arrays = [np.full(count, -1.0) for _ in range(comm.size)]
            group: list[Send | Recv] = [
                Send(np.full(count, 10.0 * comm.rank + to), to, turn) for to in range(comm.size)
            ]
            group += [Recv(arrays[source], source, turn) for source in range(comm.size)]
            choose.shuffle(group)
            results = comm.batch(iter(group), async_op=turn == 1)
            for message, result in zip(group, results, strict=True):
                if turn == 1:
                    assert result.wait() is (message.x if isinstance(message, Recv) else None)
                elif isinstance(message, Recv):
                    assert result[0] is message.x and result[1:] == (message.src, turn)
                else:
                    assert result is None
            for source, x in enumerate(arrays):
                assert (x == 10 * source + comm.rank).all()
        assert comm.batch([]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_batches_in_hostile_orders(kind: str) -> None:
    run_ranks(hostile_batches, 4, kind=kind)


def test_seeded_random_traffic() -> None:
    """Ranks post in their own orders; only the order within each pair and tag decides which receive gets what."""

    def main(comm: hocket.Communicator, seed: int) -> None:
        plan, choose = random.Random(seed), random.Random(seed * 100 + comm.rank)
        for _ in range(8):
            messages = [
                (plan.randrange(comm.size), plan.randrange(comm.size), plan.randrange(3), plan.choice((0, 2, 9, 2000)))
                for _ in range(60)
            ]
            # Posted early or late, but in order within one pair and tag.
            sends = [(number, message) for number, message in enumerate(messages) if message[0] == comm.rank]
            receives = [(number, message) for number, message in enumerate(messages) if message[1] == comm.rank]
            works, expected = [], []
            while sends or receives:
                if sends and (not receives or choose.random() < 0.5):
                    number, (_, to, tag, count) = sends.pop(0)
                    works.append(comm.isend(np.full(count, number), to, tag=tag))
                else:
                    number, (source, _, tag, count) = receives.pop(0)
                    x = np.full(count, -1)
                    works.append(comm.irecv(x, source, tag=tag))
                    expected.append((x, number))
            choose.shuffle(works)
            for work in works:
                work.wait(PATIENCE_SECONDS)
            for x, number in expected:
                assert (x == number).all()

    for seed in range(4):
        in_threads(4, lambda comm, seed=seed: main(comm, seed))


# --- beside collectives ----------------------------------------------------------------------------------------------


def test_messages_stay_pending_across_collectives() -> None:
    def main(comm: hocket.Communicator) -> None:
        for count in (3, 50_000):
            arrays = [np.zeros(count) for _ in range(comm.size)]
            works = [comm.irecv(x, source) for source, x in enumerate(arrays)]
            for _ in range(5):
                x = np.full(1000, 1.0)
                assert (comm.all_reduce(x) == comm.size).all()
            works += [comm.isend(np.full(count, comm.rank + 1.0), to) for to in range(comm.size)]
            assert (comm.all_reduce(np.full(70_000, 1.0)) == comm.size).all()
            for work in works:
                work.wait()
            for source, x in enumerate(arrays):
                assert (x == source + 1).all()

    in_threads(4, main)


def test_messages_beside_collectives_in_another_thread() -> None:
    def main(comm: hocket.Communicator) -> None:
        failures: list[BaseException] = []

        def reduce() -> None:
            try:
                for turn in range(30):
                    assert (comm.all_reduce(np.full(20 if turn % 2 else 40_000, 1.0)) == comm.size).all()
            except BaseException as error:
                failures.append(error)

        beside = threading.Thread(target=reduce)
        beside.start()
        for turn in range(30):
            count = 20 if turn % 3 else 60_000
            for peer in range(comm.size):
                y, source = np.zeros(count), (comm.rank - peer) % comm.size
                comm.sendrecv(np.full(count, float(comm.rank)), (comm.rank + peer) % comm.size, y, source)
                assert (y == source).all()
            comm.batch([Send(np.ones(1), (comm.rank + 1) % comm.size, 9), Recv(np.ones(1), ANY_SOURCE, 9)])
        beside.join()
        assert failures == []

    in_threads(3, main)


# --- arguments -------------------------------------------------------------------------------------------------------


class Unwilling:
    def __index__(self) -> int:
        raise ZeroDivisionError("no number today")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        # A rank that does not exist, or a wildcard that is not allowed.
        (lambda comm, x: comm.send(x, 2), ValueError, "send: expected dst from 0 to 1, found 2"),
        (lambda comm, x: comm.send(x, ANY_SOURCE), ValueError, "send: expected dst"),
        (lambda comm, x: comm.irecv(x, -2), ValueError, "irecv: expected src from 0 to 1 or hocket.ANY_SOURCE"),
        (lambda comm, x: comm.isend(x, 1.0), ValueError, "isend: expected dst"),
        (lambda comm, x: comm.isend(x, None), ValueError, "isend: expected dst from 0 to 1, found None"),
        (lambda comm, x: comm.isend(x, 1 << 70), ValueError, "isend: expected dst from 0 to 1, found 1180591620717411"),
        (lambda comm, x: comm.isend(x, Unwilling()), ZeroDivisionError, "no number today"),
        # Tags.
        (lambda comm, x: comm.send(x, 1, tag=1 << 31), ValueError, "send: expected tag from 0 to 2147483647"),
        (lambda comm, x: comm.send(x, 1, tag=ANY_TAG), ValueError, "send: expected tag"),
        (lambda comm, x: comm.recv(x, 1, tag=-2), ValueError, "recv: expected tag .* or hocket.ANY_TAG, found -2"),
        # Arrays that cannot be written or are not in one piece.
        (lambda comm, x: comm.recv(b"abc", 1), ValueError, "recv: x"),
        (lambda comm, x: comm.send(x[::2], 1), ValueError, "send: x"),
        (lambda comm, x: comm.sendrecv(x, 1, "y", 1), TypeError, "sendrecv: out"),
        (lambda comm, x: comm.sendrecv(x, 1, np.ma.array(x), 1), TypeError, "sendrecv: out: .* without a mask"),
        (lambda comm, x: comm.sendrecv(x, 1, x[1:], 1), ValueError, "sendrecv: a receive buffer overlaps"),
        (
            lambda comm, x: comm.batch([hocket.Recv(x[1:], 1), hocket.Send(x, 1), hocket.Send(x, 0)]),
            ValueError,
            "batch: a receive buffer overlaps",
        ),
        (
            lambda comm, x: comm.batch([hocket.Recv(x[:2], 1), hocket.Recv(x[1:], 1)]),
            ValueError,
            "batch: a receive buffer overlaps",
        ),
        # Groups and time-outs.
        (lambda comm, x: comm.batch([Send(x, 1), Recv(x, 5)]), ValueError, "batch: message 1: expected src"),
        (lambda comm, x: comm.batch([(x, 1)]), TypeError, "batch: message 0 is a tuple"),
        (lambda comm, x: comm.send(x, 1, timeout=0), ValueError, "send: timeout is 0"),
        (lambda comm, x: comm.irecv(x, 1, timeout="1"), TypeError, "irecv: timeout is a str"),
    ],
)
def test_arguments_are_checked_before_anything_is_sent(call: Any, error: type[Exception], words: str) -> None:
    def main(comm: hocket.Communicator) -> None:
        with pytest.raises(error, match=words):
            call(comm, np.zeros(4))
        comm.barrier()  # the communicator still works

    in_threads(2, main)


def test_internal_messages_are_not_for_the_program() -> None:
    def main(comm: hocket.Communicator) -> None:
        core, tag = comm._core, (1 << 64) - 1
        if comm.rank == 0:
            core.send_internal(b"one", 1, tag, 60.0)
            comm.send(np.full(1, 5.0), 1)
            core.send_internal(b"", 1, 3, 60.0)
        else:
            x = np.zeros(1)
            assert comm.recv(x, tag=ANY_TAG)[1:] == (0, 0) and x[0] == 5
            assert core.receive_internal(0, 0, 3, 60.0) == b""
            assert core.receive_internal(3, 0, tag, 60.0) == b"one"

    in_threads(2, main)


def test_threads_of_one_rank_wait_at_once() -> None:
    def main(comm: hocket.Communicator) -> None:
        failures: list[BaseException] = []

        def one(tag: int) -> None:
            try:
                for turn in range(40):
                    count = 30_000 if (turn + tag) % 5 == 0 else 10
                    y = np.zeros(count)
                    comm.sendrecv(np.full(count, 100.0 * tag + turn), 1 - comm.rank, y, 1 - comm.rank, tag=tag)
                    assert (y == 100 * tag + turn).all()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=one, args=(tag,)) for tag in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []

    in_threads(2, main)
