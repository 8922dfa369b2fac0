"""Routes: the page of all of them, those of a call, and the profile of a machine, which ranks have from rank 0."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket import _core
from hocket.runtime.choice.profile import FIELDS, read_profiles
from hocket.runtime.traces import trace_file
from tests.runtime import routes_table

NEVER = _core.Profile.NEVER
COUNTS = (8, 2_000, 300_000)


def test_the_page_has_the_routes_of_today() -> None:
    assert routes_table.DOCUMENT.read_text() == routes_table.page(), "run `python -m tests.runtime.routes_table`"


@pytest.mark.parametrize("name", _core.PROFILES)
def test_a_named_profile_is_that_of_the_core(name: str) -> None:
    own, shared = read_profiles({"HOCKET_PROFILE": name})
    for shares_cores, lengths in ((False, own), (True, shared)):
        profile = _core.profile_of(name, shares_cores)
        assert lengths == [getattr(profile, field) for field in FIELDS]


def test_a_file_replaces_what_it_gives(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('fetch_huge = 1_000\nhalve = "never"\n')
    for before, now in zip(read_profiles({}), read_profiles({"HOCKET_PROFILE": str(file)}), strict=True):
        assert now == [*before[:2], 1000, before[3], NEVER]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, r"expected one of zen5, intel, zen3, generic, or a file"),
        ("fetch_hug = 1", r"expected own_cache, .*; found fetch_hug; did you mean 'fetch_huge'\?"),
        ("halve = 0", r'halve: expected a number of bytes from 1 on, or "never"; found 0'),
        ("halve = true", r"found True"),
        ("halve = 1.5", r"found 1.5"),
        ("halve =", r"mine.toml: Invalid value"),
    ],
)
def test_a_wrong_profile_is_told(text: str | None, told: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=told):
        read_profiles({"HOCKET_PROFILE": str(file)})


def gather_all(file: Path) -> None:
    with hocket.init() as comm:
        comm.barrier()  # from here on each rank knows what the others can read
        with hocket.trace(file, steps=True):
            comm.all_gather(np.ones(1 << 18, "f4"))


def ways_in(file: Path) -> dict[int, set[str]]:
    """Return the ways of each call of a trace, by its number."""
    found: dict[int, set[str]] = defaultdict(set)
    for one in trace_file.read(file).events:
        if one["ph"] == "X" and "way" in one.get("args", {}):
            found[one["args"]["sequence"]].add(one["args"]["way"])
    return found


@pytest.mark.parametrize(("least", "way"), [(4096, "fetch"), (1 << 30, "stage")])
def test_a_profile_decides_how_data_travels(
    least: int, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, file = tmp_path / "mine.toml", tmp_path / "out.json"
    profile.write_text(f"fetch_huge = {least}\nfetch_small = {least}\n")
    monkeypatch.setenv("HOCKET_PROFILE", str(profile))
    hocket.run_ranks(gather_all, 2, args=(file,), kind="process")
    assert [*ways_in(file).values()] == [{way}]


def reduce_all(file: Path) -> None:
    with hocket.init() as comm:
        comm.barrier()
        with hocket.trace(file, steps=True):
            for count in COUNTS:
                comm.all_reduce(np.ones(count, "f4"))


def test_the_ways_of_a_call_are_those_of_its_trace(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    hocket.run_ranks(reduce_all, 2, args=(file,), kind="process")
    for (_, traced), count in zip(sorted(ways_in(file).items()), COUNTS, strict=True):
        found = hocket.explain("all_reduce", 4 * count, ranks=2).ways()
        assert traced <= {way for one in found.travels for way in (one.huge_pages, one.small_pages)}


def send_then_receive() -> float:
    with hocket.init() as comm:
        comm.barrier()  # from here on each rank knows what the other can read
        x, found = np.full(2_000, float(comm.rank), "f4"), np.empty(2_000, "f4")
        comm.send(x, 1 - comm.rank)
        comm.recv(found, 1 - comm.rank)
        return float(found[-1])


def test_no_profile_makes_a_short_send_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text("own_cache = 1\nfetch_huge = 1\nfetch_small = 1\n")
    monkeypatch.setenv("HOCKET_PROFILE", str(profile))
    assert hocket.run_ranks(send_then_receive, 2, kind="process") == [1.0, 0.0]
