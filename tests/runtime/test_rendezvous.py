"""The rendezvous over real sockets. Threads act as ranks if it makes no difference."""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import PeerDied, RendezvousError
from hocket.runtime import discover, new_address, run_ranks
from hocket.runtime.ranks.environment import Environment
from hocket.runtime.rendezvous import host, protocol, sockets
from hocket.runtime.rendezvous.join import Membership, join


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = set(Path("/proc/self/fd").iterdir())
    yield
    assert set(Path("/proc/self/fd").iterdir()) <= before


@pytest.fixture(autouse=True)
def nobody_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "LINGER_SECONDS", 0.2)


@pytest.fixture
def address() -> str:
    return new_address()


def place(rank: int, size: int, address: str, timeout: float = 20.0, **more: Any) -> Environment:
    return Environment(rank, size, address, "arguments", rank, size, timeout, **more)


def attend(environment: Environment) -> list[str]:
    """Joins with a memory file that holds the rank; returns the contents of the members' files, and closes them."""
    own = os.memfd_create("test")
    try:
        os.write(own, b"%d" % environment.rank)
        hello = {"process": os.getpid(), "rank": environment.rank}
        members = join(environment, own, hello, {"chosen by": environment.rank})
    finally:
        os.close(own)
    return check(members, environment)


def check(members: Membership, environment: Environment) -> list[str]:
    contents = [os.pread(descriptor, 10, 0).decode() for descriptor in members.descriptors]
    sockets.close(members.descriptors)
    assert (members.rank, members.size) == (environment.rank, environment.size)
    assert [hello["rank"] for hello in members.hellos] == list(range(environment.size))
    assert members.config == {"chosen by": 0}
    return contents


def together(*calls: Callable[[], Any]) -> list[Future[Any]]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [pool.submit(call) for call in calls]


def errors_of(outcomes: list[Future[Any]]) -> list[RendezvousError]:
    found = [outcome.exception() for outcome in outcomes]
    assert all(isinstance(error, RendezvousError) for error in found), found
    return [error for error in found if isinstance(error, RendezvousError)]


@pytest.mark.parametrize("size", range(1, 9))
def test_threads_meet(size: int, address: str) -> None:
    outcomes = together(*(lambda rank=rank: attend(place(rank, size, address)) for rank in range(size)))
    assert [outcome.result() for outcome in outcomes] == [[str(rank) for rank in range(size)]] * size


def attend_as_process() -> tuple[int, list[str]]:
    return os.getpid(), attend(discover())


@pytest.mark.parametrize("size", [2, 8])
def test_processes_meet(size: int) -> None:
    results = run_ranks(attend_as_process, size, kind="process")
    assert len({process for process, _ in results}) == size
    assert [contents for _, contents in results] == [[str(rank) for rank in range(size)]] * size


def test_the_same_ranks_can_meet_again_and_again(address: str) -> None:
    def attend_often(rank: int) -> None:
        for _ in range(20):
            attend(place(rank, 3, address))

    for outcome in together(*(lambda rank=rank: attend_often(rank) for rank in range(3))):
        outcome.result()


def test_a_duplicate_rank_is_named_on_all_ranks(address: str) -> None:
    outcomes = together(*(lambda rank=rank: attend(place(rank, 4, address)) for rank in (0, 1, 2, 2)))
    for error in errors_of(outcomes):
        assert "two processes say they are rank 2 of 4" in str(error)


def test_two_groups_on_one_address_both_hear_of_it(address: str) -> None:
    outcomes = together(*(lambda rank=rank: attend(place(rank, 3, address)) for rank in (0, 1, 0)))
    for error in errors_of(outcomes):
        assert "two processes say they are rank 0 of 3" in str(error)


def test_who_comes_after_a_failure_is_told_as_well(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "LINGER_SECONDS", 20.0)
    with ThreadPoolExecutor(3) as pool:
        outcomes = [pool.submit(attend, place(0, 3, address)), pool.submit(attend, place(1, 4, address))]
        (first,) = errors_of(outcomes[1:])
        outcomes.append(pool.submit(attend, place(2, 3, address)))
    assert {str(error) for error in errors_of(outcomes)} == {str(first)}


