"""Algorithms of a user's file, in ranks: found once, proved for the ranks that are there, refused if not right."""

import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import hocket
from hocket.algorithms import ALGORITHMS
from hocket.errors import ScheduleError, VerifyError
from hocket.runtime import plans
from hocket.runtime.launch import run_ranks
from hocket.runtime.plans import find, prove

LOADED_TO = 5  # load() tries an algorithm for so many ranks

FORGETFUL = """
import hocket

@hocket.algorithm("{collective}", name="own", chunks=lambda p: 1)
def own(schedule):
    last = schedule.num_ranks - (schedule.num_ranks > {right_to})
    with schedule.step():
        schedule.{row}
"""
ROWS = {
    "broadcast": "copy(src=schedule.root, dst=schedule.ranks[:last], chunk=0)",
    "reduce": "reduce(src=schedule.ranks[:last][schedule.ranks[:last] != schedule.root], dst=schedule.root, chunk=0)",
}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process that remembers nothing, and an empty folder."""
    monkeypatch.setenv("HOCKET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plans, "_in_process", {})
    monkeypatch.setattr(plans, "_of_files", {})
    return tmp_path / "cache" / "proofs"


def write(folder: Path, collective: str = "broadcast", right_to: int = LOADED_TO) -> str:
    file = folder / "own.py"
    file.write_text(FORGETFUL.format(collective=collective, right_to=right_to, row=ROWS[collective]))
    return f"{file}:own"


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("size", [LOADED_TO, LOADED_TO + 1])
def test_right_for_the_ranks_tried_at_loading_is_not_enough(collective: str, size: int, tmp_path: Path) -> None:
    """Its proof for few ranks says nothing about more: those are proved when they come."""
    own = write(tmp_path, collective)

    def main() -> str:
        with hocket.init() as comm:
            try:
                getattr(comm, collective)(np.ones(3), algorithm=own)
                return "ran"
            except VerifyError as error:
                assert f"{tmp_path}/own.py:4" in " ".join(error.__notes__)
                return f"law {error.law}"
            finally:
                comm.barrier()

    assert set(run_ranks(main, size, kind="thread")) == {"ran" if size == LOADED_TO else "law 2"}


def test_what_runs_is_what_is_proved(tmp_path: Path) -> None:
    """Not another schedule that the same algorithm would give."""
    one = find("broadcast", write(tmp_path))
    good = one.build(4)
    bad = hocket.algorithm("broadcast", name="other", chunks=lambda p: 1)(forget_the_last).build(4)
    with pytest.raises(VerifyError, match="law 2"):
        prove(one, bad)
    assert prove(one, good) > 0


def forget_the_last(schedule: Any) -> None:
    with schedule.step():
        schedule.copy(src=0, dst=schedule.ranks[1:-1], chunk=0)


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "0" * 64},
        {"laws": [1, 2, 4, 5]},
        {"laws": []},
        {"modes": [False]},
        {"modes": None},
    ],
)
def test_a_verdict_of_less_is_proved_again(
    change: dict[str, Any], nothing_known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = ALGORITHMS["all_reduce", "ring"]
    assert prove(ring, ring.build(3)) > 0
    (file,) = [path for path in nothing_known.iterdir() if not path.name.startswith("lock-")]
    intact = file.read_bytes()
    file.write_bytes(msgspec.json.encode(msgspec.json.decode(intact) | change))
    monkeypatch.setattr(plans, "_in_process", {})
    assert prove(ring, ring.build(3)) > 0
    assert file.read_bytes() == intact


def test_what_a_process_left_unfinished_is_not_read(nothing_known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = ALGORITHMS["all_reduce", "ring"]
    prove(ring, ring.build(3))
    (nothing_known / "unfinished-abc").write_bytes(b'{"digest": ')
    monkeypatch.setattr(plans, "_in_process", {})
    assert prove(ring, ring.build(3)) == 0


def test_a_file_is_run_once_for_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = write(tmp_path)
    file = tmp_path / "own.py"
    file.write_text("print('run')\nimport time; time.sleep(0.05)\n" + file.read_text())
    printed: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: printed.append(*words))
    start = threading.Barrier(4)

    def main() -> int:
        start.wait()
        with hocket.init() as comm:
            return int(comm.broadcast(np.full(2, comm.rank), 3, algorithm=own)[0])

    assert run_ranks(main, 4, kind="thread") == [3, 3, 3, 3]
    assert printed == ["run"]


def test_a_mistake_in_the_file_reaches_the_caller_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(FORGETFUL.format(collective="broadcast", right_to=9, row="cpoy(0)"))
    with hocket.init(0, 1) as comm, pytest.raises(ScheduleError, match=rf"^{file}:8 \(own, 1 rank\): AttributeError"):
        comm.broadcast(np.ones(3), algorithm=f"{file}:own")
    for name, words in ((f"{file}:no", r"one of those in .*own\.py, own \(broadcast\); found"), ("no", "or FILE.py")):
        with hocket.init(0, 1) as comm, pytest.raises(ValueError, match=words):
            comm.broadcast(np.ones(3), algorithm=name)
