"""A user's own file: what it registers, how it is found by name, what replaces what."""

from pathlib import Path

import pytest

from hocket.algorithms import ALGORITHMS, Algorithm, find, load, registry
from hocket.errors import ScheduleError

OWN = '''
import hocket.algorithms as h

@h.algorithm("broadcast", name="star", chunks=lambda p: 1, steps=lambda p: min(p - 1, 1), sent=lambda p: p - 1)
def star(schedule):
    """The root gives it to all."""
    with schedule.step():
        schedule.copy(src=schedule.root, dst=schedule.ranks[schedule.ranks != schedule.root], chunk=0)

@h.algorithm("barrier", name="wrong", chunks=lambda p: 1)
def wrong(schedule):
    with schedule.step():
        schedule.reduce(src=0, dst=schedule.num_ranks, chunk=0)
'''


def test_a_users_file_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    assert [one.name for one in load(str(file))] == ["star", "wrong"]
    (star,) = load(f"{file}:star")
    assert star.source.startswith(f"{file}:") and ALGORITHMS["broadcast", "star"] is star
    assert star.verify(4, 2, laws=(1, 2, 4, 5)).sent == 3
    with pytest.raises(ScheduleError, match=r"own.py:13: dst is not a rank"):
        ALGORITHMS["barrier", "wrong"].build(2)


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    with pytest.raises(ValueError, match="found no file"):
        load(str(tmp_path / "other.py"))
    with pytest.raises(ValueError, match=r"one of those in .*own.py, star \(broadcast\), wrong \(barrier\)"):
        load(f"{file}:stra")
    assert ("broadcast", "star") not in ALGORITHMS  # A file that failed leaves nothing behind.
    file.write_text("")
    with pytest.raises(ValueError, match=r"own\.py, which registers none"):
        load(str(file))


def test_finding_by_name_or_file(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    served = {"all_reduce", "all_gather", "reduce_scatter", "all_gather_v", "reduce_scatter_v"}
    assert {one.collective for one in find("ring")} == served
    assert [one.name for one in find(str(file), "barrier")] == ["wrong"]
    assert find("star") == [ALGORITHMS["broadcast", "star"]]
    for arguments, message in (
        (
            ("ring", "broadcast"),
            r"algorithm for broadcast, one of binomial, .*star or FILE.py:NAME; found 'ring'; ring is for all_gather, ",
        ),
        (
            ("rnig",),
            r"^found 'rnig'; did you mean 'ring'\? Expected an algorithm, one of .*, ring, .* or FILE.py:NAME$",
        ),
        (
            (f"{file}:star", "barrier"),
            r"algorithm for barrier, one of those in .*own.py, wrong; found .*own.py:star'; star is for broadcast$",
        ),
        (
            (str(file), "gather"),
            r"for gather, but .*own.py has none; found .*own.py'; it has star \(broadcast\), wrong \(barrier\)$",
        ),
        (
            (str(tmp_path / "other.py"),),
            "expected an algorithm, FILE.py, .*, FILE.xml or FILE.json; found no file",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            find(*arguments)
    with pytest.raises(ScheduleError, match="expected a collective"):
        find("ring", "scatter_brain")


@pytest.mark.parametrize("folder", ["a:b", "x.py:y", "a.xml:"])
def test_colons_in_the_name_of_a_folder(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / folder / "own.py"
    file.parent.mkdir()
    file.write_text(OWN)
    monkeypatch.chdir(tmp_path)
    for path in (str(file), f"{folder}/own.py"):
        assert [one.name for one in find(path)] == ["star", "wrong"]
        assert [one.name for one in find(f"{path}:star")] == ["star"]
        with pytest.raises(ValueError, match=r"one of those in .*own\.py, star .*own\.py:stra'"):
            find(f"{path}:stra")
    with pytest.raises(ScheduleError, match=rf"^{file}:13: dst is not a rank"):
        load(f"{file}:wrong")[0].build(2)


def test_who_remembers_by_name_is_told_of_a_later_definition(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[Algorithm] = []
    monkeypatch.setattr(registry, "on_replaced", [lambda: told.append(ALGORITHMS["broadcast", "star"])])
    file = tmp_path / "own.py"
    file.write_text(OWN.partition('@h.algorithm("barrier"')[0])
    (first,) = load(str(file))
    assert not told
    (second,) = load(str(file))
    assert told == [second]
    assert second is not first
    file.write_text(OWN + "\n1 / 0\n")
    with pytest.raises(ScheduleError):
        load(str(file))
    assert len(told) == 3 and told[2] is second, "what was replaced for a while is back"
