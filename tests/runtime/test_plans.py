"""Plans and their proofs: made once, kept on disk, and never trusted when they are damaged."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import algorithms, schedule
from hocket.errors import VerifyError
from hocket.runtime import cache, cache_folder, file_lock, plans, run_ranks
from hocket.runtime.plans import find, in_core, prepare, prove
from hocket.schedule import Plan, lower

SIZE = 3


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Empty caches in this process, and an empty folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("HOCKET_CACHE", str(folder))
    forget(monkeypatch)
    return folder


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_in_process", {})
    prepare.cache_clear()


def prove_ring() -> float:
    ring = find("all_reduce", "ring")
    return prove(ring, ring.build(SIZE))


def verdicts(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "proofs").iterdir() if not path.name.startswith("lock-"))


def test_a_proof_is_written_and_used_again(nothing_known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prove_ring() > 0
    (verdict,) = verdicts(nothing_known)
    assert prove_ring() == 0, "this process remembers it"
    forget(monkeypatch)
    written = verdict.stat().st_mtime_ns
    assert prove_ring() == 0, "another process reads it"
    assert verdict.stat().st_mtime_ns == written


def test_a_proof_serves_one_schedule_only(nothing_known: Path) -> None:
    ring, tree = find("all_reduce", "ring"), find("broadcast", "binomial")
    schedules = [(ring, ring.build(3)), (ring, ring.build(4)), (tree, tree.build(3, 0)), (tree, tree.build(3, 1))]
    assert all(prove(*one) > 0 for one in schedules)
    assert len(verdicts(nothing_known)) == 4
    assert all(prove(*one) == 0 for one in schedules)


@pytest.mark.parametrize("damage", [b"", b"{", b"\0" * 300, b"[1, 2]", b"null", b'{"law": "\xff"}'])
def test_a_damaged_verdict_is_proved_again(damage: bytes, nothing_known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prove_ring()
    (verdict,) = verdicts(nothing_known)
    intact = verdict.read_bytes()
    verdict.write_bytes(damage)
    forget(monkeypatch)
    assert prove_ring() > 0
    assert verdict.read_bytes() == intact


def test_a_folder_in_the_place_of_a_verdict_does_no_harm(nothing_known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prove_ring()
    (verdict,) = verdicts(nothing_known)
    verdict.unlink()
    verdict.mkdir()
    forget(monkeypatch)
    assert prove_ring() > 0
    assert [path.name for path in verdicts(nothing_known)] == [verdict.name], "no unfinished file is left"


@pytest.mark.parametrize("folder", ["/proc/nothing/can/be/made/here", "/dev/null/cache"])
def test_without_a_folder_each_process_proves(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_CACHE", folder)
    assert prove_ring() > 0
    assert prove_ring() == 0
    with hocket.init(0, 1) as comm:
        comm.all_reduce(np.ones(3))


def test_a_folder_that_others_may_not_read(nothing_known: Path) -> None:
    prove_ring()
    assert (nothing_known / "proofs").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HOCKET_CACHE": "/a/b", "XDG_CACHE_HOME": "/c", "HOME": "/d"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/d"}, "/c/hocket"),
        ({"XDG_CACHE_HOME": "", "HOME": "/d"}, "/d/.cache/hocket"),
        ({"HOME": "/d"}, "/d/.cache/hocket"),
    ],
)
def test_where_the_cache_is(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOCKET_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_a_changed_prover_trusts_no_older_verdict(nothing_known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prove_ring()
    forget(monkeypatch)
    monkeypatch.setattr(plans, "_code", lambda: "another")
    assert prove_ring() > 0
    assert len(verdicts(nothing_known)) == 2


PROVER = [path for package in (schedule, algorithms) for path in sorted(Path(package.__path__[0]).rglob("*.py"))]


@pytest.mark.parametrize("touched", PROVER, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_change_of_any_file_of_the_prover_changes_the_key(
    touched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in (schedule, algorithms):
        original = Path(package.__path__[0])
        copy = tmp_path / original.name
        shutil.copytree(original, copy, ignore=shutil.ignore_patterns("__pycache__"))
        monkeypatch.setattr(package, "__path__", [str(copy)])
        if touched.is_relative_to(original):
            changed = copy / touched.relative_to(original)
    key = plans._code.__wrapped__()
    assert key == plans._code(), "the key depends on what the files say, not on where they lie"
    changed.write_bytes(changed.read_bytes() + b"#")
    assert plans._code.__wrapped__() != key


def test_a_proof_depends_on_nothing_that_is_not_in_its_key() -> None:
    program = (
        "import sys\n"
        "from hocket.algorithms import ALGORITHMS\n"
        "ALGORITHMS['all_reduce', 'ring'].verify(3)\n"
        "print(*(module.__file__ for name, module in sys.modules.items() if name.partition('.')[0] == 'hocket'))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    package = Path(hocket.__file__).parent
    others = {package / name for name in ("__init__.py", "errors.py", "lazy.py")}  # names without an effect
    assert {Path(file) for file in result.stdout.split()} - set(PROVER) <= others


def prove_together(_: Any) -> float:
    with hocket.init() as comm:
        comm.barrier()
        return prove_ring()


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_ranks_that_need_one_proof_at_once_make_it_once(kind: str) -> None:
    seconds = run_ranks(prove_together, 4, args=(None,), kind=kind)
    assert sum(one > 0 for one in seconds) == 1


@contextlib.contextmanager
def all_locks_held(nothing_known: Path) -> Iterator[None]:
    """Holds all locks, like processes that were stopped in a proof."""
    folder = nothing_known / "proofs"
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        for number in range(cache._LOCKS):
            fcntl.flock(stack.enter_context((folder / f"lock-{number:x}").open("w")), fcntl.LOCK_EX)
        yield


def test_a_prover_that_is_stopped_does_not_hold_the_others_up(
    nothing_known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_PATIENCE_SECONDS", 0.05)
    with all_locks_held(nothing_known):
        assert prove_ring() > 0
        assert len(verdicts(nothing_known)) == 1


def test_who_knows_the_verdict_asks_for_no_lock(nothing_known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(descriptor: int, seconds: float) -> bool:
        raise AssertionError

    assert prove_ring() > 0
    forget(monkeypatch)
    monkeypatch.setattr(file_lock, "acquire", asked)
    assert prove_ring() == 0


def test_a_prover_that_dies_does_not_hold_the_others_up(nothing_known: Path) -> None:
    """The lock ends with the process that held it."""
    nothing_known.mkdir()
    folder = cache.folder("proofs")
    assert folder == nothing_known / "proofs"
    child = os.fork()
    if child == 0:
        with cache.alone(folder, "0"):
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with (folder / "lock-0").open() as lock:
        assert file_lock.acquire(lock.fileno(), 0)


def test_a_proof_that_fails_is_not_kept(nothing_known: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import hocket\n"
        "several = lambda p: p > 1\n"
        "@hocket.algorithm('all_reduce', name='wrong', chunks=lambda p: 1, steps=several, sent=several)\n"
        "def wrong(schedule):\n"
        "    if schedule.num_ranks > 1:\n"
        "        with schedule.step():\n"
        "            schedule.reduce(src=0, dst=1, chunk=0)\n"
    )
    for _ in range(2):
        with pytest.raises(VerifyError, match="law 2"):
            prepare(find("all_reduce", f"{file}:wrong"), 0, 2, 0, False)
    assert not (nothing_known / "proofs").exists() or verdicts(nothing_known) == []


def test_what_is_prepared_is_the_plan_of_this_rank() -> None:
    one, two = prepare(find("all_reduce", "ring"), 0, 2, 0, False), prepare(find("all_reduce", "ring"), 1, 2, 0, False)
    assert one.schedule == two.schedule != prepare(find("all_reduce", "direct"), 0, 2, 0, False).schedule
    assert one is prepare(find("all_reduce", "ring"), 0, 2, 0, False)  # communicators share it


def kept_plans(folder: Path) -> list[Path]:
    return sorted((folder / "plans").iterdir())


def values(plan: Plan) -> dict[str, Any]:
    return {name: one.tolist() if isinstance(one, np.ndarray) else one for name, one in vars(plan).items()}


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """A list of the plans that this process makes from now on."""
    made = []

    def lowering(*arguments: Any) -> Plan:
        made.append(lower(*arguments))
        return made[-1]

    monkeypatch.setattr(plans, "lower", lowering)
    return made


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """A list of the plans that the core gets."""
    seen = []

    def giving(plan: Plan, *arguments: Any, **keywords: Any) -> Any:
        seen.append(plan)
        assert keywords == {"only_token": arguments[0] == "barrier"}
        return in_core(plan, *arguments, **keywords)

    monkeypatch.setattr(plans, "in_core", giving)
    return seen


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_to_all_v", "barrier"])
def test_the_plan_of_a_built_in_algorithm_is_kept_whole(
    collective: str, lowered: list[Plan], given: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(name for of, name in algorithms.ALGORITHMS if of == collective)
    one = prepare(find(collective, name), 1, 4, 0, False)
    forget(monkeypatch)
    two = prepare(find(collective, name), 1, 4, 0, False)
    assert len(lowered) == 1, "another process reads it"
    assert len(given) == 2
    assert values(given[0]) == values(given[1])
    assert (one.schedule, one.labels) == (two.schedule, two.labels)
    prepare(find(collective, name), 2, 4, 0, False)
    assert len(lowered) == 2, "another rank has its own"


@pytest.mark.parametrize(
    "damage", [lambda kept: b"", lambda kept: kept[:-1], lambda kept: kept[:200] + b"!" + kept[201:]]
)
def test_a_damaged_plan_is_made_again(
    damage: Callable[[bytes], bytes], nothing_known: Path, lowered: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(find("all_reduce", "ring"), 0, SIZE, 0, False)
    (file,) = kept_plans(nothing_known)
    intact = file.read_bytes()
    file.write_bytes(damage(intact))
    forget(monkeypatch)
    prepare(find("all_reduce", "ring"), 0, SIZE, 0, False)
    assert len(lowered) == 2
    assert file.read_bytes() == intact


def test_changed_code_trusts_no_older_plan(lowered: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(find("all_reduce", "ring"), 0, SIZE, 0, False)
    forget(monkeypatch)
    monkeypatch.setattr(plans, "_code", lambda: "another")
    prepare(find("all_reduce", "ring"), 0, SIZE, 0, False)
    assert len(lowered) == 2


def test_the_plan_of_a_user_s_algorithm_is_not_kept(nothing_known: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import hocket\n"
        "@hocket.algorithm('broadcast', name='star', chunks=lambda p: 1)\n"
        "def star(schedule):\n"
        "    with schedule.step():\n"
        "        for rank in range(schedule.num_ranks):\n"
        "            if rank != schedule.root:\n"
        "                schedule.copy(src=schedule.root, dst=rank, chunk=0)\n"
    )
    prepare(find("broadcast", f"{file}:star"), 0, 2, 0, False)
    assert len(verdicts(nothing_known)) > 0
    assert not (nothing_known / "plans").exists()
