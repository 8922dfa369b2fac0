"""The board in the store of torchrun's agents: against a small server, torch's own, and bad ones."""

import contextlib
import itertools
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from hocket.errors import RendezvousError, ResourceError
from hocket.runtime.rendezvous.boards import agent_store
from hocket.runtime.rendezvous.boards.agent_store import AgentStore

_runs = itertools.count()


def fresh_run() -> str:
    """Return the id of a run that this process has not met in yet."""
    return f"run{next(_runs)}"


class Server:
    """A TCPStore: as much of it as a board uses. Each connection is served by `serve`, in a thread of its own."""

    def __init__(self, serve: Callable[["Server", socket.socket], None]) -> None:
        self.values: dict[bytes, bytes] = {}
        self.changed = threading.Condition()
        self._serve, self._open = serve, True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._connections: list[socket.socket] = []
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if not self._open:
                connection.close()
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._run, args=(connection,)))
            self._threads[-1].start()

    def _run(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            self._serve(self, connection)

    def close(self) -> None:
        self._open = False
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._threads[0].join()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self.changed:
            self.values.clear()
            self.changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._listener.close()


def read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def read_string(connection: socket.socket) -> bytes:
    return read(connection, struct.unpack("<Q", read(connection, 8))[0])


def greet(connection: socket.socket) -> None:
    """Take the first two commands, and answer them as a TCPStore does."""
    assert read(connection, 5) == bytes([0]) + struct.pack("<I", 0x3C85F7CE)
    assert read(connection, 1) == bytes([13])
    connection.sendall(read(connection, 4))


def serve(server: Server, connection: socket.socket) -> None:
    greet(connection)
    while True:
        command = read(connection, 1)[0]
        if command == 13:
            connection.sendall(read(connection, 4))
        elif command == 1:
            key, value = read_string(connection), read_string(connection)
            with server.changed:
                server.values[key] = value
                server.changed.notify_all()
        elif command == 3:
            value = server.values[read_string(connection)]
            connection.sendall(struct.pack("<Q", len(value)) + value)
        else:
            assert (command, read(connection, 8)) == (6, struct.pack("<Q", 1))
            key = read_string(connection)
            with server.changed:
                while key not in server.values and server._open:
                    server.changed.wait()
            connection.sendall(bytes([0]))


@contextlib.contextmanager
def served(by: Callable[[Server, socket.socket], None]) -> Iterator[Server]:
    server = Server(by)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with served(serve) as one:
        yield one


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which boards remember no meeting, as in a process that was just started."""
    return lambda: monkeypatch.setattr(agent_store, "_marks", {})


def test_ranks_find_what_rank_0_publishes_later(server: Server) -> None:
    run, found = fresh_run(), []
    board = AgentStore("127.0.0.1", server.port, run)
    assert board.find(0.0) is None
    thread = threading.Thread(target=lambda: found.append(board.find(60.0)))
    thread.start()
    AgentStore("127.0.0.1", server.port, run).publish("10.77.0.1:4000")
    thread.join()
    assert found == ["10.77.0.1:4000"] and board.find(0.0) == "10.77.0.1:4000"
    assert list(server.values) == [f"hocket/{run}".encode()]


def test_a_second_meeting_of_the_same_processes_waits_for_its_own_text(server: Server) -> None:
    run, found = fresh_run(), []
    AgentStore("127.0.0.1", server.port, run).publish("same:1")
    assert AgentStore("127.0.0.1", server.port, run).find(9.0) == "same:1"
    second = AgentStore("127.0.0.1", server.port, run)
    assert second.find(0.0) is None
    thread = threading.Thread(target=lambda: found.append(second.find(60.0)))
    thread.start()
    AgentStore("127.0.0.1", server.port, run).publish("same:1")
    thread.join()
    assert found == [second.find(0.0)] == ["same:1"]
    assert AgentStore("127.0.0.1", server.port, run).find(0.0) is None


def test_a_rank_that_missed_meetings_finds_the_last_one(server: Server) -> None:
    run = fresh_run()
    for text in ("first:1", "second:2"):  # the first one failed, for want of this rank
        AgentStore("127.0.0.1", server.port, run).publish(text)
    assert AgentStore("127.0.0.1", server.port, run).find(9.0) == "second:2"


def test_ranks_that_were_started_again_find_the_new_rank_0(server: Server, new_process: Callable[[], None]) -> None:
    run = fresh_run()
    for text in ("old:1", "old:2"):
        AgentStore("127.0.0.1", server.port, run).publish(text)
        assert AgentStore("127.0.0.1", server.port, run).find(9.0) == text
    new_process()
    early = AgentStore("127.0.0.1", server.port, run)
    assert early.find(0.0) == early.find(0.0) == "old:2"  # nobody is there, so this rank asks again
    AgentStore("127.0.0.1", server.port, run).publish("new:1")
    assert early.find(0.0) == "new:1"
    next_one = AgentStore("127.0.0.1", server.port, run)
    assert next_one.find(0.0) is None
    AgentStore("127.0.0.1", server.port, run).publish("new:2")
    assert next_one.find(9.0) == "new:2"


def test_jobs_and_named_meetings_do_not_see_each_other(server: Server) -> None:
    run = fresh_run()
    AgentStore("127.0.0.1", server.port, run).publish("hxa:1")
    assert AgentStore("127.0.0.1", server.port, fresh_run()).find(0.0) is None
    assert AgentStore("127.0.0.1", server.port, run, "named").find(0.0) is None


def silent(_: Server, connection: socket.socket) -> None:
    read(connection, 1 << 20)


def silent_value(_: Server, connection: socket.socket) -> None:
    greet(connection)
    read(connection, 1 + 8)
    read_string(connection)
    connection.sendall(bytes([0]))
    read(connection, 1 << 20)


def answers(data: bytes, *, before: int = 0, ends: bool = False) -> Callable[[Server, socket.socket], None]:
    """Return a server that answers with data: at once, or after the ping, or after the wait for the key."""

    def answer(_: Server, connection: socket.socket) -> None:
        if before > 0:
            greet(connection)
        if before > 1:
            read(connection, 1 + 8)
            read_string(connection)
            connection.sendall(bytes([0]))
            read(connection, 1)
            read_string(connection)
        else:
            read(connection, 1)
        connection.sendall(data)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        read(connection, 1 << 20)

    return answer


def value(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (silent, "found no answer within 0.2 s"),
        (answers(b"HTTP/1.1 400 Bad Request\r\n"), "found b'HTTP' as the answer to a ping"),
        (answers(b"SS", ends=True), "found the end of the connection"),
        (answers(b"", before=1), None),  # no text yet
        (answers(b"\x01", before=1), "found the answer 1 to a wait for a key"),
        (silent_value, "found no answer within 0.2 s"),
        (answers(b"\x07", before=2, ends=True), "found the end of the connection"),
        (answers(struct.pack("<Q", 1 << 63), before=2), f"found a value of {1 << 63} bytes, expected at most 517"),
        (answers(struct.pack("<Q", 9) + b"0 hxa", before=2), "found no answer within 0.2 s"),
        (answers(struct.pack("<Q", 9) + b"0 hxa", before=2, ends=True), "found the end of the connection"),
        (answers(value(b"hxa:4000"), before=2), "found b'hxa:4000', expected a mark and a text"),
        (answers(value(b""), before=2), "found b'', expected a mark and a text"),
        (answers(value(b"0 hxa:4000\n"), before=2), "where rank 0 writes its addresses, expected ASCII"),
        (answers(value(b"0 \xff\x00\x80"), before=2), "where rank 0 writes its addresses, expected ASCII"),
        (answers(value(b"0 "), before=2), "where rank 0 writes its addresses, expected ASCII"),
    ],
)
def test_what_is_no_store_ends_in_an_error_in_time(
    by: Callable[[Server, socket.socket], None], words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_store, "ANSWER_SECONDS", 0.2)
    with served(by) as server:
        board = AgentStore("127.0.0.1", server.port, fresh_run())
        if words is None:
            assert board.find(0.1) is None
        else:
            with pytest.raises(RendezvousError, match=re.escape(words)) as caught:
                board.find(0.1)
            assert f"MASTER_PORT {server.port}" in str(caught.value) and "HOCKET_ADDRESS" in str(caught.value)


def test_rank_0_hears_that_the_store_does_not_take_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_store, "ANSWER_SECONDS", 0.2)

    def deaf(_: Server, connection: socket.socket) -> None:
        greet(connection)
        read(connection, 1 << 20)

    with served(deaf) as server, pytest.raises(RendezvousError, match=r"found no answer within 0\.2 s"):
        AgentStore("127.0.0.1", server.port, fresh_run()).publish("hxa:1")


def test_a_store_that_is_not_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(RendezvousError, match=r"Connection refused, expected a connection; check .* agent runs"):
        AgentStore("127.0.0.1", port, fresh_run()).find(1.0)
    with pytest.raises(RendezvousError, match="found no address of the name"):
        AgentStore("no.such.host.invalid", port, fresh_run()).publish("hxa:1")


def test_no_descriptor_left_is_the_fault_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ResourceError, match="Too many open files; see `hocket doctor`"):
        AgentStore("127.0.0.1", 1, fresh_run()).find(1.0)


STORE = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


def test_the_store_of_torch_itself_understands_a_board() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-c", STORE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port, run, found = int(process.stdout.readline()), fresh_run(), []
            board = AgentStore("127.0.0.1", port, run)
            assert board.find(0.0) is None
            thread = threading.Thread(target=lambda: found.append(board.find(60.0)))
            thread.start()
            AgentStore("127.0.0.1", port, run).publish("x" * 500)
            thread.join()
            assert found == ["x" * 500]
        finally:
            process.kill()
