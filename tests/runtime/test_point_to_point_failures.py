"""Messages that cannot be sent or received: every rank gets an error, and no wait goes on."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveMismatch, CollectiveTimeout, CommunicationError, ForkedUse, PeerAborted, PeerDied
from hocket.runtime import run_ranks
from tests.waiting import wait_until

PATIENCE_SECONDS = 60.0


@pytest.mark.parametrize("count", [10, 50_000])
@pytest.mark.parametrize("field", ["count", "dtype"])
def test_a_difference_is_named_with_both_ranks(field: str, count: int) -> None:
    def main() -> None:
        comm = hocket.init()
        with pytest.raises(CollectiveMismatch) as caught:
            if comm.rank == 2:
                comm.send(np.ones(count, "float64"), 0, tag=5)
                comm.barrier()
            elif comm.rank == 0:
                comm.recv(np.ones(count - (field == "count"), "int64" if field == "dtype" else "float64"), 2, tag=5)
            else:
                comm.barrier()
        error = caught.value
        sent, expected = ("float64", "int64") if field == "dtype" else (count, count - 1)
        assert error.field == field and error.values == {2: sent, 0: expected}
        assert f"the message with tag 5 from rank 2 to rank 0 differs in {field}" in str(error)
        assert f"rank 2 sends {sent}" in str(error) and f"rank 0 expects {expected}" in str(error)
        comm.close()

    run_ranks(main, 3, kind="thread")


def test_a_time_out_names_whom_it_waited_for() -> None:
    def main() -> None:
        comm = hocket.init()
        if comm.rank == 0:
            with pytest.raises(
                CollectiveTimeout, match=r"recv from any rank \(tag 0\): not done within 0\.1 s"
            ) as caught:
                comm.recv(np.ones(1), timeout=0.1)
            assert caught.value.missing == (1, 2) and caught.value.seconds == 0.1
        with pytest.raises(CollectiveTimeout):
            comm.barrier()
        with pytest.raises(CollectiveTimeout):
            comm.send(np.ones(1), 0)
        comm.close()

    run_ranks(main, 3, kind="thread")


def test_a_time_out_of_what_nobody_waits_for() -> None:
    def main() -> None:
        comm = hocket.init()
        if comm.rank == 0:
            works = [comm.isend(np.ones(50_000), 1, timeout=0.1), comm.irecv(np.ones(1), 1)]
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not works[0].is_completed():
                assert time.monotonic() < deadline
            for work in works:
                with pytest.raises(CollectiveTimeout) as caught:
                    work.wait()
                assert caught.value.missing == (1,) and isinstance(work.exception(), CollectiveTimeout)
            comm.close()
        else:
            with pytest.raises(CollectiveTimeout, match="rank 1"):
                comm.recv(np.ones(1), 0, tag=3)
            comm.close()

    run_ranks(main, 2, kind="thread")


def test_an_abort_ends_sends_and_receives() -> None:
    def main() -> None:
        comm = hocket.init()
        if comm.rank == 0:
            comm.abort("enough")
        works = []
        with pytest.raises(PeerAborted, match="gave up: enough"):
            if comm.rank == 1:
                comm.recv(np.ones(1), 0)
            elif comm.rank == 2:
                works.append(comm.isend(np.ones(50_000), 0))
                works[0].wait()
            else:
                comm.send(np.ones(1), 1)
        comm.close()

    run_ranks(main, 3, kind="thread")


def give_up_amid_long_messages(receiver_gives_up: bool) -> None:
    comm = hocket.init()
    x, begun = np.ones(12 << 20, "u1"), threading.Event()
    giving_up = receiver_gives_up == (comm.rank == 1)

    def abort() -> None:
        begun.wait()
        comm.abort("enough")

    thread = threading.Thread(target=abort)
    if giving_up:
        thread.start()
    with pytest.raises(PeerAborted, match="gave up: enough"):
        for turn in range(1_000_000):
            if turn == 3:
                begun.set()
            if comm.rank == 0:
                comm.send(x, 1)
            else:
                comm.recv(x, 0)
    x[:] = 7  # only this rank uses it again
    if giving_up:
        thread.join()
    comm.close()
    assert (x == 7).all()


@pytest.mark.parametrize("attach", ["0", "1"])
@pytest.mark.parametrize("receiver_gives_up", [False, True])
def test_an_abort_in_the_middle_of_long_messages(
    receiver_gives_up: bool, attach: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_CMA", attach)
    for kind in ("thread", "process"):
        run_ranks(give_up_amid_long_messages, 2, args=(receiver_gives_up,), kind=kind)


def die_amid_long_messages(folder: Path, dying: int) -> None:
    comm = hocket.init()
    x = np.ones(12 << 20, "u1")
    try:
        for turn in range(1_000_000):
            if comm.rank == dying and turn == 3:
                signal.setitimer(signal.ITIMER_REAL, 1e-3)  # no handler catches it
            if comm.rank == 0:
                comm.send(x, 1)
            else:
                comm.recv(x, 0)
    except PeerDied as error:
        assert error.rank == dying
        comm.close()
        (folder / str(comm.rank)).touch()


@pytest.mark.parametrize("dying", [0, 1])
def test_a_death_in_the_middle_of_long_messages(dying: int, tmp_path: Path) -> None:
    with pytest.raises(PeerDied, match=f"rank {dying} of 2"):  # from run_ranks itself
        run_ranks(die_amid_long_messages, 2, args=(tmp_path, dying), kind="process")
    assert [path.name for path in tmp_path.iterdir()] == [str(1 - dying)]


def test_a_peer_that_has_closed_is_heard_out_first() -> None:
    closed = threading.Event()

    def main() -> None:
        comm = hocket.init()
        if comm.rank == 1:
            comm.send(np.full(500, 4.0), 0)
            comm.close()
            closed.set()
            return
        assert closed.wait(PATIENCE_SECONDS)
        x = np.zeros(500)
        assert comm.recv(x)[1] == 1 and (x == 4).all()
        with pytest.raises(PeerAborted, match="rank 1 closed the communicator"):
            comm.recv(x)
        comm.close()

    run_ranks(main, 2, kind="thread")


def test_what_is_kept_is_received_though_its_sender_has_closed_since() -> None:
    def main() -> None:
        comm = hocket.init()
        part, x = comm.dup(), np.zeros(1)
        if comm.rank == 0:
            part.send(np.full(1, 1.0), 1, tag=1)
            part.send(np.full(1, 2.0), 1, tag=2)
            comm.recv(x, 1)
            part.close()
            comm.send(x, 1)
        else:
            part.recv(x, 0, tag=2)  # the other message arrived first
            comm.send(x, 0)
            comm.recv(x, 0)
            assert part.recv(x, 0, tag=1)[1:] == (0, 1) and x[0] == 1
            part.close()
        comm.close()

    run_ranks(main, 2, kind="thread")


def test_close_tells_first_that_empty_messages_were_received() -> None:
    """More messages than a channel holds at once, and more than are sent before their receives."""

    def main() -> None:
        with hocket.init() as comm:
            if comm.rank == 0:
                works = [comm.isend(np.ones(0), 1) for _ in range(200)]
                comm.send(np.ones(1), 1, tag=1)
                for work in works:
                    work.wait()
            else:
                comm.recv(np.ones(1), 0, tag=1)  # the other messages arrived first
                comm.batch([hocket.Recv(np.ones(0), 0) for _ in range(200)])

    run_ranks(main, 2, kind="thread")


def test_close_waits_for_what_was_begun() -> None:
    arrays = [np.full(90_000, float(rank)) for rank in range(2)]
    found = [np.zeros(90_000) for _ in range(2)]

    def main() -> None:
        comm = hocket.init()
        comm.irecv(found[comm.rank], 1 - comm.rank)
        comm.isend(arrays[comm.rank], 1 - comm.rank)
        comm.close()

    run_ranks(main, 2, kind="thread")
    assert (found[0] == 1).all() and (found[1] == 0).all()


def test_messages_that_nobody_received_are_told_at_close(capfd: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        with hocket.init() as comm:
            if comm.rank == 0:
                comm.send(np.ones(3), 1, tag=6)
                comm.send(np.ones(3), 1, tag=7)
            comm.barrier()

    run_ranks(main, 2, kind="thread")
    assert capfd.readouterr().err == (
        "hocket: rank 1 closes its communicator with 2 messages that it never received: from rank 0 with tag 6, and "
        "others\n"
    )


def wait_for_the_dead(folder: Path) -> None:
    comm = hocket.init()
    try:
        comm.barrier()  # may already report a death
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if comm.rank == 0:
            comm.recv(np.ones(3), 1)
        elif comm.rank == 2:
            comm.isend(np.ones(90_000), 0).wait()
        else:
            comm.recv(np.ones(3))
    except PeerDied as error:
        assert error.rank == 1
        comm.close()
        (folder / str(comm.rank)).touch()


def test_a_death_ends_every_wait(tmp_path: Path) -> None:
    with pytest.raises(PeerDied, match="rank 1 of 4"):  # from run_ranks itself
        run_ranks(wait_for_the_dead, 4, args=(tmp_path,), kind="process")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2", "3"]


def interrupted() -> str:
    comm = hocket.init()
    x = np.ones(3)
    if comm.rank == 1:
        with pytest.raises(PeerAborted, match="rank 0 gave up: interrupted"):
            comm.recv(x, 0)
        comm.close()
        return "told"
    for call in (lambda: comm.irecv(x, 1, tag=1).wait(), lambda: comm.recv(x, 1)):
        began = time.monotonic()
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            call()
        assert time.monotonic() - began < 5.0  # the timeout is 300 s
    with pytest.raises(PeerAborted, match="this rank itself gave up: interrupted"):
        comm.send(x, 1)
    comm.close()
    return "interrupted"


def test_ctrl_c_ends_a_wait() -> None:
    assert run_ranks(interrupted, 2, kind="process") == ["interrupted", "told"]


def test_close_by_one_thread_while_another_receives() -> None:
    def main() -> None:
        comm = hocket.init()
        ended: list[BaseException] = []

        def receive() -> None:
            try:
                comm.recv(np.ones(1), 1 - comm.rank, tag=99, timeout=0.3)
            except CommunicationError as error:
                ended.append(error)

        receiver = threading.Thread(target=receive)
        receiver.start()
        try:
            comm.close()
        except CommunicationError as error:
            ended.append(error)
        receiver.join(PATIENCE_SECONDS)
        assert not receiver.is_alive() and ended

    run_ranks(main, 2, kind="thread")


def test_a_stall_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        comm = hocket.init()
        with pytest.raises(CollectiveTimeout):
            if comm.rank == 0:
                comm.recv(np.ones(1), 1, tag=3, timeout=5.3)
            else:
                comm.send(np.ones(1), 0, tag=4)
                comm.barrier()
        comm.close()

    run_ranks(main, 2, kind="thread")
    told = capfd.readouterr().err
    assert "hocket: rank 0 has waited 5 s in recv from rank 1 (tag 3) for rank 1; rank 1 has sent rank 0 a mess" in told
    assert "rank 1 has waited 5 s in barrier by direct (call 1) for rank 0\n" in told
    assert "wait for each other" not in told, "another order of the calls would not help"


@pytest.mark.parametrize(
    ("sender", "tag", "src", "recv_tag", "told"),
    [
        (1, 3, 1, 5, "tag 5 from rank 1: use one tag for both"),
        (1, 3, hocket.ANY_SOURCE, 5, "tag 5 from any rank: use one tag for both"),
        (2, 3, 1, 3, "tag 3 from rank 1: check dst of the send and src of the receive"),
        (2, 3, 1, hocket.ANY_TAG, "any tag from rank 1: check dst of the send and src of the receive"),
    ],
)
def test_a_receive_that_waits_names_the_message_that_it_does_not_take(
    sender: int, tag: int, src: int, recv_tag: int, told: str
) -> None:
    def main() -> list[str]:
        comm = hocket.init()
        if comm.rank == sender:
            comm.send(np.ones(1), 0, tag=tag)
        comm.barrier()
        if comm.rank != 0:
            with pytest.raises(CollectiveTimeout) as heard:
                comm.barrier()
            return [str(heard.value)]
        work = comm.irecv(np.ones(1), src, tag=recv_tag, timeout=0.5)
        with pytest.raises(CollectiveTimeout) as first:
            work.wait(timeout=0.1)
        with pytest.raises(CollectiveTimeout) as last:
            work.wait()
        return [str(first.value), str(last.value)]

    found = f"; rank {sender} has sent rank 0 a message with tag {tag}, which no receive asks for; rank 0 waits for "
    for texts in run_ranks(main, 3, kind="thread"):
        assert all(found + told in text for text in texts), texts


def test_a_receive_that_waits_names_no_message_of_another_communicator() -> None:
    def main() -> str:
        comm = hocket.init()
        other = comm.dup()
        if comm.rank == 1:
            other.send(np.ones(1), 0, tag=3)
        comm.barrier()
        if comm.rank == 0:
            with pytest.raises(CollectiveTimeout) as caught:
                comm.recv(np.ones(1), 1, tag=5, timeout=0.1)
        else:
            with pytest.raises(CollectiveTimeout) as caught:
                comm.barrier()
        if comm.rank == 0:
            other.recv(np.ones(1), 1, tag=3)
        other.close()
        return str(caught.value)

    assert not any("asks for" in text for text in run_ranks(main, 2, kind="thread"))


@pytest.mark.slow("the promised 5 s until a stall is told")
def test_ranks_that_wait_for_each_other_are_told_so(capfd: pytest.CaptureFixture[str]) -> None:
    def main() -> list[str]:
        comm = hocket.init()
        told = []
        for part in (comm.dup(), comm.subgroup([comm.rank])):
            assert part is not None
            with pytest.raises(CollectiveTimeout) as caught:
                part.recv(np.ones(1), (part.rank + 1) % part.size, timeout=8)
            told.append(str(caught.value))
            part.close()
        comm.close()
        return told

    advice = "use sendrecv, or batch"
    for rank, (circle, alone) in enumerate(run_ranks(main, 3, kind="thread")):
        assert f"within 8 s; ranks 0, 1 and 2 wait for each other: {advice}. This communicator" in circle
        assert f"rank {rank} waits for itself: {advice}" in alone
    said = capfd.readouterr().err
    assert f"; ranks 0, 1 and 2 wait for each other: {advice}\n" in said
    assert all(f"; rank {rank} waits for itself: {advice}\n" in said for rank in range(3))


@pytest.mark.slow("the promised 5 s until a stall is told, twice")
def test_a_wait_that_is_over_is_in_no_circle(capfd: pytest.CaptureFixture[str]) -> None:
    texts: list[str] = []

    def said() -> str:
        texts.append(capfd.readouterr().err)
        return "".join(texts)

    def main() -> None:
        comm = hocket.init()
        x, other = np.ones(1), 1 - comm.rank
        if comm.rank == 0:
            comm.recv(x, other)
        wait_until(lambda: f"rank {other} has waited" in said())
        comm.send(x, other)
        if comm.rank == 1:
            comm.recv(x, other)
        comm.close()

    run_ranks(main, 2, kind="thread")
    assert "rank 1 has waited" in said() and "wait for each other" not in said()


def test_a_signal_handler_may_send_while_its_thread_waits() -> None:
    assert run_ranks(send_from_a_handler, 2, kind="process") == [2.0, 2.0]


def send_from_a_handler() -> float:
    x = np.zeros(1)
    with hocket.init() as comm:
        if comm.rank == 1:
            comm.recv(x, 0, tag=1)  # comes out of the handler
            comm.send(x + 1, 0)
            return float(x[0]) + 1
        signal.signal(signal.SIGALRM, lambda *_: comm.send(np.ones(1), 1, tag=1))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        comm.recv(x, 1)
        return float(x[0])


@pytest.mark.parametrize("call", ["recv", "all_reduce"])
def test_a_signal_handler_may_close_above_a_call_of_its_thread(call: str) -> None:
    run_ranks(close_from_a_handler, 2, args=(call,), kind="process")


def close_from_a_handler(call: str) -> None:
    x = np.zeros(1)
    comm = hocket.init()
    comm.all_reduce(x, async_op=True).wait()  # so that there is a stream, which must end too, and a plan
    if comm.rank == 0:
        began = time.monotonic()
        signal.signal(signal.SIGALRM, lambda *_: comm.close())
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(PeerAborted, match="this rank itself gave up: it was closed inside its own"):
            comm.all_reduce(x) if call == "all_reduce" else comm.recv(x, 1)
        assert time.monotonic() - began < PATIENCE_SECONDS
    else:
        with pytest.raises(PeerAborted, match="rank 0 gave up: it was closed inside its own"):
            comm.recv(x, 0)
        comm.close()


def test_a_forked_child_is_told_so() -> None:
    comm = hocket.init(0, 1)
    work = comm.irecv(np.ones(1), 0)  # with a background thread, which the child does not have
    child = os.fork()
    if child == 0:
        told = 0
        for call in (lambda: comm.send(np.ones(1), 0), lambda: comm.recv(np.ones(1)), lambda: work.wait()):
            try:
                call()
            except ForkedUse:
                told += 1
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    comm.send(np.full(1, 4.0), 0)
    assert work.wait()[0] == 4
    comm.close()
