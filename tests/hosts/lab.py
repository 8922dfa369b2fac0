"""Hosts for tests and benchmarks: namespaces of this machine, joined by a switch, or two by a link with delay and loss.

    with Lab(2, rate="1gbit") as lab:
        first, second = lab.hosts
        server = first.popen(["python", "server.py", first.address])
        second.run(["python", "client.py", first.address])
        lab.cut(second)

A host has interfaces (lo, eth0; with `rails` also eth1 and so on, each in another network), a name, /etc/hosts,
/dev/shm and System V memory of its own. Other files, process numbers and cores are those of the machine.

Nothing of this has a name outside, so labs that run at once do not meet, and there is nothing to sweep: each host is
kept by a process (keeper.py) that ends with its maker, however the maker ends, and ends all processes of the host
before. So does the process that emulates a link.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from tests.hosts import namespaces
from tests.hosts.namespaces import Unavailable

ROOT = Path(__file__).parents[2]
KEEPER = Path(__file__).with_name("keeper.py")
AGENT = Path(__file__).with_name("agent")
"""A program that runs commands on hosts as ssh does, where a launcher wants one; for processes of the lab only."""
KEEPERS = "LAB_KEEPERS"  # read by AGENT
RUN_SECONDS = 60.0
END_SECONDS = 30.0
QUEUE = "burst 256kb latency 50ms"


def started(command: Sequence[str]) -> "subprocess.Popen[str]":
    """Start a keeper or a link; it ends at the latest when this process ends."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        process_group=0,  # Ctrl-C is for the maker, which then ends this process
    )


def await_answer(process: "subprocess.Popen[str]", answer: str = "ready") -> None:
    assert process.stdout is not None and process.stderr is not None
    if process.stdout.readline().strip() != answer:
        raise RuntimeError(f"{process.args!r} failed: {process.stderr.read()}")


