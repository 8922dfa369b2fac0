"""Ranks may spin if there is a core for each of them, whatever has bound them to cores."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.runtime.ranks import cores
from hocket.runtime.ranks.cores import beside, far, have_cores, neighbours, num_cores, own_cores, shared_by


def said(*bound: set[int], quota: float | None = None) -> list[dict[str, Any]]:
    """Returns what ranks say if each may run on these cores."""
    masks = (sum(1 << core for core in one) for one in bound)
    return [{"cores": mask.to_bytes(16, "little"), "quota": quota} for mask in masks]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (said({0}), [True]),
        (said({0, 1}, {0, 1}), [True, True]),
        (said({0}, {0}), [False, False]),
        # As many ranks as cores, each bound to one: MPI and Slurm do this.
        (said({0}, {1}, {2}, {99}), [True] * 4),
        (said({0, 1}, {0, 1}, {0, 1}), [False] * 3),
        (said({0}, {0}, {1, 2}), [False, False, True]),
        # Ranks 0 and 2 share no core with each other, but each shares one with rank 1.
        (said({0}, {0, 1}, {1}), [False] * 3),
        (said({0, 1}, {1, 2}, {2, 3}), [True] * 3),
        # A container with 64 cores that may use two at a time, or less than one.
        (said(set(range(64)), set(range(64)), quota=2.0), [True] * 2),
        (said(set(range(64)), set(range(64)), set(range(64)), quota=2.5), [False] * 3),
        (said({0}, {1}, {2}, {3}, quota=2.0), [False] * 4),
        (said({0}, quota=0.5), [False]),
    ],
)
def test_a_rank_has_a_core_where_no_more_ranks_share_them(ranks: list[dict[str, Any]], expected: list[bool]) -> None:
    assert have_cores(ranks) == expected


@pytest.mark.parametrize(
    ("cores_here", "limit", "most"), [({5}, None, 1), ({0, 1}, None, 2), (set(range(64)), 2.5, 2), ({1, 3}, 8.0, 2)]
)
def test_more_ranks_than_cores_share_them(
    cores_here: set[int], limit: float | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores_here)
    monkeypatch.setattr(cores, "quota", lambda: limit)
    assert [shared_by(num_ranks) for num_ranks in range(1, 5)] == [num_ranks > most for num_ranks in range(1, 5)]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (said({0}), [[]]),
        (said({0}, {0}, {1}, {1}), [[1], [0], [3], [2]]),
        (said({0, 1}, {0, 1}, {0, 1}), [[1, 2], [0, 2], [0, 1]]),
        (said({0}, {0, 1}, {1}, {99}), [[1], [0, 2], [1], []]),
    ],
)
def test_neighbours_may_run_on_the_same_core(ranks: list[dict[str, Any]], expected: list[list[int]]) -> None:
    assert [neighbours(ranks, rank) for rank in range(len(ranks))] == expected


def test_the_cores_of_all_ranks_together() -> None:
    assert [num_cores(ranks) for ranks in (said({5}), said({0}, {1}), said({0, 1}, {1, 2}), said({0, 9}, {0, 9}))] == [
        1,
        2,
        3,
        2,
    ]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ({1: "{core}", 2: "{core}", 3: "{first}-{last}"}, [[3], [3], [], [0, 1]]),
        ({3: "{first},{second},{third},{last}"}, [[3], [3], [], [0, 1]]),
        ({1: "{core}", 2: "{core}"}, [[]] * 4),
        ({}, [[]] * 4),
    ],
)
def test_ranks_are_far_if_their_cores_share_no_last_cache(
    levels: dict[int, str], expected: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 8 cores, of which each four share a cache."""
    monkeypatch.setattr(cores, "_CPUS", tmp_path)
    for core in range(8):
        first = core // 4 * 4
        names = {"core": core, "first": first, "second": first + 1, "third": first + 2, "last": first + 3}
        for index, (level, text) in enumerate(levels.items()):
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(f"{level}\n")
            (folder / "shared_cpu_list").write_text(text.format(**names) + "\n")
    ranks = said({0}, {1, 2, 3}, {3, 4}, {7})
    assert [far(ranks, rank) for rank in range(4)] == expected


