"""The comparison over TCP: the raw exchange, and the table."""

import argparse
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import hosts
from comparison import building, report
from comparison.contenders import settings
from comparison.measuring import QUICK
from comparison.results import Row, Run


def row(operation: str, **times: list[float]) -> Row:
    made = Row(operation, 8, "float32", 2)
    for name, seconds in times.items():
        for one in seconds:
            made.note(name.replace("_", " "), "touched", one)
    return made


@pytest.mark.parametrize("num_bytes", [8, 1 << 20])
def test_the_raw_exchange_is_measured(tmp_path: Path, num_bytes: int) -> None:
    program = building.compiled(building.LAB / "exchange.cpp", tmp_path / "exchange")
    seconds = hosts.raw_exchange(program, Row("all_reduce", num_bytes, "float32", 2), QUICK)
    assert seconds is not None and 1e-7 < seconds < 1
    assert hosts.raw_exchange(program, Row("broadcast", num_bytes, "float32", 2), QUICK) is None


def test_the_table_compares_with_the_best_other_library() -> None:
    run = Run("a machine")
    run.rows = [
        row("all_reduce", tcp=[2e-6, 2e-6], openmpi=[4e-6, 4e-6], mpich=[9e-6, 9e-6], raw_exchange=[1e-6, 1e-6]),
        row("broadcast", tcp=[2e-6, 2e-6], openmpi=[1e-6, 1e-6]),
        row("all_gather"),
    ]
    run.absent["gloo"] = "it is not here"
    text = hosts.table(run, ["openmpi", "mpich"])
    assert "|all_reduce 8 B|2.00|4.00|9.00|2.00|2.00|" in text
    assert "|broadcast 8 B|2.00|1.00|-|0.50|-|" in text
    assert "|all_gather 8 B|-|-|-|-|-|" in text
    assert "geometric mean of 2 cells: 1.00" in text and "absent: gloo: it is not here" in text
    assert "nothing to compare with" in hosts.table(Run(rows=[row("all_reduce")]), [])


def test_the_goals_of_this_host_are_judged_against_the_best_peer() -> None:
    run, mib = Run("a machine"), 1 << 20
    for num_bytes, ours, openmpi, gloo in (
        (8, 5e-6, 8e-6, 3e-4),
        (64 << 10, 2e-5, 4e-5, 3.2e-5),
        (mib, 2e-4, 3e-4, 6e-4),
    ):
        made = Row("all_reduce", num_bytes, "float32", 2)
        for name, seconds in (("tcp", ours), ("openmpi", openmpi), ("gloo", gloo), ("raw exchange", ours / 1.2)):
            made.note(name, "touched", seconds)
        run.rows.append(made)
    run.rows += [row(name, tcp=[1e-6], openmpi=[1.1e-6], gloo=[1e-3]) for name in ("all_gather", "broadcast")]
    run.rows += [row(name, tcp=[1e-6], openmpi=[1e-3], gloo=[1.4e-6]) for name in ("send_recv", "all_to_all")]
    outcomes = hosts.judged(run, hosts.PEERS, None)
    assert [round(one.value, 2) for one in outcomes if one.value is not None] == [1.6, 60.0, 1.6, 1.5, 1.24]
    assert [one.reached for one in outcomes] == [True, True, True, True, False, True], "64 MiB was not measured"
    assert "MISSED" not in report.goal_lines(outcomes) and "unknown" in report.goal_lines(outcomes)


def test_gloo_is_measured_in_all_cells_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "measure", lambda *arguments: None)
    run = Run()
    hosts.on_this_host(run, argparse.Namespace(operations=None, sizes=None, peers=["gloo"]), QUICK)
    assert {one.operation for one in run.rows} == set(hosts.USUAL) and not any(one.left_out for one in run.rows)


def test_tcp_is_a_setting_only_where_it_is_asked_for() -> None:
    assert [one.name for one in settings("openmpi", ["tcp"])] == ["tcp"]
    assert "tcp" not in [one.name for one in settings("openmpi")]
    assert [one.name for one in settings("gloo", ["tcp"])] == ["default"]
