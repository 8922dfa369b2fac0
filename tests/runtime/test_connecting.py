"""Connections over loopback to what answers, refuses, says nothing, or is not there; and every reason in words."""

import errno
import os
import pickle
import socket
import time
from collections.abc import Iterator

import pytest

from hocket.errors import RendezvousError, ResourceError
from hocket.runtime.network import connecting
from hocket.runtime.network.connecting import Unanswered, UnreachedError, connect, explain, listen, reason_in_words
from hocket.runtime.network.interfaces import LocalAddress
from tests.runtime.test_interfaces import HOST
from tests.waiting import PATIENCE_SECONDS

Address = tuple[str, int]
LOOPBACK = [LocalAddress("127.0.0.1", "lo")]


def soon(seconds: float = PATIENCE_SECONDS) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def open_port() -> Iterator[Address]:
    with listen("127.0.0.1", 0, 8) as listener:
        yield listener.getsockname()


@pytest.fixture
def closed_port() -> Iterator[Address]:
    with socket.socket() as bound:  # and so nobody else's: it does not listen
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()


@pytest.fixture
def silent_port() -> Iterator[Address]:
    """A listener whose queue is full: the kernel drops what comes then, as a firewall does."""
    with listen("127.0.0.1", 0, 0) as listener, socket.create_connection(listener.getsockname()):
        yield listener.getsockname()


def test_the_address_that_answers_is_told(open_port: Address, closed_port: Address, silent_port: Address) -> None:
    reached = connect([closed_port, silent_port, open_port], soon())
    with reached.connection as connection:
        assert reached.address == connection.getpeername() == open_port
        assert connection.getblocking()


def test_a_name_stands_for_its_addresses(open_port: Address) -> None:
    with connect([("localhost", open_port[1])], soon()).connection as connection:
        assert connection.getpeername() == open_port


def test_a_refusal_ends_the_attempt_at_once(closed_port: Address) -> None:
    with pytest.raises(UnreachedError, match=f"{closed_port[1]} refused: nobody listens there") as caught:
        connect([closed_port], soon())
    (one,) = caught.value.unanswered
    assert one.address == closed_port and one.error.errno == errno.ECONNREFUSED
    assert f"run `hocket doctor --address 127.0.0.1:{closed_port[1]}`" in str(caught.value)
    assert "HOCKET_SOCKET_IFNAME" not in str(caught.value)  # no other interface would help


def test_an_address_that_says_nothing_ends_at_the_deadline(silent_port: Address) -> None:
    with pytest.raises(UnreachedError, match="timed out: a firewall drops it, or the host is down") as caught:
        connect([silent_port], soon(0.05))
    assert "HOCKET_SOCKET_IFNAME can choose another interface of this host: lo 127.0.0.1/8" in str(caught.value)


def test_a_host_that_refuses_is_up_so_that_its_other_addresses_are_not_waited_for(
    closed_port: Address, silent_port: Address
) -> None:
    with pytest.raises(UnreachedError) as caught:
        connect([silent_port, closed_port], soon())  # else until the deadline, a minute later
    reasons = {one.address: one.error.errno for one in caught.value.unanswered}
    assert reasons == {closed_port: errno.ECONNREFUSED, silent_port: errno.ETIMEDOUT}


def test_an_address_for_which_no_time_was_left_is_not_blamed(open_port: Address) -> None:
    with pytest.raises(UnreachedError, match="not tried: no time was left"):
        connect([open_port], soon(-1))


