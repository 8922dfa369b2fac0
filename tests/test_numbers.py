"""The measured numbers in README and docs are those of docs/numbers.json, or of the lab book."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from comparison import published, report
from comparison.results import Row, Run

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs" / "numbers.py"
DATA = json.loads((ROOT / "docs" / "numbers.json").read_text())
RULE = re.compile(r'\*Measured: (.*?)\s\("([^"]*)"\)\.\*', re.DOTALL)
MACHINE = (
    "2026-12-01, 5 rounds, 4141 s, AMD EPYC (family 26 model 2; avx2 f16c), L2 1024K, x86_64, 2 cores, Linux 6.18; "
    "`python benchmarks/compare.py --json result.json`; Python 3.11.7, hocket 0.1.0"
)


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("numbers_of_the_docs", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(operation: str, num_bytes: int, num_ranks: int, **seconds: list[float]) -> Row:
    return Row(
        operation, num_bytes, "float32", num_ranks, {name: {"touched": times} for name, times in seconds.items()}
    )


SIZES = (8, 64 << 10, 64 << 20)


def a_run() -> Run:
    """A run that is three times as fast as the MPI, except for messages of 8 B."""
    rows = [
        row(operation, size, ranks, hocket=[1.0, 1.0, 1.0], impi=[2.0, 3.0, 4.0], gloo=[7.0, 7.0, 7.0])
        for ranks in (2, 8)
        for operation in ("all_reduce", "send_recv")
        for size in SIZES
    ]
    slow = next(row for row in rows if (row.operation, row.num_bytes, row.num_ranks) == ("send_recv", 8, 2))
    slow.seconds["hocket"]["touched"] = [1.5, 1.5, 1.5]
    return Run(MACHINE, rows)


def before() -> dict[str, Any]:
    """The JSON file, as if its last run had the cells of this one."""
    ratios = {"all_reduce": [1.0] * 3, "send_recv": [1.0] * 3}
    table = {"run": "compare", "sizes": ["8 B", "64 KiB", "64 MiB"], "ranks": {"2": ratios, "8": ratios}}
    return DATA | {"speed_up_over_fastest_mpi": table}


def test_the_pages_have_these_numbers() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_mark_is_closed_and_none_begins_a_line_of_text() -> None:
    module = script()
    for page in module.PAGES:
        text = page.read_text()
        assert text.count("<!-- numbers:") == len(module.MARKS.findall(text)), page
        # A line that begins with a comment is HTML: the rest of the line is not Markdown.
        assert not re.search(r"^ *<!-- (?:numbers:\w+|end) -->.", text, re.MULTILINE), page


def test_a_page_that_differs_is_found_and_rewritten() -> None:
    text = "mean <!-- numbers:mean -->9.99<!-- end -->, first <!-- numbers:first --><!-- end -->"
    data = before() | {"numbers": {"first": {"value": 18.0, "unit": "ms"}}}
    filled = script().filled(text, data)
    assert filled == "mean <!-- numbers:mean -->1.00<!-- end -->, first <!-- numbers:first -->18 ms<!-- end -->"
    with pytest.raises(KeyError, match="no_such_number"):
        script().filled("<!-- numbers:no_such_number --><!-- end -->", DATA)


def test_every_number_has_its_run() -> None:
    for run in DATA["runs"].values():
        assert set(run) == {"date", "machine", "command"} and all(run.values())
    tables = [DATA["speed_up_over_fastest_mpi"], DATA["all_reduce_of_64_mib_over_gloo"], DATA["goals"]]
    for number in [*tables, *DATA["numbers"].values()]:
        assert number["run"] in DATA["runs"]
    assert published.text(DATA) == (ROOT / "docs" / "numbers.json").read_text()


def test_a_result_of_compare_replaces_speed_ups_and_goals(tmp_path: Path) -> None:
    report.write_json(tmp_path / "result.json", a_run(), [])
    taken = published.taken(str(tmp_path / "result.json"), before())
    command = "python benchmarks/compare.py --json result.json"
    machine = "AMD EPYC (family 26 model 2), L2 1024K, x86_64, 2 cores, Linux 6.18"
    new = {"date": "2026-12-01", "machine": machine, "command": command}
    assert taken["runs"]["compare-2026-12-01"] == new
    assert all(number["run"] in taken["runs"] for number in DATA["numbers"].values())
    found = taken["speed_up_over_fastest_mpi"]
    assert found["sizes"] == ["8 B", "64 KiB", "64 MiB"]
    assert found["ranks"]["2"] == {"all_reduce": [3.0, 3.0, 3.0], "send_recv": [2.0, 3.0, 3.0]}
    assert taken["all_reduce_of_64_mib_over_gloo"]["ranks"] == {"2": 7.0, "8": 7.0}
    missed = next(goal for goal in taken["goals"]["missed"] if goal["goal"].startswith("2 ranks, private, to 1 KiB"))
    assert missed == {
        "goal": "2 ranks, private, to 1 KiB, every operation",
        "at_least": 2.5,
        "found": 2.0,
        "where": "send_recv 8 B 2 ranks",
        "behind": 1,
        "cells": 2,
        "out_of_reach": 0,
    }
    page = script().filled("<!-- numbers:cells --><!-- end --><!-- numbers:missed --><!-- end -->", DATA | taken)
    assert "| send_recv | 2 | 2.00 | 3.00 | 3.00 |" in page
    assert "at least 2.5, measured 2 (send_recv 8 B 2 ranks); missed in 1 of 2 cells\n" in page


def test_a_part_of_a_run_replaces_nothing(tmp_path: Path) -> None:
    file, run = tmp_path / "result.json", a_run()
    report.write_json(file, Run(MACHINE, run.rows[1:]), [])
    with pytest.raises(ValueError, match="a part of a full run"):
        published.taken(str(file), before())
    report.write_json(file, Run(MACHINE.replace("5 rounds", "ended early, 5 rounds"), run.rows), [])
    with pytest.raises(ValueError, match="not from one whole run"):
        published.taken(str(file), before())


def test_every_rule_has_its_measurement_in_the_lab_book() -> None:
    lab = "\n".join(path.read_text() for path in sorted((ROOT / "docs" / "lab").glob("*.md")))
    paragraphs = {
        " ".join(found[1].split()).rstrip(".,"): found[0].replace(",", "")
        for found in re.finditer(r"^\*\*(.*?)\*\*.*?(?=^\*\*|\Z)", lab, re.MULTILINE | re.DOTALL)
    }
    rules = [
        (" ".join(measured.split()), " ".join(title.split()))
        for measured, title in RULE.findall((ROOT / "docs" / "what-we-learned.md").read_text())
    ]
    assert len(rules) == 12
    for measured, title in rules:
        for number in re.findall(r"\d+(?:\.\d+)?", measured):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d]|\.\d)", paragraphs[title]), f"{title}: {number}"
