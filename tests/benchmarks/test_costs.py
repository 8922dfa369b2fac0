"""The costs in benchmarks/compare.py: the median of several starts, the cost of protections, and failures."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import communicators
import protections
from comparison import costs, goals, measuring, report
from comparison.groups import Failed
from comparison.results import Run


class FakeGroup:
    """Each start takes the next of the given times to the first all_reduce."""

    seconds: ClassVar[list[float]] = []

    def __init__(self, *_: object) -> None:
        self.first_seconds = self.seconds.pop(0)

    def ask(self, task: str, **_: object) -> list[int]:
        assert task == "staging"
        return [1 << 20, 2 << 20]

    def close(self) -> None:
        """Nothing was started."""


def test_the_first_all_reduce_is_the_median_of_warm_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(costs, "Group", FakeGroup)
    monkeypatch.setattr(FakeGroup, "seconds", [0.5, 0.02, 0.09, 0.06])
    assert costs.starting(tmp_path) == {"first cold": 0.5, "first": 0.06, "staging": 2 << 20}


@pytest.mark.parametrize(
    ("more", "large", "reached"),
    [
        ([20e-9, 30e-9, 900e-9], [1e-7, -1e-7, 2e-7], [True, True]),
        ([20e-9, 130e-9, 900e-9], [1e-6, 2e-6, 3e-6], [False, False]),
    ],
)
def test_protections_have_goals(
    more: list[float], large: list[float], reached: list[bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = {8: protections.Cost([4e-7] * 3, more), 1 << 20: protections.Cost([9e-5, 1e-4, 2e-4], large)}
    monkeypatch.setattr(protections, "build", dict)
    monkeypatch.setattr(protections, "timed", lambda *_: found)
    known = costs.protections_of_a_call(tmp_path)
    assert known["protections of bandwidth"] == pytest.approx(sorted(large)[1] / 1e-4)
    judged = [goals.outcome(goal, [], known) for goal in goals.GOALS if str(goal.value).startswith("protections")]
    assert [outcome.reached for outcome in judged] == reached


class FakePair:
    """Two ranks whose calls take `seconds` per byte."""

    def __init__(self, name: str, seconds: float, asked: list[str]) -> None:
        self.name, self.seconds, self.asked = name, seconds, asked

    def ask(self, task: str, num_calls: int, num_batches: int, num_bytes: int, **_: object) -> list[dict[str, object]]:
        self.asked.append(self.name)
        each = [self.seconds * num_bytes * num_calls] * num_batches
        return [{"touched": each, "touch": [0.0] * num_batches, "untouched": each}] * 2


def test_cores_with_and_without_protections_take_turns() -> None:
    asked: list[str] = []
    found = {num_bytes: protections.Cost([], []) for num_bytes in protections.SIZES}
    protections.take_turns([FakePair("safe", 3e-9, asked), FakePair("bare", 2e-9, asked)], 2, found)
    assert asked[-8:] == ["safe", "bare", "safe", "bare", "bare", "safe", "bare", "safe"]
    for num_bytes in protections.SIZES:
        assert found[num_bytes].safe == pytest.approx([3e-9 * num_bytes] * 2)
        assert found[num_bytes].more == pytest.approx([1e-9 * num_bytes] * 2)


def test_every_protection_is_found_in_the_source() -> None:
    for name in {name for name, _, _ in protections.REMOVED}:
        text = (protections.ROOT / "csrc" / name).read_text()
        assert len(protections.without_protections(name, text)) < len(text)
    with pytest.raises(RuntimeError, match=r"communicator/communicator\.cpp: expected this once, found it 0 times"):
        protections.without_protections("communicator/communicator.cpp", "")


def test_an_unchanged_source_keeps_its_times(tmp_path: Path) -> None:
    def times() -> dict[str, float]:
        return {path.name: path.stat().st_mtime for path in (tmp_path / "source").rglob("*") if path.is_file()}

    protections.copy_source(tmp_path / "source")
    first = times()
    protections.copy_source(tmp_path / "source")
    assert times() == first
    assert "CMakeLists.txt" in first


def failing(error: Exception) -> Callable[..., dict[str, float]]:
    def part(*_: object) -> dict[str, float]:
        raise error

    return part


def test_what_fails_is_absent_and_the_rest_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measuring, "say", lambda _: None)
    monkeypatch.setattr(costs, "late", lambda _: {"late": 0.01})
    monkeypatch.setattr(costs, "starting", failing(Failed("not all ranks started")))
    monkeypatch.setattr(costs, "protections_of_a_call", failing(RuntimeError("no compiler")))
    monkeypatch.setattr(costs, "communicators", failing(subprocess.TimeoutExpired("communicators.py", 9)))
    run = Run()
    costs.measure(run, tmp_path, (2,), 1)
    assert run.costs == {"late": 0.01}
    text = report.text(run, [goals.outcome(goal, [], run.costs) for goal in goals.GOALS])
    assert "# absent: costs, start and staging: not all ranks started" in text
    assert "# absent: costs, protections: no compiler" in text
    assert "# absent: costs, communicators: Command 'communicators.py' timed out" in text


FOUND = {
    "ranks": 64,
    "first_seconds": {"warm": [0.2, 0.3, 0.7], "cold": [1.0]},
    "communicator": {"median_seconds": 4e-3, "worst_seconds": 9e-3, "bytes": 50_000},
    "staging_bytes": 2 << 20,
    "late_cpu_seconds": {"all_reduce": 1e-3, "message": 2e-3},
}


def test_the_cost_of_a_communicator_is_a_table_of_markdown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(communicators, "measure", lambda num_ranks, *_: FOUND | {"ranks": num_ranks})
    monkeypatch.setattr(sys, "argv", ["communicators.py", "--json", str(tmp_path / "found")])
    communicators.main()
    caption, head, rule, *rows = capsys.readouterr().out.splitlines()
    assert caption.startswith("# ")
    assert head.count("|") == rule.count("|") == rows[0].count("|")
    assert set(rule) == set("|-")
    assert [int(row.split("|")[1]) for row in rows] == list(costs.RANK_COUNTS)
    assert rows[-1] == "| 64 | 300 (700) | 1000 | 4.00 (9.0) | 48.8 | 2048 | 1.0 | 2.0 |"
    assert len(json.loads((tmp_path / "found").read_text())["results"]) == len(rows)


def test_what_fails_without_a_word_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", ""))
    assert costs.communicators((2,), 1) == "no reason given"
    assert "# absent: costs, waiting: no reason given" in report.text(Run(absent={"costs, waiting": ""}), [])


def test_the_full_run_has_all_numbers_of_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands = []

    def run(command: list[object], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append([str(word) for word in command])
        return subprocess.CompletedProcess(command, 1, "# caption\n| ranks |\n", "Traceback\nMemoryError: no room\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert costs.communicators(costs.RANK_COUNTS, 3) == "# caption\n| ranks |\nMemoryError: no room"
    assert commands[0][2:6] == ["--ranks", "2,4,8,16,32,64", "--rounds", "3"]


def test_every_protection_to_remove_is_in_the_core() -> None:
    for name in {name for name, _, _ in protections.REMOVED}:
        text = (protections.ROOT / "csrc" / name).read_text()
        assert len(protections.without_protections(name, text)) < len(text)
