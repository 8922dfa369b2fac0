"""The compared libraries, the settings to try for each, and the commands that start their ranks."""

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import peers

BENCHMARKS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Setting:
    """One way to start a library: arguments of mpiexec, and environment. A special one is tried only if it is named."""

    name: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    is_special: bool = False


DEFAULT = Setting("default")
EXTENSIONS = peers.FOLDER / "extensions"  # what DeepSpeed compiles
OF_ONECCL = {  # no mpiexec starts its ranks; it finds its own libraries only through LD_LIBRARY_PATH
    "CCL_PLUGIN": "ONECCL_LEGACY_CPU",
    "CCL_ATL_TRANSPORT": "ofi",
    "LD_LIBRARY_PATH": os.fspath(peers.FOLDER / "oneccl" / "lib"),
}
OF_MPICH_ON_HOSTS = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
OF_MPICH_OVER_TCP = OF_MPICH_ON_HOSTS | {"MPIR_CVAR_NOLOCAL": "1"}
SETTINGS = {
    "openmpi": (
        DEFAULT,
        Setting("yield", environment={"OMPI_MCA_mpi_yield_when_idle": "1"}),
        Setting("shared memory", environment={"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}),
        Setting("pinned", ("--bind-to", "core:overload-allowed")),
        Setting("unpinned", ("--bind-to", "none")),
        Setting("tcp", environment={"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"}, is_special=True),
        Setting("hosts", environment={"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp"}, is_special=True),
    ),
    "mpich": (
        DEFAULT,
        Setting("yield", environment={"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}),
        Setting("shared memory", environment={"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "shm"}),
        Setting("pinned", ("-bind-to", "core")),
        Setting("unpinned", ("-bind-to", "none")),
        Setting("tcp", environment=OF_MPICH_OVER_TCP, is_special=True),
        Setting("hosts", environment=OF_MPICH_ON_HOSTS, is_special=True),
    ),
    "impi": (
        DEFAULT,
        Setting("yield", environment={"I_MPI_THREAD_YIELD": "2"}),
        Setting("shared memory", environment={"I_MPI_FABRICS": "shm"}),
        Setting("pinned", environment={"I_MPI_PIN": "1"}),
        Setting("unpinned", environment={"I_MPI_PIN": "0"}),
    ),
    "oneccl": (
        Setting("default", environment=OF_ONECCL),
        Setting("no worker", environment=OF_ONECCL | {"CCL_WORKER_OFFLOAD": "0"}),
        Setting("no worker, yield", environment=OF_ONECCL | {"CCL_WORKER_OFFLOAD": "0", "CCL_YIELD": "sched_yield"}),
    ),
    "deepspeed": (Setting("default", environment={"OMP_NUM_THREADS": "1"}),),
}


@dataclass(frozen=True)
class Contender:
    """One column of the table: a library with a kind of memory. Contenders of one `group` share their processes."""

    name: str
    group: str
    memory: str = "private"


CONTENDERS = {
    each.name: each
    for each in (
        Contender("hocket", "hocket"),
        Contender("registered", "hocket", "registered"),
        Contender("no cma", "hocket without cma"),
        Contender("tcp", "hocket over tcp"),
        Contender("flat ring", "hocket as a ring"),
        Contender("openmpi", "openmpi"),
        Contender("mpich", "mpich"),
        Contender("impi", "impi"),
        Contender("gloo", "gloo"),
        Contender("oneccl", "oneccl"),
        Contender("deepspeed", "deepspeed"),
    )
}
OWN_ENVIRONMENT = {
    "hocket": {},
    "hocket without cma": {"HOCKET_CMA": "0"},
    "hocket over tcp": {"HOCKET_TRANSPORT": "tcp"},
    "hocket as a ring": {"HOCKET_ALGO": "allreduce:ring"},
}


def settings(group: str, tried: Collection[str] = ()) -> list[Setting]:
    """Returns the settings to try for the group: those in `tried`, else the first one; all if `tried` is empty."""
    known = SETTINGS.get(group, (DEFAULT,))
    usual = [each for each in known if not each.is_special]
    return [each for each in known if each.name in tried] or (usual[:1] if tried else usual)


def commands(
    group: str, setting: Setting, num_ranks: int, address: Path, place: str, python: Path
) -> tuple[list[list[str]], dict[str, str]]:
    """Returns the processes to start, and their environment. `place`: where ranks meet without an mpiexec."""
    library = "mpi" if group in peers.MPIS else group.split()[0]
    rank = [os.fspath(python), "-m", "comparison.rank", library, os.fspath(address)]
    environment = {**OWN_ENVIRONMENT.get(group, {}), **setting.environment}
    if group == "deepspeed":
        environment |= with_compiler(python)
    if library != "mpi":
        return [[*rank, str(each), str(num_ranks), place] for each in range(num_ranks)], environment
    mpiexec = os.fspath(python.with_name("mpiexec"))
    command = [mpiexec, "-n", str(num_ranks), *setting.arguments, *rank, "0", "0", place]
    return [command], {**peers.mpi_environment(address.parent), **environment}


def with_compiler(python: Path) -> dict[str, str]:
    """Returns the variables with which each rank finds DeepSpeed's compiled kernel, and ninja."""
    path = os.pathsep.join([os.fspath(python.parent), os.environ.get("PATH", os.defpath)])
    return {"TORCH_EXTENSIONS_DIR": os.fspath(EXTENSIONS), "PATH": path}


def compiles(python: Path) -> bool:
    """Compiles DeepSpeed's kernel, which takes longer than ranks may take to start; returns whether it worked."""
    shutil.rmtree(EXTENSIONS, ignore_errors=True)  # also the lock of a killed compilation
    command = [python, "-c", "from comparison.libraries import DeepSpeed; DeepSpeed.load()"]
    environment = os.environ | with_compiler(python)
    done = subprocess.run(command, check=False, cwd=BENCHMARKS, env=environment, stdout=sys.stderr)
    return done.returncode == 0


def interpreter(group: str) -> Path:
    """Returns the Python of the group; raises peers.Absent."""
    if group in OWN_ENVIRONMENT:
        return Path(sys.executable)
    return peers.interpreter(group, compiles) if group == "deepspeed" else peers.interpreter(group)
