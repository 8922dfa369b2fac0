"""How tests wait: for a condition, never for a time."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

PATIENCE_SECONDS = 60.0


def wait_until(condition: Callable[[], bool]) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)  # between two looks


def state_of(process: int) -> str:
    """What the kernel says of a process: R runs, S sleeps, T is stopped, Z has ended; "" if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_for_end(process: int) -> None:
    """Return when there is no such process, or nothing but its entry is left."""
    wait_until(lambda: state_of(process) in ("", "Z"))


def wait_for_sleep(process: int) -> None:
    """Return when the process waits for something."""
    wait_until(lambda: state_of(process) == "S")


def wait_for_files(folder: Path, names: Iterable[object]) -> None:
    """Return when the folder has all of them."""
    paths = [folder / str(name) for name in names]
    wait_until(lambda: all(path.exists() for path in paths))


def numbers_left(folder: Path, names: Iterable[object]) -> list[int]:
    """The process numbers that were left in files of these names, as soon as all are there."""
    names = list(names)
    wait_for_files(folder, names)
    return [int((folder / str(name)).read_text()) for name in names]
