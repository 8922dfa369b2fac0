"""`hocket expect`: a verdict for each range of sizes, and what may be wrong."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

import hocket
from hocket.network import fastest_call, load_machine, placed_as
from tests.cli.printed import error_of, json_of, text_of
from tests.network.measured_logs import A100_X8, H100_X16_SLOW, Row, nccl_log


def written(tmp_path: Path, rows: Sequence[Row], hosts: Sequence[int]) -> str:
    file = tmp_path / "my.log"
    file.write_text(nccl_log(rows, hosts, header=False))
    return str(file)


def predicted(sizes: Sequence[int], later: float = 0.0, times: float = 1.0) -> list[Row]:
    """Returns what H100 predicts for one host: later by so many us, or as many times as long."""
    machine = load_machine("h100")
    placed = placed_as(machine, (8,))
    us = [fastest_call(machine, placed, "all_reduce", size).seconds * 1e6 * times + later for size in sizes]
    return [(size, one, one) for size, one in zip(sizes, us, strict=True)]


def test_half_of_the_cards_in_rings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log, plot = written(tmp_path, H100_X16_SLOW, [8, 8]), tmp_path / "expect.svg"
    text = text_of(capsys, "expect", log, "--machine", "h100", "--plot", str(plot))
    assert "all_reduce, 16 ranks on 2 hosts, against h100" in text
    assert "from 512 MiB: 43% of the prediction" in text
    assert "- 4 of 8 network cards of each host idle, and only rings (NCCL_ALGO)" in text
    paths = ElementTree.fromstring(plot.read_text()).findall("{http://www.w3.org/2000/svg}path")
    assert [path.get("stroke-dasharray") for path in paths] == [None, "4 3"]


def test_json_is_the_answer_of_the_function(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = written(tmp_path, A100_X8[12:20:3], [8])
    found, answer = json_of(capsys, "expect", log, "--machine", "a100"), hocket.expect(log, machine="a100")
    assert found["tables"][0]["verdicts"][0]["ratio"] == answer.tables[0].verdicts[0].ratio
    assert [call["num_bytes"] for call in found["tables"][0]["calls"]] == [1 << 15, 1 << 18, 1 << 21]


SIZES = [1 << power for power in range(8, 16, 2)]
LONG = [1 << power for power in range(26, 33, 2)]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (predicted([*SIZES, *LONG]), ["from 256 B: 100% of the prediction, as expected"]),
        (
            predicted(SIZES, later=80) + predicted(LONG),
            ["up to 16 KiB: 16% of the prediction, 80 us more for each call", "from 64 MiB: 100% of the prediction"],
        ),
        (predicted(LONG, times=0.8), ["125% of the prediction; this host is faster than h100"]),
        (predicted(LONG, times=0.3), ["faster than any algorithm can be on h100"]),
        (
            [row for size, times in zip(LONG, (10, 40, 10, 40), strict=True) for row in predicted([size], times=times)],
            ["none of the causes that were simulated explains it"],
        ),
    ],
    ids=["as predicted", "late", "fast", "impossible", "unexplained"],
)
def test_verdicts(capsys: pytest.CaptureFixture[str], tmp_path: Path, rows: Sequence[Row], says: Sequence[str]) -> None:
    text = text_of(capsys, "expect", written(tmp_path, rows, [8]), "--machine", "h100")
    assert [one for one in says if one not in text] == []


def test_one_odd_call_is_no_range(tmp_path: Path) -> None:
    rows = predicted(LONG)
    rows[1] = (rows[1][0], 2 * rows[1][1], 2 * rows[1][2])
    [verdict] = hocket.expect(written(tmp_path, rows, [8]), machine="h100").tables[0].verdicts
    assert (verdict.kind, verdict.first_bytes, verdict.last_bytes) == ("as predicted", LONG[0], LONG[-1])


def test_a_damaged_log_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = written(tmp_path, H100_X16_SLOW, [8, 8])
    Path(log).write_text(Path(log).read_text().replace("5202.30", "52.0230"))
    assert "expected algbw = size / time" in error_of(capsys, "expect", log, "--machine", "h100")
