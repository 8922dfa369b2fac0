import json
from pathlib import Path

import pytest

from hocket.cli import main
from tests.cli.printed import json_of, text_of


def test_a_machine_is_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    row = json_of(capsys, "simulate", "all_reduce", "--machine", "h100:4", "-b", "8G")
    assert (row["topology"], row["num_ranks"], row["algorithm"], row["protocol"]) == ("h100:4", 32, "ring", "Simple")
    assert row["busbw"] == pytest.approx(365.84e9, rel=0.15) and row["machine"].startswith("DGX H100")
    assert [one["algorithm"] for one in row["others"]] == ["tree", "nvls"]
    text = text_of(capsys, "simulate", "all_reduce", "--machine", "h100:4", "-b", "8G")
    assert text.startswith(
        "all_reduce ring (Simple), 8 GiB on h100:4, 32 ranks: 43.5 ms\nDGX H100, NCCL in a CUDA graph\n"
    )


def test_algorithm_protocol_ranks_and_sweeps(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--machine", "h100", "--algorithm", "tree", "--protocol", "LL128", "-n", "16", "-b", "1M")
    row = json_of(capsys, "simulate", "all_reduce", *options)
    assert (row["algorithm"], row["protocol"], row["num_ranks"]) == ("tree", "LL128", 16)
    swept = json_of(
        capsys, "simulate", "all_gather", "--sweep", "--machine", "a100:2", "--machine", "v100:2", "-b", "1K,1M"
    )
    assert [(one["topology"], one["num_bytes"]) for one in swept["rows"]] == [
        (name, size) for name in ("a100:2", "v100:2") for size in (1 << 10, 1 << 20)
    ]


def test_explain_compares_a_machines_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys, "explain", "all_reduce", "--machine", "h100:4", "-b", "8G")
    assert "ring takes 43.5 ms, 1.31 times the lower bound; the next best, nvls," in text
    assert "Fastest by size: tree below" in text and "Messages of" not in text


def test_a_call_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, options in (("machine", ("--machine", "h100:2")), ("ring", ("--topology", "ring:4"))):
        file = tmp_path / f"{name}.svg"
        assert main(["simulate", "all_reduce", *options, "--svg", str(file)]) == 0
        assert file.read_text().startswith("<svg") and f"wrote {file}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("simulate all_reduce", "one of the arguments --machine --topology is required"),
        ("simulate all_reduce --machine h100 --topology ring:4", "not allowed with argument"),
        ("simulate all_reduce --machine h100 --link bandwidth=1GB/s", "machine (--machine) .* excludes --link"),
        ("simulate all_reduce --machine h100 --trace out.json", "excludes --trace"),
        ("simulate all_reduce --topology ring:4 --protocol LL", "--protocol: expected --machine"),
        ("simulate all_reduce --topology ring:4 --sweep --svg out.svg", "--svg is for one call"),
        ("explain all_reduce --machine h100 --hosts 2", "excludes hosts"),
        ("explain all_reduce -n 4 --protocol LL", "protocol: expected a machine"),
    ],
)
def test_what_excludes_each_other(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(words.split())
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    said = capsys.readouterr().err
    assert code == 2 and all(part in said for part in told.split(" .* "))


def test_hosts_for_a_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--sweep", "-b", "64K", "--algorithm", "ring", "--topology", "dgx-h100:N/8", "-n", "12,64")
    rows = json_of(capsys, "simulate", "all_reduce", *options)["rows"]
    assert [(row["topology"], row["num_ranks"]) for row in rows] == [("dgx-h100:2", 12), ("dgx-h100:8", 64)]


@pytest.mark.parametrize("algorithm", ["torus", "ring", "direct", "double_tree"])
def test_parts_of_the_time_are_not_negative(algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    row = json_of(capsys, "simulate", "all_reduce", "--algorithm", algorithm, "-b", "64M", "--topology", "torus:4x4")
    parts = [row[name] for name in ("bandwidth", "latency", "reduction", "contention")]
    assert min(parts) >= 0 and sum(parts) == pytest.approx(row["seconds"])
    assert row["bandwidth"] == pytest.approx(row["binding_share"] * row["seconds"])
    assert json.dumps(row)


def test_the_end_of_each_rank_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("simulate", "broadcast", "--algorithm", "chain", "-b", "1K", "--topology", "ring:5")
    row = json_of(capsys, *call, "--level", "events")
    ends = row["rank_seconds"]
    assert ends == sorted(ends) and len(set(ends)) == 5 and ends[-1] == row["seconds"]
    assert json_of(capsys, "simulate", "all_reduce", "--machine", "h100:1")["rank_seconds"] is None
    switches = ("--topology", "dgx-h100:1,reduces=yes", "--algorithm", "in_switches")
    assert len(json_of(capsys, "simulate", "all_reduce", *switches)["rank_seconds"]) == 8
