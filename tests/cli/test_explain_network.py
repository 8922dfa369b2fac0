import itertools
from pathlib import Path

import pytest

from hocket.algorithms import ALGORITHMS
from hocket.answers.network_choices import ranges, steps_of
from hocket.answers.simulation_case import SimulationCase, candidates
from hocket.cli import main
from hocket.network import SimulationResult, parse
from tests.cli.printed import json_of, text_of

CALL = ("all_reduce", "-b", "1M", "--topology", "ring:4")


def test_every_candidate_and_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "explain", *CALL, "--reduce", "100GB/s")
    rows = found["candidates"]
    assert {row["algorithm"] for row in rows} == set(candidates("all_reduce", parse("ring:4")))
    times = [row["seconds"] for row in rows]
    assert times == sorted(times) and found["algorithm"] == rows[0]["algorithm"]
    for row in rows:
        parts = [row[name] for name in ("latency", "bandwidth", "reduction", "contention")]
        assert sum(parts) == pytest.approx(row["seconds"]) and row["reduction"] > 0
        assert row["seconds"] >= row["bound_seconds"] * (1 - 1e-9)


def test_the_fastest_by_size(capsys: pytest.CaptureFixture[str]) -> None:
    fastest = json_of(capsys, "explain", *CALL)["fastest"]
    assert fastest[0]["min_bytes"] == 0 and fastest[-1]["max_bytes"] is None
    for before, after in itertools.pairwise(fastest):
        assert before["max_bytes"] + 1 == after["min_bytes"] and before["algorithm"] != after["algorithm"]
    at_call = next(one for one in fastest if one["max_bytes"] is None or one["max_bytes"] >= 1 << 20)
    assert at_call["algorithm"] == json_of(capsys, "explain", *CALL)["algorithm"]


def test_of_equal_times_the_one_that_was_ahead_stays_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("explain", "all_reduce", "-b", "64M", "--topology", "fat-tree:64")
    fastest = json_of(capsys, *call)["fastest"]
    # From 64 MiB halving_doubling is faster, by a few nanoseconds.
    assert [one["algorithm"] for one in fastest] == ["direct", "direct_two_shot"]
    said = "Fastest by size: direct below 4 KiB; direct_two_shot from 4 KiB. Times within 1% count as equal.\n"
    assert said in text_of(capsys, *call)


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_a_ratio_to_a_bound_without_overhead_says_so(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    call = (command, *CALL)
    assert "on this network: " in text_of(capsys, *call)
    assert "on this network, without the overhead: " in text_of(capsys, *call, "--overhead", "1us")


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_a_node_that_is_called_overhead_costs_none(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "nodes: {gpu: [overhead 1, b]}\nlinks: [{between: [overhead 1, b], link: roce-100g}]\n"
        "change: [{link: overhead 1->b, latency: 1us}]\n"
    )
    text = text_of(capsys, command, "all_reduce", "-b", "1M", "--topology", str(file))
    assert "changed: overhead 1->b 1.00 us" in text and "on this network: " in text
    call = ("simulate", *CALL, "--algorithm", "ring")
    seconds = [json_of(capsys, *call, "--overhead", cost)["overhead_seconds"] for cost in ("0us", "1us")]
    assert seconds == [0, 1e-6]


def test_what_one_link_holds_up_for_too_long_is_not_simulated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    real = SimulationCase.result

    def counted(case: SimulationCase, *, record: bool = False) -> SimulationResult:
        asked.append((case.algorithm, case.num_bytes))
        return real(case, record=record)

    monkeypatch.setattr(SimulationCase, "result", counted)
    fastest = json_of(capsys, "explain", *CALL)["fastest"]
    names, largest = candidates("all_reduce", parse("ring:4")), 1 << 30
    assert 0 < sum(size == largest for _, size in asked) < len(names) / 2
    for size in (1 << 8, 1 << 16, largest):
        best = min(SimulationCase("all_reduce", name, size, "ring:4").result().seconds for name in names)
        chosen = next(one["algorithm"] for one in fastest if one["max_bytes"] is None or size <= one["max_bytes"])
        assert SimulationCase("all_reduce", chosen, size, "ring:4").result().seconds <= 1.01 * best


def test_what_is_counted_once_is_told_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys, "simulate", "all_reduce", "--algorithm", "direct", "-b", "3000001", "--topology", "ring:3")
    assert "\n1 step: " in text and " 2.86 MiB " in text and "3000001 B" in text.splitlines()[0]
    assert "line:1: 1 rank; nodes: 1 rank\n" in text_of(capsys, "show", "topology", "line:1")


