"""hocket simulate --sweep --plot: which pictures come, and what the others need."""

import json
from pathlib import Path

import pytest

from hocket.cli import main
from hocket.view.networks import simulation_plots
from tests.cli.printed import error_of, json_of, text_of

CALL = ("simulate", "all_reduce", "--algorithm", "ring", "--topology", "ring:N", "--sweep")


@pytest.mark.parametrize(
    ("options", "drawn", "needs"),
    [
        ("-b 1K -n 4", ["heat"], "{0}-bound.svg need several sizes or rank counts, such as -b 1K,64K,4M"),
        (
            "-b 1K -n 4,8",
            ["time", "busbw", "bound", "heat"],
            "{}-best.svg needs several sizes and rank counts, such as -b 1K,64K,4M -n 4,8,16",
        ),
        ("-b 1K,1M -n 1", ["heat"], "bound.svg need two ranks or more"),
        ("-b 1K,1M -n 4", ["time", "busbw", "bound", "heat"], "{}-best.svg needs several sizes and rank counts"),
        ("-b 1K,1M -n 4,8", ["time", "busbw", "bound", "best", "heat"], ""),
    ],
)
def test_what_a_missing_picture_needs_is_said(
    options: str, drawn: list[str], needs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stem = str(tmp_path / "all")
    assert main([*CALL, *options.split(), "--plot", stem]) == 0
    said = capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == sorted(tmp_path / f"all-{name}.svg" for name in drawn)
    assert needs.format(stem) in said and said.startswith("hocket simulate: ") == bool(needs)
    wrote = [line.removeprefix("wrote ") for line in said.splitlines() if line.startswith("wrote ")]
    assert wrote == [f"{stem}-{name}.svg" for name in drawn]


def test_no_two_lines_of_a_plot_look_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = []
    monkeypatch.setattr(simulation_plots, "saved", lambda figure, _: figures.append(figure))
    names = [f"algorithm {number}" for number in range(20)]
    rows = [
        {"collective": "all_reduce", "topology": "ring:4", "num_ranks": 4, "algorithm": name, "num_bytes": size}
        | {"seconds": 1.0, "bound_seconds": 0.5}
        for name in names
        for size in (1, 2)
    ]
    simulation_plots.over(str(tmp_path / "time.svg"), rows, "num_bytes", "seconds")
    lines = [line for line in figures[0].axes[0].get_lines() if line.get_label() in names]
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}) == len(names)


def test_over_ranks_and_over_the_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stem = tmp_path / "all"
    assert main([*CALL, "-b", "1K", "-n", "4,8", "--plot", str(stem)]) == 0
    bound = Path(f"{stem}-bound.svg").read_text()
    assert "times the lower bound" in bound and ">ranks<" in bound and "all_reduce of 1 KiB" in bound
    assert main([*CALL, "-b", "1K,1M", "-n", "4,8", "--algorithm", "ring,tree", "--plot", str(stem)]) == 0
    best = Path(f"{stem}-best.svg").read_text()
    capsys.readouterr()
    rows = json_of(capsys, *CALL, "-b", "1K,1M", "-n", "4,8", "--algorithm", "ring,tree")["rows"]
    one, other = sorted(row["seconds"] for row in rows if (row["num_ranks"], row["num_bytes"]) == (4, 1024))
    assert f"{other / one:.3g}x" in best, "the margin of the fastest"


def test_too_many_busy_links_are_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulation_plots, "_MOST_DRAWN", 7)
    assert main([*CALL, "-b", "1K", "-n", "8", "--plot", str(tmp_path / "all")]) == 0
    said = capsys.readouterr().err
    assert "wrote" not in said and "heat.svg needs fewer ranks: more than 7 links" in said


def test_a_barrier_has_no_sizes_to_ask_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ("simulate", "barrier", "--topology", "ring:4", "--sweep", "--plot", str(tmp_path / "all"))
    assert main([*call, "--json"]) == 0
    found, heat = capsys.readouterr(), str(tmp_path / "all-heat.svg")
    assert json.loads(found.out)["pictures"] == [heat] and found.err == f"wrote {heat}\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("-n 4 -b 1M --plot out", "--plot belongs to --sweep, which simulates every combination; add --sweep"),
        ("-n 4 -b 1K,1M", "found 2 cases; add --sweep"),
        ("-n 4 -b 1M --plot", "argument --plot: expected one argument: --plot STEM"),
        ("-n 4 -b", "argument -b/--bytes: expected one argument: -b B,..."),
    ],
)
def test_the_error_says_what_to_add(options: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{said}\n" in error_of(capsys, *CALL[:-1], *options.split())


DRAWN = "name: lab\ntopology: ring:4\n"
CHANGED = DRAWN + "change: [{link: rank0->rank1, bandwidth: 1GB/s}]\n"


def test_two_files_with_one_name_are_refused_as_rows_and_lines_would_be_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_text(DRAWN)
    other.write_text(CHANGED)
    call = ("simulate", "all_reduce", "--algorithm", "ring", "-b", "1K", "--sweep", "--topology", str(one))
    assert main([*call, "--topology", str(other)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "found 'lab' in" in said and "one.yaml and in" in said and "write another name: in one of the files" in said
    renamed = tmp_path / "renamed.yaml"
    renamed.write_text(CHANGED.replace("lab", "slow"))
    assert main([*call, "--topology", str(renamed)]) == 0


def test_a_kind_whose_size_is_the_rank_count_may_meet_the_same_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CALL, "-b", "1K", "-n", "4", "--topology", "ring:4"]) == 0


def test_the_changes_of_a_file_are_told_as_those_of_an_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lab.yaml"
    file.write_text(CHANGED)
    call = ("simulate", "all_reduce", "--algorithm", "ring", "-b", "1K", "--topology")
    by_file = json_of(capsys, *call, str(file))["changes"]
    by_option = json_of(capsys, *call, "ring:4", "--link", "rank0->rank1:bandwidth=1GB/s")["changes"]
    assert by_file == by_option == ["rank0->rank1 1 GB/s (default 48.5 GB/s)"]
    for command in (call, ("show", "topology")):
        assert "changed: rank0->rank1 1 GB/s (default 48.5 GB/s)\n" in text_of(capsys, *command, str(file))


def test_an_option_on_top_of_a_file_is_one_change_from_the_usual_constant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lab.yaml"
    file.write_text(DRAWN + "change: [{link: nic, bandwidth: 25GB/s}]\n")
    call = ("simulate", "all_reduce", "--algorithm", "ring", "-b", "1K", "--topology", str(file), "--link")
    told = json_of(capsys, *call, "bandwidth=10GB/s", "-n", "2")["changes"]
    assert told == ["nic links 10 GB/s (default 48.5 GB/s)"]
    assert json_of(capsys, *call, "bandwidth=48.5GB/s")["changes"] == []