def test_who_is_beside_a_rank_runs_nowhere_else() -> None:
    ranks = said({0}, {0}, {0, 1}, {0, 1}, {1})
    assert [beside(ranks, rank) for rank in range(5)] == [[1], [0], [], [], []]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"pod/cpu.max": "400000 100000", "cpu.max": "max 100000"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
    ],
)
def test_the_limit_of_a_container_is_read(
    files: dict[str, str], expected: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    read = cores._read
    monkeypatch.setattr(cores, "_read", lambda file: "0::/pod" if file.name == "cgroup" else read(file))
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path)
    assert cores.quota() == expected


def affinity() -> set[int]:
    return os.sched_getaffinity(0)


def test_ranks_have_their_share_of_the_cores_and_neighbours_share_one_where_there_are_fewer() -> None:
    usual = affinity()
    cores = sorted(usual)
    expected = [{core} for core in cores for _ in range(2)]
    assert hocket.run_ranks(affinity, 2 * len(cores), kind="process") == expected
    assert hocket.run_ranks(affinity, len(cores), kind="process") == [{core} for core in cores]
    assert hocket.run_ranks(affinity, 1, kind="process") == [usual]
    assert affinity() == usual, "of this process nothing has changed"


@pytest.mark.parametrize(
    ("num_ranks", "expected"),
    [(1, [{3, 4, 6, 9, 10}]), (2, [{3, 4}, {6, 9, 10}]), (3, [{3}, {4, 6}, {9, 10}]), (4, [{3}, {4}, {6}, {9, 10}])],
)
def test_every_core_belongs_to_a_rank(
    num_ranks: int, expected: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, found = {3, 4, 6, 9, 10}, []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: usual)
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, some: found.append(set(some)))
    for rank in range(num_ranks):
        with cores.bound(rank, num_ranks):
            pass
    assert found[::2] == expected and found[1::2] == [usual] * num_ranks


def test_ranks_start_where_binding_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    usual = affinity()
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert hocket.run_ranks(affinity, 2, kind="process") == [usual] * 2


def move_all() -> bool:
    """Two ranks on one core, the third on another core, if there is one: only the third has its own core."""
    rank = int(os.environ["HOCKET_RANK"])
    cores = sorted(affinity_of_all())
    os.sched_setaffinity(0, {cores[0] if rank < 2 else cores[-1]})
    comm = hocket.init()
    x = np.repeat(np.arange(3, dtype=np.float32), 1 << 20)  # enough to be fetched if ranks share cores
    received = comm.all_to_all(x)
    assert (received == comm.rank).all()
    message = np.full(1 << 18, comm.rank, np.float32)
    received = np.empty_like(message)
    for step in (1, 2):
        comm.sendrecv(message, (comm.rank + step) % 3, received, (comm.rank - step) % 3)
        assert (received == (comm.rank - step) % 3).all()
    return comm.context.has_core


def affinity_of_all() -> set[int]:
    """Returns the cores of the process that has started this one."""
    return os.sched_getaffinity(os.getppid())


def test_ranks_with_a_core_and_without_understand_each_other() -> None:
    assert hocket.run_ranks(move_all, 3, kind="process") == [False, False, len(affinity()) > 1]


def test_ranks_tell_each_other() -> None:
    def spins() -> bool:
        return hocket.init().context.has_core

    assert hocket.run_ranks(spins, 3, kind="thread") == have_cores([own_cores()] * 3)


EIGHT_CORES = """
import os, sys

here = set(range(8))

def bind(_, cores):
    global here
    here = set(cores)

os.sched_getaffinity, os.sched_setaffinity = lambda _: here, bind
"""
START = {
    "run_ranks": "import hocket; print(*hocket.run_ranks(os.getenv, 2, args=('OMP_NUM_THREADS',), kind='process'))",
    "hocket run": "from hocket.cli import main; main(['run', '-n', '2', '--', 'printenv', 'OMP_NUM_THREADS'])",
}


@pytest.mark.parametrize("program", START.values(), ids=START)
def test_threads_of_a_rank_share_the_cores_once(program: str) -> None:
    """With eight cores, each of two ranks has four, not a half of the four that it is bound to."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", EIGHT_CORES + program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "4"]