def test_what_is_counted_several_times_is_told_in_the_plural(capsys: pytest.CaptureFixture[str]) -> None:
    assert "; nodes: 2 gpus, 2 nics, 2 roots, 2 memories, 1 rail\n" in text_of(capsys, "show", "topology", "home:2")
    text = text_of(capsys, "simulate", "all_reduce", "--algorithm", "direct", "-b", "1K", "--topology", "ring:3")
    assert "\n 6 links, 6 used " in text


def test_ranges_join_equal_neighbours() -> None:
    assert list(ranges((1, 4, 16), ("a", "a", "b"))) == [
        {"min_bytes": 0, "max_bytes": 15, "algorithm": "a"},
        {"min_bytes": 16, "max_bytes": None, "algorithm": "b"},
    ]


def test_who_sends_what_to_whom() -> None:
    schedule = ALGORITHMS["all_reduce", "ring"].build(4)
    steps = steps_of(schedule, 4096)
    assert [(step["first"], step["last"]) for step in steps] == [(0, 5)], "equal steps are told once"
    sent = {(one["source"], one["target"], one["bytes"]) for one in steps[0]["messages"]}
    assert sent == {(rank, (rank + 1) % 4, 1024.0) for rank in range(4)}
    counted = sum(one["bytes"] for one in steps[0]["messages"]) * 6
    assert counted == schedule.sent().sum() * 4096 / schedule.num_chunks


def test_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys, "explain", *CALL)
    rows = json_of(capsys, "explain", *CALL)["candidates"]
    assert text.startswith(f"all_reduce, 1 MiB on ring:4, 4 ranks: {rows[0]['algorithm']} is the fastest.")
    assert f"the next best, {rows[1]['algorithm']}, " in text and "times the lower bound" in text
    assert "Fastest by size: " in text and "Messages of " in text and "  step" in text
    assert "barrier on ring:4, 4 ranks: " in text_of(capsys, "explain", "barrier", "--topology", "ring:4")
    assert "has nothing to send." in text_of(capsys, "explain", "all_reduce", "-b", "8", "--topology", "ring:1")


def test_an_algorithm_that_was_asked_about_is_compared_with_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    last = json_of(capsys, "explain", *CALL)["candidates"][-1]["algorithm"]
    assert json_of(capsys, "explain", *CALL, "--algorithm", last)["asked"] == [last]
    text = text_of(capsys, "explain", *CALL, "--algorithm", last)
    assert f"; {last} takes " in text and "; the next best, " in text


@pytest.mark.parametrize("name", ["tree", "hypercube"])
def test_an_algorithm_that_was_asked_about_has_a_row_or_an_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    call = ("explain", "all_reduce", "-b", "1K", "--algorithm", name, "--topology")
    found = json_of(capsys, *call, "ring:2")
    assert name in [row["algorithm"] for row in found["candidates"]], "also where another has the same schedule"
    assert f"{name} takes " in text_of(capsys, *call, "ring:2")
    if name == "hypercube":
        assert main([*call, "ring:3"]) == 2
        assert "expected a power of two ranks, found 3" in " ".join(capsys.readouterr().err.split())


def test_where_the_bound_is_nothing_no_ratio_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys, "explain", "barrier", "--topology", "ring:4,latency=0", "--overhead", "1us")
    assert " takes " in text and "; the next best, " in text and "times the lower bound" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["barrier", "-b", "8", "--topology", "ring:4"], "expected no num_bytes (--bytes)"),
        (["all_reduce", "-b", "8", "--topology", "ring:4", "-n", "8"], "has 4 ranks; found 8"),
        (["all_reduce", "-b", "8", "--topology", "ring:4", "--measure"], "(--measure) times this machine"),
        (["all_reduce", "-b", "8", "--topology", "ring:1025"], "choose some with algorithm= (--algorithm A,...)"),
        (["all_reduce", "-b", "8"], "expected ranks (--ranks), or a topology"),
        (
            ["all_reduce", "-b", "8", "-n", "4", "--link", "latency=1us"],
            "expected a topology (--topology) for links",
        ),
    ],
)
def test_bad_requests(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *arguments]) == 2
    assert words in capsys.readouterr().err
