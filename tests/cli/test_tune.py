import json
import os
import re
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.cli import main
from hocket.cli.argument_types import byte_count, byte_counts
from hocket.network import library_times, load_machine, lower_bound, placed_on
from hocket.runtime import Costs, Entry, Traits, TuningResult
from hocket.runtime.choice.tuner_file import read
from hocket.runtime.tuning import machine_costs, tuner
from hocket.runtime.tuning.tuner import Comparison
from hocket.view import name_range, name_seconds

QUICK = ("tune", "--collective", "broadcast", "--ranks", "2", "--sizes", "8,4K", "--seconds", "20")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new folder, also for the cache; no environment variable fixes anything."""
    for name in ("HOCKET_ALGO", "HOCKET_TUNER_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOCKET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_a_run_writes_a_tuner_file_and_the_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert printed.err.startswith("hocket tune: 2 ranks: timing ")
    rules = read("hocket_tuner.conf")
    assert [rule.algorithm for rule in rules] == [rule["algorithm"] for rule in report["rules"]]
    assert report["missing"] == [] and report["file"] == "hocket_tuner.conf"
    kept = json.loads(Path(report["times"]).read_text())
    assert kept["entries"] == report["entries"]
    (entry,) = kept["entries"]
    assert (entry["collective"], entry["num_ranks"]) == ("broadcast", 2)
    direct = next(one for one in entry["algorithms"] if one["algorithm"] == "direct")
    assert [sample["num_bytes"] for sample in direct["samples"]] == [8, 4096]


def test_a_barrier_needs_no_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tuner, "tune", lambda *_, **__: found())
    call = ("tune", "--ranks", "2", "--sizes", "100000G", "--collective")
    assert main([*call, "barrier"]) == 0
    assert main([*call, "barrier,broadcast"]) == 2
    assert "take 429496729600000 bytes" in capsys.readouterr().err


def found(*rules: tuner.Rule, comparisons: tuple[Comparison, ...] = ()) -> TuningResult:
    return TuningResult((Entry("broadcast", 2, "", ()),), rules, comparisons, (("reduce", 4, 1 << 20),), 3.0)


def test_lines_about_other_collectives_and_rank_counts_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.conf").write_text(
        "broadcast,0,-1,tree,simple,-1,-1,2\n"
        "broadcast,0,-1,direct,simple,-1,-1,4\n"
        "allreduce,0,-1,ring,simple,-1,-1,2\n"
        "broadcast,0,99,chain,simple,-1,-1,-1\n"
    )
    again = Comparison("broadcast", 2, 64, "direct", "binomial", (0.5, 0.6, 0.7))
    lost = Comparison("broadcast", 2, 512, "direct", "binomial", (1.0, 1.1, 1.2))
    result = found(tuner.Rule("broadcast", 64, 64, "direct", num_ranks=2), comparisons=(again, lost))
    monkeypatch.setattr(tuner, "tune", lambda *_, **__: result)
    assert main([*QUICK, "-o", "mine.conf"]) == 0
    assert [(rule.collective, rule.num_ranks, rule.algorithm) for rule in read("mine.conf")] == [
        ("broadcast", 2, "direct"),
        ("broadcast", 4, "direct"),
        ("all_reduce", 2, "ring"),
        ("broadcast", -1, "chain"),
    ]
    text = capsys.readouterr().out
    assert "0.60 (64 B)" in text and "not timed, for lack of time: reduce, 4 ranks: 1 MiB\n" in text
    assert "1 of 2 choices won again (geometric mean 0.60 of its time, worst 0.60); the others are dropped" in text
    assert "use: HOCKET_TUNER_CONFIG_FILE=mine.conf" in text


def test_brackets_and_colons_in_a_name_are_printed_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = tuner.Rule("broadcast", 64, 64, "mine[/fast]:rocket:", num_ranks=2)
    monkeypatch.setattr(tuner, "tune", lambda *_, **__: found(rule))
    assert main([*QUICK, "-o", "[red].conf"]) == 0
    text = capsys.readouterr().out
    assert " mine[/fast]:rocket: " in text and "\n[red].conf: 1 line, use: HOCKET_TUNER_CONFIG_FILE=[red].conf" in text


def test_what_is_no_line_of_its_own_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = (
        "# Mine, for a reason.",
        "",
        "allreduce,0,-1,collnet_direct,ll,-1,-1,-1",
        " broadcast , 0,99, chain,simple,-1,-1,4  # so it is",
    )
    Path("mine.conf").write_text("\n".join([*theirs[:3], "broadcast,0,-1,tree,simple,-1,-1,2", theirs[3], ""]))
    monkeypatch.setattr(tuner, "tune", lambda *_, **__: found(tuner.Rule("broadcast", 0, -1, "direct", num_ranks=2)))
    for _ in range(2):  # the second time changes nothing
        assert main([*QUICK, "-o", "mine.conf"]) == 0
        lines = Path("mine.conf").read_text().splitlines()
        assert lines[-5:] == ["broadcast,0,-1,direct,simple,-1,-1,2,-1,-1", *theirs]
        assert sum(line.startswith("# Tuner file of Hocket") for line in lines) == 1
        assert [rule.algorithm for rule in read("mine.conf")] == ["direct", "chain"]


def test_an_older_line_that_decides_in_the_place_of_the_default_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.conf").write_text("broadcast,0,99,chain,simple,-1,-1,-1\n")
    samples = tuple(tuner.sample_of(size, (1e-6,)) for size in (8, 64, 512))
    direct = tuner.Measured("direct", Traits(1, 1.0, 0.0), Costs(1e-6, 0.0, 0.0, 0.0), samples)
    rule = tuner.Rule("broadcast", 64, 64, "direct", num_ranks=2)
    result = replace(found(rule), entries=(Entry("broadcast", 2, "", (direct,)),))
    monkeypatch.setattr(tuner, "tune", lambda *_, **__: result)
    assert main([*QUICK, "-o", "mine.conf"]) == 0
    assert capsys.readouterr().err == (
        "hocket tune: mine.conf: an older line for any number of ranks still selects chain, although nothing "
        "clearly beats the default: broadcast, 2 ranks, 8 B\n"
    )


def test_where_time_does_not_suffice_nothing_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK[:-1], "1e-9"]) == 1
    assert "hocket tune: nothing was timed: allow more --seconds" in capsys.readouterr().err
    assert not Path("hocket_tuner.conf").exists() and not tuner.file().exists()


def test_a_cache_that_cannot_be_written_is_told_before_time_is_spent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOCKET_CACHE", "/proc/x")
    monkeypatch.setattr(tuner, "tune", lambda *_, **__: pytest.fail("nothing may be timed"))
    monkeypatch.setattr(machine_costs, "measure", lambda: pytest.fail("nothing may be measured"))
    for more in ([], ["--measure"]):
        assert main(["tune", *more]) == 2
        assert "expected a writable cache folder for the measurements; found '/proc/x'" in (capsys.readouterr().err)


def test_what_cannot_be_written_at_the_end_loses_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The folder of the tuner file disappears during the run; or the cache is not writable."""
    folder = tmp_path / "folder"
    folder.mkdir()

    def measure(*_: object, **__: object) -> TuningResult:
        assert not list(folder.iterdir()), "nothing is there before it is known"
        folder.rmdir()
        return found()

    monkeypatch.setattr(tuner, "tune", measure)
    assert main([*QUICK, "-o", str(folder / "mine.conf")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    assert tuner.load().find("broadcast", 2) is not None
    monkeypatch.setattr(tuner, "tune", lambda *_, **__: found())
    (tmp_path / "cache" / "tuning.json").unlink()
    (tmp_path / "no folder").touch()
    monkeypatch.setattr(tuner, "file", lambda: tmp_path / "no folder" / "tuning.json")
    assert main([*QUICK]) == 2
    assert "no folder" in capsys.readouterr().err and Path("hocket_tuner.conf").exists()


def test_without_a_winner_there_is_no_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tuner, "tune", lambda *_, **__: found())
    assert main([*QUICK]) == 0
    assert "No algorithm clearly beats the default: the tuner file needs no line." in capsys.readouterr().out
    assert read("hocket_tuner.conf") == ()


def test_collectives_may_be_spelled_as_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(tuner, "tune", lambda collectives, *_, **__: asked.append(collectives) or found())
    assert main(["tune", "--collective", "allreduce, ReduceScatter,all_gather"]) == 0
    assert asked == [["all_reduce", "reduce_scatter", "all_gather"]]


def test_by_default_ranks_are_few_and_the_cores_and_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    monkeypatch.setattr(tuner, "tune", lambda _, rank_counts, *__, **___: asked.append(rank_counts) or found())
    for cores in (1, 2, 6, 16):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert main(["tune"]) == 0
    assert asked == [[2, 4, 8], [2, 4, 8], [2, 4, 6, 8, 12, 24], [2, 4, 8, 16, 32, 64]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "1"], "ranks: expected at least 2, because one rank has no choice; found 1"),
        (["--collective", "all_gather_v"], "--collective: expected one of all_reduce, .*; found 'all_gather_v'"),
        (["--collective", "all_reduce,"], "found ''"),
        (["-o", "broken.conf"], "broken.conf, line 1: expected 8 to 10 fields"),
        (["-o", "/none/tuned.conf"], "expected an existing folder for /none/tuned.conf; found none"),
        (["-n", "2,2000"], "ranks: expected at most 1024 on one host; found 2000"),
        (["-n", "2", "--sizes", "100000G"], "this host has .*; choose a smaller --sizes, or --ranks"),
        (["--measure", "-n", "2", "--seconds", "3"], "expected no --ranks, --seconds"),
        (["--measure", "-o", "/none/my.yaml"], "expected an existing folder for /none/my.yaml; found none"),
        (
            ["--hosts", "-n", "2", "--measure", "--no-check"],
            "--hosts times no .*: expected no --ranks, --measure",
        ),
        (["--hosts"], "this process is a rank alone; start it on every rank, for example `hocket run -n 2"),
        (["-o", "."], "expected a writable file; found '.': Is a directory"),
    ],
)
def test_bad_requests_are_told_before_time_is_spent(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("broken.conf").write_text("allreduce\n")
    monkeypatch.setattr(tuner, "tune", lambda *_, **__: pytest.fail("nothing may be timed"))
    assert main(["tune", *arguments]) == 2
    assert re.search(words, capsys.readouterr().err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--ranks", "0"],
        ["--ranks", "1-99999999999"],
        ["--ranks", "2-99999"],
        ["--sizes", "8,x"],
        ["--sizes", "0"],
        ["--seconds", "0"],
        ["--seconds", "soon"],
    ],
)
def test_arguments_that_are_none(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", *arguments])
    assert ended.value.code == 2 and "expected" in capsys.readouterr().err


def test_the_costs_of_the_machine_are_stored_for_the_bench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {kind: {1 << 14: 4e10, 1 << 27: 1e10} for kind in machine_costs.PASSES}
    costs = machine_costs.MachineCosts(2, 1.5e-7, rates, dict.fromkeys(machine_costs.PASSES, 1.2e10))
    monkeypatch.setattr(machine_costs, "measure", lambda: costs)
    monkeypatch.setattr(tuner, "tune", lambda *_, **__: pytest.fail("only the machine is measured"))
    assert main(["tune", "--measure", "-o", "my.yaml"]) == 0
    text = capsys.readouterr().out
    machine = load_machine("my.yaml")
    assert placed_on(machine, 3).num_ranks == 6
    [time] = library_times(machine, placed_on(machine, 1), "all_gather", 1.2e6, algorithm="direct")
    assert time.seconds == pytest.approx(1.5e-7 + 0.6e6 / 6e9)  # half of the bandwidth of both cores together
    bound = lower_bound(placed_on(machine, 1).network, "all_gather", 1.2e6)
    assert bound.seconds == pytest.approx(0.6e6 / 4e10, rel=0.1)  # of a copy in cache, which short calls may reach
    assert machine_costs.load() == costs and not Path("hocket_tuner.conf").exists()
    assert text.startswith("2 cores; time until one core sees a store of another: 0.150 us\n")
    assert "40.0 (16 KiB), 10.0 (128 MiB); of all cores, in main memory: 12.0\n" in text
    assert "so far, for `hocket bench` and `hocket explain`\n" in text
    monkeypatch.setattr(
        machine_costs, "measure", lambda: replace(costs, hop_seconds=3e-7)
    )  # slower: the first one is kept
    assert main(["tune", "--measure", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hop_seconds"] == 1.5e-7


def test_ctrl_c_leaves_no_process() -> None:
    program = [sys.executable, "-m", "hocket", "tune", "--collective", "all_reduce", "--ranks", "3", "--seconds", "600"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as it:
        assert it.stderr is not None
        assert it.stderr.readline() == "hocket tune: 3 ranks: timing 16 algorithms\n"
        children = Path(f"/proc/{it.pid}/task/{it.pid}/children")
        while len(ranks := children.read_text().split()) < 3:
            assert it.poll() is None
        ends = [os.pidfd_open(int(rank)) for rank in ranks]
        it.send_signal(signal.SIGINT)
        it.communicate()
    assert it.returncode == 130
    for end in ends:
        assert select.select([end], [], [], 60)[0], "the rank has ended"
        os.close(end)
    assert not Path("hocket_tuner.conf").exists()


@pytest.mark.parametrize(
    ("text", "expected"), [("8", 8), ("64K", 64 << 10), ("1m", 1 << 20), ("2GiB", 2 << 30), ("4kb", 4096)]
)
def test_sizes(text: str, expected: int) -> None:
    assert byte_count(text) == expected
    assert byte_counts(f"{text},8,8") == sorted({8, expected})


def test_how_numbers_are_written() -> None:
    ranges = [(0, None), (0, 8), (9, 4096), (4096, None), (4097, None), (4096, 4096), (100, 200)]
    assert [name_range(first, last) for first, last in ranges] == [
        "any",
        "up to 8 B",
        "from 9 B up to 4 KiB",
        "from 4 KiB",
        "above 4 KiB",
        "4 KiB",
        "above 99 B up to 200 B",
    ]
    times = {
        0.0: "0.00 us",
        2.5e-7: "0.250 us",
        1e-6: "1.00 us",
        1.234e-5: "12.3 us",
        0.00123: "1.23 ms",
        0.9994: "999 ms",
        1.5: "1.50 s",
        152.0: "152 s",
    }
    assert [name_seconds(one) for one in times] == list(times.values())
