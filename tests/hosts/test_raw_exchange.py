"""The raw exchange of benchmarks/hosts.py between two hosts."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import hosts
from comparison import building
from comparison.measuring import QUICK
from comparison.results import Row

from tests.hosts.lab import Lab


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return building.compiled(building.LAB / "exchange.cpp", tmp_path_factory.mktemp("exchange") / "exchange")


@pytest.mark.parametrize("delay_seconds", [0.0, 0.005], ids=["switch", "emulator"])
def test_the_raw_exchange_goes_through_the_link(
    make_lab: Callable[..., Lab], program: Path, delay_seconds: float
) -> None:
    lab, link = make_lab(2, rate="100mbit", delay_seconds=delay_seconds), hosts.Link("100mbit", delay_seconds)
    effort = replace(QUICK, batches=1)
    for num_bytes in (8, 1 << 20):
        row = Row("all_reduce", num_bytes, "float32", 2)
        seconds, bound = hosts.raw_exchange(program, row, effort, lab), link.bound_seconds(row)
        assert seconds is not None and bound is not None
        assert 0.9 * bound < seconds < 10 * bound + 1  # the bucket of the queue is a part of three calls
