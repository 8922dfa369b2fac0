"""`hocket calibrate`: from a log to a machine file, a table and a picture; `hocket explain` takes the file."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

import hocket
from hocket.network import read_log_text
from tests.cli.printed import error_of, json_of, text_of
from tests.network.measured_logs import A100_X8, nccl_json, nccl_log, osu_log

ROWS = A100_X8[7::4]


@pytest.fixture
def log(tmp_path: Path) -> str:
    file = tmp_path / "my.log"
    file.write_text(nccl_log(ROWS, [8], header=False))
    return str(file)


def test_a_log_becomes_a_machine(capsys: pytest.CaptureFixture[str], log: str, tmp_path: Path) -> None:
    machine, plot = tmp_path / "my.yaml", tmp_path / "fit.svg"
    text = text_of(capsys, "calibrate", log, "--machine", "a100", "-o", str(machine), "--plot", str(plot))
    assert "launch" in text and "not determined: it acts like launch" in text and "median error" in text
    assert machine.read_text().startswith("base: a100\n")
    svg = ElementTree.fromstring(plot.read_text())
    assert len(svg.findall("{http://www.w3.org/2000/svg}circle")) == len(ROWS)
    before, after = (
        json_of(capsys, "explain", "all_reduce", "-b", "1K", "-n", "8", "--machine", name)["candidates"][0]["seconds"]
        for name in ("a100", str(machine))
    )
    assert after < before == pytest.approx(45e-6, rel=0.01)


def test_json_is_the_answer_of_the_function(capsys: pytest.CaptureFixture[str], log: str) -> None:
    found = json_of(capsys, "calibrate", log, "--machine", "a100")
    answer = hocket.calibrate(log, machine="a100")
    assert found["yaml"] == answer.yaml and found["median_error"] == answer.median_error
    assert [one["num_bytes"] for one in found["calls"]] == [size for size, *_ in ROWS]
    assert answer.worst.error == max((one["error"] for one in found["calls"]), key=abs)


def test_logs_of_other_formats_are_fitted_alike(tmp_path: Path, log: str) -> None:
    (tmp_path / "my.json").write_text(nccl_json(ROWS, [8]))
    (tmp_path / "my.osu").write_text(osu_log([(size, min(times), 0) for size, *times in ROWS]))
    answers = [
        hocket.calibrate(log, machine="a100"),
        hocket.calibrate(tmp_path / "my.json", machine="a100"),
        hocket.calibrate(tmp_path / "my.osu", machine="a100", ranks=8),
    ]
    values = [{one.key: one.value for one in answer.constants} for answer in answers]
    assert values[0] == pytest.approx(values[1], rel=1e-3) and values[0] == pytest.approx(values[2], rel=1e-3)


def test_the_machine_it_starts_from_is_not_overwritten(
    capsys: pytest.CaptureFixture[str], log: str, tmp_path: Path
) -> None:
    for name, base in (("mine", "a100"), ("better", "mine.yaml")):
        (tmp_path / f"{name}.yaml").write_text(f"base: {base}\n")
    mine, better = str(tmp_path / "mine.yaml"), str(tmp_path / "better.yaml")
    for machine, output in ((mine, mine), (better, mine)):
        text = error_of(capsys, "calibrate", log, "--machine", machine, "-o", output)
        assert f"expected another file than {output}" in text
    with pytest.raises(ValueError, match="expected another file"):
        hocket.calibrate(log, machine=mine).write(mine)
    assert Path(mine).read_text() == "base: a100\n"


@pytest.mark.parametrize(
    ("more", "collective"),
    [
        ((), "all_gather"),
        (("--format", "json"), "all_reduce"),
        (("--format", "osu"), "broadcast"),
        (("--format", "csv"), "all_to_all"),
    ],
)
def test_what_bench_prints_is_read(bench: Callable[..., str], more: tuple[str, ...], collective: str) -> None:
    [table] = read_log_text(bench(collective, "-n", "2", "-b", "64", "-e", "4K", "-f", "8", *more), "my.log")
    assert (table.collective, table.num_ranks) == (collective, 0 if "osu" in more else 2)
    assert [call.num_bytes for call in table.calls] == [64, 512, 4096]


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("no log\n", (), "my.log, line 2: expected output of nccl-tests"),
        (nccl_log(ROWS, [8]).replace("sum", "sum sum", 1), (), "my.log, line 17: expected 13 values"),
        (nccl_log(ROWS, [8], header=False), ("-n", "16"), "the log is of 8 ranks; found ranks=16"),
        (osu_log(ROWS), (), "give it with ranks= (--ranks N)"),
        (osu_log(ROWS), ("-n", "16", "--hosts", "3"), "expected hosts with equally many of 16 ranks"),
        (nccl_log(ROWS, [9], header=False), (), "expected at most 8 ranks on each host"),
    ],
    ids=["none", "row", "ranks", "osu", "hosts", "machine"],
)
def test_what_cannot_be_fitted_is_refused(
    capsys: pytest.CaptureFixture[str], log: str, text: str, options: tuple[str, ...], says: str
) -> None:
    Path(log).write_text(text)
    assert says in error_of(capsys, "calibrate", log, "--machine", "a100", *options)


def test_an_unknown_machine_is_refused(capsys: pytest.CaptureFixture[str], log: str) -> None:
    assert "did you mean 'a100'" in error_of(capsys, "calibrate", log, "--machine", "a10")
