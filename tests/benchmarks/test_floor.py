"""benchmarks/lab/floor.cpp: right results in every way that is tried, and how the report uses its times."""

import importlib.util
import itertools
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from comparison import building, floor, goals, libraries, measuring, report, values
from comparison.goals import Cells, Faster, Goal
from comparison.results import Row

SECONDS = 1e-4
needs_two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="its two processes spin, each on a core")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def program(build: Path) -> Path:
    return building.floor_program(build)


@pytest.fixture(scope="module")
def touch(build: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("touch", building.touch_module(build) / "touch.so")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# One line, several lines, pieces with a shorter last one, through the kernel, and pieces of a fixed size.
@needs_two_cores
@pytest.mark.parametrize("num_bytes", [4, 8, 60, 1024, 100_000, 3 << 20])
@pytest.mark.parametrize("memory", ["private", "staged", "registered"])
@pytest.mark.parametrize("operation", values.OPERATIONS)
def test_two_ranks_get_right_results_in_every_way(operation: str, memory: str, num_bytes: int, program: Path) -> None:
    row = Row(operation, 0 if operation == "barrier" else num_bytes, "float32", 2)
    found = floor.measure(program, row, memory, SECONDS, 2)  # None if a result is wrong
    assert found
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert 1 <= len(found.variants) <= 3


@needs_two_cores
def test_what_was_best_can_be_measured_again(program: Path) -> None:
    row = Row("all_gather", 100_000, "float32", 2)
    variants = ["attached:taker:50000:2097152:1:p", "staged:taker:4096:16384:3:s"]
    found = floor.measure(program, row, "private", SECONDS, 1, variants)
    assert found
    assert sorted(found.variants) == variants
    assert floor.measure(program, row, "private", SECONDS, 1, ["attached:nobody:1:1:1:"]) is None


@needs_two_cores
@pytest.mark.parametrize("num_bytes", [8, 100_000])
@pytest.mark.parametrize("num_ranks", [4, 8])
@pytest.mark.parametrize("operation", values.OPERATIONS[:-1])
def test_the_bound_of_more_ranks_has_right_results(
    operation: str, num_ranks: int, num_bytes: int, program: Path
) -> None:
    assert floor.measure(program, Row(operation, num_bytes, "float32", num_ranks), "registered", SECONDS, 1)


CROWDS = [
    (operation, num_ranks)
    for operation, num_ranks in itertools.product(values.OPERATIONS, (3, 4, 8))
    if not values.undefined(operation, "float32", num_ranks)
]


# Cores that have equally many ranks, and not; sizes as above.
@needs_two_cores
@pytest.mark.parametrize("num_bytes", [4, 1024, 100_000, 3 << 20])
@pytest.mark.parametrize(("operation", "num_ranks"), CROWDS)
def test_more_ranks_get_right_results_in_every_way(
    operation: str, num_ranks: int, num_bytes: int, program: Path
) -> None:
    row = Row(operation, 0 if operation == "barrier" else num_bytes, "float32", num_ranks)
    found = floor.measure(program, row, "private", SECONDS, 1)
    assert found
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert 1 <= len(found.variants) <= 3


@needs_two_cores
@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("operation", ["all_reduce", "send_recv"])
def test_staged_memory_is_attached_by_nobody(operation: str, num_ranks: int, program: Path) -> None:
    found = floor.measure(program, Row(operation, 8 << 20, "float32", num_ranks), "staged", SECONDS, 1)
    assert found
    assert not re.search("attached|fetched", " ".join(found.variants))
    assert not found.attaches()


@needs_two_cores
@pytest.mark.parametrize(
    ("operation", "variant"),
    [
        ("all_reduce", "posted:taker:7040:0:1:l"),
        ("all_reduce", "posted_shares:taker:16384:32768:0:r"),
        ("all_reduce", "chained:taker:16384:32768:0:pm"),
        ("all_reduce", "fetched_shares:taker:16384:0:0:"),
        ("reduce_scatter", "chained:taker:7040:0:1:s"),
        ("reduce", "posted:taker:16384:32768:0:s"),
        ("reduce", "posted_shares:taker:16384:32768:0:"),
        ("reduce", "chained:taker:7040:524288:0:p"),
        ("reduce", "fetched_shares:taker:16384:0:0:"),
        ("all_to_all", "posted:taker:16384:524288:1:"),
        ("all_to_all", "fetched:taker:16384:0:0:"),
        ("send_recv", "posted:taker:16384:32768:0:"),
        ("send_recv", "fetched:taker:16384:0:0:"),
        ("broadcast", "posted:taker:7040:4194304:0:r"),
    ],
)
def test_what_more_ranks_did_best_can_be_measured_again(operation: str, variant: str, program: Path) -> None:
    found = floor.measure(program, Row(operation, 100_000, "float32", 4), "private", SECONDS, 2, [variant])
    assert found
    assert found.variants == [variant]


@pytest.mark.parametrize(
    ("operation", "memory", "num_ranks", "num_bytes"),
    [
        ("barrier", "registered", 4, 0),  # that is `turns`
        ("send_recv", "registered", 3, 8),  # one would have no peer
        ("all_reduce", "private", 2, 0),
        ("scan", "private", 2, 8),
    ],
)
def test_what_has_no_floor(operation: str, memory: str, num_ranks: int, num_bytes: int, program: Path) -> None:
    assert floor.measure(program, Row(operation, num_bytes, "float32", num_ranks), memory, SECONDS, 1) is None


def test_a_floor_that_takes_too_long_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "floor"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(floor, "SECONDS", 0.1)
    assert floor.measure(slow, row(), "private", SECONDS, 1) is None
    assert floor.exchange(slow) == []


def test_a_long_trial_is_one_that_can_end() -> None:
    most = re.search(r"most_seconds = (\d+);", (building.LAB / "floor.cpp").read_text())
    assert most
    for effort in (measuring.QUICK, measuring.FULL):
        assert effort.long_trial_seconds < int(most[1]) < floor.SECONDS


def test_every_cell_of_float32_has_a_floor() -> None:
    for operation in values.OPERATIONS:
        assert floor.has(Row(operation, 8, "float32", 2), "private")
        assert floor.has(Row(operation, 8, "float32", 2), "registered") is (operation != "barrier")
        assert not floor.has(Row(operation, 8, "float32", 2), "turns")
        assert floor.has(Row(operation, 8, "float32", 4), "private")
        assert floor.has(Row(operation, 8, "float32", 4), "registered") is (operation != "barrier")
        assert not floor.has(Row(operation, 8, "bfloat16", 2), "private")
    assert floor.has(Row("all_to_all", 8, "bfloat16", 4), "turns")
    assert not floor.has(Row("broadcast", 8, "float32", 4), "turns")  # no rank waits for all


@pytest.mark.parametrize("takes_turns", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("operation", values.OPERATIONS)
def test_empty_calls_are_bound_as_those_of_a_communicator(
    operation: str, rank: int, takes_turns: bool, touch: ModuleType
) -> None:
    x = np.zeros(2, np.float32)
    called = []

    class Communicator:
        def __getattr__(self, name: str) -> libraries.Call:
            return lambda *arguments, **options: called.append((name, len(arguments), tuple(options)))

    libraries.bound(Communicator(), rank, operation, x, x)()
    nothing = touch.Nothing(takes_turns)
    assert all(hasattr(nothing, name) for name, *_ in called)
    assert len(called) == values.ways(operation)
    assert libraries.bound(nothing, rank, operation, x, x)() is None
    np.testing.assert_array_equal(x, 0)


def test_buffers_of_short_messages_are_as_long_as_those_of_the_floor(
    touch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_of_floor = (building.LAB / "floor/memory.h").read_text()
    shift = re.search(r"longest_buffer = std::size_t\{64\} << (\d+);", memory_of_floor)
    assert shift
    assert 64 << int(shift[1]) == values.LONGEST_BUFFER
    asked = []

    class Library:
        rank, size = 0, 1

        def memory(self, num_bytes: int, kind: str) -> np.ndarray:
            asked.append((kind, num_bytes))
            return np.empty(num_bytes, np.uint8)

        def bind(self, *_: object) -> libraries.Call:
            return self.barrier

        def barrier(self) -> None:
            pass

    monkeypatch.setitem(sys.modules, "touch", touch)
    monkeypatch.setitem(libraries.LIBRARIES, "one rank", lambda *_: Library())
    rank = importlib.import_module("comparison.rank").Rank("one rank", 0, 1, "")
    for memory in ("private", "registered"):
        rank.measure("all_reduce", 8, "float32", memory, 1024, 1, 1, untouched=False)
    assert asked == [("private", values.LONGEST_BUFFER), ("registered", 1024)]


class FakeRanks:
    """Two ranks with the seconds that Python takes, by batch."""

    def ask(self, task: str, num_calls: int, **_: object) -> list[list[float]]:
        assert task == "empty_calls"
        return [[seconds * num_calls for seconds in of_rank] for of_rank in ([8.0, 7.0, 6.0], [4.0, 8.0, 4.0])]


def test_what_python_takes_is_that_of_the_quicker_rank() -> None:
    assert measuring.seconds_of_empty_calls(FakeRanks(), "all_reduce") == pytest.approx(4.0)  # the median of 4, 7 and 4
    assert measuring.seconds_of_empty_calls(FakeRanks(), "send_recv") == pytest.approx(2.0)  # half of two calls


def row(num_bytes: int = 8, num_ranks: int = 2, **seconds: list[float]) -> Row:
    contenders = {name.replace("_", " "): {"touched": times} for name, times in seconds.items()}
    return Row("all_reduce", num_bytes, "float32", num_ranks, contenders)


def test_the_floor_of_a_cell() -> None:
    two = row(impi=[6.0, 6.0, 9.0], floor_private=[3.0, 4.0, 3.0], floor_registered=[1.0, 2.0, 1.0])
    assert two.floor("hocket") == two.floor("no cma") == [3.0, 4.0, 3.0]
    assert two.at_most("hocket") == 2.0
    assert two.at_most("registered") == 6.0
    assert two.at_most("hocket", "gloo") is None
    assert row(impi=[6.0]).at_most("hocket") is None
    staged = row(impi=[6.0, 6.0], floor_private=[3.0, 4.0], floor_staged=[4.0, 5.0])
    assert staged.floor("no cma") == [4.0, 5.0]
    assert staged.floor("hocket") == [3.0, 4.0]


def test_an_mpi_that_attaches_is_no_proof_for_what_does_without() -> None:
    cell = row(impi=[2.0], hocket=[8.0], no_cma=[8.0], floor_private=[4.0], floor_staged=[5.0])
    assert goals.PRIVATE.at_most(cell) == 1.0
    assert goals.STAGED.at_most(cell) == 0.4


def test_the_floor_of_a_cell_of_more_ranks() -> None:
    bounds = {"floor_turns": [2.0, 1.0], "floor_registered": [1.0, 4.0]}
    cell = row(num_ranks=4, impi=[8.0, 8.0], floor_private=[6.0, 4.5], **bounds)
    assert row(num_ranks=4, floor_private=[6.0], floor_staged=[8.0]).floor("no cma") == [8.0]
    assert cell.floor("hocket") == cell.floor("no cma") == [6.0, 4.5]
    assert cell.floor("registered") == [3.0, 4.5]  # turns and copies use the same cores; at most private memory
    assert row(num_ranks=4, **bounds).floor("hocket") == [
        3.0,
        5.0,
    ]  # for example bfloat16, which has no hand-written code
    assert row(num_ranks=4, floor_turns=[2.0]).floor("registered") == [2.0]
    assert row(num_ranks=4, floor_registered=[2.0], floor_private=[3.0]).floor("registered") == [2.0]
    assert row(num_ranks=4).floor("hocket") == row(num_ranks=4).floor("registered") == []


# By cell: the seconds of Hocket, of the MPI and of the floor.
@pytest.mark.parametrize(
    ("aggregate", "limit", "cells", "words"),
    [
        ("worst", 2.0, [(1, 2, 1)], ""),
        (
            "worst",
            2.1,
            [(1, 2, 1), (2, 2, 0.5)],
            "out of reach: 1 of 2 cells, where the floor reaches at most 2.00",
        ),
        (
            "worst",
            2.1,
            [(1, 4, 1), (2, 2, 0.5)],
            "out of reach: none of 1 cells, where the floor reaches 4.00 or more",
        ),
        ("worst", 1.0, [(4, 2, 3)], "out of reach: none of 1 cells, where the floor reaches 1.00 or more"),
        ("worst", 9.0, [(1, 2, 3)], "out of reach: 1 of 1 cells, where the floor reaches at most 2.00"),
        ("mean", 2.0, [(1, 1, 0.5), (1, 1, 0.125)], "the floor has a mean of 4.00 in 2 cells"),
        ("mean", 5.0, [(1, 1, 0.5), (1, 1, 0.125)], "out of reach: the floor has a mean of 4.00 in 2 cells"),
        ("mean", 1.0, [(1, 1, 0.5)], ""),
    ],
)
def test_what_is_out_of_reach(
    aggregate: str, limit: float, cells: list[tuple[float, float, float]], words: str
) -> None:
    rows = [row(hocket=[ours], impi=[theirs], floor_private=[least]) for ours, theirs, least in cells]
    outcome = goals.outcome(Goal("a goal", goals.PRIVATE, limit, Cells((2,)), aggregate), rows, {})
    assert outcome.beyond == words
    assert not outcome.reached or not words
    assert (words in report.goal_lines([outcome])) or not words


def test_nothing_is_said_where_no_floor_is_known() -> None:
    rows = [row(hocket=[2.0], impi=[2.0]), row(hocket=[2.0], gloo=[2.0], floor_private=[1.0])]
    assert goals.outcome(Goal("a goal", goals.PRIVATE, 3.0, Cells((2,))), rows, {}).beyond == ""
    assert goals.outcome(Goal("a goal", goals.PRIVATE, 3.0, Cells((2,)), "mean"), rows, {}).beyond == ""
    assert "1 of 1" in goals.outcome(Goal("a goal", Faster("hocket", "gloo"), 3.0, Cells((2,))), rows, {}).beyond


def test_the_floor_stands_beside_its_cell() -> None:
    cell = row(hocket=[2e-6], impi=[4e-6], floor_private=[1e-6], floor_registered=[0.5e-6], empty_calls=[0.04e-6])
    head, line = report.table([cell]).splitlines()
    assert "at most" in head
    assert "4.00x / 8.00x" in line
    assert report.at_most(row(hocket=[2e-6], impi=[4e-6])) == "-"
