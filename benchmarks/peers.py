"""The libraries that Hocket is compared with, and their virtual environments.

Each library has a virtual environment under build/peers/, made on first use. The mpiexec of the same wheel starts MPI
ranks.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "peers"
PACKAGES = {
    "gloo": ("torch==2.13.0", "numpy"),
    "openmpi": ("mpi4py", "openmpi", "numpy"),
    "mpich": ("mpi4py", "mpich", "numpy"),
    "impi": ("mpi4py", "impi-rt", "numpy"),
    "oneccl": ("oneccl", "numpy"),
    "deepspeed": ("torch==2.13.0", "deepspeed", "ninja", "setuptools", "numpy"),
}
TITLES = {
    "gloo": "Gloo (torch.distributed)",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "impi": "Intel MPI",
    "oneccl": "oneCCL",
    "deepspeed": "DeepSpeed's shared-memory kernel",
}
MPIS = ("openmpi", "mpich", "impi")
USUAL = ("gloo", *MPIS)


class Absent(Exception):
    """A peer cannot be installed or started; the message says why."""


def last_line(text: str) -> str:
    """Returns the last line of a text, which mostly says why a program failed."""
    return (text.strip().splitlines() or ["no reason given"])[-1]


def run(command: list[str | Path], failure: str) -> None:
    """Runs a command; raises Absent if it fails."""
    found = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if found.returncode:
        raise Absent(f"{failure}: {last_line(found.stdout)}")


def interpreter(peer: str, works: Callable[[Path], bool] = lambda python: True) -> Path:
    """Returns the Python that has the peer; makes its environment on first use. Raises Absent.

    works: called once, after the installation; returns whether the peer can be started.
    """
    folder = FOLDER / peer
    python, stamp = folder / "bin" / "python", folder / "installed"
    if stamp.exists():
        return python
    packages = PACKAGES[peer]
    print(f"installing {', '.join(packages)} in {folder.relative_to(ROOT)}", file=sys.stderr)
    run([sys.executable, "-m", "venv", "--clear", folder], "no virtual environment, for which Python needs ensurepip")
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--retries", "1", *packages]
    run(command, f"{', '.join(packages)} cannot be installed")
    if not works(python):
        raise Absent("it is installed, but cannot be started")
    stamp.touch()
    return python


def mpi_environment(folder: Path) -> dict[str, str]:
    """Returns the environment with which any mpiexec runs more ranks than cores, as any user.

    folder: for temporary files.
    """
    return {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_btl_sm_backing_directory": os.fspath(folder),  # in /dev/shm itself, files outlive a killed rank
        "TMPDIR": os.fspath(folder),
    }
