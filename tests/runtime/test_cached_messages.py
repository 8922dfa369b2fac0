"""Messages like ones before skip Python: they have to do and refuse just what the Python methods do."""

import inspect
import random
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import ANY_SOURCE, ANY_TAG
from hocket.errors import CollectiveTimeout, CommunicationError
from hocket.runtime import run_ranks

Comm = hocket.Communicator
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def count_misses(comm: Comm, method: str = "_exchange") -> list[str]:
    """Grows with each message of this communicator that goes through Python, which comes to this method then."""
    missed: list[str] = []
    exchange = getattr(comm, method)

    def counted(group: Any, name: str, timeout: Any) -> Any:
        missed.append(name)
        return exchange(group, name, timeout)

    setattr(comm, method, counted)
    return missed


def outcome(call: Callable[..., Any], arguments: Arguments) -> Any:
    args, keywords = arguments
    try:
        result = call(*args, **keywords)
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    arrays = [one for one in [*args, *keywords.values()] if isinstance(one, np.ndarray)]
    same = [at for at, one in enumerate(arrays) if result is not None and one is result[0]]
    return same, None if result is None else result[1:], [one.tolist() for one in arrays]


def sends(values: Any) -> list[Callable[[], Arguments]]:
    """Sends to itself that a receive with tag 5 or from any can take, and what is refused."""
    x = values
    return [
        lambda: ((x(), 0), {"tag": 5}),
        lambda: ((x(), 0), {"tag": int("5"), "timeout": 9.0}),
        lambda: ((), {"x": x(), "dst": 0, "tag": 5}),
        lambda: ((x(), np.int64(0)), {"tag": np.int32(5)}),
        lambda: ((x().reshape(2, 3), False), {"tag": 5}),
        lambda: ((x(), 1), {"tag": 5}),
        lambda: ((x(), 0), {"tag": -1}),
        lambda: ((x(), 0), {"tag": None}),
        lambda: ((x(), 0), {"tag": 1 << 31}),
        lambda: ((x(), 0), {"tag": 1 << 70}),
        lambda: ((x(), 0), {"tag": 5.0}),
        lambda: ((x()[::2], 0), {"tag": 5}),
        lambda: ((x(), 0, 5), {}),
        lambda: ((x(), 0), {"tag": 5, "timeout": -1}),
    ]


def receives(make: Any) -> list[Callable[[], Arguments]]:
    y = make

    def frozen() -> Any:
        one = y()
        one.flags.writeable = False
        return one

    return [
        lambda: ((y(), 0), {"tag": 5}),
        lambda: ((y(), 0), {"tag": ANY_TAG}),
        lambda: ((y(), ANY_SOURCE), {"tag": 5}),
        lambda: ((y(),), {"tag": 5, "timeout": 7}),
        lambda: ((y().reshape(3, 2),), {"tag": True + 4}),
        lambda: ((frozen(), 0), {"tag": 5}),
        lambda: ((y(), 1), {"tag": 5}),
        lambda: ((y(), 0), {"tag": -2}),
        lambda: ((y(), 0), {"tag": "5"}),
        lambda: ((y(), None), {"tag": 5}),
    ]


def test_a_cached_message_is_what_the_python_methods_send_and_receive() -> None:
    """Sends and receives of one rank to itself, in random order, each way beside the other."""
    choose = random.Random(3)
    with hocket.init(0, 1) as comm:
        missed, num_messages, num_hits = count_misses(comm), 0, 0

        def values() -> Any:
            return np.arange(6, dtype="f4") + num_messages

        def method(name: str, in_python: bool) -> Callable[..., Any]:
            plain: Callable[..., Any] = getattr(Comm, name).__wrapped__.__get__(comm)
            return plain if in_python else getattr(comm, name)  # type: ignore[no-any-return]

        for _ in range(600):
            send, receive = choose.choice(sends(values)), choose.choice(receives(lambda: np.zeros(6, "f4")))
            before = len(missed)
            found = [outcome(method("send", in_python), send()) for in_python in (False, True)]
            assert found[0] == found[1]
            if found[0][0] != []:
                continue
            taken = [outcome(method("recv", in_python), receive()) for in_python in (False, True)]
            assert taken[0] == taken[1]
            if taken[0][0] != [0]:  # refused
                for _ in range(2):
                    comm.recv(np.zeros(6, "f4"), tag=5)
                continue
            assert taken[0][1] == (0, 5)
            assert np.ravel(taken[0][2][0]).tolist() == values().tolist()
            num_messages += 2
            num_hits += len(missed) == before + 2  # those that were to go through Python
        assert num_hits > num_messages / 4 > 25


def test_a_tag_where_another_number_lay_is_not_taken_for_it() -> None:
    with hocket.init(0, 1) as comm:
        x, y, places = np.ones(3), np.zeros(3), []
        for text in [str(number) for number in range(300, 500)]:
            tag = int(text)  # an object that nothing keeps
            places.append(id(tag))
            comm.send(x, 0, tag=tag)
            assert str(comm.recv(y, 0, tag=ANY_TAG)[2]) == text
            comm.send(x, 0, tag=tag)
            assert str(comm.sendrecv(x, 0, y, 0, recv_tag=tag, timeout=20.0)[2]) == text
            comm.recv(y, 0, tag=0)
            del tag
        assert sum(one == next_one for one, next_one in pairwise(places)) > len(places) / 2


