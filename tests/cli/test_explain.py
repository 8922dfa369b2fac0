import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.algorithms import ALGORITHMS, algorithm
from hocket.answers.host_choices import ranges_measured, ranges_predicted, ranges_roughly
from hocket.cli import main
from hocket.runtime import Costs, Entry, Measured, Sample, Traits
from hocket.runtime.ranks import cores
from hocket.runtime.tuning import machine_costs, tuner
from hocket.runtime.tuning.fit import traits_of
from hocket.runtime.tuning.rough_costs import rough_entries
from tests.cli.printed import error_of, json_of, text_of

COSTS = machine_costs.MachineCosts(
    4,
    1e-7,
    {kind: {1 << 14: 2e10, 1 << 27: 1e10} for kind in machine_costs.PASSES},
    dict.fromkeys(machine_costs.PASSES, 2e10),
)
SIZES = (8, 4 << 10, 64 << 10, 128 << 10, 1 << 20)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses only the test's own tuner file, times and environment, and four measured cores."""
    for name in ("HOCKET_ALGO", "HOCKET_TUNER_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOCKET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cores, "own_cores", lambda: {"cores": b"\x0f", "quota": None})
    machine_costs.store(COSTS)
    monkeypatch.chdir(tmp_path)


def measured(name: str, num_ranks: int, alpha: float, beta: float, gamma: float) -> Measured:
    """Times that are a tenth above the prediction of the costs."""
    traits = traits_of(tuner.ALGORITHMS["all_reduce", name].build(num_ranks))
    costs = Costs(alpha, beta, gamma, 0.1)
    times = ((size, 1.1 * costs.seconds(traits, size)) for size in SIZES)
    return Measured(name, traits, costs, tuple(Sample(size, one, 0.98 * one, 1.02 * one, 9) for size, one in times))


def entry() -> Entry:
    algorithms = (
        measured("direct", 4, 5e-6, 2e-10, 1e-11),
        measured("direct_two_shot", 4, 4e-6, 2e-10, 1e-11),
        measured("ring", 4, 3e-6, 1.5e-10, 5e-11),
    )
    return Entry("all_reduce", 4, "2026-01-02 03:04:05", algorithms)


# --- numbers -------------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_that_were_kept(capsys: pytest.CaptureFixture[str]) -> None:
    known = entry()
    tuner.store([known])
    found = json_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "128K")
    rows = {row["algorithm"]: row for row in found["candidates"]}
    assert found["tuned"] == known.date and len(rows) == 22
    for one in known.algorithms:
        row = rows[one.algorithm]
        assert (row["latency"], row["bandwidth"], row["reduction"]) == one.costs.parts(one.traits, 128 << 10)
        assert row["predicted"] == pytest.approx(one.costs.seconds(one.traits, 128 << 10))
        sample = one.at(128 << 10)
        assert sample is not None
        assert (row["measured"], row["low"], row["high"]) == (sample.seconds, sample.low, sample.high)
        assert row["steps"] == one.traits.steps and row["sent"] == one.traits.sent * (128 << 10)
    assert rows["tree"]["predicted"] is None and rows["tree"]["measured"] is None
    times = [row["measured"] for row in found["candidates"][:3]]
    assert times == sorted(times), "the quickest first"
    text = text_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "128K")
    assert "direct_two_shot takes 53.1 us (measured); the next best, ring, takes 57.6 us, 1.08 times as long." in text
    assert "ring costs 10.0 us more for latency (6 steps against 2)" in text
    assert (
        "9.83 us less for bandwidth (192 KiB sent in both; a byte takes 0.75 times as long here, as measured)" in text
    )
    assert "Measured 2026-01-02 03:04:05; half of the predictions are within 10% of the times." in text


def with_a_dropped_one(seconds: float) -> Entry:
    """Times in which the tree was dropped at 128 KiB after two rounds, one of them fast by luck."""
    tree = measured("tree", 4, 9e-6, 2e-10, 1e-11)
    samples = [
        tuner.sample_of(128 << 10, (4 * seconds, seconds)) if one.num_bytes == 128 << 10 else one
        for one in tree.samples
    ]
    return replace(entry(), algorithms=(*entry().algorithms, replace(tree, samples=tuple(samples))))


