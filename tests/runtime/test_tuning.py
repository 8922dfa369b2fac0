"""The tuner: what it times, drops early, chooses and keeps."""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hocket.algorithms import ALGORITHMS
from hocket.errors import CommunicationError
from hocket.runtime import Policy, choose, discover, run_ranks
from hocket.runtime.choice.tuner_file import read, write
from hocket.runtime.tuning import tuner
from hocket.runtime.tuning.timed_ranks import Rounds, TimedJob, _cells, _worth_trying, exact_bytes, measure
from hocket.runtime.tuning.tuner import COLLECTIVES, Tuning, candidates, job_of, load, store, tune
from hocket.schedule import find_collective


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads neither a tuner file of the working directory nor times of another test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuner, "file", lambda: tmp_path / "cache" / "tuning.json")


# --- what is timed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_schedule_is_timed_once(collective: str) -> None:
    for p in (2, 3, 8):
        default = choose(collective, p, 1 << 20)
        names = candidates(collective, p, (default,))
        there = [name for kind, name in ALGORITHMS if kind == collective and ALGORITHMS[kind, name].allows(p)]
        assert sorted([*names, *(twin for twins in names.values() for twin in twins)]) == sorted(there)
        assert default in names
        digests = {name: ALGORITHMS[collective, name].build(p).digest for name in there}
        assert len({digests[name] for name in names}) == len(names)
        assert all(digests[twin] == digests[name] for name, twins in names.items() for twin in twins)


def test_what_can_be_tuned() -> None:
    assert all(not find_collective(name).uneven for name in COLLECTIVES)
    assert tuner.SIZES[0] == 8 and tuner.SIZES[-1] == 64 << 20


@pytest.mark.parametrize(
    ("collective", "num_bytes", "num_ranks", "expected"),
    [
        ("all_reduce", 8, 8, 8),
        ("all_reduce", 9, 8, 8),
        ("broadcast", 1, 8, 4),
        ("all_gather", 8, 8, 32),
        ("all_to_all", 100, 3, 96),
        ("barrier", 4096, 3, 1),
    ],
)
def test_sizes_that_ranks_can_share_out(collective: str, num_bytes: int, num_ranks: int, expected: int) -> None:
    assert exact_bytes(collective, num_bytes, num_ranks) == expected


@pytest.mark.parametrize("shares_cores", [False, True])
def test_a_job_has_the_default_for_each_size(shares_cores: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "shared_by", lambda num_ranks: num_ranks == 8 and shares_cores)
    job, table = job_of("all_reduce", 8, [64 << 20, 8, 4 << 10, 8]), Policy(shares_cores=shares_cores)
    assert job.sizes == (8, 4 << 10, 64 << 20)
    assert job.defaults == tuple(choose("all_reduce", 8, size, "fast", table) for size in job.sizes)
    assert job.defaults == ("direct", "parameter_server" if shares_cores else "direct", "direct_two_shot")
    assert set(job.defaults) <= set(job.names)
    assert job_of("barrier", 4, [8, 64]).sizes == (1,)
    assert job_of("all_gather", 8, [1, 8, 32]).sizes == (32,)


def test_all_algorithms_are_tried_at_two_sizes_first() -> None:
    job = TimedJob("all_reduce", (8, 4096, 1 << 20, 4 << 20, 64 << 20), ("a",), ("a",) * 5)
    assert [size for _, size, _ in _cells([job])] == [8, 4 << 20, 4096, 1 << 20, 64 << 20]


def test_who_is_far_behind_by_other_sizes_is_not_tried() -> None:
    """Linear between two sizes, proportional above them."""
    before: dict[int, Rounds] = {
        8: {"quick": [1e-6], "slow": [9e-6], "never": [], "default": [5e-5]},
        1 << 20: {"quick": [9e-4], "slow": [1e-4], "default": [5e-3]},
    }
    names = ("quick", "slow", "never", "default")
    assert _worth_trying(names, "default", 64, before) == ["quick", "default"]
    assert _worth_trying(names, "default", 1 << 14, before) == ["quick", "slow", "default"]
    assert _worth_trying(names, "default", 1 << 22, before) == ["slow", "default"]


def test_all_collectives_are_timed_by_ranks() -> None:
    jobs = [job_of(collective, 3, (4 << 10,)) for collective in COLLECTIVES]
    jobs = [replace(job, names=tuple(dict.fromkeys((*job.defaults, *job.names)))[:2]) for job in jobs]
    found = tuner.time_algorithms(3, jobs, 1e9)
    assert set(found) == {(job.collective, size) for job in jobs for size in job.sizes}
    for job in jobs:
        for size, default in zip(job.sizes, job.defaults, strict=True):
            rounds = found[job.collective, size]
            assert set(rounds) <= set(job.names) and all(second > 0 for times in rounds.values() for second in times)
            assert len(rounds[default]) == max(map(len, rounds.values())), "the default is timed to the end"


