"""What a user's file imports, modules next to it and others that Python has already loaded, and what it prints."""

import importlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.algorithms import ALGORITHMS, load, registry
from hocket.errors import ScheduleError

STAR = """
from hocket.algorithms import algorithm

@algorithm("broadcast", name="{name}", chunks=lambda p: 1)
def star(schedule):
    with schedule.step():
        schedule.copy(src=schedule.root, dst=schedule.ranks[schedule.ranks != schedule.root], chunk=0)
"""


@pytest.fixture(autouse=True)
def registry_as_before() -> Iterator[None]:
    before = dict(ALGORITHMS)
    yield
    registry.REGISTERED.clear()
    registry.REGISTERED.update(before)


def names(reference: Path | str) -> list[str]:
    return sorted(one.name for one in load(str(reference)))


def write(folder: Path, **files: str) -> Path:
    """Writes files by their stems; returns the path of the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, text in files.items():
        (folder / f"{stem}.py").write_text(text)
    return folder / f"{stem}.py"


def test_a_module_beside_the_file_runs_with_it_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = list(sys.path)
    file = write(tmp_path / "a", stars_beside=STAR.format(name="near"), own="import stars_beside")
    assert names(file) == names(file) == names(f"{file}:near") == ["near"]
    assert ALGORITHMS["broadcast", "near"].source == f"{tmp_path}/a/stars_beside.py:4"
    monkeypatch.chdir(tmp_path)
    assert names("a/own.py") == ["near"]
    other = write(tmp_path / "a", other="from stars_beside import star as mine" + STAR.format(name="more"))
    assert names(other) == ["more", "near"]
    write(tmp_path / "a", stars_beside=STAR.format(name="changed"))
    assert names(file) == ["changed"]
    assert names(write(tmp_path / "b", stars_beside=STAR.format(name="b's"), own="import stars_beside")) == ["b's"]
    assert sys.path == path and "stars_beside" not in sys.modules


def test_what_schedule_does_not_have_is_told_with_all_that_it_has(tmp_path: Path) -> None:
    file = write(tmp_path, own=STAR.replace("schedule.copy", "schedule.send"))
    (star,) = load(str(file))
    with pytest.raises(ScheduleError, match="has no 'send'; expected one of copy, reduce, step, repeat, include, num"):
        star.build(2)


def test_a_package_beside_the_file_may_import_what_lies_there(tmp_path: Path) -> None:
    write(tmp_path / "stars_package", near=STAR.format(name="near"), __init__="from stars_package import near")
    file = write(tmp_path, stars_of_package="import stars_package", own="import stars_of_package")
    assert names(file) == names(file) == ["near"]
    assert not {name for name in sys.modules if name.startswith("stars_")}


def test_a_module_beside_the_file_that_cannot_be_run_is_forgotten(tmp_path: Path) -> None:
    file = write(tmp_path, stars_broken=STAR.format(name="near") + "1 // 0", own="x = 1\nimport stars_broken")
    path = list(sys.path)
    with pytest.raises(ScheduleError, match=rf"^{file}:2: ZeroDivisionError"):
        load(str(file))
    assert ("broadcast", "near") not in ALGORITHMS and sys.path == path
    write(tmp_path, stars_broken=STAR.format(name="near"))
    assert names(file) == ["near"]


def test_what_the_program_has_imported_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, stars_known="found = []", own="import stars_known as s; s.found.append(1)" + STAR)
    monkeypatch.syspath_prepend(tmp_path)
    known = importlib.import_module("stars_known")
    monkeypatch.setitem(sys.modules, "stars_known", known)
    load(str(file))
    assert known.found == [1] and sys.modules["stars_known"] is known


def test_what_lies_where_the_program_looks_is_not_loaded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import sys\nsys.stars_library_runs += 1" + STAR.format(name="near")
    file = write(tmp_path, stars_library=text, own="import stars_library")
    monkeypatch.setattr(sys, "stars_library_runs", 0, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert names(file) == names(file) == ["near"]
        assert vars(sys)["stars_library_runs"] == 1 and "stars_library" in sys.modules
    finally:
        sys.modules.pop("stars_library", None)


def test_a_module_from_elsewhere_is_run_once_and_its_algorithms_stay_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "installed", stars_elsewhere=STAR.format(name="far"))
    monkeypatch.syspath_prepend(tmp_path / "installed")
    file = write(tmp_path, own="import stars_elsewhere")
    with pytest.raises(ValueError, match=r"one of those in .*own.py, far \(broadcast\)"):
        load(f"{file}:fra")
    assert ("broadcast", "far") not in ALGORITHMS
    assert names(file) == names(file) == names(f"{file}:far") == ["far"]
    write(tmp_path, own="import stars_elsewhere" + STAR.format(name="far"))
    (replaced,) = load(str(file))
    assert replaced.source == f"{file}:4"
    monkeypatch.delitem(sys.modules, "stars_elsewhere")


def test_what_a_file_prints_is_one_write_so_that_ranks_tear_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Recorder(io.StringIO):
        def write(self, text: str) -> int:
            if text:
                writes.append(text)
            return len(text)

    writes: list[str] = []
    monkeypatch.setattr(sys, "stderr", Recorder())
    names(write(tmp_path, own=STAR.format(name="near") + 'print("a", 1, sep="-", end="!\\n", flush=True)\nprint()'))
    assert writes == ["a-1!\n", "\n"]
