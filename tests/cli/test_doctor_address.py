"""`hocket doctor --address`, against everything that can be at an address; nothing leaves this host."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hocket.cli import main, strangers
from hocket.cli.doctor import reachability
from hocket.cli.doctor.diagnosis import Finding
from hocket.runtime.network import addresses, connecting, handshake, interfaces
from tests.runtime.test_interfaces import HOST

Speak = Callable[[socket.socket], None]


@contextlib.contextmanager
def server(speak: Speak) -> Iterator[int]:
    """Let every connection to a port of loopback be spoken to, one after the other; yield the port."""
    closing = threading.Event()

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                if closing.is_set():
                    return
                speak(connection)

    with connecting.listen("127.0.0.1", 0, 8) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        try:
            yield port
        finally:
            closing.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


@pytest.fixture
def free_port() -> int:
    with connecting.listen("127.0.0.1", 0, 1) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "_SPEAKS_FIRST_SECONDS", 0.2)  # a silent one is waited for in full
    monkeypatch.setattr(strangers, "_ANSWER_SECONDS", 0.2)
    monkeypatch.delenv("HOCKET_SOCKET_IFNAME", raising=False)


def look(host: str, port: int) -> dict[str, Finding]:
    found = {one.name: one for one in reachability.diagnose_address(host, port)}
    for one in found.values():
        assert (one.fix == "") == (one.status == "OK"), one
        assert "the check itself failed" not in one.found, one
    return found


def says(text: bytes) -> Speak:
    return lambda connection: (connection.sendall(text), connection.recv(1), None)[-1]  # until the other end closes


def listens(answer: Callable[[bytes], bytes]) -> Speak:
    return lambda connection: connection.sendall(answer(connection.recv(100)))


def test_a_job_is_known_by_its_challenge() -> None:
    assert handshake.challenge().startswith(strangers._HOCKET)
    with server(says(handshake.challenge())) as port:
        found = look("127.0.0.1", port)
    assert found["answer"] == Finding("answer", "OK", "a Hocket job answers")
    assert found["connection"].found == f"127.0.0.1:{port} accepts"
    assert found["port"].found == "of this host, and in use by that job"


def test_a_store_of_pytorch_is_known_by_its_echo() -> None:
    greeting = strangers._STORE_HELLO + strangers._STORE_PING
    with server(listens(lambda said: said[len(greeting) :] if said.startswith(greeting) else b"")) as port:
        found = look("127.0.0.1", port)["answer"]
    assert found.status == "FAIL" and "PyTorch's store answers" in found.found and "unset HOCKET_ADDRESS" in found.fix


@pytest.mark.ring3
def test_the_store_of_pytorch_here_is_known() -> None:
    from torch import distributed  # of the tests that need PyTorch

    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert "PyTorch's store answers" in look("127.0.0.1", store.port)["answer"].found


@pytest.mark.parametrize(
    ("speak", "expected"),
    [
        (
            listens(lambda said: b"HTTP/1.0 404 Not Found\r\n" if said.startswith(b"HEAD /") else b""),
            "a web server says",
        ),
        (says(b"SSH-2.0-OpenSSH_9.2\r\n"), "an SSH server says 'SSH-2.0-OpenSSH_9.2..'"),
        (says(b"\x1b[2J\x00caf\xc3\xa9" + bytes(1000)), "it says '.[2J.caf..."),  # nothing that a terminal obeys
        (lambda connection: None, "accepts connections and says nothing"),  # it hangs up
        (lambda connection: connection.recv(1) and None, "accepts connections and says nothing"),
    ],
)
def test_a_stranger_is_told_by_what_it_says(speak: Speak, expected: str) -> None:
    with server(speak) as port:
        found = look("127.0.0.1", port)["answer"]
    assert found.status == "FAIL" and expected in found.found and found.found.isprintable()
    assert len(found.found) < 160 and f"sport = :{port}" in found.fix


def test_a_refusal_before_rank_0_has_started_is_no_failure(free_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = look("127.0.0.1", free_port)
    assert found["connection"].status == "WARN" and "refused: nobody listens there" in found["connection"].found
    assert "answer" not in found and found["port"].found == "of this host, and free: rank 0 can listen there"
    assert main(["doctor", "--address", f"127.0.0.1:{free_port}", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in report["findings"]] == ["name", "interface", "connection", "key", "port"]


def test_what_tells_the_key_is_named_and_a_key_in_the_environment_is_a_warning(
    free_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HOCKET_KEY_FD", "HOCKET_KEY_FILE", "HOCKET_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert look("127.0.0.1", free_port)["key"].found.startswith("none is set here: HOCKET_KEY_FILE names it")
    monkeypatch.setenv("HOCKET_KEY", "5e" * 32)
    found = look("127.0.0.1", free_port)["key"]
    assert (found.status, "HOCKET_KEY_FILE" in found.fix, "5e5e" in str(found)) == ("WARN", True, False)
    file = tmp_path / "job.key"
    file.write_bytes(bytes(32))
    file.chmod(0o644)
    monkeypatch.setenv("HOCKET_KEY_FILE", str(file))
    found = look("127.0.0.1", free_port)["key"]
    assert (found.status, found.fix) == ("FAIL", f"expected 0600: chmod 600 {file}")
    file.chmod(0o600)
    found = look("127.0.0.1", free_port)["key"]
    assert (found.status, found.found) == ("OK", f"by HOCKET_KEY_FILE {file}")


def test_a_port_that_is_taken_but_answers_nobody_cannot_be_listened_at() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        found = look("127.0.0.1", bound.getsockname()[1])["port"]
    assert found.status == "FAIL" and "in use: another process has this port" in found.found and "ss -ltnp" in found.fix


def test_a_firewall_that_drops_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "_CONNECT_SECONDS", 0.1)
    with (  # whose queue is full: the kernel drops what comes then
        connecting.listen("127.0.0.1", 0, 0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        port = listener.getsockname()[1]
        found = look("127.0.0.1", port)["connection"]
    assert (
        found.status == "FAIL" and "timed out: a firewall drops it" in found.found and f"TCP port {port}" in found.fix
    )


def test_a_name_for_loopback_is_a_warning_that_names_the_better_address(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "resolve", lambda host, deadline: ["127.0.1.1"])  # as Debian's /etc/hosts has it
    monkeypatch.setattr(interfaces, "list_interfaces", lambda: HOST)
    found = look("hxa", free_port)["name"]
    assert found.status == "WARN" and "hxa is 127.0.1.1: the loopback interface" in found.found
    assert found.fix.endswith("if here, other hosts reach it at 10.0.0.5 or fd77::5")


def test_a_name_that_nobody_knows_leaves_the_interfaces_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(host: str, deadline: float) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(addresses, "resolve", find)
    found = look("nowhere", 5000)
    assert found.keys() == {"name", "interface", "key"}
    assert found["name"].status == "FAIL" and "nowhere: name not found" in found["name"].found
    assert "this host has lo 127.0.0.1/8" in found["interface"].found


def test_a_slow_name_server_is_a_warning(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "resolve", lambda host, deadline: ["127.0.0.1", "10.0.0.9"])
    monkeypatch.setattr(reachability, "_SLOW_SECONDS", 0.0)
    monkeypatch.setattr(connecting, "connect", refuse)
    found = look("hxa", free_port)["name"]
    assert found.status == "WARN" and "found after" in found.found and "/etc/resolv.conf" in found.fix


def refuse(offered: list[tuple[str, int]], *_: object, **__: object) -> None:
    error = connecting.Unanswered(offered[0], ConnectionRefusedError(111, "Connection refused"))
    raise connecting.UnreachedError("refused", [error])


@pytest.mark.parametrize(
    ("pattern", "route", "status", "expected"),
    [
        (None, "10.0.0.5", "OK", "eth0 (10.0.0.5) routes to 10.0.0.9"),
        ("eth0", "10.0.0.5", "OK", "HOCKET_SOCKET_IFNAME=eth0 chooses eth0 (10.0.0.5), eth0 (fd77::5)"),
        ("ib", "10.0.0.5", "WARN", "chooses ib0 (192.168.7.5), but eth0 (10.0.0.5) routes to 10.0.0.9"),
        ("wlan", "10.0.0.5", "FAIL", "HOCKET_SOCKET_IFNAME=wlan chooses no address on host"),
        ("a,^b", "10.0.0.5", "FAIL", "expected ^ and = at its beginning alone"),
        (None, None, "FAIL", "no route to 10.0.0.9; this host has lo 127.0.0.1/8"),
    ],
)
def test_the_interface_that_leads_there_is_named(
    pattern: str | None, route: str | None, status: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interfaces, "list_interfaces", lambda: HOST)
    monkeypatch.setattr(interfaces, "source_towards", lambda host: route)
    monkeypatch.setattr(connecting, "connect", refuse)
    if pattern:
        monkeypatch.setenv("HOCKET_SOCKET_IFNAME", pattern)
    found = look("10.0.0.9", 5000)
    assert found["interface"].status == status and expected in found["interface"].found
    assert found["port"].found.startswith("of another host")


def test_all_of_it_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "LIMIT_SECONDS", 0.0)
    began = time.monotonic()
    with server(says(b"")) as port:
        found = look("127.0.0.1", port)
    assert "not tried: no time was left" in found["connection"].found
    assert time.monotonic() - began < reachability._CONNECT_SECONDS


def test_a_check_that_crashes_is_a_finding(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(interfaces, "list_interfaces", crash)
    (found,) = [one for one in reachability.diagnose_address("127.0.0.1", free_port) if one.name == "interface"]
    assert found.status == "WARN" and "ZeroDivisionError: oops" in found.found


@pytest.mark.parametrize("text", ["fd77::1:5000", "hxa", "hxa:x"])
def test_what_is_no_address_is_refused_with_the_form_to_use(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--address", text])
    assert f"found '{text}'; expected " in " ".join(capsys.readouterr().err.split())
