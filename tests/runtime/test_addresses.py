"""Addresses as text, and names that are slow to be found."""

import socket
import threading
import time

import pytest

from hocket.runtime.network import addresses
from hocket.runtime.network.addresses import read_address, resolve, write_address
from tests.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:5000", ("10.0.0.1", 5000)),
        ("hxa.example:1", ("hxa.example", 1)),
        ("[fd77::1]:65535", ("fd77::1", 65535)),
        ("[fe80::1%eth0]:5", ("fe80::1%eth0", 5)),
        (" hxa:5\n", ("hxa", 5)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, expected: tuple[str, int]) -> None:
    assert read_address(text) == expected


def test_an_address_without_brackets_says_how_to_write_them() -> None:
    with pytest.raises(ValueError, match=r"in brackets, for example \[fd77::1\]:5000"):
        read_address("fd77::1:5000")


@pytest.mark.parametrize("text", ["", "hxa", "hxa:", ":5", "hxa:0", "hxa:65536", "hxa:-1", "hxa:٣", "[hxa]:5", "[]:5"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        read_address(text)


def test_what_is_told_to_others_names_no_interface_of_this_host() -> None:
    assert write_address("fe80::1%eth0", 5) == "[fe80::1]:5"
    assert write_address("10.0.0.1", 5) == "10.0.0.1:5" and write_address("hxa", 5) == "hxa:5"
    assert read_address(write_address("fd77::1", 5)) == ("fd77::1", 5)


def test_an_ip_address_is_looked_up_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert resolve("10.0.0.1", 0.0) == ["10.0.0.1"] and resolve("fe80::1%eth0", 0.0) == ["fe80::1%eth0"]


def test_a_name_stands_for_all_its_addresses() -> None:
    assert "127.0.0.1" in resolve("localhost", time.monotonic() + PATIENCE_SECONDS)


def test_an_unknown_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    for _ in range(2):  # nothing of the first failure is kept
        with pytest.raises(socket.gaierror):
            resolve("nowhere", time.monotonic() + PATIENCE_SECONDS)
    assert addresses._lookups == {}


def test_a_name_that_no_host_can_have_is_not_found() -> None:
    with pytest.raises(socket.gaierror):
        resolve("a" * 70 + ".example", time.monotonic() + PATIENCE_SECONDS)


def test_a_name_server_slower_than_the_deadline_answers_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, calls = threading.Event(), []

    def search(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        calls.append(host)
        answer.wait(PATIENCE_SECONDS)
        rows = [("10.0.0.7", 0), ("10.0.0.7", 0), ("fd77::7", 0, 0, 0), ("fe80::7", 0, 0, socket.if_nametoindex("lo"))]
        return [(0, 0, 0, "", row) for row in rows]

    monkeypatch.setattr(socket, "getaddrinfo", search)
    try:
        for _ in range(2):
            with pytest.raises(TimeoutError, match="no name server has answered for 'slow'"):
                resolve("slow", time.monotonic())
    finally:
        answer.set()
    assert resolve("slow", time.monotonic() + PATIENCE_SECONDS) == ["10.0.0.7", "fd77::7", "fe80::7%lo"]
    assert calls == ["slow"] and addresses._lookups == {}
