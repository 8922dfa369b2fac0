"""The tables of `hocket bench`: in a narrow terminal, and of several algorithms side by side."""

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from hocket.cli.bench import bench_report, measure
from hocket.cli.bench.bench_comparison import clearly_fastest
from tests.cli.test_bench import SHORT, rows_of


@pytest.mark.parametrize(
    ("width", "last"),
    [
        (79, ["busbw", "%bound", "%bound"]),
        (155, ["bound(us)", "%bound"]),
        (156, ["%bound"]),
        (None, ["%bound"]),
    ],
)
def test_columns_that_do_not_fit_the_terminal_come_in_blocks_below(
    width: int | None, last: list[str], bench: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_report, "terminal_width", lambda: width)
    found = bench("all_reduce", "-b", "8", "-e", "8", *SHORT).splitlines()
    heads = [number for number, line in enumerate(found) if line.startswith("#       size")]
    assert [found[head].split()[-1] for head in heads] == last
    assert all(found[head + 2].startswith(" " * 11 + "8") for head in heads)
    assert all(width is None or len(line) <= width for line in found)
    names = [name for head in heads for name in found[head].split()[1:] if name != "size"]
    place = ["count", "type", "redop", "root"]
    assert names == [*place, *["time", "algbw", "busbw", "#wrong"] * 2, *["bound(us)", "%bound"] * 2]
    assert all("out" in found[head - 1] or "in" in found[head - 1] for head in heads)


def test_what_is_compared_comes_before_what_is_the_same_for_all(
    bench: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_report, "terminal_width", lambda: 80)
    found = bench("all_reduce", "--algorithm", "ring,direct_two_shot,direct", "-b", "8", "-e", "64", "-f", "8", *SHORT)
    first, second = [line.split()[1:] for line in found.splitlines() if line.startswith("#       size")]
    assert first == ["size", "ring", "direct_two_shot", "direct", "bound(us)", "count"]
    assert second == ["size", "type", "redop", "root"]
    assert [row[0] for row in rows_of(found)] == ["8", "64"] * 2


def test_algorithms_are_compared_side_by_side(bench: Callable[..., str]) -> None:
    call = ("all_reduce", "--algorithm", "ring,direct_two_shot,direct", "-b", "8", "-e", "1K", "-f", "8", *SHORT)
    found = bench(*call)
    (names,) = [line for line in found.splitlines() if line.startswith("#       size")]
    place = ["size", "count", "type", "redop", "root"]
    assert names.split() == ["#", *place, "ring", "direct_two_shot", "direct", "bound(us)"]
    rows = rows_of(found)
    assert [row[0] for row in rows] == ["8", "64", "512"]
    for row in rows:
        times = [float(cell.rstrip("*")) for cell in row[5:8]]
        marked = [time for time, cell in zip(times, row[5:8], strict=True) if cell.endswith("*")]
        assert marked in ([], [min(times)])
    results = json.loads(bench(*call, "--json"))["results"]
    assert [(one["size"], one["algorithm"]) for one in results] == [
        (size, name) for size in (8, 64, 512) for name in ("ring", "direct_two_shot", "direct")
    ]
    rows = list(csv.DictReader(io.StringIO(bench(*call, "--format", "csv"))))
    assert [row["algorithm"] for row in rows[:3]] == ["ring", "direct_two_shot", "direct"]


def timing(low: float | None, high: float | None, num_wrong: int = 0) -> bench_report.Timing:
    return bench_report.Timing(2.0, 2.0, 2.0, 2.0, 20, low, high, None, num_wrong)


@pytest.mark.parametrize(
    ("timings", "fastest"),
    [
        ((timing(1, 2), timing(3, 4)), 0),
        ((timing(3, 4), timing(1, 2), timing(2.5, 9)), 1),
        ((timing(1, 3), timing(2, 4)), None),  # ranges overlap
        ((timing(1, 2, num_wrong=1), timing(3, 4)), 1),
        ((timing(None, None), timing(None, None)), None),  # one round each
        ((timing(1, 2), None), 0),
    ],
)
def test_only_an_algorithm_whose_rounds_do_not_overlap_with_others_is_the_fastest(
    timings: tuple[bench_report.Timing | None, ...], fastest: int | None
) -> None:
    assert clearly_fastest(timings) is (None if fastest is None else timings[fastest])


def test_of_compared_algorithms_a_wrong_one_is_never_the_fastest(
    bench: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: Any, case: Any) -> int:
        self.calls = getattr(self, "calls", 0) + 1
        return int(self.calls == 1)  # that of ring

    monkeypatch.setattr(measure.Bench, "_wrong", wrong)
    [row] = rows_of(bench("all_reduce", "--algorithm", "ring,direct", "-b", "8", "-e", "8", *SHORT, "-n", "5"))
    assert row[5] == "wrong" and row[6].endswith("*")
