"""What hocket.ray.run needs of Ray, on one machine: an actor is a forked process, and the hosts are only said."""

import contextlib
import os
import pickle
import signal
import traceback
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any

from hocket.runtime.rendezvous import star


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class Answer:
    """What a method of an actor returns."""

    def __init__(self, actor: "Actor") -> None:
        self.actor = actor


class Actor:
    """A process with one object, which serves calls of its methods until it is killed."""

    def __init__(self, kind: type, host: str) -> None:
        self._ours, theirs = Pipe()
        self.process = os.fork()
        if self.process == 0:
            self._ours.close()
            star.identity = lambda: host
            with contextlib.suppress(EOFError):
                self._serve(kind(), theirs)
            os._exit(0)
        theirs.close()

    def _serve(self, served: Any, calls: Connection) -> None:
        while True:
            name, args = calls.recv()
            try:
                calls.send((getattr(served, name)(*args), None))
            except Exception:
                calls.send((None, traceback.format_exc()))

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: self._call(name, args))

    def _call(self, name: str, args: tuple[Any, ...]) -> Answer:
        self._ours.send((name, args))
        return Answer(self)

    def fileno(self) -> int:
        return self._ours.fileno()

    def get(self) -> Any:
        try:
            value, failure = self._ours.recv()
        except (EOFError, ConnectionError):
            raise RayError("The actor died.\n\tThe actor is dead because its worker process has died.") from None
        if failure is not None:
            raise RayTaskError(failure)
        return value

    def end(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        self._ours.close()


class FakeRay:
    """Stands for the module `ray`. hosts: of each bundle; told: what was asked of it, in words."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    cloudpickle = pickle

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts, self.told, self.has_room = hosts, list[str](), True
        self.actors: list[Actor] = []
        self._host = ""
        self.util = SimpleNamespace(
            placement_group=self._placement_group,
            remove_placement_group=lambda group: self.told.append("remove the group"),
            get_node_ip_address=lambda: "127.0.0.1",
            scheduling_strategies=SimpleNamespace(PlacementGroupSchedulingStrategy=lambda group, bundle: bundle),
        )

    def _placement_group(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        self.told.append(f"{strategy} {[bundle['CPU'] for bundle in bundles]}")

        def is_placed(seconds: float) -> bool:
            self.told.append(f"wait {seconds:g} s")
            return self.has_room

        return SimpleNamespace(wait=is_placed)

    def remote(self, kind: type) -> Any:
        def make(num_cpus: int, scheduling_strategy: int) -> Any:
            return SimpleNamespace(remote=lambda: self._start(kind, scheduling_strategy))

        return SimpleNamespace(options=make)

    def _start(self, kind: type, bundle: int) -> Actor:
        self.told.append(f"an actor in bundle {bundle}")
        self._host = self.hosts[bundle]
        self.actors.append(Actor(kind, self._host))
        return self.actors[-1]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: self._host)

    def put(self, value: Any) -> Any:
        return value

    def get(self, answers: Any, timeout: float | None = None) -> Any:
        return [one.actor.get() for one in answers] if isinstance(answers, list) else answers.actor.get()

    def wait(self, answers: list[Answer], timeout: float | None) -> tuple[list[Answer], list[Answer]]:
        ready = wait([one.actor for one in answers], timeout)
        return [one for one in answers if one.actor in ready][:1], []

    def kill(self, actor: Actor) -> None:
        self.told.append("kill")
        actor.end()

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 16.0}

    def nodes(self) -> list[str]:
        return list(dict.fromkeys(self.hosts))
