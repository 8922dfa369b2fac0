"""hocket.ray.run, where forked processes stand for Ray's actors; `make engines` has the real Ray."""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
import hocket.ray
from hocket.errors import PeerDied, RendezvousError
from hocket.runtime.launch import outcomes, ray_actors
from hocket.runtime.launch.ray_actors import RankAssignment
from tests.runtime.fake_ray import FakeRay, RayError


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeRay]]:
    """Makes a Ray whose bundles are on these hosts."""
    made: list[FakeRay] = []

    def make(*hosts: str) -> FakeRay:
        made.append(FakeRay(hosts))
        monkeypatch.setitem(sys.modules, "ray", made[-1])
        return made[-1]

    yield make
    for ray in made:
        assert ray.told[-1:] == ["remove the group"]
        assert not [one for one in ray.actors if Path(f"/proc/{one.process}").exists()], "no process is left"


def add_up(factor: float) -> tuple[int, float, tuple[int, ...], str]:
    with hocket.init() as comm:
        x = comm.all_reduce(np.full(3000, factor * (comm.rank + 1)))
        told = "".join(os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        return comm.rank, float(x[0]), comm.context.hosts, told


def test_ray_is_asked_for_hosts_then_for_actors_and_all_are_ended(use: Callable[..., FakeRay]) -> None:
    ray = use("a", "b")
    expected = [(rank, 20.0, (0, 0, 1, 1), f"{rank}4{rank % 2}2") for rank in range(4)]
    assert hocket.ray.run(add_up, 4, args=(2.0,), ranks_per_host=2, timeout=7) == expected
    actors = [f"an actor in bundle {bundle}" for bundle in (0, 0, 1, 1)]
    assert ray.told == ["STRICT_SPREAD [2.0, 2.0]", "wait 7 s", *actors, *["kill"] * 4, "remove the group"]


def test_ranks_of_a_host_have_successive_numbers_however_ray_places_them(use: Callable[..., FakeRay]) -> None:
    ray = use("a", "b", "a")
    expected = [(0, 6.0, (0, 0, 1), "0302"), (1, 6.0, (0, 0, 1), "1312"), (2, 6.0, (0, 0, 1), "2301")]
    assert hocket.ray.run(add_up, 3, args=(1.0,)) == expected
    assert ray.told[:2] == ["PACK [1.0, 1.0, 1.0]", "wait 60 s"]


def fail(how: str) -> None:
    with hocket.init() as comm:
        comm.barrier()
        if comm.rank == 1:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError("the mistake")
        if comm.rank == 2:
            time.sleep(1000)  # until it is ended
        comm.barrier()


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("raises", KeyError, "the mistake"),
        ("killed", PeerDied, "rank 1 of 3 on 127.0.0.1 ended before the function returned: The actor is dead because"),
    ],
)
def test_one_failing_rank_ends_all_and_is_the_one_that_is_raised(
    how: str, kind: type[Exception], words: str, use: Callable[..., FakeRay], monkeypatch: pytest.MonkeyPatch
) -> None:
    use("a", "b", "b")
    monkeypatch.setattr(outcomes, "GRACE_SECONDS", 0.5)
    with pytest.raises(kind, match=words) as caught:
        hocket.ray.run(fail, 3, args=(how,))
    notes = getattr(caught.value, "__notes__", [])
    assert [note.split(", at:")[0] for note in notes] == (["This was rank 1 of 3"] if how == "raises" else [])


def return_a_function() -> Any:
    return lambda: None


def test_a_result_that_cannot_be_pickled_is_told(use: Callable[..., FakeRay]) -> None:
    use("a")
    with pytest.raises(TypeError, match=r"the rank function returned what cannot be pickled: .*pickle"):
        hocket.ray.run(return_a_function, 1)


def test_an_actor_that_cannot_call_the_function_tells_why(
    use: Callable[..., FakeRay], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(key: bytes) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    use("a")
    monkeypatch.setattr(ray_actors, "key_descriptor", no_descriptor)
    words = r"rank 0 of 1 on 127\.0\.0\.1 could not call the function, .*: OSError: \[Errno 24\] Too many open files$"
    with pytest.raises(RendezvousError, match=words) as caught:
        hocket.ray.run(add_up, 1, args=(1.0,))
    assert caught.value.missing == (0,)


def test_ctrl_c_ends_all(use: Callable[..., FakeRay], monkeypatch: pytest.MonkeyPatch) -> None:
    ray = use("a", "a")

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ray, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        hocket.ray.run(time.sleep, 2, args=(1000,))  # until it is ended
    assert ray.told.count("kill") == 2


def test_a_cluster_without_room_says_what_is_free(use: Callable[..., FakeRay]) -> None:
    ray = use("a", "b")
    ray.has_room = False
    words = "2 hosts with 4 free CPUs on each for 8 ranks within 60 s: 3 of 16 CPUs are free on 2 hosts; .*timeout="
    with pytest.raises(RendezvousError, match=words) as caught:
        hocket.ray.run(add_up, 8, ranks_per_host=4)
    assert caught.value.missing == tuple(range(8)) and ray.actors == []


def test_actors_that_cannot_start_say_what_hosts_need(
    use: Callable[..., FakeRay], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = use("a")

    def refuse(*_: Any, **__: Any) -> None:
        raise RayError("The actor failed to import on the worker.\nModuleNotFoundError: No module named 'hocket'")

    monkeypatch.setattr(ray, "get", refuse)
    with pytest.raises(
        RendezvousError, match=r"Ray could not start 1 rank: ModuleNotFoundError.*same version of Hocket"
    ):
        hocket.ray.run(add_up, 1)


def test_the_key_is_not_shown() -> None:
    assigned = RankAssignment(1, 2, "a:1", (0, 1), ("a", 2), b"secret", {})
    assert "secret" not in f"{assigned!r} {assigned!s}"


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "words"),
    [
        (("add_up", 2), {}, TypeError, "function is 'add_up'"),
        ((add_up, 2), {"args": 1}, TypeError, r"expected a tuple of arguments, such as \(1,\)"),
        ((add_up, True), {}, TypeError, "num_ranks is True; expected an int"),
        ((add_up, 0), {}, ValueError, "num_ranks is 0; expected at least 1"),
        ((add_up, 4), {"ranks_per_host": 2.0}, TypeError, "ranks_per_host is 2.0; expected an int"),
        ((add_up, 4), {"ranks_per_host": 3}, ValueError, "num_ranks is 4; expected a multiple of ranks_per_host, 3"),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        hocket.ray.run(*arguments, **options)


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'hocket\[ray\]'"):
        hocket.ray.run(add_up, 1)
