"""The arithmetic of benchmarks/compare.py: expected results, ratios and goals. No peer is needed."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import compare
from comparison import floor, goals, measuring, report, values
from comparison.goals import Cells, Goal
from comparison.results import Row, Run, geometric_mean, size_name, together


def row(operation: str = "all_reduce", num_bytes: int = 8, num_ranks: int = 2, **medians: list[float]) -> Row:
    seconds = {name.replace("_", " "): {"touched": times} for name, times in medians.items()}
    return Row(operation, num_bytes, "float32", num_ranks, seconds)


def test_ratios_are_against_the_mpi_with_the_least_median() -> None:
    cell = row(hocket=[1.0, 2.0, 1.0], openmpi=[3.0, 3.0, 9.0], impi=[1.0, 4.0, 5.0], gloo=[0.5, 0.5, 0.5])
    assert cell.best_mpi() == "openmpi"
    assert cell.ratios("hocket", "openmpi") == [3.0, 1.5, 9.0]
    assert cell.ratio("hocket") == 3.0
    assert cell.ratio("hocket", "gloo") == 0.5
    assert cell.ratio("registered") is None
    assert row(hocket=[1.0]).ratio("hocket") is None


def test_times_of_a_row_are_those_of_one_round() -> None:
    cell = row(hocket=[1.0, 9.0, 2.0], impi=[4.0, 9.0, 6.0], registered=[0.5, 8.0, 0.6], gloo=[7.0])
    assert cell.typical_round() == 2  # ratios 4, 1 and 3
    assert [cell.typical(name) for name in ("hocket", "impi", "registered")] == [2.0, 6.0, 0.6]
    assert cell.typical("gloo") is None
    assert row(hocket=[3.0, 1.0], impi=[3.0, 2.0]).typical("hocket") == 3.0  # of two rounds, the lower ratio
    assert row(hocket=[3.0, 1.0, 2.0]).typical("hocket") == 2.0


def test_an_mpi_that_trails_is_not_measured_again() -> None:
    cell = row(hocket=[0.1], registered=[30.0], impi=[1.0, 9.0], openmpi=[2.5], mpich=[2.6])
    trailing = [name for name in ("hocket", "registered", "impi", "openmpi", "mpich", "gloo") if cell.trails(name, 2.5)]
    assert trailing == ["mpich"]
    assert not row(hocket=[0.1]).trails("mpich", 2.5)


@pytest.mark.parametrize(
    ("num_ranks", "given"),
    [
        (2, [[], [], ["lined", "staged"]]),  # the first measurement takes 0.1 s, the second 1 s
        (4, [[], ["lined", "staged"]]),  # with many ranks it keeps its time, too
    ],
)
def test_a_floor_that_took_long_keeps_its_ways(
    num_ranks: int, given: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, found = iter([0.0, 0.1, 1.0, 2.0, 3.0, 3.1]), []

    def measure(*arguments: Any) -> floor.Found:
        found.append(arguments[-1])
        return floor.Found({"touched": 1.0}, ["lined", "staged"])

    monkeypatch.setattr(measuring.floor, "measure", measure)
    monkeypatch.setattr(measuring.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(measuring.floor, "MEMORIES", ("private",))
    comparison = measuring.Comparison(Run(), [], num_ranks, 64, measuring.QUICK, Path(), Path("floor"))
    monkeypatch.setattr(comparison, "_python", lambda _: 0.0)
    monkeypatch.setitem(comparison.groups, "hocket", None)
    for _ in range(3):
        comparison._measure_floor(Row("broadcast", 64, "float32", num_ranks))
    assert found == given


def test_where_there_is_no_floor_it_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(measuring.floor, "measure", lambda program, row, memory, *_: asked.append(memory))
    comparison = measuring.Comparison(Run(), [], 4, 64, measuring.QUICK, Path(), Path("floor"))
    monkeypatch.setattr(comparison, "_python", lambda _: 0.5)
    monkeypatch.setitem(comparison.groups, "hocket", None)
    for _ in range(2):  # otherwise later times would count for earlier rounds
        comparison._measure_floor(cell := Row("all_gather", 64, "float32", 4))
    assert asked == ["private", "registered", "turns"]
    assert cell.seconds == {}


def test_what_private_memory_does_bounds_registered_memory_of_two_ranks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"private": 2.0, "registered": 3.0, "turns": 1.0}
    monkeypatch.setattr(
        measuring.floor, "measure", lambda program, row, memory, *_: floor.Found({"touched": times[memory]}, [])
    )
    for num_ranks, registered in ((2, 2.5), (4, 3.0)):
        comparison = measuring.Comparison(Run(), [], num_ranks, 64, measuring.QUICK, Path(), Path("floor"))
        monkeypatch.setattr(comparison, "_python", lambda _: 0.5)
        monkeypatch.setitem(comparison.groups, "hocket", None)
        cell = Row("all_gather", 64, "float32", num_ranks)
        comparison._measure_floor(cell)
        assert cell.times("floor staged") == cell.times("floor private")
        assert cell.times("floor registered") == [registered]
        assert cell.times("floor turns") == ([] if num_ranks == 2 else [1.5])  # it has Python's time for both


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_what_attaches_has_a_floor_without(num_ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"private": 2.0, "staged": 3.0, "registered": 1.0, "turns": 1.0}
    best = {2: "attached:both:64:64:1:", 4: "fetched:taker:64:64:0:"}[num_ranks]
    monkeypatch.setattr(
        measuring.floor, "measure", lambda program, row, memory, *_: floor.Found({"touched": times[memory]}, [best])
    )
    comparison = measuring.Comparison(Run(), [], num_ranks, 64, measuring.QUICK, Path(), Path("floor"))
    monkeypatch.setattr(comparison, "_python", lambda _: 0.5)
    monkeypatch.setitem(comparison.groups, "hocket", None)
    cell = Row("all_gather", 64, "float32", num_ranks)
    comparison._measure_floor(cell)
    assert cell.times("floor private") == [2.5]
    assert cell.times("floor staged") == [3.5]
    assert cell.times("floor registered") == [1.5 if num_ranks == 2 else 1.0]


def test_a_row_says_in_which_mode_the_machine_was() -> None:
    cell = row(hocket=[1e-6, 2e-6], impi=[2e-6, 2e-6])
    assert report.hop(cell) == "-"
    cell.hops = [50e-9, 220e-9]
    assert report.hop(cell) == "220 (50..220)"
    assert "220 (50..220)" in report.table([cell])


class FakeGroup:
    """Two ranks; each answer has the next seconds of the loop and of the touching alone, by batch."""

    def __init__(self, *answers: tuple[list[float], list[float]]) -> None:
        self.answers = list(answers)

    def ask(self, task: str, **_: object) -> list[dict[str, list[float]]]:
        loop, touch = self.answers.pop(0)
        return [{"touched": loop, "touch": touch}, {"touched": [1.0] * len(loop), "touch": [0.5] * len(loop)}]


@pytest.mark.parametrize(
    ("answers", "seconds"),
    [
        ([([8.0], [2.0])], 3.0),
        ([([8.0, 20.0, 9.0], [2.0, 14.0, 13.0])], 3.0),  # the median of the differences
        ([([8.0], [9.0]), ([6.0], [2.0])], 2.0),  # disturbed, so it is measured again
        ([([8.0], [9.0]), ([8.0], [8.0]), ([4.0], [9.0])], 0.02),  # a short call
    ],
)
def test_touching_is_subtracted(answers: list[tuple[list[float], list[float]]], seconds: float) -> None:
    group = FakeGroup(*answers)
    found = measuring.values_of(group, row(), "private", 8, measuring.Batches(2, 1), untouched=False)
    assert found["touched"] == pytest.approx(seconds)
    assert group.answers == []


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_sizes_are_read_and_written() -> None:
    assert [size_name(compare.num_bytes(text)) for text in ("8", "64K", "16M")] == ["8 B", "64 KiB", "16 MiB"]


@pytest.mark.parametrize(
    ("aggregate", "at_most", "limit", "value", "reached"),
    [
        ("worst", False, 2.0, 2.0, True),  # the limit itself is enough
        ("worst", False, 2.1, 2.0, False),
        ("mean", False, 4.0, 4.0, True),
        ("worst", True, 8.0, 8.0, True),  # the worst is now the greatest
        ("worst", True, 7.0, 8.0, False),
    ],
)
def test_goal(aggregate: str, at_most: bool, limit: float, value: float, reached: bool) -> None:
    cells = [row(num_bytes=8, hocket=[1.0], impi=[2.0]), row(num_bytes=64, hocket=[1.0], impi=[8.0])]
    goal = Goal("a goal", goals.PRIVATE, limit, Cells((2,)), aggregate, at_most)
    outcome = goals.outcome(goal, cells, {})
    assert outcome.value == pytest.approx(value)
    assert outcome.reached is reached


def test_what_was_not_measured_is_not_reached() -> None:
    outcome = goals.outcome(Goal("a goal", goals.PRIVATE, 0.0, Cells((4,))), [row(hocket=[1.0], impi=[2.0])], {})
    assert (outcome.value, outcome.reached, outcome.worst) == (None, False, "not measured")
    assert not goals.outcome(Goal("a cost", "late", 0.03, at_most=True), [], {}).reached
    assert goals.outcome(Goal("a cost", "late", 0.03, at_most=True), [], {"late": 0.01}).reached


# The cell lacks everything, or one round, in which a result may have been wrong.
@pytest.mark.parametrize("ours", [{}, {"hocket": [1.0]}])
def test_where_ours_failed_a_goal_is_not_reached(ours: dict[str, list[float]]) -> None:
    cells = [row(hocket=[1.0, 1.0], impi=[4.0, 4.0]), row(num_bytes=64, impi=[4.0, 4.0], **ours)]
    outcome = goals.outcome(Goal("a goal", goals.PRIVATE, 1.0, Cells((2,))), cells, {})
    assert (outcome.value, outcome.reached) == (None, False)
    assert outcome.worst == "hocket not measured to the end in 1 of 2: all_reduce 64 B 2 ranks"
    assert not goals.outcome(Goal("a goal", goals.Seconds("hocket"), 9.0, Cells((2,)), at_most=True), cells, {}).reached
    assert goals.summary(cells) == (
        "cells ahead 1 of 2, geometric mean 4.00, worst 4.00 (all_reduce 8 B 2 ranks), "
        "hocket not measured to the end in 1 (all_reduce 64 B 2 ranks)"
    )
    words = "cells ahead 0 of 1, hocket not measured to the end in 1 (all_reduce 64 B 2 ranks)"
    assert goals.summary(cells[1:]) == words


def test_a_round_in_which_all_failed_is_lacked() -> None:
    cell = row(hocket=[1.0], impi=[2.0])
    assert not cell.lacks("hocket")
    cell.loads = [0.0, 0.0]
    assert cell.lacks("hocket")


def test_a_goal_is_about_what_was_to_be_measured() -> None:
    cells = [row(no_cma=[1.0], impi=[2.0]), row(num_bytes=64, impi=[2.0])]
    goal = Goal("a goal", goals.STAGED, 1.0, Cells((2,)))
    assert not goals.outcome(goal, cells, {}).reached
    cells[1].left_out = ["no cma"]
    assert goals.outcome(goal, cells, {}).reached
    assert not goals.outcome(goal, [*cells, row(num_bytes=1024)], {}).reached  # no round reached this cell


def test_goals_across_cells() -> None:
    size = 64 << 20
    cells = [
        row("all_reduce", size, 4, registered=[4.0, 8.0, 4.0]),
        row("reduce_scatter", size, 4, registered=[2.0, 4.0, 3.0]),
        row("all_reduce", size, 2, hocket=[3.0]),
    ]
    assert goals.across_rows(cells) == {"reduce_scatter": 0.5}
    halves = row("all_reduce", size, 2, hocket=[4.0])
    halves.dtype = "bfloat16"
    assert goals.across_rows([*cells, halves])["bfloat16"] == pytest.approx(1.5)
    of_four = [row("all_reduce", size, 4, hocket=[time]) for time in (2.0, 4.0)]
    of_four[1].dtype = "bfloat16"
    assert goals.across_rows([cells[2], halves, *of_four])["bfloat16"] == pytest.approx(1.0)  # the least
    halves.seconds["gloo"] = {"touched": [5.0, 5.0]}  # there was a round without Hocket
    assert "bfloat16" not in goals.across_rows([*cells, halves])
    assert "bfloat16" not in goals.across_rows([cells[2], halves, *of_four])  # whatever other rank counts reach


def test_the_price_of_no_cross_memory_attach() -> None:
    cells = [
        row(hocket=[1.0, 1.0, 2.0], no_cma=[2.0, 3.0, 4.0]),  # the median ratio is 2
        row(num_bytes=64, hocket=[2.0], no_cma=[1.0], impi=[1.0]),
        row(num_bytes=64, num_ranks=4, hocket=[2.0], no_cma=[3.0]),
        row(num_ranks=8, hocket=[2.0]),
    ]
    two, four = report.text(Run(rows=cells), []).splitlines()[-2:]
    assert re.fullmatch(r"price +2 ranks, .* 1 +worst 2: all_reduce 8 B 2 ranks, of 2", two)
    assert re.fullmatch(r"price +4 ranks, .* 1.5 +worst 1.5: all_reduce 64 B 4 ranks, of 1", four)
    assert report.price_lines([row(hocket=[1.0])]) == []


def test_time_over_the_floor() -> None:
    assert goals.Over("registered", "floor registered")(row(registered=[3.0], floor_registered=[2.0])) == 1.5


def test_a_quick_run_has_cells_for_every_goal() -> None:
    cells = [cell for ranks in (2, 4, 8) for cell in compare.cells(values.OPERATIONS, [], ranks, quick=True)]
    for goal in goals.GOALS:
        assert goal.cells is None or any(goal.cells.has(cell) for cell in cells), goal.name
        assert goal.cells is not None or isinstance(goal.value, str), goal.name


def test_a_quick_run_says_what_it_leaves_out() -> None:
    """Every cell of a full run is measured or named as left out, and so is every library."""
    assert compare.quick_leaves_out(["impi"], [8]) == (
        "bfloat16 except 8 B, 64 KiB, 64 MiB with 2 ranks; hocket without cross-memory attach below 64 KiB"
    )
    assert compare.quick_leaves_out(["gloo", "impi"], []) == (
        "2 ranks: 64 B, 512 KiB; more ranks: 64 B, 1 KiB, 512 KiB, 64 MiB (the last one except all_reduce and "
        "reduce_scatter); bfloat16 except 8 B, 64 KiB, 64 MiB with 2 ranks; Gloo except all_reduce with 2 ranks; "
        "hocket without cross-memory attach below 64 KiB"
    )
    for ranks, missing in ((2, {64, 512 << 10}), (4, {64, 1 << 10, 512 << 10, 64 << 20})):
        full, quick = (
            {(cell.operation, cell.num_bytes) for cell in compare.cells(values.OPERATIONS, [], ranks, is_quick)}
            for is_quick in (False, True)
        )
        assert {size for _, size in full - quick} == missing
    kept = {name for name, size in quick if size == 64 << 20}
    assert kept == {"all_reduce", "reduce_scatter"}


def test_a_plot_has_a_line_of_its_own_for_each_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot

    drawn: list[Any] = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    names = [name.replace(" ", "_") for name in report.COLUMNS]
    cells = [row(num_bytes=size, **{name: [1e-6 * (at + 1)] for at, name in enumerate(names)}) for size in (8, 64)]
    report.plot(tmp_path / "plot.png", [*cells, row("barrier", 0, hocket=[1.0])])
    [figure] = drawn
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == [name for name in report.COLUMNS if name != "empty calls"]
    assert len({tuple(line.get_color()) for line in lines}) == len(lines)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.undo()
    pyplot.close(figure)


@pytest.mark.parametrize(
    ("num_ranks", "quick", "sizes"),
    [(2, False, compare.SIZES), (8, False, compare.SIZES), (2, True, (8, 65536, 64 << 20)), (4, True, ())],
)
def test_bfloat16_is_measured_where_sums_are_made(num_ranks: int, quick: bool, sizes: tuple[int, ...]) -> None:
    cells = compare.cells(values.OPERATIONS, [], num_ranks, quick)
    halves = [(cell.operation, cell.num_bytes) for cell in cells if cell.dtype == "bfloat16"]
    assert halves == [(name, size) for name in ("all_reduce", "reduce_scatter", "reduce") for size in sizes]
    said = "# bfloat16: only operations that add" in report.text(Run(rows=cells), [])
    assert said is bool(halves)


def test_summary_counts_cells_ahead() -> None:
    cells = [row(hocket=[1.0], impi=[4.0]), row(num_bytes=64, hocket=[2.0], impi=[1.0]), row(hocket=[1.0])]
    assert goals.summary(cells) == "cells ahead 1 of 2, geometric mean 1.41, worst 0.50 (all_reduce 64 B 2 ranks)"
    assert goals.summary([]) == "cells ahead 0 of 0"


def test_a_busy_row_is_marked() -> None:
    quiet, busy = row(hocket=[1e-6], impi=[2e-6]), row(hocket=[1e-6], impi=[2e-6])
    quiet.loads, busy.loads = [0.01, 0.9, 0.02], [0.2, 0.3, 0.01]
    head, first, second = report.table([quiet, busy]).splitlines()
    assert "best/hocket" in head
    assert "2.00x (2.00..2.00)" in first
    assert first.endswith("2%")
    assert second.endswith("20%!")


def test_columns_stay_apart_and_name_what_was_not_touched() -> None:
    cell = row(hocket=[1e-6, 1e-6], registered=[1e-6, 1e-6], impi=[29.555e-6, 8001044e-6])
    for name, seconds in (("hocket", 2e-6), ("registered", 1e-6), ("impi", 4e-6)):
        cell.seconds[name]["untouched"] = [seconds]
    head, line = report.table([cell]).splitlines()
    assert "29.55" in line
    assert " 2.00x / 4.00x " in line
    assert re.search(r" \S+x \(\S+\.\.8001044\.00\) \S+x \(", line)
    assert head.split()[-4:] == ["untouched", "hop", "other", "load"]
    del cell.seconds["registered"]["untouched"]
    assert report.untouched(cell) == "2.00x"
    assert report.untouched(row(hocket=[1.0])) == "-"


def test_runs_are_read_back_as_one(tmp_path: Path) -> None:
    one = Run("a machine", [row(hocket=[1e-6], impi=[2e-6])], {2: {"impi": "yield"}}, {"mpich": "why"})
    other = Run(
        "another", [row(num_ranks=4, hocket=[1e-6])], costs={"late": 0.01, "first cold": 0.1, "communicators": ""}
    )
    for name, run in (("one", one), ("other", other)):
        report.write_json(tmp_path / name, run, [goals.outcome(goal, run.rows, {}) for goal in goals.GOALS])
    both = together(report.read_json(str(tmp_path / name)) for name in ("one", "other"))
    assert both == Run("a machine; another", one.rows + other.rows, one.settings, one.absent, other.costs)
    assert "# 2 ranks: Intel MPI yield" in report.text(both, [])


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("operation", values.OPERATIONS)
def test_expected_results_are_those_of_the_definition(operation: str, dtype: str, num_ranks: int) -> None:
    num_bytes = 100_000  # several tables, and not a whole number of them
    shape = values.shape(operation, num_bytes, dtype, num_ranks)
    inputs = [np.resize(values.table(rank, dtype), shape.given) for rank in range(num_ranks)]
    sums = values.encode(sum(np.resize(values.numbers(rank, dtype), shape.given) for rank in range(num_ranks)), dtype)
    for rank in range(num_ranks):
        wanted = {
            "all_reduce": lambda rank: sums,
            "reduce": lambda rank: None if rank else sums,
            "reduce_scatter": lambda rank: np.split(sums, num_ranks)[rank],
            "broadcast": lambda rank: inputs[0] if rank else None,
            "all_gather": lambda rank: np.concatenate(inputs),
            "all_to_all": lambda rank: np.concatenate([np.split(given, num_ranks)[rank] for given in inputs]),
            "send_recv": lambda rank: inputs[rank ^ 1],
            "barrier": lambda rank: None,
        }[operation](rank)
        blocks = values.expected(operation, shape, dtype, rank, num_ranks)
        if wanted is None:
            assert blocks == []
            continue
        found = np.zeros(shape.got, wanted.dtype)
        for block in blocks:
            repeated = np.resize(block.table, block.offset + block.count)
            found[block.start : block.start + block.count] = repeated[block.offset :]
        np.testing.assert_array_equal(found, wanted)


def test_every_rank_gets_an_element() -> None:
    assert values.shape("all_gather", 8, "float32", 8) == (1, 8, False)
    assert values.shape("reduce_scatter", 8, "float32", 8) == (8, 1, False)
    assert values.shape("all_to_all", 8, "bfloat16", 4) == (4, 4, False)
