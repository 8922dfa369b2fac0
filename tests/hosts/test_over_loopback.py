"""Ranks on several hosts, as far as one machine shows it without root: data, failures, and who is named for them."""

import contextlib
import math
import os
import selectors
import signal
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveMismatch, PeerAborted, PeerDied, RendezvousError
from hocket.runtime.network import handshake
from hocket.runtime.network.connecting import listen
from hocket.runtime.network.interfaces import LocalAddress
from hocket.runtime.rendezvous import first_place, host, star
from hocket.runtime.rendezvous.boards.board import check_text
from hocket.runtime.rendezvous.boards.fixed_address import FixedAddress
from hocket.runtime.rendezvous.boards.slurm_ports import SlurmPorts
from tests.hosts.pretended import KEY, LIMIT_SECONDS, Job, Outcome, free_port, is_told, mark, run
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(2 * LIMIT_SECONDS)

LAYOUTS = [(0, 1), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1), (0, 1, 2), (1, 0, 0)]


def values(outcomes: list[Outcome]) -> list[Any]:
    errors = [one.error for one in outcomes if one.error is not None]
    assert errors == []
    return [one.value for one in outcomes]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_all_kinds_of_collectives_and_messages_cross_hosts(layout: tuple[int, ...]) -> None:
    def program(comm: hocket.Communicator) -> None:
        p, rank = comm.size, comm.rank
        for count in (1, 3000, 300_001):
            x = np.full(count, rank + 1.0, np.float32)
            comm.all_reduce(x)
            assert (x == p * (p + 1) / 2).all()
            y = np.full(count, float(rank), np.float32)
            comm.broadcast(y, root=p - 1)
            assert (y == p - 1).all()
            assert (comm.all_gather(np.full(count, rank)) == np.repeat(np.arange(p), count)).all()
            assert (
                comm.all_to_all(np.repeat(np.arange(p) * p + rank, count)) == np.repeat(rank * p + np.arange(p), count)
            ).all()
            right, left = (rank + 1) % p, (rank - 1) % p
            received = np.empty(count)
            comm.sendrecv(np.full(count, float(rank)), right, received, left)
            assert (received == left).all()
        assert comm.context.hosts == tuple(sorted(set(layout), key=layout.index).index(number) for number in layout)
        comm.barrier()

    values(run(program, layout))


