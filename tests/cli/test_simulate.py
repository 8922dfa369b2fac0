import csv
import errno
import io
import json
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from joblib._parallel_backends import ThreadingBackend

from hocket.algorithms import Algorithm
from hocket.answers.simulation_case import SimulationCase, candidates
from hocket.cli import main
from hocket.cli.simulate.sweep import sweep
from hocket.errors import ResourceError
from hocket.network import parse
from hocket.schedule import Certificate, Schedule
from hocket.view.networks.network_picture import positions
from tests.cli.printed import json_of, text_of

RING = "ring:4,bandwidth=1GB/s,latency=1us"


@pytest.mark.parametrize("level", ["closed", "steps", "events"])
def test_a_ring_on_a_ring(capsys: pytest.CaptureFixture[str], level: str) -> None:
    row = json_of(
        capsys, "simulate", "all_reduce", "--algorithm", "ring", "-b", "64K", "--topology", RING, "--level", level
    )
    expected = 6 * (1e-6 + 16384 / 1e9)
    assert row["seconds"] == pytest.approx(expected, rel=1e-9)
    assert row["latency"] == pytest.approx(6e-6) and row["bandwidth"] == pytest.approx(6 * 16384e-9)
    assert row["reduction"] == 0 and row["contention"] == pytest.approx(0, abs=1e-12)
    assert 0 < row["bound_seconds"] <= row["seconds"] and row["ratio"] == row["seconds"] / row["bound_seconds"]
    assert row["algbw"] == pytest.approx(65536 / expected) and row["busbw"] == pytest.approx(1.5 * 65536 / expected)
    assert row["binding_links"] == ["rank0->rank1", "rank1->rank2", "rank2->rank3", "rank3->rank0"]
    assert (row["num_steps"], row["num_ranks"], row["others"]) == (6, 4, [])


def test_switches_that_reduce(capsys: pytest.CaptureFixture[str]) -> None:
    host = "dgx-h100:1,reduces=yes"
    assert "in_switches" in candidates("all_reduce", parse(host))
    assert "in_switches" not in candidates("all_reduce", parse("dgx-h100:1"))
    row = json_of(capsys, "simulate", "all_reduce", "--algorithm", "in_switches", "-b", "256M", "--topology", host)
    ring = json_of(capsys, "simulate", "all_reduce", "--algorithm", "ring", "-b", "256M", "--topology", host)
    assert row["num_ranks"] == 8 and row["bound_seconds"] == ring["bound_seconds"] <= row["seconds"] < ring["seconds"]
    # Every GPU sends its vector to the switch, and its own eighth of the sum back there.
    assert row["seconds"] == pytest.approx(1.125 * (256 << 20) / 370.8e9, rel=0.1)
    assert row["busbw"] == pytest.approx(1.75 * row["algbw"])


@pytest.mark.parametrize("text", ["fat-tree:16,reduces=yes", "fat-tree:12,levels=2,reduces=yes"])
def test_a_tree_of_switches_that_reduce(capsys: pytest.CaptureFixture[str], text: str) -> None:
    call = ("simulate", "all_reduce", "--topology", text, "--algorithm")
    assert "in_switches" in candidates("all_reduce", parse(text))
    small, large = (json_of(capsys, *call, "in_switches", "-b", size) for size in ("1K", "256M"))
    ring = json_of(capsys, *call, "ring", "-b", "256M")
    # Once up and once down: the vector crosses a host's cable once, where a ring sends it almost twice.
    assert 1 <= large["ratio"] < 1.1 and large["bound_seconds"] == ring["bound_seconds"] < 0.6 * ring["seconds"]
    assert 1 <= small["ratio"] < 1.1, "no more hops than there and back"


