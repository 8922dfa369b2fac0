"""Algorithms of a user's file in ranks: loaded once, proved for the actual rank count, refused if wrong."""

import contextlib
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import hocket
from hocket.algorithms import ALGORITHMS
from hocket.errors import CollectiveMismatch, ScheduleError, VerifyError
from hocket.runtime import plans, run_ranks
from hocket.runtime.plans import find, prove

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
    """Empty caches in this process, and an empty folder."""
    monkeypatch.setenv("HOCKET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plans, "_in_process", {})
    monkeypatch.setattr(plans, "_of_files", {})
    return tmp_path / "cache" / "proofs"


def write(folder: Path, collective: str = "broadcast", right_to: int = 5) -> str:
    file = folder / "own.py"
    file.write_text(FORGETFUL.format(collective=collective, right_to=right_to, row=ROWS[collective]))
    return f"{file}:own"


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("size", [5, 6])
def test_what_runs_is_proved_for_its_own_rank_count(collective: str, size: int, tmp_path: Path) -> None:
    """Right for five ranks says nothing about six."""
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

    assert set(run_ranks(main, size, kind="thread")) == {"ran" if size == 5 else "law 2"}


@pytest.mark.parametrize(
    "wrong", ["steps=lambda p: 1 + (p == 1)", "sent=lambda p: 1 // (p - 1)", "chunks=lambda p: p - 1"]
)
def test_a_mistake_for_another_rank_count_does_not_stop_a_run(wrong: str, tmp_path: Path) -> None:
    promise = wrong if wrong.startswith("chunks") else f"chunks=lambda p: 1, {wrong}"
    file = tmp_path / "own.py"
    file.write_text(
        FORGETFUL.format(collective="broadcast", right_to=9, row=ROWS["broadcast"]).replace(
            "chunks=lambda p: 1", promise
        )
    )

    def main() -> float:
        with hocket.init() as comm:
            return float(comm.broadcast(np.full(3, comm.rank), 1, algorithm=str(file))[0])

    assert run_ranks(main, 2, kind="thread") == [1, 1]
    with hocket.init(0, 1) as comm, pytest.raises(ScheduleError):
        comm.broadcast(np.ones(3), algorithm=str(file))


def test_what_runs_is_what_is_proved(tmp_path: Path) -> None:
    """The proof does not hold for another schedule of the same algorithm."""
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
    slow = "print('run')\nimport time; time.sleep(0.05)\n"  # a file that takes a while
    file.write_text(slow + file.read_text())
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
    with (
        hocket.init(0, 1) as comm,
        pytest.raises(ScheduleError, match=rf"^{file}:8 \(own, 1 rank\): .*'cpoy'"),
    ):
        comm.broadcast(np.ones(3), algorithm=f"{file}:own")
    for name, words in ((f"{file}:no", r"one of those in .*own\.py, own \(broadcast\); found"), ("no", "or FILE.py")):
        with hocket.init(0, 1) as comm, pytest.raises(ValueError, match=words):
            comm.broadcast(np.ones(3), algorithm=name)


@pytest.mark.parametrize("file", ["own.py", "./own.py:own"])
def test_a_file_is_known_from_the_working_directory_and_its_name_may_be_left_out(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, right_to=9)
    monkeypatch.chdir(tmp_path)
    with hocket.init(0, 1) as comm:
        assert comm.broadcast(np.ones(3), algorithm=file).tolist() == [1, 1, 1]


def test_of_two_in_a_file_one_has_to_be_named(tmp_path: Path) -> None:
    write(tmp_path, right_to=9)
    file = tmp_path / "own.py"
    file.write_text(file.read_text() + file.read_text().replace('"own"', '"other"'))
    with hocket.init(0, 1) as comm:
        with pytest.raises(ValueError, match=r"expected .*own\.py:NAME, one of own, other for broadcast; found"):
            comm.broadcast(np.ones(3), algorithm=str(file))
        assert comm.broadcast(np.ones(3), algorithm=f"{file}:other").tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_ways_to_call_it(kind: str, tmp_path: Path) -> None:
    assert run_ranks(call_in_every_way, 4, args=(write(tmp_path, right_to=9),), kind=kind) == [0] * 4


def call_in_every_way(own: str) -> int:
    """Returns the number of wrong results: blocking, asynchronous, in groups, set by configure, for any root."""
    found: list[Any] = []
    with hocket.init() as comm:
        found.append(comm.broadcast(np.full(3, comm.rank), 2, algorithm=own))
        found.append(comm.broadcast(np.full(3, comm.rank), 2, algorithm=own, async_op=True).wait())
        odd, last = comm.split(color=comm.rank % 2), comm.subgroup([3, 2])
        found.append(odd.broadcast(np.full(3, 2), 1, algorithm=own))
        if last is not None:
            found.append(last.broadcast(np.full(3, comm.rank), 1, algorithm=own))
        comm.configure("broadcast", algorithm=own)
        found.append(comm.broadcast(np.full(3, comm.rank), 2))
    return sum(not np.array_equal(one, [2, 2, 2]) for one in found)


def test_an_uneven_collective(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(EVERYONE_GIVES)

    def main() -> list[list[int]]:
        with hocket.init() as comm:
            x = np.full(comm.rank, comm.rank)
            uneven = comm.all_gather_v(x, range(comm.size), algorithm=f"{file}:own")
            return [uneven.tolist(), comm.all_gather(np.array([comm.rank]), algorithm=str(file)).tolist()]

    assert run_ranks(main, 3, kind="thread") == [[[1, 2, 2], [0, 1, 2]]] * 3


EVERYONE_GIVES = """
import hocket
import numpy as np

@hocket.algorithm("all_gather", "all_gather_v", name="own", chunks=lambda p: p)
def own(schedule):
    p, rank = schedule.num_ranks, schedule.ranks
    with schedule.step():
        schedule.copy(src=rank, dst=(rank + np.arange(1, p)[:, None]) % p, chunk=rank)
"""


def test_what_a_process_has_loaded_it_keeps(tmp_path: Path) -> None:
    """Only the next process reads a changed file again, so that all calls of a process use the same program."""
    own = write(tmp_path, right_to=9)
    with hocket.init(0, 1) as comm:
        comm.broadcast(np.ones(3), algorithm=own)
        (tmp_path / "own.py").write_text("1 // 0")
        assert comm.broadcast(np.ones(3), algorithm=own).tolist() == [1, 1, 1]


BOTH_WAYS = """
import hocket

@hocket.algorithm("broadcast", name="own", chunks=lambda p: 1)
def own(schedule):
    with schedule.step():
        schedule.copy(src=schedule.root, dst=schedule.ranks[schedule.ranks != schedule.root]{order}, chunk=0)
"""


def test_files_of_other_content_are_a_mismatch(tmp_path: Path) -> None:
    def main() -> str:
        try:
            with hocket.init() as comm:  # it reports an error at the end if the call could return before
                file = tmp_path / f"own{comm.rank}.py"
                file.write_text(BOTH_WAYS.format(order="[::-1]" if comm.rank == 1 else ""))
                comm.broadcast(np.ones(3), algorithm=f"{file}:own", timeout=60)
            return "ran"
        except CollectiveMismatch as error:
            assert "with the same content of its file" in str(error)
            return error.field

    assert run_ranks(main, 3, kind="thread") == ["schedule"] * 3


def test_files_that_differ_in_words_only_are_the_same(tmp_path: Path) -> None:
    def main() -> list[float]:
        with hocket.init() as comm:
            file = tmp_path / f"own{comm.rank}.py"
            file.write_text("# Mine.\n" * comm.rank + BOTH_WAYS.format(order=""))
            return list(comm.broadcast(np.full(2, comm.rank), 1, algorithm=f"{file}:own", timeout=60))

    assert run_ranks(main, 3, kind="thread") == [[1, 1]] * 3


def test_the_line_at_fault_stands_before_the_law(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(BOTH_WAYS.format(order="[1:]"))

    def main() -> None:
        with hocket.init() as comm, pytest.raises(VerifyError, match=rf"^{file}:4: law 2 \(rank 1, chunk 0\): "):
            comm.broadcast(np.ones(3), algorithm=f"{file}:own")

    run_ranks(main, 2, kind="thread")


def test_a_later_definition_serves_communicators_that_have_used_the_one_before() -> None:
    def define(last: int | None) -> None:
        @hocket.algorithm("broadcast", name="given", chunks=lambda p: 1)
        def given(schedule: Any) -> None:
            with schedule.step():
                schedule.copy(src=0, dst=schedule.ranks[1:last], chunk=0)

    def main() -> None:
        with hocket.init() as comm:
            for last, right in ((None, True), (-1, False), (None, True)):
                comm.barrier()
                if comm.rank == 0:
                    define(last)
                comm.barrier()
                for options in ({}, {}, {"async_op": True}):  # the second one is cached
                    with contextlib.nullcontext() if right else pytest.raises(VerifyError, match="law 2"):
                        x = np.full(3, comm.rank)
                        comm.broadcast(x, algorithm="given", **options)
                        comm.barrier()
                        assert x.tolist() == [0, 0, 0]
            assert comm.statistics["algorithms"]["broadcast:given"] == 6

    run_ranks(main, 3, kind="thread")
