"""The other libraries of comparisons: their environments, and the commands that start their ranks.

Each library has a virtual environment under build/peers/, made on first use. The mpiexec of the same wheel starts MPI
ranks.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
    """A peer that cannot be had, and why."""


def last_line(text: str) -> str:
    """Of what a program or an error says: mostly why it failed."""
    return (text.strip().splitlines() or ["no reason given"])[-1]


def run(command: list[str | Path], failure: str) -> None:
    """Raises Absent where the command fails."""
    found = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if found.returncode:
        raise Absent(f"{failure}: {last_line(found.stdout)}")


def interpreter(peer: str, works: Callable[[Path], bool] = lambda python: True) -> Path:
    """The Python that has the peer; makes its environment if need be. Raises Absent.

    works: is asked once, after the installation, whether the peer can be started.
    """
    folder = ROOT / "build" / "peers" / peer
    python, stamp = folder / "bin" / "python", folder / "installed"
    if stamp.exists():
        return python
    packages = PACKAGES[peer]
    print(f"installing {', '.join(packages)} in {folder.relative_to(ROOT)}", file=sys.stderr)
    run([sys.executable, "-m", "venv", "--clear", folder], "no virtual environment, for which Python needs ensurepip")
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--retries", "1", *packages]
    run(command, f"{', '.join(packages)} cannot be installed")
    if not works(python):
        raise Absent("it is installed and cannot be started")
    stamp.touch()
    return python


def mpi_environment(folder: Path) -> dict[str, str]:
    """What mpiexec of any MPI needs to run more ranks than cores, as any user; temporary files go to `folder`."""
    return {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_btl_sm_backing_directory": os.fspath(folder),  # not /dev/shm itself: it would outlive a killed rank
        "TMPDIR": os.fspath(folder),
    }