def test_a_wrong_size_is_named_on_all_ranks(address: str) -> None:
    sizes = {0: 3, 1: 3, 2: 4}
    outcomes = together(*(lambda rank=rank: attend(place(rank, sizes[rank], address)) for rank in sizes))
    for error in errors_of(outcomes):
        assert "expects 4 ranks, rank 0 expects 3" in str(error)


@pytest.mark.parametrize("absent", [1, 2])
def test_a_missing_rank_is_named_on_all_ranks(absent: int, address: str) -> None:
    ranks = [rank for rank in range(3) if rank != absent]
    outcomes = together(*(lambda rank=rank: attend(place(rank, 3, address, 0.3)) for rank in ranks))
    for error in errors_of(outcomes):
        assert error.missing == (absent,)
        assert f"rank {absent} of 3 did not come" in str(error)


def test_a_missing_rank_0_is_named(address: str) -> None:
    outcomes = together(*(lambda rank=rank: attend(place(rank, 3, address, 0.3)) for rank in (1, 2)))
    for error in errors_of(outcomes):
        assert error.missing == (0,)


def test_a_rank_that_gives_up_first_says_so_to_all(address: str) -> None:
    timeouts = {0: 20.0, 1: 0.3, 2: 20.0}
    outcomes = together(*(lambda rank=rank: attend(place(rank, 4, address, timeouts[rank])) for rank in timeouts))
    for error in errors_of(outcomes):
        assert 3 in error.missing
        assert "reported by rank 1" in str(error)


def test_a_line_says_who_is_missing(
    address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host, "NOTICE_SECONDS", 0.1)
    together(*(lambda rank=rank: attend(place(rank, 4, address, 0.5)) for rank in (0, 2)))
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("hocket: rank 0")]
    assert lines == ["hocket: rank 0 of 4 has waited 0.1 s at the rendezvous for ranks 1, 3 (it gives up after 0.5 s)"]


def test_another_threads_failure_ends_the_wait(address: str) -> None:
    cancel = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        outcomes = [pool.submit(attend, place(rank, 3, address, cancel=cancel)) for rank in (0, 1)]
        cancel.set()
    for error in errors_of(outcomes):
        assert "another rank failed" in str(error)


def test_a_rank_that_ends_as_another_failed_is_not_blamed(address: str) -> None:
    cancel = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(attend, place(0, 3, address, cancel=cancel))
        with connect(address) as member:
            hello = protocol.Hello(protocol.PROTOCOL, protocol.VERSION, 1, 3, {"rank": 1})
            sockets.send(member, protocol.encode(hello), [0])
            member.recv(protocol.MAX_MESSAGE_BYTES)  # Pending: it is a member now
            cancel.set()
        (error,) = errors_of([leader])
    assert "another rank failed" in str(error)
    assert error.missing == (2,)


# --- strangers -----------------------------------------------------------------------------------------------------


def connect(address: str) -> socket.socket:
    """Connects as soon as rank 0 listens."""
    while True:
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            stranger.connect("\0" + address)
        except (ConnectionRefusedError, BlockingIOError):
            stranger.close()
            time.sleep(0.001)  # between two checks
        else:
            return stranger


def wait_for_end(connection: socket.socket) -> None:
    """Returns when rank 0 has dropped the connection."""
    try:
        assert connection.recv(1) == b""
    except ConnectionResetError:
        return


HELLO_OF_1 = protocol.encode(protocol.Hello(protocol.PROTOCOL, protocol.VERSION, 1, 2, {"rank": 1}))


