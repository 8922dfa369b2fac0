"""A machine is fitted to published logs, predicts the other half of their sizes, and says what a log does not say."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from hocket.network import (
    Machine,
    MachineFit,
    MeasuredCall,
    MeasuredTable,
    fastest_call,
    fit_machine,
    fitted_text,
    load_machine,
    placed_as,
)
from tests.network.measured_logs import A100_X8, A100_X16, H100_X8, H100_X16_SRUN, MI300X_X16, Row

LOGS = {
    "a100": (A100_X8, (8,)),
    "h100": (H100_X8, (8,)),
    "mi300x": (MI300X_X16, (8, 8)),
}


def table_of(rows: list[Row], hosts: tuple[int, ...]) -> MeasuredTable:
    calls = tuple(MeasuredCall(f"line {at}", size, min(out, own) * 1e-6) for at, (size, out, own) in enumerate(rows))
    return MeasuredTable("my.log", "all_reduce", sum(hosts), hosts, calls)


def errors(machine: Machine, table: MeasuredTable) -> list[float]:
    placed = placed_as(machine, table.ranks_per_host)
    times = (fastest_call(machine, placed, table.collective, one.num_bytes) for one in table.calls)
    return [time.seconds / one.seconds - 1 for time, one in zip(times, table.calls, strict=True)]


def fitted(fit: MachineFit) -> dict[str, float]:
    return {one.key: one.value for one in fit.constants if one.error is not None}


@pytest.mark.parametrize("half", [0, 1], ids=["even", "odd"])
@pytest.mark.parametrize("named", LOGS)
def test_half_of_a_log_predicts_the_other_half(named: str, half: int) -> None:
    rows, hosts = LOGS[named]
    base = load_machine(named)
    fit = fit_machine(base, [table_of(rows[half::2], hosts)])
    other = table_of(rows[1 - half :: 2], hosts)
    before, after = (median(map(abs, errors(machine, other))) for machine in (base, fit.machine))
    assert after <= 0.10 and after < before


@pytest.mark.slow("fits on two hosts")
@pytest.mark.parametrize("half", [0, 1], ids=["even", "odd"])
def test_half_of_a_log_of_slow_cards_predicts_the_other_half(half: int) -> None:
    fit = fit_machine(load_machine("h100"), [table_of(H100_X16_SRUN[half::2], (8, 8))])
    assert median(map(abs, errors(fit.machine, table_of(H100_X16_SRUN[1 - half :: 2], (8, 8))))) <= 0.10
    assert 9e9 < fitted(fit)["nic-bandwidth"] < 12e9


@pytest.mark.slow("a fit of all sizes on two hosts")
def test_half_of_a_log_of_two_hosts_predicts_the_other_half() -> None:
    fit = fit_machine(load_machine("a100"), [table_of(A100_X16[::2], (8, 8))])
    assert median(map(abs, errors(fit.machine, table_of(A100_X16[1::2], (8, 8))))) <= 0.10
    values = {one.key: one.value for one in fit.constants}
    assert 20e9 < values["nic-bandwidth"] * values["bandwidth_share"] < 25e9  # two cards of 100 Gb/s for each GPU


def made(machine: Machine, hosts: tuple[int, ...], sizes: list[int]) -> MeasuredTable:
    """Returns what the machine predicts, as if it was measured."""
    placed = placed_as(machine, hosts)
    times = [fastest_call(machine, placed, "all_reduce", size).seconds * 1e6 for size in sizes]
    return table_of([(size, time, time) for size, time in zip(sizes, times, strict=True)], hosts)


def test_known_constants_are_found() -> None:
    base = load_machine("a100")
    known = replace(base, bandwidth_share=0.8, launch_seconds=12e-6)
    fit = fit_machine(base, [made(known, (8,), [1 << power for power in range(10, 31, 2)])])
    assert fitted(fit)["bandwidth_share"] == pytest.approx(0.8, rel=0.01)
    assert fitted(fit)["launch"] == pytest.approx(12e-6, rel=0.05)
    assert max(abs(one.value - one.before) for one in fit.constants if one.undetermined) == 0


def test_the_bandwidth_of_cards_is_told_from_that_of_links_between_gpus() -> None:
    base = replace(load_machine("a100"), algorithms=("ring",))
    inside = made(replace(base, bandwidth_share=0.7), (8,), [1 << power for power in (24, 26, 28, 30)])
    slower = load_machine("a100").topology + ",nic-bandwidth=10GB/s"
    known = replace(base, bandwidth_share=0.7, topology=slower)
    outside = made(known, (8, 8), [1 << power for power in (24, 26, 28, 30)])
    found = fitted(fit_machine(base, [inside, outside]))
    assert found["bandwidth_share"] == pytest.approx(0.7, rel=0.01)
    assert found["nic-bandwidth"] == pytest.approx(10e9, rel=0.01)


def test_a_log_of_long_calls_does_not_determine_latencies() -> None:
    fit = fit_machine(load_machine("a100"), [table_of(A100_X8[-6:], (8,))])
    reasons = {one.key: one.undetermined for one in fit.constants}
    assert reasons["bandwidth_share"] == ""
    assert reasons["launch"] == "it changes no prediction of this log"
    assert {one.key: one.value for one in fit.constants}["launch"] == load_machine("a100").launch_seconds


def test_a_log_of_short_calls_does_not_determine_bandwidth() -> None:
    fit = fit_machine(load_machine("a100"), [table_of(A100_X8[4:10], (8,))])
    reasons = {one.key: one.undetermined for one in fit.constants}
    assert reasons["launch"] == "" and reasons["bandwidth_share"]
    assert reasons["hop_latency"] == "it acts like launch on every call of this log"


def test_the_file_predicts_as_the_fit(tmp_path: Path) -> None:
    base = replace(load_machine("mi300x"), bandwidth_share=0.9)
    sizes = [1 << power for power in (10, 16, 20, 24, 26, 28, 30)]
    table = made(replace(base, topology=base.topology + ",nic-bandwidth=20GB/s"), (8, 8), sizes)
    fit = fit_machine(load_machine("mi300x"), [table])
    file = tmp_path / "my.yaml"
    file.write_text(fitted_text(fit, "mi300x", ["my.log"]))
    assert "nic-bandwidth=" in file.read_text() and "my.log" in file.read_text()
    assert fitted(fit)["nic-bandwidth"] == pytest.approx(0.9 * 20e9, rel=1e-3)  # cards are the bottleneck of all calls
    loaded = errors(load_machine(str(file)), table)
    assert loaded == pytest.approx(errors(fit.machine, table), abs=1e-9)
    file.with_name("again.yaml").write_text(fitted_text(fit, str(file), ["my.log"]))
    assert load_machine(str(file.with_name("again.yaml"))).bandwidth_share == load_machine(str(file)).bandwidth_share


def test_a_fit_needs_three_calls() -> None:
    with pytest.raises(ValueError, match="expected at least 3 measured calls"):
        fit_machine(load_machine("a100"), [table_of(A100_X8[:2], (8,))])


def test_ranks_are_the_first_of_each_host() -> None:
    machine = load_machine("h100")
    placed = placed_as(machine, (2, 4))
    assert [len(ranks) for ranks in placed.hosts] == [2, 4]
    with pytest.raises(ValueError, match="expected at most 8 ranks on each host"):
        placed_as(machine, (16,))


LONG = [1 << power for power in range(26, 33, 2)]


def test_a_host_faster_than_its_base_is_told() -> None:
    base = load_machine("a100")
    times = [fastest_call(base, placed_as(base, (8,)), "all_reduce", size).seconds * 0.8e6 for size in LONG]
    fit = fit_machine(base, [table_of([(size, us, us) for size, us in zip(LONG, times, strict=True)], (8,))])
    [share] = [one for one in fit.constants if one.key == "bandwidth_share"]
    assert share.at_limit and share.value == 1


def test_calls_that_scatter_determine_nothing() -> None:
    base = load_machine("a100")
    us = [fastest_call(base, placed_as(base, (8,)), "all_reduce", size).seconds * 1e6 for size in LONG]
    rows = [(size, one * times, one * times) for size, one, times in zip(LONG, us, (1, 9, 1, 9), strict=True)]
    reasons = {one.key: one.undetermined for one in fit_machine(base, [table_of(rows, (8,))]).constants}
    assert reasons["bandwidth_share"] == "the calls of this log scatter too much"
