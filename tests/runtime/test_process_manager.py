"""The board at the process manager of MPI: against a small manager of the same protocol, and bad ones."""

import contextlib
import os
import re
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from hocket.errors import RendezvousError
from hocket.runtime.rendezvous.boards import pmi
from hocket.runtime.rendezvous.boards.process_manager import ProcessManager


class Manager:
    """As much of hydra's PMI-1 as a board uses, for some ranks, in one thread."""

    def __init__(self, size: int) -> None:
        ends = [socket.socketpair() for _ in range(size)]
        self.descriptors = [theirs.fileno() for _, theirs in ends]
        self.ended: list[int] = []  # ranks that said farewell, in order
        self._theirs = [theirs for _, theirs in ends]
        self._ours = [ours for ours, _ in ends]
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        values: dict[str, str] = {}
        inside: set[int] = set()
        begun = [b""] * len(self._ours)
        while True:
            ready, _, _ = select.select([self._stop, *(one.fileno() for one in self._ours)], [], [])
            if self._stop in ready:
                return
            for rank, connection in enumerate(self._ours):
                if connection.fileno() not in ready:
                    continue
                *lines, begun[rank] = (begun[rank] + connection.recv(4096)).split(b"\n")
                for line in lines:
                    words = dict(word.partition("=")[::2] for word in line.decode().split())
                    if words["cmd"] == "barrier_in":
                        assert rank not in inside
                        inside.add(rank)
                        if len(inside) == len(self._ours):
                            inside.clear()
                            for one in self._ours:
                                one.sendall(b"cmd=barrier_out\n")
                    else:
                        connection.sendall(self._answer(rank, words, values).encode() + b"\n")

    def _answer(self, rank: int, words: dict[str, str], values: dict[str, str]) -> str:
        match words["cmd"]:
            case "init":
                return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            case "get_my_kvsname":
                return "cmd=my_kvsname kvsname=kvs_1_0"
            case "put":
                assert words["kvsname"] == "kvs_1_0" and words["key"] not in values
                values[words["key"]] = words["value"]
                return "cmd=put_result rc=0 msg=success"
            case "get" if words["key"] in values:
                return f"cmd=get_result rc=0 msg=success value={values[words['key']]}"
            case "get":
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            case "finalize":
                self.ended.append(rank)
                return "cmd=finalize_ack"
        raise AssertionError(words)

    def close(self) -> None:
        os.close(self._stopped)
        self._thread.join()
        os.close(self._stop)
        for one in (*self._ours, *self._theirs):
            one.close()


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    monkeypatch.setattr(pmi, "_talks", {})
    one = Manager(3)
    yield one
    one.close()


def together(*calls: Callable[[], object]) -> list[object]:
    """Return what the calls return, each in a thread of its own."""
    found: list[object] = [None] * len(calls)

    def call(number: int) -> None:
        found[number] = calls[number]()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_ranks_find_the_text_in_each_of_several_meetings(manager: Manager) -> None:
    for meeting in range(3):
        boards = [ProcessManager(descriptor, 60.0) for descriptor in manager.descriptors]
        text = f"hxa:{meeting}=key" + "x" * 480
        finds = [partial(board.find, 60.0) for board in boards[1:]]
        assert together(partial(boards[0].publish, text), *finds) == [None, text, text]
        assert boards[1].find(0.0) == text
    assert boards[0].carries_key


def test_a_rank_that_has_found_nothing_yet_goes_on_waiting_in_the_same_barrier(manager: Manager) -> None:
    boards = [ProcessManager(descriptor, 60.0) for descriptor in manager.descriptors]
    assert [boards[1].find(0.0), boards[1].find(0.01)] == [None, None]
    again = ProcessManager(manager.descriptors[1], 60.0)  # hocket.init gave up, and is called again
    assert again.find(0.0) is None
    found = together(lambda: boards[0].publish("hxa:1"), lambda: again.find(60.0), lambda: boards[2].find(60.0))
    assert found == [None, "hxa:1", "hxa:1"]


def test_rank_0_says_that_not_all_came_and_that_it_cannot_try_again(manager: Manager) -> None:
    words = r"PMI_FD \d+\): found not all ranks in its barrier within 0\.01 s, expected a hocket\.init\(\) on each"
    with pytest.raises(RendezvousError, match=words):
        ProcessManager(manager.descriptors[0], 0.01).publish("hxa:1")
    with pytest.raises(RendezvousError, match="found a meeting that has not ended"):
        ProcessManager(manager.descriptors[0], 0.01).publish("hxa:2")


def answers(*parts: bytes, ends: bool = False) -> Callable[[socket.socket], None]:
    """Return a manager that gives one part as the answer to each line, and then nothing more."""

    def answer(connection: socket.socket) -> None:
        for part in parts:
            connection.recv(4096)
            connection.sendall(part)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass

    return answer


