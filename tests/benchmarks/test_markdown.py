"""The tables that compare.py makes of a result."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import compare
from comparison import goals, markdown, report
from comparison.results import Row, Run


def row(operation: str, num_bytes: int, num_ranks: int = 2, dtype: str = "float32", **seconds: list[float]) -> Row:
    return Row(operation, num_bytes, dtype, num_ranks, {name: {"touched": found} for name, found in seconds.items()})


ROWS = [
    row(
        "all_reduce",
        64 << 10,
        hocket=[1.0, 2.0, 1.0],
        registered=[1.0, 1.0, 1.0],
        impi=[4.0, 2.0, 2.0],
        mpich=[9.0] * 3,
    ),
    row("all_reduce", 8, hocket=[1.0], impi=[1.5]),
    row("all_reduce", 8, dtype="bfloat16", hocket=[1.0], gloo=[2.0]),
    row("all_reduce", 64 << 10, dtype="bfloat16", hocket=[1.0], registered=[0.5], mpich=[2.0]),
    row("reduce", 8, dtype="bfloat16", hocket=[1.0]),  # without an MPI
    row("barrier", 0, hocket=[1.0], registered=[1.0], impi=[1.25]),
]
TABLE = """\
| operation | 8 B | 64 KiB |
|---|---|---|
| all_reduce | 1.50 (1.50..1.50) | 2.00 (1.00..4.00) / 2.00 |
| all_reduce, bfloat16 | | 2.00 (2.00..2.00) / 4.00 |
| barrier | 1.25 (1.25..1.25) | |"""


def test_a_table_has_operations_down_and_sizes_across() -> None:
    assert markdown.table(ROWS) == TABLE
    again = row("all_reduce", 8, hocket=[1.0], impi=[3.0])
    assert "| all_reduce | 3.00 (3.00..3.00) |" in markdown.table([*ROWS, again])
    assert markdown.table([ROWS[-1]]).splitlines()[-1] == "| barrier | 1.25 (1.25..1.25) |"


def test_bfloat16_stands_beside_gloo_by_ranks() -> None:
    four = row("reduce", 8, 4, "bfloat16", hocket=[1.0, 2.0, 1.0], registered=[2.0, 2.0, 2.0], gloo=[6.0, 6.0, 900.4])
    text = markdown.tables(Run("a machine", [*ROWS, four]))
    assert text.endswith(
        "**bfloat16, compared with Gloo (torch.distributed)**\n\n"
        "| operation | 8 B |\n|---|---|\n"
        "| all_reduce, 2 ranks | 2.00 (2.00..2.00) |\n"
        "| reduce, 4 ranks | 6.00 (3.00..900) / 3.00 |"
    )
    assert "bfloat16, compared with" not in markdown.tables(Run("a machine", [ROWS[0]]))


def test_a_cell_of_a_busy_row_is_marked() -> None:
    legend = "Cells marked ! were measured while others used more than 5% of all cores."
    cell = row("all_reduce", 8, hocket=[1.0], registered=[1.0], impi=[1.5])
    cell.loads = [0.9, 0.01, 0.02]
    quiet = markdown.tables(Run("a machine", [cell]))
    assert legend not in quiet
    assert quiet.endswith("| all_reduce | 1.50 (1.50..1.50) / 1.50 |")
    cell.loads = [0.9, 0.01, 0.06]
    busy = markdown.tables(Run("a machine", [cell]))
    assert legend in busy
    assert busy.endswith("| all_reduce | 1.50 (1.50..1.50) / 1.50 ! |")


def test_all_tables_come_from_one_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [*ROWS, row("broadcast", 8, 8, hocket=[1.0], impi=[3.0])]
    settings = {2: {"hocket": "default", "impi": "shared memory"}, 8: {}}
    run = Run("a machine; a command", rows, settings, costs={"communicators": "# caption\n| ranks |\n|---|\n| 2 |"})
    report.write_json(tmp_path / "result", run, [])
    monkeypatch.setattr(sys, "argv", ["compare.py", "--read", str(tmp_path / "result"), "--table", "--report-only"])
    assert compare.main() == 0
    two = f"**2 ranks** (Intel MPI: shared memory)\n\n{TABLE}"
    eight = "**8 ranks**\n\n| operation | 8 B |\n|---|---|\n| broadcast | 3.00 (3.00..3.00) |"
    gloo = "**bfloat16, compared with Gloo (torch.distributed)**\n\n| operation | 8 B |\n|---|---|\n"
    halves = gloo + "| all_reduce, 2 ranks | 2.00 (2.00..2.00) |"
    costs = "caption\n\n| ranks |\n|---|\n| 2 |"
    assert capsys.readouterr().out == "\n\n".join([run.machine, two, eight, halves, costs, goals.summary(rows) + "\n"])