def test_an_unknown_name_keeps_no_address_from_being_tried(open_port: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(host: str, deadline: float) -> list[str]:
        if host == "nowhere":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [host]

    monkeypatch.setattr(connecting, "resolve", find)
    connect([("nowhere", 5), open_port], soon()).connection.close()
    with pytest.raises(UnreachedError, match="nowhere:5 name not found: no name server and no /etc/hosts"):
        connect([("nowhere", 5)], soon())


def test_every_attempt_leaves_from_the_chosen_source(open_port: Address, closed_port: Address) -> None:
    sources = [LocalAddress("::1", "lo"), LocalAddress("127.0.0.9", "lo"), *LOOPBACK]
    with connect([closed_port, open_port], soon(), sources=sources).connection as connection:
        assert connection.getsockname()[0] == "127.0.0.1"  # from which the kernel would send, too
    with connect([closed_port, open_port], soon(), sources=sources[:2]).connection as connection:
        assert connection.getsockname()[0] == "127.0.0.9"


def test_a_chosen_interface_is_the_one_by_which_bytes_leave(
    open_port: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    def device(connection: socket.socket) -> bytes:
        return connection.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0")

    with connect([open_port], soon(), sources=LOOPBACK).connection as connection:
        assert device(connection) == b""  # to this host itself, whose answers come by lo, whatever was chosen
    monkeypatch.setattr(connecting, "source_towards", lambda _: None)  # as if it led to another host
    with connect([open_port], soon(), sources=LOOPBACK).connection as connection:
        assert device(connection) == b"lo"


def test_a_chosen_source_of_the_other_family_tries_nothing(open_port: Address) -> None:
    with pytest.raises(UnreachedError, match="other family: this host, or its chosen interface, has IPv4 or IPv6"):
        connect([open_port], soon(), sources=[LocalAddress("::1", "lo")])


def test_a_chosen_source_that_is_gone_is_named(open_port: Address) -> None:
    with pytest.raises(UnreachedError, match=r"from eth9 \(192.0.2.99\) no source: this host has no such address"):
        connect([open_port], soon(), sources=[LocalAddress("192.0.2.99", "eth9")])


def test_a_link_local_address_is_tried_by_the_chosen_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(host: str, port: int) -> None:
        asked.append(host)
        raise ConnectionRefusedError(errno.ECONNREFUSED, "")

    monkeypatch.setattr(connecting, "numeric", refuse)
    monkeypatch.setattr(connecting, "source_towards", lambda _: None)
    with pytest.raises(UnreachedError):
        connect([("fe80::9", 5)], soon(), sources=[LocalAddress("fe80::1%eth1", "eth1")])
    assert asked == ["fe80::9%eth1"]


def test_a_socket_that_meets_itself_has_met_nobody() -> None:
    with socket.socket() as alone:  # as happens to one that tries for long to reach a port of its own host
        alone.bind(("127.0.0.1", 0))
        alone.connect(alone.getsockname())
        assert connecting._outcome(alone) == errno.ECONNREFUSED


def test_no_descriptor_left_is_no_fault_of_the_other_end(open_port: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(connecting, "begin", refuse)
    with pytest.raises(ResourceError, match="ulimit -n"):
        connect([open_port], soon())


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ECONNREFUSED, "refused: "),
        (errno.ETIMEDOUT, "timed out: "),
        (errno.ENETUNREACH, "no route: "),
        (errno.EHOSTUNREACH, "no route: "),
        (errno.ECONNRESET, "reset: "),
        (errno.EPERM, "forbidden: "),
        (errno.EACCES, "forbidden: "),
        (errno.EADDRNOTAVAIL, "no source: "),
        (errno.EAFNOSUPPORT, "other family: "),
        (errno.EINVAL, "no interface: "),
        (errno.EPROTO, "protocol error"),  # any other: the system's words
    ],
)
def test_each_reason_has_words(number: int, words: str) -> None:
    assert reason_in_words(OSError(number, os.strerror(number)), "rank 3").startswith(words)


def test_a_name_server_that_is_silent_is_told_from_a_name_that_nobody_knows() -> None:
    assert "no name server and no /etc/hosts" in reason_in_words(socket.gaierror(socket.EAI_NONAME, ""), "rank 0")
    for error in (socket.gaierror(socket.EAI_AGAIN, ""), TimeoutError("no name server has answered")):
        assert "the name server does not answer" in reason_in_words(error, "rank 0")


def test_all_addresses_and_the_other_interfaces_are_told() -> None:
    unanswered = [
        Unanswered(("10.0.0.1", 5), OSError(errno.ETIMEDOUT, ""), LocalAddress("10.0.0.5", "eth0")),
        Unanswered(("fd77::1", 5), OSError(errno.ECONNREFUSED, "")),
    ]
    text = explain(unanswered, "rank 3", HOST)
    assert "cannot reach rank 3 at 2 addresses: 10.0.0.1:5 from eth0 (10.0.0.5) timed out: a firewall" in text
    assert "[fd77::1]:5 refused: nobody listens there (wrong port, or rank 3 has not started or has ended)" in text
    assert "ib0 192.168.7.5/24" in text and text.endswith("run `hocket doctor --address 10.0.0.1:5` on this host")
    assert explain([], "rank 3").startswith("rank 3 offers no address")
    error = UnreachedError(text, unanswered)
    assert str(pickle.loads(pickle.dumps(error))) == text


@pytest.mark.parametrize("interface", ["nothing", "..", "x" * 64])
@pytest.mark.parametrize("sources", [(), (LocalAddress("::1", "lo"),)], ids=["route", "chosen"])
def test_an_address_on_an_interface_that_this_host_lacks_is_not_reached(
    interface: str, sources: tuple[LocalAddress, ...]
) -> None:
    with pytest.raises(UnreachedError, match="name not found"):
        connect([(f"fe80::1%{interface}", 5)], soon(), sources=sources)


def test_nothing_listens_everywhere_for_want_of_an_address() -> None:
    with pytest.raises(RendezvousError, match="rank 0 cannot listen at :0: "):
        listen("", 0, 8).close()


def test_a_port_in_use_says_so(open_port: Address) -> None:
    words = f"rank 0 cannot listen at 127.0.0.1:{open_port[1]}: in use: another process"
    with pytest.raises(RendezvousError, match=words):
        listen("127.0.0.1", open_port[1], 8)


def test_an_address_of_another_host_says_so() -> None:
    with pytest.raises(RendezvousError, match=r"192.0.2.99:5000: not here: no interface of this host has this address"):
        listen("192.0.2.99", 5000, 8)
