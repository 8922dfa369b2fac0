"""Measured costs of this machine: they are measured, and read back from disk."""

import os
from pathlib import Path

import pytest

from hocket import _core
from hocket.runtime import MachineCosts
from hocket.runtime.tuning import machine_costs
from hocket.runtime.tuning.machine_costs import PASSES

COSTS = MachineCosts(2, 1e-7, {kind: {16384: 1e11, 1 << 27: 1e10} for kind in PASSES}, dict.fromkeys(PASSES, 2e10))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOCKET_CACHE", str(tmp_path))
    return tmp_path


def test_what_was_stored_is_loaded() -> None:
    assert machine_costs.load() is None
    stored, file = machine_costs.store(COSTS)
    assert stored == machine_costs.load() == COSTS
    assert list(file.parent.iterdir()) == [file]


def test_another_processor_has_other_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    _, file = machine_costs.store(COSTS)
    monkeypatch.setattr(machine_costs, "_processor", lambda: "another")
    assert machine_costs.load() is None
    assert machine_costs.store(COSTS)[1] != file


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"num_cores": 2, "hop_seconds": 1e-7, "bytes_per_second": {}, "together_bytes_per_second": {}}',
        b'{"num_cores": 2, "hop_seconds": 1e-7, "bytes_per_second": {"load": 3}, "together_bytes_per_second": {}}',
    ],
)
def test_what_is_no_measurement_is_none(content: bytes) -> None:
    machine_costs.store(COSTS)[1].write_bytes(content)
    assert machine_costs.load() is None


def test_of_several_measurements_the_fastest_counts() -> None:
    """A bound must not exceed what the machine reached at a faster time."""
    slow = {kind: {16384: 5e10, 1 << 27: 9e9} for kind in PASSES}
    machine_costs.store(COSTS)
    later = MachineCosts(2, 1.5e-7, slow | {"load": {16384: 2e11, 1 << 27: 9e9}}, dict.fromkeys(PASSES, 3e10))
    expected = MachineCosts(
        2, 1e-7, COSTS.bytes_per_second | {"load": {16384: 2e11, 1 << 27: 1e10}}, dict.fromkeys(PASSES, 3e10)
    )
    assert machine_costs.store(later)[0] == machine_costs.load() == expected
    assert machine_costs.store(COSTS)[0] == expected


def test_the_hop_is_the_least_of_many_samples_over_the_whole_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    hops = iter([1.5e-7] * 10 + [3e-8] + [1.5e-7] * 100)
    monkeypatch.setattr(_core, "hop_seconds", lambda *_: next(hops))
    monkeypatch.setattr(_core, "bytes_per_second", lambda *_: 1e10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert machine_costs.measure().hop_seconds == 3e-8


def test_rates_of_zero_are_no_measurement() -> None:
    machine_costs.store(MachineCosts(2, 1e-7, COSTS.bytes_per_second, dict.fromkeys(PASSES, 0.0)))
    assert machine_costs.load() is None


def test_a_folder_that_cannot_be_written_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "file").touch()
    monkeypatch.setenv("HOCKET_CACHE", str(cache / "file"))
    with pytest.raises(OSError, match="file"):
        machine_costs.store(COSTS)
    assert machine_costs.load() is None


def test_everything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With little memory and time: the test ignores the numbers, because other programs run."""
    for name, value in (
        ("_FOOTPRINTS", (4096, 1 << 20)),
        ("_SECONDS_EACH", 1e-3),
        ("_SECONDS_TOGETHER", 1e-3),
        ("_SECONDS_HOP", 1e-3),
    ):
        monkeypatch.setattr(machine_costs, name, value)
    before = os.sched_getaffinity(0)
    found = machine_costs.measure()
    assert os.sched_getaffinity(0) == before
    assert found.num_cores == len(before)
    assert (found.hop_seconds > 0) == (len(before) > 1)
    assert set(found.bytes_per_second) == set(found.together_bytes_per_second) == set(PASSES)
    assert all(rate > 0 for rates in found.bytes_per_second.values() for rate in rates.values())
    machine_costs.store(found)
    assert machine_costs.load() == found


def test_what_the_core_refuses() -> None:
    for arguments in (
        ("jump", 4096, [0], 0.0),
        ("load", 100, [0], 0.0),
        ("load", 4096, [], 0.0),
        ("load", 4096, [-1], 0.0),
    ):
        with pytest.raises(ValueError, match="expected"):
            _core.bytes_per_second(*arguments)
    with pytest.raises(ValueError, match="expected two cores"):
        _core.hop_seconds(0, 0, 0.0)
    absent = max(os.sched_getaffinity(0)) + 500
    with pytest.raises(OSError, match=f"cannot run on core {absent}"):
        _core.bytes_per_second("load", 4096, [0, absent], 0.0)