def test_what_was_dropped_after_a_few_rounds_is_not_compared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner.store([with_a_dropped_one(5e-6)])
    call = ("explain", "all_reduce", "-n", "4", "-b", "128K")
    rows = json_of(capsys, *call)["candidates"]
    assert [row["algorithm"] for row in rows[:4]] == ["direct_two_shot", "ring", "direct", "tree"]
    assert [(row["complete"], row["rounds"]) for row in rows[:5]] == [*[(True, 9)] * 3, (False, 2), (False, None)]
    text = text_of(capsys, *call)
    assert "direct_two_shot takes 53.1 us (measured); the next best, ring, takes 57.6 us, 1.08 times as long." in text
    assert "Algorithms with fewer rounds were dropped because they are slower: their times are only rough." in text
    assert ranges_measured(with_a_dropped_one(5e-6)) == ranges_measured(entry())
    monkeypatch.setenv("HOCKET_ALGO", "tree")
    expected = "tree was dropped after 2 rounds of about 5.00 us, because direct_two_shot takes only 53.1 us (measured)"
    assert expected in text_of(capsys, *call)


def test_where_all_others_were_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    samples = {"direct_two_shot": (1e-5, 1e-5, 1e-5), "ring": (2e-5, 2e-5), "direct": (2e-5, 2e-5)}
    some = (replace(one, samples=(tuner.sample_of(128 << 10, samples[one.algorithm]),)) for one in entry().algorithms)
    tuner.store([replace(entry(), algorithms=tuple(some))])
    text = text_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "128K")
    assert "direct_two_shot takes 10.0 us (measured); all others were dropped as slower, " in text
    assert "ring at about 20.0 us. By the predictions, ring costs " in text
    asked = text_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "128K", "--algorithm", "ring")
    assert asked == text, "what is said of it anyway is not said twice"


def test_a_size_that_was_not_measured_is_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    tuner.store([entry()])
    found = json_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "192K")
    rows = {row["algorithm"]: row for row in found["candidates"]}
    assert rows["ring"]["measured"] is None and rows["ring"]["predicted"] > 0
    text = text_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "192K")
    assert "direct_two_shot takes 68.5 us (predicted); the next best," in text