def test_what_there_is_no_time_for_is_left_out() -> None:
    assert tuner.time_algorithms(2, [job_of("broadcast", 2, (8, 64))], 1e-9) == {}


def test_ranks_that_do_not_agree_fail_and_do_not_hang() -> None:
    """Like any error in a rank: an error of the communicator ends all ranks."""

    def differ() -> None:
        measure([TimedJob("all_reduce", (8 << discover().rank,), ("direct",), ("direct",))], 60.0)

    before = threading.active_count()
    with pytest.raises(CommunicationError):
        run_ranks(differ, 2, kind="thread")
    assert threading.active_count() == before


# --- what is chosen ------------------------------------------------------------------------------------------------

SPREAD = (1.0, 1.01, 0.99, 1.0, 1.02)


class Machine:
    """Makes up times instead of running ranks: at first, the ring is fastest from 64 KiB on."""

    def __init__(self, again: float) -> None:
        self.again, self.calls = again, list[tuple[Sequence[TimedJob], bool]]()

    def __call__(
        self, num_ranks: int, jobs: Sequence[TimedJob], seconds: float, *, screen: bool = True
    ) -> dict[tuple[str, int], Rounds]:
        self.calls.append((jobs, screen))
        ring = 0.5 if screen else self.again
        return {
            (job.collective, size): {
                name: [factor * (1e-6 + 1e-9 * size) * one for one in SPREAD]
                for name in job.names
                for factor in [ring if name == "ring" and size >= 1 << 16 else 1.0]
            }
            for job in jobs
            for size in job.sizes
        }


SIZES = (8, 4 << 10, 64 << 10, 1 << 20)


def test_rank_counts_share_the_time_by_their_ranks_but_none_gets_less_than_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    shares: list[float] = []
    monkeypatch.setattr(tuner, "time_algorithms", lambda _, __, seconds: shares.append(seconds) or {})
    now = iter(range(1000, 2000, 10))  # each takes 10 s on this clock
    monkeypatch.setattr(tuner, "time", SimpleNamespace(monotonic=lambda: next(now), strftime=time.strftime))
    tune(["gather"], [2, 4, 8], SIZES, seconds=100.0, check=False)
    assert shares == [90 * 4 / 16, 80 * 4 / 12, 70]


@pytest.mark.parametrize(("shares_cores", "default"), [(True, "parameter_server"), (False, "direct_two_shot")])
def test_what_wins_clearly_becomes_a_rule_and_the_file_chooses_it(
    shares_cores: bool, default: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tuner, "shared_by", lambda num_ranks: num_ranks == 4 and shares_cores)
    machine = Machine(again=0.6)
    monkeypatch.setattr(tuner, "time_algorithms", machine)
    told: list[str] = []
    result = tune(["all_reduce", "barrier"], [4], SIZES, tell=told.append)
    assert [(rule.min_bytes, rule.max_bytes, rule.algorithm, rule.num_ranks) for rule in result.rules] == [
        ((16 << 10) + 1, -1, "ring", 4)  # halfway to 4 KiB, where it is as fast as the default
    ]
    assert len(told) == 2 and not result.missing
    # The second measurement compared only the ring and the default of each size.
    assert [(job.sizes, job.names, screen) for jobs, screen in machine.calls[1:] for job in jobs] == [
        ((64 << 10,), ("ring", default), False),
        ((1 << 20,), ("ring", "direct_two_shot"), False),
    ]
    assert [(one.num_bytes, one.ratio, one.holds) for one in result.comparisons] == [
        (64 << 10, pytest.approx(0.6), True),
        (1 << 20, pytest.approx(0.6), True),
    ]
    write(tmp_path / "tuned.conf", result.rules)
    policy = Policy(read(tmp_path / "tuned.conf"), shares_cores=shares_cores)
    for size in SIZES:
        expected = "ring" if size >= 64 << 10 else choose("all_reduce", 4, size, "fast", policy.table_alone())
        assert choose("all_reduce", 4, size, "fast", policy) == expected
    expected = choose("all_reduce", 8, 1 << 20, "fast", policy.table_alone())
    assert choose("all_reduce", 8, 1 << 20, "fast", policy) == expected


