"""The times of messages inside a host and between hosts, and the network that simulations make of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.network import library_times, load_machine, placed_on, simulate
from hocket.network.kinds.by_name import parse
from hocket.runtime.tuning.host_machine import machine_of_links
from hocket.runtime.tuning.link_times import LONG, SHORT, LinkTimes, measure_links, pairs_of, topology_of
from hocket.schedule import Builder

INSIDE = LinkTimes("inside", ((0, 1),), 1e-6, 101e-6)
FEW = (0, 2, 4, 6)
ACROSS = LinkTimes("across", ((0, 2),), 30e-6, 8.42e-3)


@pytest.mark.parametrize(
    ("hosts", "inside", "across"),
    [
        ((0, 0, 1, 1), [(0, 1), (2, 3)], [(0, 2)]),
        ((0, 1, 0, 1), [(0, 2), (1, 3)], [(0, 1)]),
        ((0, 0, 0, 1), [(0, 1)], [(0, 3)]),
        ((0, 1, 2), [], [(0, 1), (1, 2)]),
        ((0, 0), [(0, 1)], []),
        (
            tuple(rank // 2 for rank in range(40)),
            [(r, r + 1) for r in (0, 2, 4, 6)],
            [(r, r + 2) for r in (0, 2, 4, 6)],
        ),
    ],
)
def test_pairs_of_both_kinds(
    hosts: tuple[int, ...], inside: list[tuple[int, int]], across: list[tuple[int, int]]
) -> None:
    expected = {"inside": tuple(inside), "across": tuple(across)}
    assert pairs_of(hosts) == {kind: pairs for kind, pairs in expected.items() if pairs}


def message(num_ranks: int, target: int) -> Builder:
    schedule = Builder("broadcast", num_ranks, 1)
    with schedule.step():
        schedule.copy(src=0, dst=target, chunk=0)
    return schedule


@pytest.mark.parametrize("num_bytes", [SHORT, LONG])
def test_the_network_made_of_times_gives_these_times(num_bytes: int) -> None:
    network = parse(topology_of([INSIDE, ACROSS], (0, 0, 1, 1)))
    assert network.num_ranks == 4
    for target, one in ((1, INSIDE), (2, ACROSS)):
        expected = one.short_seconds if num_bytes == SHORT else one.long_seconds
        assert simulate(message(4, target).finish(), network, num_bytes).seconds == pytest.approx(expected, rel=0.02)
    alone = parse(topology_of([ACROSS], (0, 1, 2)))
    expected = ACROSS.short_seconds if num_bytes == SHORT else ACROSS.long_seconds
    assert simulate(message(3, 1).finish(), alone, num_bytes).seconds == pytest.approx(expected, rel=0.02)


def test_hosts_of_unlike_sizes_and_one_host_have_no_network_by_name() -> None:
    assert topology_of([INSIDE, ACROSS], (0, 0, 0, 1)) == topology_of([INSIDE], (0, 0)) == ""


@pytest.mark.parametrize(("links", "hosts"), [([INSIDE, ACROSS], (0, 0, 1, 1)), ([INSIDE], (0, 0)), ([ACROSS], (0, 1))])
def test_the_machine_of_these_hosts_predicts_a_message(
    tmp_path: Path, links: list[LinkTimes], hosts: tuple[int, ...]
) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(machine_of_links(links, hosts))
    machine = load_machine(str(file))
    placed = placed_on(machine, len(set(hosts)))
    assert placed.num_ranks == len(hosts)
    times = library_times(machine, placed, "all_gather", LONG * len(hosts), algorithm="ring")
    slowest = max(links, key=lambda one: one.long_seconds)
    copied = LONG / machine.copy_bytes_per_second
    steps = len(hosts) - 1
    assert [time.seconds for time in times] == [pytest.approx(steps * slowest.long_seconds + copied, rel=0.02)]


def test_hosts_of_unlike_sizes_are_no_machine() -> None:
    with pytest.raises(ValueError, match="expected hosts with equally many ranks"):
        machine_of_links([INSIDE, ACROSS], (0, 0, 0, 1))


def links_on(hosts: tuple[int, ...]) -> list[LinkTimes]:
    with hocket.init() as comm:
        comm.context.hosts = hosts
        found = measure_links(comm)
        comm.all_reduce(np.ones(1, "f4"))  # nothing is left on the way
        return found


def test_all_ranks_get_the_same_times() -> None:
    first, *others = hocket.run_ranks(links_on, 4, args=((0, 1, 0, 1),), kind="thread")
    assert others == [first] * 3
    assert [(one.kind, one.pairs) for one in first] == [("inside", ((0, 2), (1, 3))), ("across", ((0, 1),))]
    assert all(one.short_seconds > 0 and one.long_seconds > 0 for one in first)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_command_runs_on_every_rank_of_a_job_and_prints_once(transport: str) -> None:
    tune = [sys.executable, "-m", "hocket", "tune", "--hosts"]
    job = [sys.executable, "-m", "hocket", "run", "-n", "2", "--", *tune, "--json"]
    environment = os.environ | {"HOCKET_TRANSPORT": transport}
    report = json.loads(subprocess.run(job, capture_output=True, text=True, check=True, env=environment).stdout)
    assert report["hosts"] == [0, 0] and report["topology"] == ""
    assert [(one["kind"], one["pairs"]) for one in report["links"]] == [("inside", [[0, 1]])]
    alone = subprocess.run(tune, capture_output=True, text=True, check=False, env=environment)
    assert alone.returncode == 2 and "hocket run -n 2 -- hocket tune --hosts" in alone.stderr