def tell(process: "subprocess.Popen[str]", word: str) -> None:
    """Say a word to a keeper or a link. It may have ended by itself."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(f"{word}\n")
        process.stdin.flush()


def await_end(process: "subprocess.Popen[str]") -> None:
    """Wait until a keeper or a link has ended."""
    try:
        process.communicate(timeout=END_SECONDS)
    finally:
        process.kill()
        process.wait()


def configure(keeper: int, program: str, lines: Sequence[str]) -> None:
    """Give lines to ip or tc in the network of the keeper."""
    command = ["nsenter", "--target", str(keeper), "--net", program, "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{program} refused one of {list(lines)}: {done.stderr}")


class Host:
    """One host of a lab."""

    def __init__(self, number: int, rails: int = 1) -> None:
        self.name = f"host{number}"
        self.address, self.address6 = f"10.77.0.{number + 1}", f"fd77::{number + 1:x}"
        self.rails = [f"10.77.{rail}.{number + 1}" for rail in range(rails)]
        self.processes: list[subprocess.Popen[Any]] = []
        self.environment: dict[str, str] = {}  # what the lab adds to that of every process
        self.keeper = 0

    def port(self, rail: int) -> str:
        """Return the name of the other end of a cable, at its switch."""
        return f"{self.name}.{rail}"

    def command(self, argv: Sequence[str | Path], folder: Path | None = None) -> list[str]:
        """Return the command that runs `argv` on this host, in this folder or the present one, without a parent."""
        return namespaces.inside(self.keeper, list(map(str, argv)), folder or Path.cwd())

    def popen(
        self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None, **options: Any
    ) -> "subprocess.Popen[Any]":
        """Start a process on this host; it ends with the lab. env: added to the environment of this process."""
        process = subprocess.Popen(self.command(argv, options.pop("cwd", None)), env=self._with(env), **options)
        self.processes.append(process)
        return process

    def run(
        self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None, check: bool = True, **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run a process on this host to its end, at most RUN_SECONDS, and return its text."""
        kept: dict[str, Any] = {"capture_output": True, "text": True, "timeout": RUN_SECONDS, **options}
        command = self.command(argv, kept.pop("cwd", None))
        done = subprocess.run(command, env=self._with(env), check=False, **kept)
        if check and done.returncode:
            raise RuntimeError(f"{self.name}: {list(argv)!r} returned {done.returncode}: {done.stderr}")
        return done

    def network(self) -> AbstractContextManager[None]:
        """Within this block, sockets that the calling thread makes are on this host. Names are those outside."""
        return namespaces.network_of(self.keeper)

    def _with(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {**os.environ, **self.environment, **(env or {})}


class Lab:
    """Hosts, from `with` to the end of its block."""

    agent = AGENT

    def __init__(
        self,
        num_hosts: int = 2,
        *,
        rate: str | None = None,
        delay_seconds: float = 0.0,
        loss: float = 0.0,
        seed: int = 0,
        rails: int = 1,
    ) -> None:
        """rate: of each interface in each direction, as tc says it ("1gbit"); None for as much as the machine can.

        delay_seconds: of one way; loss: the share of lost frames, at random with this seed. Both need two hosts: an
        emulator carries the frames between them, at up to some Gbit/s.
        """
        self._is_emulated = delay_seconds > 0.0 or loss > 0.0
        if self._is_emulated and (num_hosts, rails) != (2, 1):
            raise ValueError(f"{num_hosts} hosts, {rails} rails: delay and loss are those of one link between 2 hosts")
        self.hosts = [Host(number, rails) for number in range(num_hosts)]
        self._rate, self._delay_seconds, self._loss, self._seed = rate, delay_seconds, loss, seed
        self._keepers: list[subprocess.Popen[str]] = []  # of the hosts, then of the switch
        self._link: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Lab":
        namespaces.check()
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes():
            process.kill()
        try:
            kept = [*self._keepers, *([self._link] if self._link is not None else [])]
            for each in kept:
                tell(each, "end")  # not only by closing the pipe, which a forked child of this process may have open
            for each in kept:
                await_end(each)
        finally:
            for process in self._processes():
                process.wait()
                for stream in (process.stdin, process.stdout, process.stderr):
                    if stream is not None:
                        with suppress(BrokenPipeError):
                            stream.close()

    def _processes(self) -> "list[subprocess.Popen[Any]]":
        return [process for host in self.hosts for process in host.processes]

    def _make(self) -> None:
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        for host in self.hosts:
            lines += [f"{host.address} {host.name}", f"{host.address6} {host.name}"]
        names = [host.name for host in self.hosts] + ([] if self._is_emulated else ["switch"])
        for name in names:
            command = [sys.executable, "-I", str(KEEPER), name, "\n".join([*lines, ""])]
            self._keepers.append(started(["unshare", *namespaces.OPTIONS, *command]))
        for keeper in self._keepers:
            await_answer(keeper)
        for host, keeper in zip(self.hosts, self._keepers, strict=False):
            host.keeper = keeper.pid
        known = [f"{word}={host.keeper}" for host in self.hosts for word in (host.name, host.address, host.address6)]
        if self._is_emulated:
            self._emulate()
        else:
            self._join()
        for host in self.hosts:
            host.environment = {KEEPERS: " ".join(known)}
            lines = ["link set lo up", f"address add {host.address6}/64 dev eth0 nodad"]
            for rail, address in enumerate(host.rails):
                lines += [f"link set eth{rail} up", f"address add {address}/24 dev eth{rail}"]
            configure(host.keeper, "ip", lines)
            self._limit(host.keeper, [f"eth{rail}" for rail in range(len(host.rails))])

    def _join(self) -> None:
        """Make a switch for each rail, a bridge in a network of its own, and plug in all hosts."""
        switch, ports = self._keepers[-1].pid, []
        lines = []
        for rail in range(len(self.hosts[0].rails)):
            lines += [f"link add name switch{rail} type bridge mcast_snooping 0", f"link set switch{rail} up"]
            for host in self.hosts:
                ports.append(host.port(rail))
                lines += [
                    f"link add name {ports[-1]} type veth peer name eth{rail} netns {host.keeper}",
                    f"link set {ports[-1]} master switch{rail} up",
                ]
        configure(switch, "ip", lines)
        self._limit(switch, ports)

    def _emulate(self) -> None:
        ends = [str(host.keeper) for host in self.hosts]
        words = [*ends, str(self._delay_seconds), str(self._loss), str(self._seed)]
        self._link = started([sys.executable, "-m", "tests.hosts.link_emulator", *words])
        await_answer(self._link)

    def _limit(self, keeper: int, interfaces: Sequence[str]) -> None:
        if self._rate is not None:
            lines = [f"qdisc add dev {name} root tbf rate {self._rate} {QUEUE}" for name in interfaces]
            configure(keeper, "tc", lines)

    def cut(self, host: Host, rail: int | None = None) -> None:
        """Pull a cable of the host, or all: nothing comes, nothing goes, and nobody is told. Addresses stay."""
        self._plug(host, rail, is_in=False)

    def mend(self, host: Host) -> None:
        """Plug all cables of the host in again."""
        self._plug(host, None, is_in=True)

    def _plug(self, host: Host, rail: int | None, is_in: bool) -> None:
        if self._link is not None:
            word = "mend" if is_in else "cut"
            tell(self._link, word)
            await_answer(self._link, word)
        else:
            rails = [one for one in range(len(host.rails)) if rail in (one, None)]
            switches = [f"master switch{one}" if is_in else "nomaster" for one in rails]
            lines = [f"link set {host.port(one)} {where}" for one, where in zip(rails, switches, strict=True)]
            configure(self._keepers[-1].pid, "ip", lines)

    def loss(self, host: Host, port: int, share: float) -> None:
        """From now on, lose this share of the packets that come to the host from or to a TCP port, at random.

        0 ends it. Raises Unavailable without the program nft.
        """
        if shutil.which("nft") is None:
            raise Unavailable("losing packets needs the program nft: apt-get install nftables")
        table = f"table inet port{port}"
        lines = [f"add {table}", f"delete {table}"]
        if share > 0.0:
            lines += [f"add {table}", f"add chain inet port{port} coming {{ type filter hook input priority 0; }}"]
            lost = f"numgen random mod 10000 < {round(share * 10_000)} drop" if share < 1.0 else "drop"
            lines += [f"add rule inet port{port} coming tcp {end} {port} {lost}" for end in ("sport", "dport")]
        host.run(["nft", "-f", "-"], input="\n".join([*lines, ""]))

    def reset(self, host: Host, port: int) -> int:
        """End the host's connections from and to this TCP port, as by a reset; return how many there were."""
        found = host.run(["ss", "-KHtn", "state", "established", f"( sport = :{port} or dport = :{port} )"])
        return len(found.stdout.splitlines())
