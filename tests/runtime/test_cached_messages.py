"""Repeated messages skip Python: they must do and refuse exactly what the Python methods do."""

import inspect
import random
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import ANY_SOURCE, ANY_TAG
from hocket.errors import CollectiveTimeout, CommunicationError
from hocket.runtime import run_ranks
from tests.runtime.repeating import (
    Arguments,
    Comm,
    by_python,
    count_misses,
    frozen,
    in_threads,
    outcome,
    repeat,
    wait_beside_a_thread,
)


def sends(values: Any) -> list[Callable[[], Arguments]]:
    """Sends of a rank to itself that a receive with tag 5 or any tag can take, and calls that are refused."""
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
    return [
        lambda: ((y(), 0), {"tag": 5}),
        lambda: ((y(), 0), {"tag": ANY_TAG}),
        lambda: ((y(), ANY_SOURCE), {"tag": 5}),
        lambda: ((y(),), {"tag": 5, "timeout": 7}),
        lambda: ((y().reshape(3, 2),), {"tag": True + 4}),
        lambda: ((frozen(y()), 0), {"tag": 5}),
        lambda: ((y(), 1), {"tag": 5}),
        lambda: ((y(), 0), {"tag": -2}),
        lambda: ((y(), 0), {"tag": "5"}),
        lambda: ((y(), None), {"tag": 5}),
    ]


def test_a_cached_message_is_what_the_python_methods_send_and_receive() -> None:
    """Sends and receives of one rank to itself in random order, with and without Python."""
    choose = random.Random(3)
    with hocket.init(0, 1) as comm:
        missed, num_messages, num_hits = count_misses(comm, "_exchange"), 0, 0

        def values() -> Any:
            return np.arange(6, dtype="f4") + num_messages

        def method(name: str, in_python: bool) -> Callable[..., Any]:
            return by_python(comm, name) if in_python else getattr(comm, name)  # type: ignore[no-any-return]

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
            num_hits += len(missed) == before + 2  # the calls that must go through Python
        assert num_hits > num_messages / 4 > 25


def test_a_tag_where_another_number_lay_is_not_taken_for_it() -> None:
    with hocket.init(0, 1) as comm:
        x, y, places = np.ones(3), np.zeros(3), []
        for text in [str(number) for number in range(300, 500)]:
            tag = int(text)  # an object without another reference
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
            missed, other = count_misses(comm, "_exchange"), 1 - comm.rank
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


def send_and_receive(comm: Comm, x: Any, y: Any, tag: int) -> None:
    for sender in (0, 1):
        if comm.rank == sender:
            assert comm.send(x, 1 - comm.rank, tag=tag) is None  # type: ignore[func-returns-value]
        else:
            assert comm.recv(y, 1 - comm.rank, tag=tag) == (y, 1 - comm.rank, tag)


@pytest.mark.parametrize("attach", ["0", "1"])
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_only_the_first_of_equal_messages_goes_through_python(
    kind: str, attach: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_CMA", attach)
    run_ranks(repeat, 2, args=(send_and_receive, "_exchange", ("send", "recv")), kind=kind)


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
        other = 1 - comm.rank

        def talk(number: int) -> None:
            x, y = np.full(4, comm.rank + number, "f8"), np.zeros(4)
            for _ in range(100):
                comm.sendrecv(x, other, y, other, tag=number)
                assert (y == other + number).all()

        in_threads(*[partial(talk, number) for number in range(3)])


def test_threads_share_what_is_remembered() -> None:
    for kind in ("thread", "process"):
        run_ranks(exchange_from_threads, 2, kind=kind)


def test_who_waits_gets_its_own_array_back_whatever_others_call() -> None:
    """One thread waits in a receive while another thread makes the same call with other arrays."""
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


def send_to_the_first(comm: Comm, x: Any, tag: int) -> None:
    comm.send(x, 0, tag=tag)


def receive_from_the_second(comm: Comm, x: Any, tag: int) -> Callable[[], Any]:
    return partial(comm.recv, x, 1, tag=tag)


def test_other_threads_run_while_a_cached_message_is_awaited() -> None:
    for kind in ("thread", "process"):
        run_ranks(wait_beside_a_thread, 2, args=(send_to_the_first, receive_from_the_second), kind=kind)


@pytest.mark.parametrize("name", ["send", "recv", "sendrecv"])
def test_a_cached_method_reads_as_the_python_method(name: str) -> None:
    method = getattr(Comm, name)
    assert (method.__name__, method.__qualname__) == (name, f"PointToPoint.{name}")
    assert inspect.signature(method) == inspect.signature(method.__wrapped__)