@pytest.mark.parametrize(
    ("data", "num_descriptors"),
    [(b"GET / HTTP/1.1\r\n\r\n", 0), (b"x" * 60000, 0), (b"\xff", 1), (b"\xff", 40), (HELLO_OF_1[:-2], 1)],
)
def test_garbage_is_dropped_and_does_no_harm(data: bytes, num_descriptors: int, address: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(attend, place(0, 2, address))
        with connect(address) as stranger, Path("/dev/null").open() as file:
            sockets.send(stranger, data, [file.fileno()] * num_descriptors)
            wait_for_end(stranger)
        guest = pool.submit(attend, place(1, 2, address))
        assert leader.result() == guest.result() == ["0", "1"]


def test_idle_connections_are_bounded_and_do_no_harm(address: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(attend, place(0, 2, address))
        strangers = [connect(address) for _ in range(3 * host.MAX_STRANGERS)]
        wait_for_end(strangers[0])  # long before its timeout, because there are too many
        guest = pool.submit(attend, place(1, 2, address))
        assert leader.result() == guest.result() == ["0", "1"]
        for stranger in strangers:
            wait_for_end(stranger)
            stranger.close()


def test_an_idle_connection_is_dropped_after_a_time(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "STRANGER_SECONDS", 0.1)
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(attend, place(0, 2, address))
        with connect(address) as stranger:
            wait_for_end(stranger)
        attend(place(1, 2, address))
        assert leader.result() == ["0", "1"]


def test_a_hello_without_its_descriptor_is_an_error_on_all_ranks(address: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(attend, place(0, 2, address))
        with connect(address) as member:
            sockets.send(member, HELLO_OF_1)
            answer = protocol.decode(member.recv(protocol.MAX_MESSAGE_BYTES))
        assert isinstance(answer, protocol.Failure)
        (error,) = errors_of([leader])
        assert "rank 1 sent 0 descriptors" in str(error) == answer.message


def test_a_stranger_that_listens_at_the_address_is_no_rank_0(address: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.bind("\0" + address)
        stranger.listen(16)
        outcomes = together(*(lambda rank=rank: attend(place(rank, 2, address, 0.3)) for rank in (0, 1)))
    leader, guest = errors_of(outcomes)
    assert "in use" in str(leader)
    assert guest.missing == (0,)


def test_what_is_said_must_be_small(address: str) -> None:
    with pytest.raises(ValueError, match="hello takes 5"):
        join(place(0, 2, address), 0, {"x": "y" * 5000})
    with pytest.raises(ValueError, match="config takes 4"):
        join(place(0, 2, address), 0, {}, {"x": "y" * 40000})


# --- death ---------------------------------------------------------------------------------------------------------


def come_and_die(folder: Path) -> None:
    environment = discover(timeout=20.0)
    if environment.rank == 2:
        with connect(environment.address) as member:
            hello = protocol.Hello(protocol.PROTOCOL, protocol.VERSION, 2, 3, {"rank": 2})
            sockets.send(member, protocol.encode(hello), [0])
            member.recv(protocol.MAX_MESSAGE_BYTES)  # Pending: it is a member now
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        try:
            attend(environment)
        except RendezvousError as error:
            assert error.follows
            (folder / str(environment.rank)).write_text(str(error))


def test_a_member_that_is_killed_is_named_on_all_ranks(tmp_path: Path) -> None:
    with pytest.raises(PeerDied, match=r"rank 2 of 3 .* was killed by SIGKILL"):
        run_ranks(come_and_die, 3, args=(tmp_path,), kind="process")
    for rank in (0, 1):
        assert re.match(r"rank 2 of 3 \(process \d+\) ended during the rendezvous", (tmp_path / str(rank)).read_text())


@pytest.mark.parametrize("said", [[protocol.Pending([2])], [protocol.Pending([]), protocol.Roster(0, [{}], {})]])
def test_the_end_of_rank_0_is_named(said: list[Any], address: str) -> None:
    with ThreadPoolExecutor(1) as pool, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("\0" + address)
        listener.listen(1)
        guest = pool.submit(attend, place(1, 3, address))
        connection, _ = listener.accept()
        with connection:
            for message in said:
                descriptors = [listener.fileno()] if isinstance(message, protocol.Roster) else []
                sockets.send(connection, protocol.encode(message), descriptors)
            sockets.close(sockets.receive(connection, protocol.MAX_HELLO_BYTES, 1)[1])
    (error,) = errors_of([guest])
    assert "rank 0 of 3 ended during the rendezvous" in str(error) and error.follows


@pytest.mark.parametrize("said", [b"nonsense", protocol.encode(protocol.Go())])
def test_a_rank_0_that_breaks_the_protocol_is_an_error(said: bytes, address: str) -> None:
    with ThreadPoolExecutor(1) as pool, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("\0" + address)
        listener.listen(1)
        guest = pool.submit(attend, place(1, 3, address))
        connection, _ = listener.accept()
        with connection:
            sockets.send(connection, said)
            (error,) = errors_of([guest])
    assert "broke the protocol" in str(error)
