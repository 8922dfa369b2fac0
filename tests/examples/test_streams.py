"""What examples/streams.py prints and traces: facts, not times."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "streams.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Returns what the example prints, and the folder of its traces."""
    folder = tmp_path_factory.mktemp("traces")
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--traces", folder], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


def slices(run: tuple[str, Path], name: str, rank: int = 0) -> list[dict[str, Any]]:
    events = json.loads((run[1] / f"{name}.json").read_text())["traceEvents"]
    return sorted((one for one in events if one["ph"] == "X" and one["pid"] == rank), key=lambda one: one["ts"])


def end(one: dict[str, Any]) -> float:
    return float(one["ts"] + one["dur"])


@pytest.mark.timeout(120)
def test_it_says_what_holds_and_ends_with_a_summary(run: tuple[str, Path]) -> None:
    text, _ = run
    assert re.search(r"is_completed\(\): \(\w+, \w+\), then \(True, True\)", text)
    assert re.search(r"stream 2 reads [01] without waiting for stream 1, 1 after", text)
    assert "the same results: True" in text and "the same weights: True" in text
    assert text.index("right") < text.index("train-buckets.json:") < text.index("hidden share")


def test_the_second_stream_computes_after_the_first_once_it_waits(run: tuple[str, Path]) -> None:
    writes = [one for one in slices(run, "wait") if one["name"] == "OP1 writes x"]
    reads = [one for one in slices(run, "wait") if one["name"] == "OP2 reads x"]
    assert len(writes) == len(reads) == 2
    assert reads[1]["ts"] >= end(writes[1])


def test_each_operation_of_a_stream_is_one_box_with_its_own_name(run: tuple[str, Path]) -> None:
    names = [one["name"] for one in slices(run, "parallel")]
    assert names.count("OP3") == 3 and not [name for name in names if "Kernel" in name or "operation" in name]


def test_in_parallel_op4_and_op5_come_after_the_sums_that_they_need(run: tuple[str, Path]) -> None:
    (span,) = [one for one in slices(run, "parallel") if one["name"] == "parallel"]
    inside = [one for one in slices(run, "parallel") if span["ts"] <= one["ts"] and end(one) <= end(span)]
    ops = {one["name"]: one for one in inside if re.fullmatch("OP[1-5]", one["name"])}
    sums = [one for one in inside if one["name"] == "all_reduce" and one["cat"] == "communication"]
    assert len(ops) == 5 and len(sums) == 2
    first, second = sums
    assert first["ts"] >= end(ops["OP1"]) and second["ts"] >= end(ops["OP2"])
    assert ops["OP4"]["ts"] >= end(first) and ops["OP5"]["ts"] >= end(second)


def test_ddp_launches_its_buckets_while_the_backward_pass_goes_on(run: tuple[str, Path]) -> None:
    backward = [one for one in slices(run, "train-buckets") if one["name"] == "backward"]
    launches = [one for one in slices(run, "train-buckets") if one["name"] == "launch all_reduce"]
    assert len(backward) == 4
    for one in backward:
        assert len([launch for launch in launches if one["ts"] < launch["ts"] < end(one)]) >= 3
    single = [one for one in slices(run, "train-one-bucket") if one["name"] == "launch all_reduce"]
    assert len(single) == 4