def test_groups_are_made_and_closed_again_and_again() -> None:
    def program(comm: hocket.Communicator) -> int:
        total = 0
        for _ in range(30):
            with comm.split(comm.rank % 2) as across, comm.split(comm.rank // 2) as inside:
                total += int(across.all_reduce(np.ones(1))[0]) + int(inside.all_reduce(np.ones(1))[0])
        return total

    assert values(run(program)) == [120] * 4


def test_a_root_runs_ahead_of_ranks_elsewhere_and_waits_for_them() -> None:
    def program(comm: hocket.Communicator) -> float:
        x = np.zeros(1)
        for call in range(300):
            x[0] = call if comm.rank == 0 else -1
            comm.broadcast(x, root=0)
            assert x[0] == call
        return float(x[0])

    assert values(run(program, (0, 1))) == [299.0] * 2


def test_ranks_on_all_hosts_read_what_those_noted_that_call_nothing() -> None:
    def program(comm: hocket.Communicator) -> None:
        lower = comm.lower
        if comm.rank != 0:
            lower.note_progress(time.monotonic_ns())
            wait_until(is_told)
            return
        wait_until(lambda: all(word != 0 for word, _ in lower.progress()[1:]))
        wait_until(lambda: all(seconds > 0.2 for _, seconds in lower.progress()))  # none comes, and their time goes on
        found, now = lower.progress(), time.monotonic()
        assert found[0] == (0, math.inf)
        assert all(seconds <= now - word / 1e9 for word, seconds in found[1:])
        mark(comm, 1)

    with Job(program) as job:
        job.await_mark(1, [0])
        job.tell()
        values(job.outcomes())


def test_a_difference_is_found_between_hosts_and_all_name_it_alike() -> None:
    def program(comm: hocket.Communicator) -> None:
        x = np.ones(8)
        comm.all_reduce(x)
        if comm.rank == 3:
            comm.all_gather(x)
        else:
            comm.all_reduce(x)

    outcomes = run(program)
    errors = [one.error for one in outcomes]
    assert all(isinstance(error, CollectiveMismatch) for error in errors), errors
    assert {error.field for error in errors} == {"kind"}  # type: ignore[union-attr]
    assert {tuple(sorted(error.values.items())) for error in errors} == {  # type: ignore[union-attr]
        ((0, "all_reduce"), (1, "all_reduce"), (2, "all_reduce"), (3, "all_gather"))
    }


@pytest.mark.parametrize("victim", [3, 2, 1, 0], ids=["a rank", "a leader", "beside rank 0", "rank 0"])
def test_a_rank_that_is_killed_is_named_on_all_hosts(victim: int) -> None:
    def program(comm: hocket.Communicator) -> BaseException:
        x = np.ones(100_000)
        comm.all_reduce(x)
        with pytest.raises(PeerDied) as died:
            for call in range(1000):
                if comm.rank == victim and call == 20:
                    os.kill(os.getpid(), signal.SIGKILL)
                comm.all_reduce(x, op="max")
        return died.value

    outcomes = run(program)
    assert outcomes[victim].signal == signal.SIGKILL
    found = [one.value or one.error for rank, one in enumerate(outcomes) if rank != victim]
    assert [one.rank for one in found] == [victim] * 3, found
    assert all(f"rank {victim} on host {os.uname().nodename}" in str(one) for one in found), found


def test_ranks_whose_leader_is_killed_and_ranks_of_other_hosts_name_each_other() -> None:
    def program(comm: hocket.Communicator) -> int | None:
        group = comm.split(comm.rank % 2)
        ready = np.zeros(1)
        group.barrier()
        if comm.rank == 0:
            return None
        if comm.rank == 2:
            for other in (1, 3):
                comm.recv(ready, other)
            os.kill(os.getpid(), signal.SIGKILL)
        comm.send(ready, 2)
        with pytest.raises(PeerDied, match="cannot be reached any more") as died:
            group.recv(np.empty(1), 1 - group.rank, timeout=30)
        return died.value.rank

    outcomes = run(program)
    assert outcomes[2].signal == signal.SIGKILL
    assert [outcomes[rank].value or outcomes[rank].error for rank in (1, 3)] == [3, 1]


def test_the_exception_of_a_rank_reaches_all_hosts_with_its_reason() -> None:
    def program(comm: hocket.Communicator) -> None:
        comm.barrier()
        if comm.rank == 2:
            comm.abort("the disk is full")
        comm.barrier()

    outcomes = run(program)
    errors = [one.error for one in outcomes]
    assert all(isinstance(error, PeerAborted) for error in errors), errors
    assert {(error.rank, error.reason) for error in errors} == {(2, "the disk is full")}  # type: ignore[union-attr]


def test_a_rank_that_leaves_without_a_call_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    def program(comm: hocket.Communicator) -> None:
        comm.barrier()
        if comm.rank != 3:
            comm.barrier()

    errors = [one.error for one in run(program)]
    named = [error for error in errors if isinstance(error, PeerAborted)]
    assert len(named) >= 3 and {error.rank for error in named} == {3}, errors


def test_a_stopped_rank_is_waited_for_and_not_declared_dead() -> None:
    def program(comm: hocket.Communicator) -> float:
        x = np.ones(1000)
        comm.all_reduce(x)
        if comm.rank == 2:
            continuing = os.fork()
            if continuing == 0:
                time.sleep(1.0)  # the time for which its parent is stopped
                os.kill(os.getppid(), signal.SIGCONT)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.waitpid(continuing, 0)
        for _ in range(10):
            comm.all_reduce(x, op="max")
        return float(x[0])

    assert values(run(program)) == [4.0] * 4


def test_a_rank_with_another_key_is_no_rank_of_the_job() -> None:
    def program(comm: hocket.Communicator) -> None:
        raise AssertionError("they cannot meet")

    other = bytes(32).hex()
    outcomes = run(program, (0, 1), keys=["ab" * 32, other], timeout=2.0)
    errors = [one.error for one in outcomes]
    assert all(isinstance(error, RendezvousError) for error in errors), errors
    assert "another key" in str(errors[1]) and "HOCKET_KEY_FILE" in str(errors[1]), errors
    assert "rank 1 of 2 did not come" in str(errors[0]), errors
    assert "on 127.0.0.1 came with another key" in str(errors[0]), errors


def test_ranks_that_differ_in_their_number_hear_of_it() -> None:
    def before(rank: int) -> None:
        if rank == 1:
            raise_size()

    def raise_size() -> None:
        original = hocket.init
        hocket.init = lambda rank, size, **more: original(rank, 3, **more)  # type: ignore[assignment]

    errors = [one.error for one in run(lambda comm: None, (0, 1), before=before, timeout=10.0)]
    assert all(isinstance(error, RendezvousError) and "expects 3 ranks" in str(error) for error in errors), errors


def test_a_missing_rank_is_named() -> None:
    errors = [
        one.error
        for one in run(
            lambda comm: None, (0, 0, 1), before=lambda rank: os._exit(0) if rank == 2 else None, timeout=1.0
        )[:2]
    ]
    assert all(isinstance(error, RendezvousError) and error.missing == (2,) for error in errors), errors
    assert all("rank 0 listens at 127.0.0.1:" in str(error) and "HOCKET_DEBUG=INIT" in str(error) for error in errors)


def test_a_rank_that_comes_after_a_failure_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_KEY", KEY)
    monkeypatch.setattr(host, "LINGER_SECONDS", LIMIT_SECONDS)  # it ends when all have heard
    failed, port, errors = threading.Event(), free_port(), list[str]()
    linger = star._Root._linger

    def noted(root: Any) -> None:
        failed.set()
        linger(root)

    def meet(rank: int, seconds: float) -> None:
        with pytest.raises(RendezvousError) as caught:
            hocket.init(rank, 2, address=f"127.0.0.1:{port}", timeout=seconds)
        errors.append(str(caught.value))

    monkeypatch.setattr(star._Root, "_linger", noted)
    first = threading.Thread(target=meet, args=(0, 0.1))
    first.start()
    assert failed.wait(LIMIT_SECONDS)
    meet(1, LIMIT_SECONDS)
    first.join()
    assert errors[0] == errors[1] and "rank 1 of 2 did not come" in errors[0], errors


def test_ranks_that_do_not_meet_on_their_host_say_on_which(monkeypatch: pytest.MonkeyPatch) -> None:
    met = star.join

    def join(environment: Any, *more: Any) -> Any:
        if environment.rank == 1:
            raise RendezvousError("no room here")
        return met(environment, *more)

    monkeypatch.setattr(star, "join", join)
    errors = [str(one.error) for one in run(lambda comm: None, (0, 1), timeout=5.0)]
    assert all(f"no room here [on host {os.uname().nodename} (127.0.0.1)]" in error for error in errors), errors


@pytest.mark.parametrize("says", [b"220 mail.example.com ready\r\n" * 4, b""], ids=["speaks", "waits"])
def test_a_stranger_at_one_address_hides_no_rank_0_at_another(says: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = list[BaseException]()

    def call() -> None:
        try:
            hocket.init(1, 2, address=str(board), timeout=2.0)
        except RendezvousError as error:
            errors.append(error)

    monkeypatch.setenv("HOCKET_KEY", KEY)
    monkeypatch.setattr(star, "_ATTEMPT_SECONDS", 0.2)
    monkeypatch.setattr(star, "_HANDSHAKE_SECONDS", 0.3)  # longer than an attempt
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def answer() -> None:
            with contextlib.suppress(OSError):  # the listener is closed at the end
                while True:
                    visitors.append(stranger.accept()[0])
                    visitors[-1].sendall(says)

        visitors = list[socket.socket]()
        answering = threading.Thread(target=answer)
        answering.start()
        places = [stranger.getsockname(), ("127.0.0.1", free_port())]
        board = FixedAddress("127.0.0.1", places[1][1], "a test")
        published = first_place.write_place(places, None)
        monkeypatch.setattr(FixedAddress, "find", lambda self, seconds: published)
        gate = first_place.gate_of_rank_0(board, time.monotonic() + 1)
        with selectors.DefaultSelector() as selector:
            admitted = list[Any]()
            gate.open(star._credentials(bytes.fromhex(KEY)), selector, admitted.append)
            caller = threading.Thread(target=call)
            caller.start()
            while not admitted and caller.is_alive():
                for key, _ in selector.select(0.1):
                    gate.handle(key.fileobj, key.data)
            assert admitted, errors
            admitted[0].connection.close()
            gate.close()
        caller.join()
        stranger.shutdown(socket.SHUT_RDWR)
        answering.join()
    for one in visitors:
        one.close()
    assert len(errors) == 1 and visitors


def test_rank_0_offers_as_many_addresses_as_a_board_can_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [LocalAddress(f"fd00:1111:2222:3333:4444:5555:6666:{number:04x}", "eth0") for number in range(20)]
    monkeypatch.setattr(first_place, "choose", lambda pattern, towards: many)
    check_text(first_place.write_place([(host, 65535) for host in first_place._offered()], bytes(32)))


def test_a_pattern_that_chooses_nothing_is_not_told_as_a_port_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_SOCKET_IFNAME", "=none77")
    with pytest.raises(RendezvousError, match="=none77 chooses no address"):
        first_place.gate_of_rank_0(SlurmPorts("localhost", "1.0", 0), time.monotonic() + 1)


def test_a_port_that_says_nothing_is_told_from_one_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(star, "_HANDSHAKE_SECONDS", 0.2)
    monkeypatch.setenv("HOCKET_KEY", KEY)
    with listen("127.0.0.1", 0, 8) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RendezvousError, match=r"accepts connections, but says nothing in 0\.[12] s") as caught:
            hocket.init(1, 2, address=address, timeout=0.5)
    assert f"`hocket doctor --address {address}`" in str(caught.value)


def test_a_connection_for_a_communicator_is_none_of_the_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_KEY", KEY)
    port, errors = free_port(), list[RendezvousError]()

    def meet() -> None:
        with pytest.raises(RendezvousError) as caught:
            hocket.init(0, 2, address=f"127.0.0.1:{port}", timeout=1.0)
        errors.append(caught.value)

    thread = threading.Thread(target=meet)
    thread.start()
    connection = until_reached(port)
    with connection:
        challenged = connection.recv(handshake.CHALLENGE_BYTES, socket.MSG_WAITALL)
        job = handshake.Credentials(bytes.fromhex(KEY), "", 0, 0)
        answered = handshake.answer(job, handshake.Purpose(5, 1, 0), challenged)
        assert answered is not None
        connection.sendall(answered[0])
        assert connection.recv(1) == b"", "no greeting, although the key is right"
    thread.join()
    assert errors[0].missing == (1,)


def until_reached(port: int) -> socket.socket:
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)  # between two looks


def test_rank_0_listens_at_all_addresses_of_its_name_that_are_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = "2001:db8::1"  # of no host: for documents
    monkeypatch.setattr(first_place, "resolve", lambda name, deadline: [elsewhere, "127.0.0.1"])
    gate = first_place.gate_of_rank_0(FixedAddress("localhost", free_port(), "a test"), time.monotonic() + 1)
    assert {host for host, _ in gate.addresses} == {"127.0.0.1"}
    gate.close()


def test_a_malformed_place_on_a_board_shows_no_key() -> None:
    with pytest.raises(RendezvousError, match="rank 0 writes its addresses") as caught:
        first_place.read_place(f"nowhere;{KEY}", "the process manager of MPI (PMI_FD 5)")
    assert KEY[:8] not in str(caught.value) and "nowhere" in str(caught.value)


@pytest.mark.parametrize("digits", [KEY[:-2], KEY[:-1], f"{KEY}5e"])
def test_a_key_on_a_board_that_is_none_is_refused(digits: str) -> None:
    with pytest.raises(RendezvousError, match="the board has 'hxa:1' where rank 0 writes its addresses: ") as caught:
        first_place.read_place(f"hxa:1;{digits}", "the board")
    assert KEY[:8] not in str(caught.value)