def test_what_a_rank_adds_takes_time(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("all_reduce", "--algorithm", "ring", "-b", "64K", "--topology", RING, "--level", "steps")
    plain, slow = json_of(capsys, "simulate", *call), json_of(capsys, "simulate", *call, "--reduce", "2GB/s")
    assert slow["seconds"] - plain["seconds"] == pytest.approx(3 * 16384 / 2e9) == pytest.approx(slow["reduction"])


def test_what_switches_do_is_no_ranks_time(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("simulate", "all_reduce", "--algorithm", "in_switches", "-b", "64K", "--topology", "dgx-h100:1,reduces=yes")
    plain, adding = json_of(capsys, *call), json_of(capsys, *call, "--reduce", "1GB/s")
    assert adding == plain | {"changes": adding["changes"]} and adding["ratio"] < 5
    slow = json_of(capsys, *call, "--overhead", "1us")
    # A rank sends its vector, receives its part of the sum, sends that on, and receives the whole.
    assert slow["seconds"] - plain["seconds"] == pytest.approx(4e-6)


def test_each_message_costs_its_ranks_time(capsys: pytest.CaptureFixture[str]) -> None:
    call = (
        "all_to_all",
        "--algorithm",
        "direct",
        "-b",
        "4K",
        "--topology",
        "fully-connected:5,bandwidth=1GB/s,latency=1us",
    )
    plain, slow = json_of(capsys, "simulate", *call), json_of(capsys, "simulate", *call, "--overhead", "5us")
    # The last of four messages leaves after four overheads, and waits for no other at its receiver.
    assert plain["seconds"] == pytest.approx(1e-6 + 4096 / 5 / 1e9)
    assert slow["seconds"] - plain["seconds"] == pytest.approx(5 * 5e-6)
    explained = json_of(capsys, "explain", "all_to_all", *call[3:], "--overhead", "5us")
    assert slow["seconds"] in [row["seconds"] for row in explained["candidates"]]


def test_without_an_algorithm_the_fastest_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    row = json_of(capsys, "simulate", "all_reduce", "-b", "1M", "--topology", "torus:2x2")
    others = {other["algorithm"]: other["seconds"] for other in row["others"]}
    assert {row["algorithm"], *others} == set(candidates("all_reduce", parse("torus:2x2")))
    assert row["seconds"] <= min(others.values())
    text = text_of(capsys, "simulate", "all_reduce", "-b", "1M", "--topology", "torus:2x2")
    assert f"all_reduce {row['algorithm']}, 1 MiB on torus:2x2, 4 ranks: " in text
    assert "lower bound" in text and "bottleneck, busy for " in text and "parameter_server" in text


def test_an_algorithm_that_is_named_may_have_many_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    row = json_of(capsys, "simulate", "all_reduce", "--algorithm", "ring", "-b", "1G", "--topology", "ring:20000")
    assert row["num_ranks"] == 20000 and row["others"] == []


def test_links_can_be_changed(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("all_reduce", "--algorithm", "ring", "-b", "64K", "--topology", RING)
    slow = json_of(capsys, "simulate", *call, "--link", "bandwidth=0.5GB/s,latency=2us")
    assert slow["seconds"] == pytest.approx(6 * (2e-6 + 16384 / 0.5e9))
    one = json_of(capsys, "simulate", *call, "--link", "nic:latency=0s", "--link", "rank1->rank2:bandwidth=0.1GB/s")
    assert one["binding_links"] == ["rank1->rank2"] and one["seconds"] == pytest.approx(6 * 16384 / 0.1e9, rel=0.05)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--link", "latency=2us"], ["nic links 2.00 us (default 0.500 us)"]),
        (["--link", "rank0->rank1:bandwidth=1GB/s"], ["rank0->rank1 1 GB/s (default 48.5 GB/s)"]),
        (["--link", "rank->rank:latency=1us"], ["nic links 1.00 us (default 0.500 us)"]),
        (["--overhead", "1us"], ["overhead 1.00 us (default 0)"]),
        (["--reduce", "2GB/s"], ["reduce 2 GB/s (default infinite)"]),
        (["--level", "closed"], ["level closed (default events)"]),
        (
            ["--overhead", "1us", "--link", "bandwidth=1GB/s"],
            ["nic links 1 GB/s (default 48.5 GB/s)", "overhead 1.00 us (default 0)"],
        ),
        (["--overhead", "0us", "--link", "latency=500ns", "--level", "events"], []),
    ],
)
def test_an_answer_names_the_constants_that_were_changed(
    options: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    call = ("all_reduce", "-b", "1K", "--topology", "torus:2x2", *options)
    found = json_of(capsys, "simulate", *call)
    assert all(row["changes"] == said for row in (found, *found["others"]))
    line = text_of(capsys, "simulate", *call, "--algorithm", "ring").splitlines()[1]
    assert line == f"changed: {'; '.join(said)}" if said else line.startswith("algbw ")
    (row,) = csv.DictReader(io.StringIO(text_of(capsys, "simulate", *call, "--algorithm", "ring", "--sweep")))
    assert row["changes"] == "; ".join(said)
    if "--level" not in options:
        line = text_of(capsys, "explain", *call).splitlines()[1]
        assert line == (f"changed: {'; '.join(said)}" if said else "")


def test_a_change_of_links_with_several_constants_names_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("simulate", "all_reduce", "--algorithm", "ring", "-b", "1K", "--topology", "dgx-h100:2")
    changes = json_of(capsys, *call, "--link", "nic:bandwidth=25GB/s")["changes"]
    assert changes == ["nic links 25 GB/s (default 48.5 GB/s and 97 GB/s)"]


def test_the_trunks_between_switches_can_be_changed(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("simulate", "all_to_all", "--algorithm", "direct", "-b", "1M", "--topology", "fat-tree:16,levels=2")
    plain, slow = json_of(capsys, *call), json_of(capsys, *call, "--link", "edge<->core:bandwidth=1GB/s")
    assert slow["seconds"] > 10 * plain["seconds"] and "edge0->core0" in slow["binding_links"]
    assert slow["changes"] == ["edge<->core links 1 GB/s (default 48.5 GB/s)"]
    up = json_of(capsys, *call, "--link", "edge->core:bandwidth=1GB/s")
    assert up["changes"] == ["edge->core links 1 GB/s (default 48.5 GB/s)"] and up["seconds"] < slow["seconds"] * 1.01


def test_fewer_ranks_and_their_number_in_the_topology(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("broadcast", "--algorithm", "binomial", "-b", "1K", "-n", "3", "--root", "2")
    assert json_of(capsys, "simulate", *call, "--topology", "ring:8")["num_ranks"] == 3
    assert json_of(capsys, "simulate", *call, "--topology", "switch:N")["topology"] == "switch:3"


def test_one_rank_has_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    row = json_of(capsys, "simulate", "all_reduce", "--topology", "ring:1")
    assert (row["seconds"], row["algbw"], row["busbw"]) == (0, None, None)
    assert "0.00 us" in text_of(capsys, "simulate", "all_reduce", "--topology", "ring:1")


def test_a_barrier_has_no_size(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("simulate", "barrier", "--algorithm", "dissemination", "--topology", "ring:4")
    assert "busbw" not in text_of(capsys, *call)
    row = json_of(capsys, *call)
    assert row["algbw"] is None and row["busbw"] is None


def test_a_link_binds_only_if_it_is_busy_most_of_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("simulate", "all_reduce", "--algorithm", "ring", "--topology", RING, "-b")
    assert "bottleneck, busy for 100% of the time: rank0->rank1" in text_of(capsys, *call, "64M")
    text = text_of(capsys, *call, "1K")
    assert "no link is busy most of the time; the busiest, for 20% of it: rank0->rank1" in text


def test_the_timeline_has_ranks_and_links(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    row = json_of(
        capsys, "simulate", "all_reduce", "--algorithm", "ring", "--topology", RING, "-b", "64K", "--trace", str(file)
    )
    trace = json.loads(file.read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    end = max(event["ts"] + event["dur"] for event in spans)
    assert end == pytest.approx(row["seconds"] * 1e6, rel=1e-6)
    names = json.dumps([event for event in trace["traceEvents"] if event["ph"] == "M"])
    assert "rank0->rank1" in names and "rank 3" in names


# --- many at once --------------------------------------------------------------------------------------------------

SWEEP = ("all_reduce", "--sweep", "--topology", "ring:N", "--topology", "switch:N", "-n", "2,4", "-b", "1K,64K")


def test_a_sweep_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(text_of(capsys, "simulate", *SWEEP, "--algorithm", "ring,direct"))))
    cells = [(row["topology"], row["num_ranks"], row["num_bytes"], row["algorithm"]) for row in rows]
    expected = [
        (f"{kind}:{count}", count, size, name)
        for kind in ("ring", "switch")
        for count in ("2", "4")
        for size in ("1024", "65536")
        for name in ("ring", "direct")
    ]
    assert cells == expected
    assert all(float(row["ratio"]) >= 1 - 1e-9 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["all_gather", "--algorithm", "recursive_doubling", "-n", "4,6"], "ranks, found 6"),
        (
            ["all_reduce", "--algorithm", "ring,in_switches", "-n", "4,6"],
            "expected an all_reduce, and reducing switches",
        ),
        (["broadcast", "--root", "4", "-n", "6,4"], "expected a root from 0 to 3, found 4"),
        (["all_reduce", "-n", "4", "--csv", "/"], "expected a writable file; found '/': Is a directory"),
        (["all_reduce", "-n", "4", "--plot", "/dev/null/x"], "found '/dev/null/x-time.svg': Not a directory"),
        (["all_reduce", "-n", "4", "--trace", "/"], "expected a writable file; found '/': Is a directory"),
    ],
)
def test_what_is_not_allowed_is_told_before_the_first_case_runs(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulationCase, "result", lambda _: 1 / 0)
    sweep = [] if "--trace" in arguments else ["--sweep"]
    assert main(["simulate", *arguments, *sweep, "--topology", "ring:N"]) == 2
    assert words in capsys.readouterr().err


def test_a_sweep_is_the_same_in_parallel() -> None:
    cases = [
        SimulationCase("all_reduce", name, 1 << 16, "torus:2x2") for name in ("ring", "direct", "halving_doubling")
    ]
    assert list(sweep(cases, 2, "threading")) == list(sweep(cases))
    with joblib.parallel_config("threading"):
        assert list(sweep(cases, 2)) == list(sweep(cases)), "whoever sets joblib up decides where it runs"


class _AllAtOnce(ThreadingBackend):
    """Returns no result before all are done, like Ray's backend."""

    supports_return_generator = False


def test_a_sweep_is_the_same_where_rows_come_all_at_once() -> None:
    cases = [
        SimulationCase("all_reduce", name, 1 << 16, "torus:2x2") for name in ("ring", "direct", "halving_doubling")
    ]
    joblib.register_parallel_backend("all_at_once", _AllAtOnce)
    with joblib.parallel_config("all_at_once"):
        assert list(sweep(cases, 2)) == list(sweep(cases))


def test_pictures_of_a_sweep(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stem = tmp_path / "all"
    found = json_of(
        capsys, "simulate", *SWEEP, "--algorithm", "ring,direct", "--plot", str(stem), "--csv", f"{stem}.csv"
    )
    assert found["pictures"] == [f"{stem}-{name}.svg" for name in ("time", "busbw", "bound", "best", "heat")]
    time, _, _, best, heat = (Path(file).read_text() for file in found["pictures"])
    assert "lower bound" in time and "all_reduce on switch:4, 4 ranks" in time and "64 KiB" in time
    assert (
        "fastest" in best
        and "ring:N" in best
        and "switch:N" in best
        and "rank" in heat
        and "busy share of the time" in heat
    )
    assert Path(f"{stem}.csv").read_text().count("\n") == 1 + len(found["rows"]) == 17


def test_pictures_leave_out_what_takes_no_time_and_show_the_largest_case(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    call = (
        "all_reduce",
        "--sweep",
        "--topology",
        "torus:4x4",
        "-n",
        "1,2,4,8,16",
        "-b",
        "1K,64K",
        "--algorithm",
        "ring",
    )
    found = json_of(capsys, "simulate", *call, "--plot", str(tmp_path / "few"))
    time, *_, heat = (Path(file).read_text() for file in found["pictures"])
    assert "4x4, 1 rank" not in time and "4x4, 16 ranks" in time
    assert "rank15" in heat and "all_reduce ring, 64 KiB on torus:4x4<" in heat, "the title says which case it is"


def test_a_group_on_a_grid_is_drawn_on_the_grid() -> None:
    grid = parse("torus:3x4")
    assert np.array_equal(positions(grid.place([0, 1, 7])), positions(grid))


def test_extras_that_are_absent_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "joblib", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert main(["simulate", *SWEEP, "--jobs", "2"]) == 2
    assert "pip install 'hocket[sweep]'" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    for backend, module, packages in (("ray", "ray", "ray"), ("dask", "distributed", "dask distributed")):
        monkeypatch.setitem(__import__("sys").modules, module, None)
        assert main(["simulate", *SWEEP, "--backend", backend]) == 2
        assert f"--backend {backend} needs {module}: pip install {packages}" in capsys.readouterr().err
    assert main(["simulate", *SWEEP, "--plot", "x"]) == 2
    assert "pip install 'hocket[plot]'" in capsys.readouterr().err


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["all_redcue", "--topology", RING], "expected a collective, one of all_reduce, "),
        (["gather_v", "--topology", RING], "found 'gather_v'"),
        (
            ["all_reduce", "--topology", "ring:1025"],
            "at most 1024 ranks to try all algorithms, found 1025 on ring:1025; choose some with",
        ),
        (["all_reduce", "--topology", "rnig:4"], "'rnig:4' is neither a file"),
        (["all_reduce", "--topology", RING, "-n", "5"], "has 4 ranks; found 5"),
        (
            ["all_reduce", "--topology", RING, "--algorithm", "in_switches"],
            "reducing switches that connect all ranks in a tree",
        ),
        (["all_reduce", "--topology", RING, "--algorithm", "rnig"], "found 'rnig'"),
        (["all_reduce", "--topology", RING, "--link", "bandwidth"], "expected [LINKS:]bandwidth=25GB/s"),
        (["all_reduce", "--topology", RING, "--link", "nvlink:latency=1us"], "by class (nic), or"),
        (["all_reduce", "--topology", RING, "--link", "rank0->rank2:latency=1us"], "has no link rank0->rank2"),
        (["all_reduce", "--topology", RING, "--link", "latency=-1us"], "latency"),
        (
            ["all_reduce", "--topology", RING, "--link", "latency=x"],
            "link: expected a latency with its unit, such as 500ns or 1.5us",
        ),
        (["all_reduce", "--topology", RING, "--trace", "x", "--level", "steps"], "--trace: expected --level events"),
        (
            ["all_reduce", "--topology", RING, "-b", "1K", "--trace", "/no/x"],
            "an existing folder for /no/x",
        ),
        (["all_reduce", "--topology", RING, "--sweep", "--csv", "/no/x"], "an existing folder for /no/x"),
        (["all_reduce", "--topology", RING, "--sweep", "--plot", "/no/x"], "an existing folder for /no/x"),
        (["all_reduce", "--topology", RING, "--reduce", "fast"], "reduce: expected a bandwidth above 0"),
        (["all_reduce", "--topology", RING, "--reduce", "0"], "found '0'"),
        (
            ["all_reduce", "--topology", RING, "--overhead=-1us"],
            "overhead: expected a time of 0 or more with its unit, such as 0.5us",
        ),
        (["all_reduce", "--topology", RING, "--overhead", "much"], "found 'much'"),
        (["all_reduce", "--topology", RING, "--link", "rank0-"], "found 'rank0-'; quote what has a > or <"),
        (["all_reduce", "--topology", RING, "--reduce", "200"], "with its unit, such as 200GB/s; found '200'"),
        (["all_reduce", "--topology", RING, "--overhead", "0.5"], "0.5us,gap=1us,eager=8K; found '0.5'"),
        (
            ["all_reduce", "--topology", RING, "--link", "nic:latency=2"],
            "with its unit, such as 500ns or 1.5us; found '2'",
        ),
        (["all_reduce", "--topology", "torus:4x4,bandwidth=10"], "with its unit per second, such as 25GB/s"),
        (
            ["all_reduce", "--topology", RING, "-b", "1K,2K"],
            "expected one size, rank count and topology without --sweep",
        ),
        (
            ["all_reduce", "--topology", RING, "--root", "2"],
            "expected no root, because all_reduce has none; found 2",
        ),
        (["barrier", "--topology", RING, "-b", "64K"], "expected no num_bytes (--bytes), as barrier moves no data"),
        (["all_reduce", "--topology", RING, "--csv", "x"], "--csv belongs to --sweep"),
        (["all_reduce", "--topology", RING, "--sweep", "--trace", "x"], "--trace is for one call"),
    ],
)
def test_bad_requests(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_an_algorithm_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parents[2] / "examples" / "msccl.xml"
    ranks = parse(RING).num_ranks
    row = json_of(capsys, "simulate", "all_reduce", "--algorithm", str(file), "--topology", RING, "-b", "64K")
    assert row["num_ranks"] == ranks and row["seconds"] > 0


OWN = """
from hocket.algorithms import algorithm

@algorithm("all_reduce", name="{name}", chunks=lambda p: p)
def mine(schedule):
    p, rank = schedule.num_ranks, schedule.ranks
    for i in schedule.repeat(p - 1):
        schedule.reduce(src=rank, dst=(rank + 1) % p, chunk=(rank - 1 - i) % p)
    for i in schedule.repeat({times}):
        schedule.copy(src=rank, dst=(rank + 1) % p, chunk=(rank - i) % p)
"""


def own(name: str = "mine", times: str = "p - 1") -> str:
    return OWN.format(name=name, times=times)


@pytest.mark.parametrize("sweep", [[], ["--sweep"], ["--sweep", "--jobs", "2", "--backend", "loky"]])
def test_what_breaks_a_law_takes_no_time(sweep: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.py"
    file.write_text(own())
    call = ["simulate", "all_reduce", "--topology", RING, "-b", "32K,64K" if sweep else "64K", *sweep, "--algorithm"]
    found = json_of(capsys, *call, str(file))
    assert all(row["ratio"] >= 1 for row in (found["rows"] if sweep else [found]))
    file.write_text(own(times="0"))  # it forgets to pass the sums on
    assert main([*call, str(file)]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith(f"hocket simulate: {file}:4: law 2")
    assert main([*call, f"ring,{file}:mine", "--json"]) == 1
    assert "law 2" in json.loads(capsys.readouterr().out)["error"]


def test_what_is_built_in_or_was_proved_for_this_many_ranks_is_not_proved_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proved: list[tuple[str, int]] = []
    prove = Algorithm.prove

    def count(one: Algorithm, schedule: Schedule, *rest: Any, **options: Any) -> Certificate:
        proved.append((one.name, schedule.num_ranks))
        return prove(one, schedule, *rest, **options)

    monkeypatch.setattr(Algorithm, "prove", count)
    file = tmp_path / "own.py"
    file.write_text(own())
    topologies = ["--topology", RING, "--topology", "torus:2x2", "-n", "3,4"]
    call = ["simulate", "all_reduce", *topologies, "-b", "32K,64K", "--sweep", "--algorithm", f"ring,{file}"]
    assert len(json_of(capsys, *call)["rows"]) == 16
    assert proved == [("mine", 3), ("mine", 4)]


def no_memory(*_: Any, **__: Any) -> None:
    raise ResourceError("too much", errno=errno.ENOMEM, call="allocate")


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [
        ("hocket.answers.limits._MOST_PROVED_ROWS", 23, "its schedule has 24 rows"),
        ("hocket.algorithms.Algorithm.prove", no_memory, "memory is too small"),
    ],
)
def test_what_is_too_large_to_be_proved_here_is_told(
    limit: str,
    value: object,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "own.py"
    file.write_text(own())
    call = ["simulate", "all_reduce", "--topology", RING, "-b", "64K", "--level", "closed", "--json", "--algorithm"]
    monkeypatch.setattr(limit, value)
    assert main([*call, str(file)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["ratio"] >= 1
    assert printed.err.startswith(f"hocket simulate: all_reduce mine ({file}:4) was not proved for 4 ranks, because ")
    assert printed.err.endswith(f", because {words}; use hocket verify\n") and printed.err.count("\n") == 1
    assert main([*call, "ring"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("sweep", [[], ["--sweep"]])
def test_of_two_in_a_file_one_has_to_be_named(
    sweep: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.py"
    file.write_text(own("one") + own("two"))
    call = ["simulate", "all_reduce", "--topology", RING, *sweep, "--algorithm"]
    assert main([*call, str(file)]) == 2
    printed = capsys.readouterr()
    assert f"expected {file}:NAME, one of one, two for all_reduce; found" in printed.err and not printed.out
    assert main([*call, f"{file}:two"]) == 0