def test_times_of_a_size_that_ranks_share_out_count_for_what_it_was_rounded_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three ranks cannot share 64 KiB of float32 evenly, so it was 16 B less."""
    traits = traits_of(tuner.ALGORITHMS["all_to_all", "direct"].build(3))
    samples = (tuner.sample_of((64 << 10) // 12 * 12, (1e-5, 2e-5, 3e-5)),)
    direct = Measured("direct", traits, Costs(1e-5, 0.0, 0.0, 0.0), samples)
    tuner.store([Entry("all_to_all", 3, "2026-01-02 03:04:05", (direct,))])
    call = ("explain", "all_to_all", "-n", "3", "-b", "64K")
    rows = {row["algorithm"]: row for row in json_of(capsys, *call)["candidates"]}
    assert rows["direct"]["measured"] == 2e-5 and rows["direct"]["error"] is None
    assert "Measured 2026-01-02 03:04:05.\n" in text_of(capsys, *call), "one time says nothing of how well costs fit"


def test_what_runs_is_not_always_the_quickest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner.store([entry()])
    monkeypatch.setenv("HOCKET_ALGO", "ring")
    text = text_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "64K")
    assert (
        "ring takes 38.7 us (measured), but direct_two_shot 31.0 us, only 0.80 times as long: `hocket tune` selects"
        in text
    )


def test_without_times_costs_of_the_machine_predict_roughly(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("explain", "all_reduce", "-n", "4", "-b", "128K")
    found = json_of(capsys, *call)
    assert found["tuned"] is None and found["fastest_measured"] == []
    assert (found["algorithm"], found["by"]) == ("direct_two_shot", "table")
    rows = {row["algorithm"]: row for row in found["candidates"]}
    assert all(row["predicted"] > 0 and row["measured"] is row["error"] is None for row in rows.values())
    assert found["fastest_predicted"] == [
        {"min_bytes": 0, "max_bytes": 4096, "algorithm": "direct"},
        {"min_bytes": 4097, "max_bytes": None, "algorithm": "direct_two_shot"},
    ]
    text = text_of(capsys, *call)
    assert (
        "direct_two_shot takes ~17 us (predicted), and bidirectional_ring ~20 us: rough estimates cannot separate"
        in text
    )
    assert "Fastest by size, roughly predicted: direct up to 4 KiB; direct_two_shot above 4 KiB.\n" in text
    assert "~: a rough prediction from the speed of this machine's cores and memory" in text
    assert "hocket tune --collective all_reduce --ranks 4" in text


def test_what_is_roughly_slower_is_not_said_to_lose(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only times decide. A barrier has no sizes to change at."""
    text = text_of(capsys, "explain", "barrier", "-n", "4")
    assert "; the next best, dissemination, takes ~1.0 us, 2.00 times as long." in text and "By rough costs" not in text
    monkeypatch.setenv("HOCKET_ALGO", "tree")
    text = text_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "64K")
    assert (
        "tree takes ~18 us (predicted), but direct_two_shot ~9.2 us: only a measurement can confirm this estimate."
        in text
    )
    monkeypatch.delenv("HOCKET_ALGO")
    text = text_of(capsys, "explain", "all_reduce", "-n", "1", "-b", "8")
    assert "direct takes ~0.0 us (predicted)" in text
    assert "For measured times, add --measure." in text, "one rank cannot be tuned"


def test_what_has_no_costs_cannot_be_judged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner.store([entry()])
    monkeypatch.setenv("HOCKET_ALGO", "tree")
    text = text_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "64K")
    assert "tree was not measured on this machine" in text and "hocket tune --collective all_reduce --ranks 4" in text
    assert "takes 4 steps and sends 128 KiB; the fewest steps are 1 (direct)" in text


def test_a_machine_that_was_never_measured_is_measured_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOCKET_CACHE", str(tmp_path / "another"))
    measurements = iter([COSTS])
    monkeypatch.setattr(machine_costs, "measure", lambda: next(measurements))
    for said in ("hocket: measuring cores and memory once; this takes 3 s\n", ""):
        assert main(["explain", "all_gather", "-n", "4", "-b", "64K"]) == 0
        assert capsys.readouterr().err == said
    assert machine_costs.load() == COSTS


def test_measured_now(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "explain", "broadcast", "-n", "2", "-b", "4K", "--measure")
    row = next(row for row in found["candidates"] if row["algorithm"] == found["algorithm"])
    assert 0 < row["low"] <= row["measured"] <= row["high"] and row["rounds"] >= 5
    assert row["predicted"] > 0 and found["tuned"] is None
    assert not tuner.file().exists()
    assert "no other algorithm does" in text_of(capsys, "explain", "gather", "-n", "2", "-b", "4K", "--measure")


# --- who decided ---------------------------------------------------------------------------------------------------


