"""One value for each rank: for a thread of run_ranks, for the process, for a forked child."""

import os
import threading

import pytest

import hocket
from hocket.runtime.memory import arena
from hocket.runtime.ranks.per_rank import PerRank


def test_each_rank_has_its_own_and_ends_it() -> None:
    made, ended = [], []
    lock = threading.Lock()

    def make() -> object:
        with lock:
            made.append(object())
            return made[-1]

    value = PerRank(make, ended.append)

    def main() -> tuple[object, bool]:
        return value(), value() is value()

    found = hocket.run_ranks(main, 3, kind="thread")
    assert all(again for _, again in found)
    assert len({id(one) for one, _ in found}) == 3
    assert {id(one) for one in ended} == {id(one) for one, _ in found}
    assert value() is value() and len(made) == 4


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_stream_has_that_of_the_rank_that_made_it(kind: str) -> None:
    assert all(hocket.run_ranks(_is_known_on_a_stream, 2, kind=kind))


def _is_known_on_a_stream() -> bool:
    own = arena()
    found = []
    stream = hocket.Stream()
    stream.submit(lambda: found.append(arena()))
    stream.synchronize()
    return found == [own]


def test_threads_of_a_process_that_is_a_rank_have_the_ranks() -> None:
    assert hocket.run_ranks(_is_known_to_a_thread, 1, kind="process") == [True]


def _is_known_to_a_thread() -> bool:
    own = arena()
    found = []
    thread = threading.Thread(target=lambda: found.append(arena()))
    thread.start()
    thread.join()
    return found == [own]


def test_a_forked_child_makes_another() -> None:
    value = PerRank(object)
    before = value()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"n" if value() is before else b"y")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"y"
    os.close(reader)
    os.close(writer)
    assert value() is before
