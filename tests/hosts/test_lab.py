"""The lab itself: hosts reach each other, what is done to a link happens, and nothing is left however a lab ends."""

import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hosts import namespaces
from tests.hosts.lab import AGENT, ROOT, Host, Lab
from tests.hosts.namespaces import Unavailable
from tests.waiting import PATIENCE_SECONDS, wait_until

MakeLab = Callable[..., Lab]

# Says the address at which it is seen.
CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as connection:
    print(connection.recv(1024).decode())
"""
MAKER = """
import sys, time
from tests.hosts.lab import Lab
with Lab(2, **eval(sys.argv[1])) as lab:
    for host in lab.hosts:
        host.run(["sh", "-c", "trap '' HUP INT TERM; sleep 1000 >/dev/null 2>&1 &"])
    print(*(host.run(["readlink", "/proc/self/ns/net"]).stdout.strip() for host in lab.hosts), flush=True)
    sys.stdin.read(1)
    raise ValueError("as a test that fails")
"""


def listening(host: Host) -> socket.socket:
    with host.network():
        listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    listener.settimeout(PATIENCE_SECONDS)
    return listener


def connected(client: Host, server: Host) -> tuple[socket.socket, socket.socket, int]:
    """Return both ends of a connection, that of the server last, and the port of the server."""
    with listening(server) as listener:
        port = listener.getsockname()[1]
        with client.network():
            opened = socket.create_connection((server.address, port), PATIENCE_SECONDS)
        accepted, _ = listener.accept()
    accepted.settimeout(PATIENCE_SECONDS)
    return opened, accepted, port


def networks_in_use() -> set[str]:
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.add(str((process / "ns/net").readlink()))
    return found


def names_outside(networks: set[str]) -> list[str]:
    """Return the names that other processes of this machine see of a lab with these networks."""
    named = [path for path in Path("/run/netns").glob("*") if f"net:[{path.stat().st_ino}]" in networks]
    interfaces = [name for _, name in socket.if_nameindex() if name in ("host0", "host1", "switch")]
    return [*map(str, named), *interfaces]


@pytest.mark.parametrize("options", [{}, {"delay_seconds": 0.0001}], ids=["switch", "emulator"])
def test_hosts_reach_each_other_by_both_kinds_of_address_and_by_name(
    make_lab: MakeLab, options: dict[str, float]
) -> None:
    first, second = make_lab(2, **options).hosts
    ipv4, ipv6 = f"::ffff:{second.address}", second.address6
    for where, expected in ((first.address, {ipv4}), (first.address6, {ipv6}), (first.name, {ipv4, ipv6})):
        with listening(first) as listener:
            port = listener.getsockname()[1]
            client = second.popen([sys.executable, "-I", "-c", CONNECT, where, str(port)], stdout=-1, text=True)
            connection, seen = listener.accept()
            with connection:
                connection.sendall(seen[0].encode())
        assert seen[0] in expected
        assert client.communicate()[0].strip() == seen[0]


def test_every_pair_of_four_hosts_is_joined(make_lab: MakeLab) -> None:
    hosts = make_lab(4).hosts
    for server in hosts:
        for client in hosts:
            opened, accepted, _ = connected(client, server)
            with opened, accepted:
                assert accepted.getpeername()[0] == f"::ffff:{client.address}"


def test_hosts_have_their_own_names_interfaces_and_shared_memory(make_lab: MakeLab) -> None:
    first, second = make_lab(2).hosts
    first.run(["touch", "/dev/shm/mine"])
    for host, files in ((first, "mine"), (second, "")):
        assert host.run(["uname", "-n"]).stdout.strip() == host.name
        assert host.run(["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]
        assert host.run(["ls", "/dev/shm"]).stdout.strip() == files
    assert not Path("/dev/shm/mine").exists()


def test_processes_start_where_and_with_what_they_are_told(make_lab: MakeLab, tmp_path: Path) -> None:
    host = make_lab(2).hosts[0]
    told = ["sh", "-c", "pwd; echo $HOCKET_RANK; echo $0", "two words"]
    found = host.run(told, env={"HOCKET_RANK": "3"}, cwd=tmp_path).stdout.splitlines()
    assert found == [str(tmp_path), "3", "two words"]
    process = host.popen(["sh", "-c", "echo $$; exec cat"], stdin=-1, stdout=-1, text=True)
    assert int(process.stdout.readline()) == process.pid
    with pytest.raises(RuntimeError, match=r"host0: .* returned 2: .*nowhere"):
        host.run(["ls", "nowhere"])


def test_the_agent_runs_commands_as_ssh_does(make_lab: MakeLab) -> None:
    first, second = make_lab(2).hosts
    for name in (second.name, second.address, f"someone@{second.name}"):
        words = [AGENT, "-o", "BatchMode=yes", "-x", name, "uname -n; pwd;", "echo ${HOCKET_RANK-none}"]
        found = first.run(words, env={"HOCKET_RANK": "3"}).stdout.split()
        assert found == [second.name, "/", "none"]
    assert first.run([AGENT, "host7", "true"], check=False).returncode == 255


def test_labs_that_run_at_once_do_not_meet(make_lab: MakeLab) -> None:
    server, (other, neighbour) = make_lab(2).hosts[0], make_lab(2).hosts
    assert server.address == other.address
    with listening(server) as listener, neighbour.network(), pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.address, listener.getsockname()[1]), PATIENCE_SECONDS)


@pytest.mark.parametrize("options", [{}, {"delay_seconds": 0.0001}], ids=["switch", "emulator"])
def test_no_more_than_the_rate_goes_through(make_lab: MakeLab, options: dict[str, float]) -> None:
    num_bytes, bytes_per_second, free = 4_000_000, 100e6 / 8, 1 << 20  # what buffers and the bucket take at once
    first, second = make_lab(2, rate="100mbit", **options).hosts
    opened, accepted, _ = connected(first, second)
    opened.settimeout(None)  # head wants a descriptor that blocks
    with opened, accepted:
        sender = first.popen(["head", "-c", str(num_bytes), "/dev/zero"], stdout=opened.fileno())
        began, received = time.monotonic(), 0
        while received < num_bytes:
            received += len(accepted.recv(1 << 16))
        seconds = time.monotonic() - began
        assert sender.wait() == 0
    # The upper limit only tells a rate in bits from one in bytes: others may have the cores.
    assert (num_bytes - free) / bytes_per_second < seconds < 6 * num_bytes / bytes_per_second


def test_the_delay_is_added_in_each_direction(make_lab: MakeLab) -> None:
    delay_seconds = 0.02
    opened, accepted, _ = connected(*make_lab(2, delay_seconds=delay_seconds).hosts)
    times = []
    with opened, accepted:
        for _ in range(5):
            began = time.monotonic()
            opened.sendall(b"a")
            accepted.sendall(accepted.recv(1))
            opened.recv(1)
            times.append(time.monotonic() - began)
    assert 2 * delay_seconds <= min(times) < 3 * delay_seconds


def test_a_stream_arrives_whole_though_frames_are_lost(make_lab: MakeLab, tmp_path: Path) -> None:
    data = random.Random(0).randbytes(500_000)
    (tmp_path / "data").write_bytes(data)
    first, second = make_lab(2, loss=0.05, seed=1).hosts
    opened, accepted, _ = connected(first, second)
    opened.settimeout(None)  # cat wants a descriptor that blocks
    with opened, accepted:
        sender = first.popen(["cat", tmp_path / "data"], stdout=opened.fileno())
        received = bytearray()
        while len(received) < len(data):
            received += accepted.recv(1 << 16)
        assert sender.wait() == 0
        (sent_again,) = struct.unpack_from("I", opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)
    assert received == data and sent_again > 0


@pytest.mark.parametrize("options", [{}, {"delay_seconds": 0.0001}], ids=["switch", "emulator"])
def test_a_cut_cable_carries_nothing_until_it_is_mended(make_lab: MakeLab, options: dict[str, float]) -> None:
    lab = make_lab(2, **options)
    first, second = lab.hosts
    opened, accepted, _ = connected(first, second)
    with opened, accepted:
        lab.cut(first)
        opened.sendall(b"a")
        accepted.sendall(b"b")
        for end in (opened, accepted):
            end.settimeout(0.2)  # for what must not come
            with pytest.raises(TimeoutError):
                end.recv(1)
            end.settimeout(PATIENCE_SECONDS)
        lab.mend(first)
        assert accepted.recv(1) == b"a" and opened.recv(1) == b"b"
    with listening(second) as listener, first.network():
        socket.create_connection((second.address6, listener.getsockname()[1]), PATIENCE_SECONDS).close()


def test_packets_of_one_port_are_lost(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    opened, accepted, port = connected(*lab.hosts)
    others = connected(*lab.hosts)
    with opened, accepted, others[0], others[1]:
        lab.loss(lab.hosts[1], port, 1.0)
        for end in (opened, others[0]):
            end.sendall(b"a")
        assert others[1].recv(1) == b"a"
        accepted.settimeout(0.2)  # for what must not come
        with pytest.raises(TimeoutError):
            accepted.recv(1)
        lab.loss(lab.hosts[1], port, 0.0)
        accepted.settimeout(PATIENCE_SECONDS)
        assert accepted.recv(1) == b"a"


def test_a_reset_ends_the_connections_of_one_port(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    opened, accepted, port = connected(*lab.hosts)
    others = connected(*lab.hosts)
    with opened, accepted, others[0], others[1]:
        assert lab.reset(lab.hosts[1], port) == 1
        with pytest.raises(ConnectionResetError):
            opened.recv(1)
        with pytest.raises(ConnectionAbortedError):
            accepted.recv(1)
        others[0].sendall(b"a")
        assert others[1].recv(1) == b"a"


@pytest.mark.parametrize("options", [{}, {"delay_seconds": 0.0001}], ids=["switch", "emulator"])
def test_nothing_is_left_after_a_lab(options: dict[str, float]) -> None:
    namespaces.check()
    with Lab(2, **options) as lab:
        process = lab.hosts[0].popen(["sleep", "1000"])
        lab.hosts[1].run(["sh", "-c", "trap '' HUP INT TERM; sleep 1000 >/dev/null 2>&1 &"])
        made = {str(Path(f"/proc/{host.keeper}/ns/net").readlink()) for host in lab.hosts}
        assert made <= networks_in_use() and names_outside(made) == []
    assert process.returncode == -signal.SIGKILL
    assert not made & networks_in_use() and names_outside(made) == []


@pytest.mark.parametrize("how", ["exception", signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_the_maker_ends(how: str | signal.Signals) -> None:
    namespaces.check()
    command = [sys.executable, "-c", MAKER, "{'delay_seconds': 0.0001}" if how == signal.SIGKILL else "{}"]
    maker = subprocess.Popen(command, cwd=ROOT, stdin=-1, stdout=-1, stderr=-1, text=True)
    made = set(maker.stdout.readline().split())
    assert len(made) == 2 and made <= networks_in_use()
    if isinstance(how, signal.Signals):
        maker.send_signal(how)
    _, said = maker.communicate("a" if how == "exception" else None, timeout=PATIENCE_SECONDS)
    assert maker.returncode != 0 and ("as a test that fails" in said) == (how == "exception")
    wait_until(lambda: not made & networks_in_use())
    wait_until(lambda: not links_of(maker.pid))


def links_of(maker: int) -> list[str]:
    """Return the processes that emulate links or keep hosts and whose maker this was."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == maker and fields[0] != "Z":
                found.append(str(path))
    return found


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(Unavailable, match="only root of a Linux machine"):
            namespaces.check.__wrapped__()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 0)
        patch.setattr(shutil, "which", lambda program: None if program == "tc" else program)
        with pytest.raises(Unavailable, match="the program tc: apt-get install iproute2"):
            namespaces.check.__wrapped__()
        patch.setattr(shutil, "which", lambda program: program)
        patch.setattr(namespaces, "TRIAL", "echo Operation not permitted >&2; exit 1")
        patch.setattr(namespaces, "OPTIONS", ())
        with pytest.raises(Unavailable, match="refuses what hosts are made of: Operation not permitted"):
            namespaces.check.__wrapped__()


def test_delay_and_loss_are_for_two_hosts() -> None:
    with pytest.raises(ValueError, match="3 hosts, 1 rails: delay and loss"):
        Lab(3, delay_seconds=0.001)