@pytest.mark.parametrize(("again", "most"), [(1.0, 512 << 10), (1.2, 256 << 10)])
def test_a_line_does_not_reach_towards_a_clear_loss_of_the_second_measurement(
    again: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Machine(again=0.5), {256 << 10: Machine(again=0.5), 1 << 20: Machine(again)}

    def time_algorithms(num_ranks: int, jobs: Sequence[TimedJob], seconds: float, *, screen: bool = True) -> Any:
        if screen:
            return first(num_ranks, jobs, seconds)
        return {
            key: rounds
            for job in jobs
            for key, rounds in second[job.sizes[0]](num_ranks, [job], seconds, screen=False).items()
        }

    monkeypatch.setattr(tuner, "time_algorithms", time_algorithms)
    result = tune(["all_reduce"], [4], (256 << 10, 1 << 20))
    assert [(rule.min_bytes, rule.max_bytes) for rule in result.rules] == [(0, most)]


def test_what_does_not_win_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "time_algorithms", Machine(again=1.0))
    result = tune(["all_reduce"], [4], SIZES)
    assert result.rules == () and [one.holds for one in result.comparisons] == [False, False]


def test_what_there_is_no_time_to_check_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(again=0.5)
    monkeypatch.setattr(tuner, "time_algorithms", lambda *args, screen=True: machine(*args) if screen else {})
    result = tune(["all_reduce"], [4], SIZES)
    assert result.rules == result.comparisons == ()


def test_without_a_check_the_first_measurement_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(again=1.0)
    monkeypatch.setattr(tuner, "time_algorithms", machine)
    result = tune(["all_reduce"], [4], SIZES, check=False)
    assert [rule.algorithm for rule in result.rules] == ["ring"]
    assert len(machine.calls) == 1 and result.comparisons == ()


def test_sizes_without_times_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "time_algorithms", lambda *_, **__: {})
    result = tune(["broadcast"], [2], (8, 64))
    assert result.missing == (("broadcast", 2, 8), ("broadcast", 2, 64))
    assert result.rules == result.entries == ()


# --- what is kept --------------------------------------------------------------------------------------------------


def test_times_are_kept_and_costs_fit_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "time_algorithms", Machine(again=0.5))
    result = tune(["all_reduce"], [2, 4], SIZES)
    assert store(result.entries) == tuner.file()
    known = load()
    assert known == Tuning(entries=result.entries)
    entry = known.find("all_reduce", 4)
    assert entry is not None and known.find("all_reduce", 8) is None and known.find("reduce", 4) is None
    direct = next(one for one in entry.algorithms if one.algorithm == "direct")
    sample = direct.at(64 << 10)
    assert sample is not None and direct.at(65) is None
    assert sample.seconds == pytest.approx(1e-6 + 1e-9 * (64 << 10)) and sample.num_rounds == 5
    assert sample.low <= sample.seconds <= sample.high
    assert direct.costs.seconds(direct.traits, 64 << 10) == pytest.approx(sample.seconds, rel=0.01)


@pytest.mark.parametrize("num_rounds", range(1, 15))
def test_the_median_of_rounds_lies_between_their_quartiles(num_rounds: int) -> None:
    """Also of two rounds, whose median is the faster one."""
    found = tuner.sample_of(8, [2.0**number for number in range(num_rounds)])
    assert found.low <= found.seconds <= found.high and found.num_rounds == num_rounds
    assert tuner.sample_of(8, (4.0, 1.0)) == tuner.Sample(8, 1.0, 1.0, 4.0, 2)


def test_what_has_fewer_rounds_was_not_timed_to_the_end() -> None:
    samples = {
        "a": tuner.sample_of(8, [1.0] * 5),
        "b": tuner.sample_of(8, [1.0] * 2),
        "c": tuner.sample_of(8, [2.0] * 5),
    }
    assert tuner.timed_to_the_end(samples) == {"a": samples["a"], "c": samples["c"]}
    assert tuner.timed_to_the_end({}) == {}


def test_new_times_replace_old_ones_of_the_same_collective_and_rank_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "time_algorithms", Machine(again=0.5))
    store(tune(["all_reduce", "broadcast"], [2], SIZES).entries)
    store(tune(["all_reduce"], [2, 3], SIZES[:1]).entries)
    known = load()
    assert [(one.collective, one.num_ranks) for one in known.entries] == [
        ("all_reduce", 2),
        ("broadcast", 2),
        ("all_reduce", 3),
    ]
    assert all(len(one.samples) == 1 for one in known.entries[0].algorithms)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"entries": 3}', b'{"host": "another", "cores": 2}', b'\xff{"version": "0"}']
)
def test_what_cannot_be_read_or_is_of_another_machine_is_nothing(content: bytes) -> None:
    tuner.file().parent.mkdir()
    tuner.file().write_bytes(content)
    assert load() == Tuning()
    assert store([]).read_bytes() != content
