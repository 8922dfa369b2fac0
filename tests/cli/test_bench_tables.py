"""The tables of `hocket bench`: in a narrow terminal, and of several algorithms side by side."""

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from hocket.cli.bench import bench_report, measure
from tests.cli.test_bench import SHORT, rows_of


@pytest.mark.parametrize(("width", "last"), [(79, "busbw"), (155, "bound(us)"), (156, "%bound"), (None, "%bound")])
def test_a_narrow_terminal_leaves_out_columns_from_the_right(
    width: int | None, last: str, bench: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_report, "terminal_width", lambda: width)
    found = bench("all_reduce", "-b", "8", "-e", "8", *SHORT).splitlines()
    (names,) = [line for line in found if "algbw" in line]
    assert names.split()[-1] == last and found[found.index(names) + 2].startswith(" " * 11 + "8")
    assert all(width is None or len(line) <= width for line in found)
    assert any(line.startswith("# The terminal is too narrow for ") for line in found) == (width in (79, 155))


def test_algorithms_are_compared_side_by_side(bench: Callable[..., str]) -> None:
    call = ("all_reduce", "--algorithm", "ring,direct_two_shot,direct", "-b", "8", "-e", "1K", "-f", "8", *SHORT)
    found = bench(*call)
    (names,) = [line for line in found.splitlines() if line.startswith("#       size")]
    place = ["size", "count", "type", "redop", "root"]
    assert names.split() == ["#", *place, "ring", "direct_two_shot", "direct", "bound(us)"]
    rows = rows_of(found)
    assert [row[0] for row in rows] == ["8", "64", "512"]
    for row in rows:
        times = {float(cell.rstrip("*")): cell for cell in row[5:8]}
        assert times[min(times)].endswith("*") and any(not cell.endswith("*") for cell in row[5:8])
    results = json.loads(bench(*call, "--json"))["results"]
    assert [(one["size"], one["algorithm"]) for one in results] == [
        (size, name) for size in (8, 64, 512) for name in ("ring", "direct_two_shot", "direct")
    ]
    rows = list(csv.DictReader(io.StringIO(bench(*call, "--format", "csv"))))
    assert [row["algorithm"] for row in rows[:3]] == ["ring", "direct_two_shot", "direct"]


def test_of_compared_algorithms_a_wrong_one_is_never_the_fastest(
    bench: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: Any, case: Any) -> int:
        self.calls = getattr(self, "calls", 0) + 1
        return int(self.calls == 1)  # that of ring

    monkeypatch.setattr(measure.Bench, "_wrong", wrong)
    [row] = rows_of(bench("all_reduce", "--algorithm", "ring,direct", "-b", "8", "-e", "8", *SHORT))
    assert row[5] == "wrong" and row[6].endswith("*")