def test_sendrecv_knows_its_two_tags_and_arrays() -> None:
    def main() -> None:
        with hocket.init() as comm:
            missed, other = count_misses(comm), 1 - comm.rank
            memory = np.zeros(8)
            for turn in range(300, 320):
                x, out = np.full(3, comm.rank + turn, "f8"), np.zeros(3)
                mine, its = turn + comm.rank, turn + other
                assert comm.sendrecv(x, other, out, other, tag=mine, recv_tag=its) == (out, other, its)
                assert (out == other + turn).all()
                found, source, tag = comm.sendrecv(x, other, out, tag=turn)
                assert found is out and (source, tag) == (other, turn)
                assert comm.sendrecv(x, other, out, recv_tag=ANY_TAG, tag=mine)[1:] == (other, its)
                with pytest.raises(ValueError, match="overlaps"):
                    comm.sendrecv(memory[:5], other, memory[4:], other)
                assert comm.sendrecv(memory[:4], other, memory[4:], other)[0].base is memory
            assert len(missed) == 4

    run_ranks(main, 2, kind="thread")


def repeat() -> None:
    with hocket.init() as comm:
        missed, other = count_misses(comm), 1 - comm.rank
        for size in (0, 1, 6, 8, 2048, 2049, 20_000, 65_536, 65_537, 200_000, 300_000, 9 << 20):
            for turn in range(4):
                x, y = np.full(size, turn + comm.rank, "u1"), np.zeros(size, "u1")
                for sender in (0, 1):
                    if comm.rank == sender:
                        assert comm.send(x, other, tag=1000 + turn) is None  # type: ignore[func-returns-value]
                    else:
                        assert comm.recv(y, other, tag=1000 + turn) == (y, other, 1000 + turn)
                assert (y == turn + other).all()
                assert len(missed) == 2
            missed.clear()


@pytest.mark.parametrize("attach", ["0", "1"])
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_only_the_first_of_equal_messages_goes_through_python(
    kind: str, attach: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_CMA", attach)
    run_ranks(repeat, 2, kind=kind)


def test_settings_and_closing_are_noticed() -> None:
    with hocket.init(0, 1) as comm:
        x = np.ones(3)
        for _ in range(2):
            comm.send(x, 0)
            comm.recv(x, 0)
        comm.configure("recv", timeout=0.05)
        with pytest.raises(CollectiveTimeout, match=r"0\.05"):
            comm.recv(x, 0)
    with pytest.raises(CommunicationError, match="closed"):
        comm.send(x, 0)


def exchange_from_threads() -> None:
    with hocket.init() as comm:
        errors: list[BaseException] = []
        other = 1 - comm.rank

        def talk(number: int) -> None:
            try:
                x, y = np.full(4, comm.rank + number, "f8"), np.zeros(4)
                for _ in range(100):
                    comm.sendrecv(x, other, y, other, tag=number)
                    assert (y == other + number).all()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=talk, args=(number,)) for number in range(3)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert not errors


def test_threads_share_what_is_remembered() -> None:
    for kind in ("thread", "process"):
        run_ranks(exchange_from_threads, 2, kind=kind)


def test_who_waits_gets_its_own_array_back_whatever_others_call() -> None:
    """A thread's receive is awaited while another one makes the same call with other arrays."""
    with hocket.init(0, 1) as comm:
        x, found = np.ones(6), []

        def receive(shape: tuple[int, ...]) -> None:
            y = np.zeros(shape)
            for _ in range(100):
                found.append(comm.recv(y, 0)[0] is y)

        threads = [threading.Thread(target=receive, args=(shape,)) for shape in [(6,), (2, 3), (3, 2)]]
        for one in threads:
            one.start()
        for _ in range(300):
            comm.send(x, 0)
        for one in threads:
            one.join()
        assert found == [True] * 300


def wait_beside_a_thread() -> None:
    with hocket.init() as comm:
        beside, x = comm.dup(), np.zeros(1)
        for tag in range(2):  # the second time without Python
            if comm.rank == 1:
                beside.recv(np.zeros(1), 0)
                comm.send(x, 0, tag=tag)
                continue
            thread = threading.Thread(target=lambda: beside.send(np.zeros(1), 1))
            thread.start()
            comm.recv(x, 1, tag=tag)
            thread.join()


def test_other_threads_run_while_a_cached_message_is_awaited() -> None:
    for kind in ("thread", "process"):
        run_ranks(wait_beside_a_thread, 2, kind=kind)


@pytest.mark.parametrize("name", ["send", "recv", "sendrecv"])
def test_a_cached_method_reads_as_the_python_method(name: str) -> None:
    method = getattr(Comm, name)
    assert (method.__name__, method.__qualname__) == (name, f"PointToPoint.{name}")
    assert inspect.signature(method) == inspect.signature(method.__wrapped__)