def test_who_decided(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    call = ("all_reduce", "-n", "4", "-b", "128K")
    assert "direct_two_shot runs, chosen by the table.\n" in text_of(capsys, "explain", *call)
    Path("hocket_tuner.conf").write_text("allreduce,0,1000,ring,simple,-1,-1,4\n")
    expected = "direct_two_shot runs, chosen by the table; no line of the tuner file says otherwise.\n"
    assert expected in text_of(capsys, "explain", *call)
    Path("hocket_tuner.conf").write_text("allreduce,0,-1,ring,simple,-1,-1,4\n")
    expected = "ring runs, chosen by the tuner file; the table says direct_two_shot.\n"
    assert expected in text_of(capsys, "explain", *call)
    monkeypatch.setenv("HOCKET_ALGO", "tree")
    assert "tree runs, chosen by HOCKET_ALGO; the table says direct_two_shot.\n" in text_of(capsys, "explain", *call)
    assert json_of(capsys, "explain", *call)["by"] == "HOCKET_ALGO"
    monkeypatch.setenv("HOCKET_ALGO", "^ring")
    expected = "chosen by the table; HOCKET_ALGO (^ring) allows it; no line of the tuner file says otherwise.\n"
    assert expected in text_of(capsys, "explain", *call)


def test_brackets_and_colons_in_a_name_are_printed_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("mine[/fast]", "my[red]:rocket:")
    for name in names:
        algorithm("all_reduce", name=name)(ALGORITHMS["all_reduce", "ring"])
    for name in names:
        Path("hocket_tuner.conf").write_text(f"allreduce,0,-1,{name},simple,-1,-1,4\n")
        text = text_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "128K")
        assert f": {name} runs, chosen by the tuner file" in text and f"\n {name} " in text
    Path("hocket_tuner.conf").unlink()
    monkeypatch.setenv("HOCKET_ALGO", "^mine[/fast]")
    assert "HOCKET_ALGO (^mine[/fast]) allows it" in text_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "128K")


OWN = """
import hocket

@hocket.algorithm("all_reduce", name="slow", chunks="P")
def slow(schedule):
    rank, p = schedule.ranks, schedule.num_ranks
    for distance in range(1, p):
        peer = (rank + distance) % p
        with schedule.step():
            schedule.reduce(src=rank, dst=peer, chunk=peer)
    for distance in range(1, p):
        with schedule.step():
            schedule.copy(src=rank, dst=(rank + distance) % p, chunk=rank)
"""


def test_an_algorithm_that_was_asked_about_is_compared_with_the_chosen_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("own.py").write_text(OWN)
    call = ("explain", "all_reduce", "-n", "4", "-b", "64K", "--algorithm", "own.py:slow")
    found = json_of(capsys, *call)
    assert found["asked"] == ["own.py:slow"] and found["algorithm"] == "direct_two_shot"
    assert "own.py:slow" in {row["algorithm"] for row in found["candidates"]}, "named as it was given"
    text = text_of(capsys, *call)
    assert "; own.py:slow takes ~" in text and " times as long. By the predictions, own.py:slow costs ~" in text
    assert " more for latency (6 steps against 2)" in text
    tuner.store([entry()])
    assert "own.py:slow was not measured on this machine" in text_of(capsys, *call)


SAME = (
    "import hocket\nfrom hocket.algorithms import ALGORITHMS\n\n"
    '@hocket.algorithm("all_reduce", name="same", chunks="P")\n'
    'def same(schedule):\n    ALGORITHMS["all_reduce", "direct_two_shot"](schedule)\n'
)


def test_an_algorithm_with_the_schedule_of_the_chosen_one_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.py").write_text(SAME)
    text = text_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "64K", "--algorithm", "own.py:same")
    assert "own.py:same has the same schedule as direct_two_shot, which runs." in text


@pytest.mark.parametrize(("like", "compared"), [("ring", ""), ("direct", "direct_two_shot takes 53.1 us (measured); ")])
def test_an_algorithm_with_the_schedule_of_another_one_is_told_so(
    like: str, compared: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tuner.store([entry()])
    Path("own.py").write_text(SAME.replace("direct_two_shot", like).replace('"P"', '"P"' if like == "ring" else '"1"'))
    text = text_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "128K", "--algorithm", "own.py:same")
    assert f"\nown.py:same has the same schedule as {like}.{compared and ' '}{compared}" in text
    assert text.count("; the next best, ring, takes 57.6 us") == 1 and text.count("ring takes 57.6 us") == 0


