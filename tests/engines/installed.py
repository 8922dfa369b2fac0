"""Installs the engines for the tests in build/, where the tests look for them: python -m tests.engines.installed

Nothing else of the machine is changed. Tests install nothing: they are skipped if something is missing.
"""

import contextlib
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.hosts.lab import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import peers

FOLDER = ROOT / "build" / "engines"
DEBIAN = FOLDER / "debian"  # as / is once the packages are installed
RAY = FOLDER / "ray"
"""A folder for PYTHONPATH."""
PACKAGES = ("slurm-wlm", "munge", "openssh-server")
FINISHED = "installed"  # a file that is made last


def mpi(library: str) -> Path:
    """Return the folder of the programs of an MPI."""
    return _finished(peers.FOLDER / library) / "bin"


def debian() -> Path:
    """Return the folder with Slurm, munge and sshd."""
    return _finished(DEBIAN)


def ray() -> Path:
    """Return the folder with Ray's Python packages."""
    return _finished(RAY)


def _finished(folder: Path) -> Path:
    if not (folder / FINISHED).exists():
        pytest.skip(f"{folder.relative_to(ROOT)} is missing: `make engines` installs it")
    return folder


def _unpack_debian() -> None:
    """Unpack the packages, and those that they need and this machine does not have."""
    packages = FOLDER / "packages"
    (packages / "partial").mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "update", "-qq"])
    options = [
        "-y",
        "-qq",
        "--download-only",
        "--reinstall",
        "--no-install-recommends",
        "-o",
        f"Dir::Cache::archives={packages}",
    ]
    _run(["apt-get", "install", *options, *PACKAGES])
    for package in sorted(packages.glob("*.deb")):
        _run(["dpkg-deb", "-x", package, DEBIAN])
    shutil.rmtree(packages)


def _install_ray() -> None:
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["ray"]
    _run([sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--target", RAY, *requirements])


def _run(command: Sequence[str | Path]) -> None:
    if shutil.which(command[0]) is None:
        raise peers.Absent(f"there is no {command[0]}")
    peers.run(list(command), f"{command[0]} failed")


@contextlib.contextmanager
def _telling(what: str) -> Iterator[None]:
    try:
        yield
    except peers.Absent as reason:
        print(f"not installed: {what}: {reason}", file=sys.stderr)


def _make(folder: Path, fill: Callable[[], None]) -> None:
    if not (folder / FINISHED).exists():
        print(f"installing {folder.relative_to(ROOT)}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        fill()
        (folder / FINISHED).touch()


def main() -> None:
    for library in peers.MPIS:
        with _telling(library):
            peers.interpreter(library)
    for folder, fill in ((DEBIAN, _unpack_debian), (RAY, _install_ray)):
        with _telling(folder.name):
            _make(folder, fill)


if __name__ == "__main__":
    main()