BEGUN = (b"cmd=response_to_init pmi_version=1 rc=0\n", b"cmd=my_kvsname kvsname=k\n")
MET = (*BEGUN, b"cmd=barrier_out\n")


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (answers(), "found no answer to init within 0.2 s, expected one at once"),
        (answers(ends=True), "found its end, expected cmd=response_to_init"),
        (answers(b"cmd=response_to_init rc=0"), "found no answer to init within 0.2 s"),
        (answers(b"cmd=response_to_init rc=0", ends=True), "found its end"),
        (answers(b"cmd=response_to_init rc=-1\n"), "found cmd='response_to_init' rc='-1', expected"),
        (answers(b"x" * 10_000), "found a line of more than 4096 bytes"),
        (answers(b"\x00\xff\xfe\n"), "found cmd='' rc='0', expected cmd='response_to_init'"),
        (answers(b"\n"), "found cmd='' rc='0', expected cmd='response_to_init'"),
        (answers(BEGUN[0], b"cmd=barrier_out\n"), "found cmd='barrier_out' rc='0', expected cmd='my_kvsname'"),
        (answers(*BEGUN), None),  # not all ranks have come yet
        (answers(*BEGUN, b"cmd=put_result rc=0 secret\n"), "found cmd='put_result' rc='0', expected cmd='barrier_out'"),
        (answers(*MET), "found no answer to get within 0.2 s"),
        (answers(*MET, b"cmd=get_result rc=-1 value=unknown\n"), "found cmd='get_result' rc='-1'"),
        (answers(*MET, b"cmd=get_result rc=0\n"), "has 0 characters where rank 0 writes its addresses"),
        (answers(*MET, b"cmd=get_result rc=0 value=secret" + b"x" * 500 + b"\n"), "has 506 characters where rank 0"),
        (answers(*MET, b"cmd=get_result rc=0 value=secret\xff\n"), "has the character '\u00ff' where rank 0 writes"),
    ],
)
def test_what_is_no_manager_ends_in_an_error_in_time(
    by: Callable[[socket.socket], None], words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pmi, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(pmi, "_talks", {})
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with contextlib.suppress(ConnectionError):
            by(ours)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        board = ProcessManager(theirs.fileno(), 60.0)
        if words is None:
            assert board.find(0.1) is None
        else:
            with pytest.raises(RendezvousError, match=re.escape(words)) as caught:
                board.find(0.1)
            assert "HOCKET_ADDRESS=HOST:PORT" in str(caught.value) and "secret" not in str(caught.value)
    finally:
        theirs.close()
        thread.join()
        ours.close()


def test_a_descriptor_that_is_closed_or_is_another_file_now_is_an_error(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    descriptor = theirs.fileno()
    theirs.close()
    ours.close()
    with pytest.raises(RendezvousError, match=r"found the error Bad file descriptor.* wrapper closed the descriptor"):
        ProcessManager(descriptor, 60.0).find(0.0)
    talk = pmi.talk_at(manager.descriptors[0])
    monkeypatch.setattr(talk, "_descriptor", manager.descriptors[1])
    with pytest.raises(pmi.PmiError) as caught:
        talk.ask("get_maxes", "maxes")
    assert caught.value.found == "another file at the descriptor"


FAREWELL = """
import os, sys
from types import SimpleNamespace
from hocket.runtime.rendezvous.boards.process_manager import ProcessManager
descriptor, ending = int(sys.argv[1]), sys.argv[2]
assert ProcessManager(descriptor, 60.0).find(60.0) == "hxa:1"
if ending == "mpi":
    sys.modules["mpi4py.MPI"] = SimpleNamespace(Is_initialized=lambda: True)
if ending == "child" and not os.fork():
    sys.exit()
if ending == "child":
    os.wait()
    os._exit(0)
if ending == "error":
    raise ValueError("of the program")
"""


@pytest.mark.parametrize(
    ("ending", "farewells"), [("plain", [1]), ("error", [1]), ("mpi", []), ("child", [])], ids=lambda one: str(one)
)
def test_a_process_says_farewell_once_at_its_end_unless_mpi_does(
    manager: Manager, ending: str, farewells: list[int]
) -> None:
    descriptor = manager.descriptors[1]
    command = [sys.executable, "-c", FAREWELL, str(descriptor), ending]
    with subprocess.Popen(command, pass_fds=[descriptor], stderr=subprocess.DEVNULL) as process:
        boards = [ProcessManager(manager.descriptors[rank], 60.0) for rank in (0, 2)]
        assert together(lambda: boards[0].publish("hxa:1"), lambda: boards[1].find(60.0)) == [None, "hxa:1"]
        assert process.wait() == (1 if ending == "error" else 0)
    assert manager.ended == farewells
