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
        time.sleep(0.001)  # between two checks


def state_of(process: int) -> str:
    """Return the kernel's state of a process: R runs, S sleeps, T is stopped, Z has ended; "" if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_for_end(process: int) -> None:
    """Return when the process has ended."""
    wait_until(lambda: state_of(process) in ("", "Z"))


def wait_for_sleep(process: int) -> None:
    """Return when the process sleeps."""
    wait_until(lambda: state_of(process) == "S")


def wait_for_files(folder: Path, names: Iterable[object]) -> None:
    """Return when the folder has all these files."""
    paths = [folder / str(name) for name in names]
    wait_until(lambda: all(path.exists() for path in paths))


def numbers_left(folder: Path, names: Iterable[object]) -> list[int]:
    """Return the process numbers that processes wrote to these files, as soon as all files exist."""
    names = list(names)
    wait_for_files(folder, names)
    return [int((folder / str(name)).read_text()) for name in names]
