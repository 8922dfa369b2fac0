"""Starts, asks and ends the processes of one contender, which sleep between tasks."""

import contextlib
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from comparison import contenders, on_hosts
from comparison.contenders import Setting
from hocket.runtime.ranks.cores import bound

START_SECONDS = 60.0
TASK_SECONDS = 120.0
END_SECONDS = 5.0
MEMORY_FOLDER = Path("/dev/shm")


class Failed(Exception):
    """A group did not start, gave a wrong result, or gave none in time. Its processes have been ended."""


class Unsupported(Exception):
    """The library has no such call, type or memory; the group goes on."""


class Group:
    """`num_ranks` ranks of a contender's group with one setting, on this host or on those of a lab."""

    def __init__(
        self, group: str, setting: Setting, num_ranks: int, build: Path, lab: on_hosts.Lab | None = None
    ) -> None:
        self.name, self.setting, self.num_ranks = f"{group} ({setting.name})", setting, num_ranks
        # Open MPI shares memory through a file in it. Hosts share no memory, but other files.
        where = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() and lab is None else None
        self._folder = Path(tempfile.mkdtemp(prefix="compare-", dir=where))
        self._launchers: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        self._connections: dict[int, Connection] = {}
        self._segments: list[str] = []
        self.processes: list[int] = []
        self.first_seconds = 0.0  # from when all have loaded the library to the end of the first all_reduce
        try:
            self._start(group, build, lab)
        except BaseException:
            self.kill()
            raise

    def _start(self, group: str, build: Path, lab: on_hosts.Lab | None) -> None:
        address = self._folder / "address"
        ours = group in contenders.OWN_ENVIRONMENT
        place = f"compare-{secrets.token_hex(8)}" if ours else os.fspath(self._folder / "store")
        python = contenders.interpreter(group)
        listener = socket.socket(socket.AF_UNIX)
        self._sockets.append(listener)
        listener.bind(os.fspath(address))
        listener.listen(2 * self.num_ranks)
        arguments = (group, self.setting, self.num_ranks, address, place, python)
        lines, environment = contenders.commands(*arguments) if lab is None else on_hosts.commands(*arguments, lab)
        paths = [*filter(None, [environment.get("PYTHONPATH")]), *map(os.fspath, (contenders.BENCHMARKS, build))]
        with (self._folder / "log").open("wb") as log:
            for rank, line in enumerate(lines):
                # Hocket's ranks start as with `hocket run`, those of MPI with mpiexec, all others as with torchrun.
                with bound(rank, self.num_ranks) if ours else contextlib.nullcontext():
                    process = subprocess.Popen(
                        line,
                        env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(paths)},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        # In one session, as with most mpiexecs: the scheduler may divide cores among sessions
                        # first, and then a rank that yields makes no room for a rank of another session.
                        process_group=0,
                    )
                self._launchers.append(process)
        deadline = time.monotonic() + START_SECONDS
        listener.settimeout(0.1)
        loaded: list[Connection] = []
        while len(loaded) < self.num_ranks:
            peer = self._accept(listener, deadline)
            if peer.recv(1) == b"w":
                self._sockets.append(peer)
            else:
                peer.settimeout(None)
                loaded.append(Connection(peer.detach()))
        began = time.monotonic()
        for connection in loaded:
            connection.send(began)
        places: dict[int, str] = {}
        for connection in loaded:
            hello = self._receive("a rank", connection, deadline)
            self._connections[hello["rank"]] = connection
            self.processes.append(hello["process"])
            self._segments += hello["segments"]
            self.first_seconds = max(self.first_seconds, hello["seconds"])
            places[hello["rank"]] = hello["host"]
        if wrong := on_hosts.misplaced([places[rank] for rank in sorted(places)], lab):
            raise Failed(f"{self.name}: {wrong}")

    def _accept(self, listener: socket.socket, deadline: float) -> socket.socket:
        while True:
            try:
                peer, _ = listener.accept()
                break
            except TimeoutError:
                if time.monotonic() > deadline or any(each.poll() is not None for each in self._launchers):
                    raise Failed(f"{self.name}: not all ranks started: {self._last_words()}") from None
        peer.settimeout(START_SECONDS)
        return peer

    def _last_words(self) -> str:
        lines = (self._folder / "log").read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-6:]) or "no output"

    def ask(self, task: str, **arguments: Any) -> list[Any]:
        """Returns the answer of each rank. Raises Unsupported, or Failed, after which the group has ended."""
        for connection in self._connections.values():
            with contextlib.suppress(BrokenPipeError):
                connection.send({"task": task, **arguments})
        deadline, answers = time.monotonic() + TASK_SECONDS, {}
        try:
            for rank, connection in sorted(self._connections.items()):
                answers[rank] = self._receive(f"rank {rank}", connection, deadline)
        except BaseException:
            self.kill()
            raise
        for answer in answers.values():
            if "unsupported" in answer:
                raise Unsupported(answer["unsupported"])
        return [answer["value"] for answer in answers.values()]

    def _receive(self, who: str, connection: Connection, deadline: float) -> Any:
        if not connection.poll(max(0.0, deadline - time.monotonic())):
            raise Failed(f"{self.name}: {who} did not answer in time: {self._last_words()}")
        try:
            answer = connection.recv()
        except (EOFError, OSError):
            raise Failed(f"{self.name}: {who} ended: {self._last_words()}") from None
        if "failed" in answer:
            raise Failed(f"{self.name}, {who}: {answer['failed']}")
        return answer

    def close(self) -> None:
        """Lets the ranks end; kills those that do not end in time."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.send(None)
        for process in self._launchers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Ends every process at once, and removes the files that they left."""
        for process in self._launchers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM if process.poll() is None else signal.SIGKILL)
        for each in itertools.chain(self._sockets, self._connections.values()):
            each.close()  # a rank that no signal reaches ends when it sees this
        for process in self._launchers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for segment in self._segments:
            Path(segment).unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)