@pytest.mark.parametrize("where", [("-n", "4"), ("--topology", "ring:4")])
@pytest.mark.parametrize("other", ["./own.py:slow", "beside.py:slow"])
def test_two_algorithms_of_one_name_are_refused_as_the_answer_names_only_one(
    where: tuple[str, str], other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in ("own.py", "beside.py"):
        Path(file).write_text(OWN)
    call = ("explain", "all_reduce", *where, "-b", "64K", "--algorithm")
    assert main([*call, f"own.py:slow,{other}"]) == 2
    expected = f"expected algorithms of different names; found own.py:slow and {other}, both named slow; leave one out"
    assert expected in capsys.readouterr().err
    assert json_of(capsys, *call, "own.py:slow,own.py:slow")["asked"] == ["own.py:slow"]


def test_what_has_no_times_is_named_and_not_what_it_is_compared_with(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner.store([entry()])
    monkeypatch.setenv("HOCKET_ALGO", "tree")
    text = text_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "64K", "--algorithm", "ring")
    assert text.count("was not measured on this machine") == text.count("tree was not measured on this machine") == 1


def test_equal_amounts_at_different_costs_are_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both reduce 192 KiB on the busiest rank; in one all four ranks do so, on two cores."""
    machine_costs.store(replace(COSTS, num_cores=2))
    monkeypatch.setenv("HOCKET_ALGO", "parameter_server")
    text = text_of(capsys, "explain", "all_reduce", "-n", "4", "-b", "64K", "--algorithm", "direct")
    expected = (
        "(the busiest rank reduces 192 KiB in both; but here the ranks that share a core add 2 times as many bytes "
        "together)"
    )
    assert expected in text


@pytest.mark.parametrize(
    ("num_ranks", "expected"), [("4", "direct_two_shot"), ("5", "parameter_server"), ("8", "parameter_server")]
)
def test_the_table_is_that_of_ranks_with_these_cores(
    num_ranks: str, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ("explain", "all_reduce", "-n", num_ranks, "-b", "64K")
    found = json_of(capsys, *call)
    assert (found["algorithm"], found["by"], found["table"]) == (expected, "table", expected)
    monkeypatch.setenv("HOCKET_ALGO", "tree")
    assert f"tree runs, chosen by HOCKET_ALGO; the table says {expected}.\n" in text_of(capsys, *call)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["all_redcue", "-n", "4", "-b", "8"], "expected a collective, one of all_reduce, "),
        (["all_redcue", "-n", "4", "-b", "8"], "found 'all_redcue'; did you mean 'all_reduce'?"),
        (["all_redcue", "--topology", "ring:4"], "found 'all_redcue'; did you mean 'all_reduce'?"),
        (["gather_v", "-n", "4", "-b", "8"], "found 'gather_v'"),
        (["all_reduce", "-n", "0", "-b", "8"], "ranks: expected at least 1, found 0"),
        (["all_reduce"], "expected ranks (--ranks), or a topology"),
        (
            ["broadcast", "-n", "100000", "-b", "8"],
            "ranks: expected at most 1024 on one host; found 1000",
        ),
        (["all_reduce", "-n", "2", "-b", "100000G", "--measure"], "; choose a smaller size, or fewer ranks"),
        (["barrier", "-n", "4", "-b", "8"], "expected no num_bytes (--bytes), as barrier moves no data"),
    ],
)
def test_bad_requests(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("spelling", ["allreduce", "AllReduce", "ALL_REDUCE"])
def test_a_collective_may_be_spelled_as_elsewhere(spelling: str, capsys: pytest.CaptureFixture[str]) -> None:
    for where in (("-n", "4"), ("--topology", "ring:4")):
        assert json_of(capsys, "explain", spelling, "-b", "64K", *where)["collective"] == "all_reduce"


@pytest.mark.parametrize("arguments", [["all_reduce", "-n", "4", "-b", "-8"], ["-n", "4"]])
def test_arguments_that_are_none(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments])
    assert ended.value.code == 2


def test_a_barrier_has_no_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert text_of(capsys, "explain", "barrier", "-n", "4").startswith(
        "barrier, 4 ranks: direct runs, chosen by the table."
    )
    assert {row["sent"] for row in json_of(capsys, "explain", "barrier", "-n", "4")["candidates"]} == {0}


# --- where it changes ----------------------------------------------------------------------------------------------


def test_the_fastest_by_size_as_measured() -> None:
    found = [(one["min_bytes"], one["max_bytes"], one["algorithm"]) for one in ranges_measured(entry())]
    assert found == [(0, 16384, "direct"), (16385, 370727, "direct_two_shot"), (370728, None, "ring")]


lines = st.tuples(st.integers(0, 1000), st.integers(0, 50))


@given(st.lists(lines, min_size=1, max_size=6))
def test_the_fastest_by_size_as_predicted(some: list[tuple[int, int]]) -> None:
    algorithms = tuple(
        Measured(str(number), Traits(1, 1.0, 0.0), Costs(float(start), float(slope), 0.0, 0.0), ())
        for number, (start, slope) in enumerate(some)
    )
    ranges = ranges_predicted(Entry("all_reduce", 4, "2026-01-02 03:04:05", algorithms))
    assert ranges[0]["min_bytes"] == 0 and ranges[-1]["max_bytes"] is None
    for before, after in itertools.pairwise(ranges):
        assert before["max_bytes"] + 1 == after["min_bytes"]
    for one in ranges:
        start, slope = some[int(one["algorithm"])]
        for size in (one["min_bytes"], one["max_bytes"] if one["max_bytes"] is not None else 10**6):
            assert math.isclose(start + slope * size, min(first + more * size for first, more in some))


def test_rough_ranges_have_powers_of_two_for_borders() -> None:
    for num_ranks in (1, 2, 3, 8, 16):
        entries = rough_entries("all_reduce", num_ranks, [1 << power for power in range(31)], COSTS)
        ranges = ranges_roughly(entries, lambda _: "ring")
        assert ranges[0]["min_bytes"] == 0 and ranges[-1]["max_bytes"] is None
        for before, after in itertools.pairwise(ranges):
            assert before["max_bytes"] + 1 == after["min_bytes"] and before["max_bytes"].bit_count() == 1


@pytest.mark.parametrize("name", ["first", "second", "twin"])
def test_of_equal_rough_costs_those_of_what_runs_are_named(name: str) -> None:
    traits, costs = Traits(1, 1.0, 0.0), Costs(1e-6, 1e-9, 0.0, 0.0)
    algorithms = (Measured("first", traits, costs, ()), Measured("second", traits, costs, (), ("twin",)))
    rough = {size: Entry("gather", 4, "", algorithms) for size in (8, 64, 512)}
    assert ranges_roughly(rough, lambda _: name) == [{"min_bytes": 0, "max_bytes": None, "algorithm": name}]
    found = ranges_roughly(rough, lambda size: name if size == 64 else "none")
    assert found[-1]["algorithm"] == name and found[0]["algorithm"] == "first", "else that of the sizes below"


def test_rough_borders_are_the_same_for_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    borders = [
        json_of(capsys, "explain", "all_reduce", "-n", "4", "-b", size)["fastest_predicted"]
        for size in ("8", "100K", "64M", "2G")
    ]
    assert len(borders[0]) > 1 and all(one == borders[0] for one in borders)


def test_the_ways_of_a_call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for shares_cores, told in ((True, "sharing cores"), (False, "with a core each")):
        monkeypatch.setattr(cores, "shared_by", lambda _, shared=shares_cores: shared)
        for profile, way in (("intel", "fetch"), ("generic", "stage")):
            monkeypatch.setenv("HOCKET_PROFILE", profile)
            text = text_of(capsys, "explain", "all_to_all", "-n", "2", "-b", "4M", "--ways")
            assert told in text.splitlines()[0]
            assert f"{way}: " in text and ("fetch" in text) == (way == "fetch")
    found = json_of(capsys, "explain", "all_reduce", "-n", "2", "-b", "1K", "--ways")
    assert [one["num_messages"] for one in found["travels"]] == [2]
    error = error_of(capsys, "explain", "all_reduce", "-b", "1K", "--topology", "ring:4", "--ways")
    assert "excludes --topology" in error
