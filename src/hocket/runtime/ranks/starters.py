"""What the program that started this process tells it: hocket run, torchrun, MPI or Slurm.

Each reader takes the variables of one of them, and returns None if they are not there. It reads nothing else, and
connects to nothing.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hocket.errors import RendezvousError
from hocket.runtime.variables import ADDRESS, LOCAL_RANK, LOCAL_SIZE, RANK, SIZE

# Programs that start MPI ranks. All ranks of a job on this host have the same nearest ancestor of this kind.
_MPI_STARTERS = ("hydra_pmi_proxy", "orted", "prted", "prterun", "mpiexec", "mpirun", "slurmstepd")

_HYDRA_LOCAL = "MPI_LOCALNRANKS"  # MPICH's and Intel MPI's manager sets it, `srun --mpi=pmi2` does not

Names = tuple[str, str, str, str]
"""The variables of rank, size, local rank and local size."""


@dataclass(frozen=True)
class Assigned:
    """What a starter has assigned to this process.

    address: where the ranks of this host meet; the same for all of them. names: the variables that said the four
    numbers.
    """

    source: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    names: Names


def assigned(variables: Mapping[str, str]) -> Assigned | None:
    """Returns what the first of the starters that is there has assigned; None if this process is alone."""
    for read in (_from_hocket, _from_torchrun, _from_mpi, _from_slurm):
        found = read(variables)
        if found is not None:
            return found
    return None


def new_address() -> str:
    """Returns a new address that no other group uses."""
    return f"hocket-{os.getuid()}-{secrets.token_hex(12)}"


def job_address(source: str, *identity: str) -> str:
    """Returns an address that is equal on all ranks of a job of this user, and different for any other job."""
    digest = hashlib.sha256("\0".join((source, *identity)).encode()).hexdigest()
    return f"hocket-{os.getuid()}-{digest[:24]}"


def _from_hocket(variables: Mapping[str, str]) -> Assigned | None:
    if RANK not in variables and SIZE not in variables:
        return None
    rank, size = whole_number(variables, RANK), whole_number(variables, SIZE)
    address = variables.get(ADDRESS, "")
    if not address:
        if size != 1:
            raise RendezvousError(f"{RANK} is {rank} and {SIZE} {size}, but {ADDRESS} is not set")
        address = new_address()
    local_rank, local_size = rank, size
    if LOCAL_RANK in variables or LOCAL_SIZE in variables:
        local_rank, local_size = whole_number(variables, LOCAL_RANK), whole_number(variables, LOCAL_SIZE)
        if not local_rank < local_size <= size:
            raise RendezvousError(
                f"{LOCAL_RANK} is {local_rank}, {LOCAL_SIZE} {local_size} and {SIZE} {size}; expected "
                "local rank < local size <= size"
            )
    return Assigned("HOCKET", rank, size, local_rank, local_size, address, (RANK, SIZE, LOCAL_RANK, LOCAL_SIZE))


def _from_torchrun(variables: Mapping[str, str]) -> Assigned | None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if not {"RANK", "WORLD_SIZE"} <= set(variables):
        return None
    rank, size = whole_number(variables, "RANK"), whole_number(variables, "WORLD_SIZE")
    # Without the port, two jobs of one user would have the same address.
    if size > 1:
        whole_number(variables, "MASTER_PORT")
    local_rank = whole_number(variables, "LOCAL_RANK", rank)
    local_size = whole_number(variables, "LOCAL_WORLD_SIZE", size)
    job = ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"]
    if local_size == size:  # agents of several hosts count restarts differently
        job.append("TORCHELASTIC_RESTART_COUNT")
    address = job_address("torchrun", *(variables.get(name, "") for name in job))
    return Assigned("torchrun", rank, size, local_rank, local_size, address, names)


def _from_mpi(variables: Mapping[str, str]) -> Assigned | None:
    if {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"} <= set(variables):
        prefix, local_names = "OMPI_COMM_WORLD", ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    elif {"PMI_RANK", "PMI_SIZE"} <= set(variables) and (_HYDRA_LOCAL in variables or not _is_slurm_task(variables)):
        prefix, local_names = "PMI", ("MPI_LOCALRANKID", _HYDRA_LOCAL)
    else:
        return None
    names = (f"{prefix}_RANK", f"{prefix}_SIZE", *local_names)
    rank, size = whole_number(variables, names[0]), whole_number(variables, names[1])
    local_rank, local_size = whole_number(variables, names[2], rank), whole_number(variables, names[3], size)
    job = variables.get("PMIX_NAMESPACE") or variables.get("OMPI_MCA_ess_base_jobid") or slurm_step(variables)
    return Assigned("MPI", rank, size, local_rank, local_size, job_address("MPI", job or _starter()), names)


def _is_slurm_task(variables: Mapping[str, str]) -> bool:
    # A batch script, which is no task of a step, also has SLURM_PROCID; only srun sets all three.
    return {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"} <= set(variables)


def _from_slurm(variables: Mapping[str, str]) -> Assigned | None:
    if not _is_slurm_task(variables):
        return None
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")
    rank, size = whole_number(variables, "SLURM_PROCID"), whole_number(variables, "SLURM_STEP_NUM_TASKS")
    local_size = size
    if whole_number(variables, "SLURM_STEP_NUM_NODES", 1) > 1:
        local_size = _slurm_tasks_here(variables)
    address = job_address("Slurm", slurm_step(variables))
    return Assigned("Slurm", rank, size, whole_number(variables, "SLURM_LOCALID", rank), local_size, address, names)


def _slurm_tasks_here(variables: Mapping[str, str]) -> int:
    """Returns the number of tasks on this host of several. Slurm tells it of all hosts, as in "5,4(x3)"."""
    text, node = variables.get("SLURM_STEP_TASKS_PER_NODE", ""), whole_number(variables, "SLURM_NODEID", 0)
    behind = node
    for part in text.split(","):
        match = re.fullmatch(r"([1-9][0-9]*)(?:\(x([1-9][0-9]*)\))?", part)
        if match is None:
            break
        behind -= int(match[2] or 1)
        if behind < 0:
            return int(match[1])
    num_nodes = variables.get("SLURM_STEP_NUM_NODES")
    raise RendezvousError(
        f"SLURM_STEP_TASKS_PER_NODE is {text!r}; expected the numbers of tasks on {num_nodes} hosts, as in 5,4(x3), "
        f"of which this is number {node} (SLURM_NODEID)"
    )


def slurm_step(variables: Mapping[str, str]) -> str:
    """Returns "JOB.STEP" of a task of Slurm, "" for any other process."""
    if "SLURM_STEP_ID" not in variables:
        return ""
    return f"{variables.get('SLURM_JOB_ID', '')}.{variables['SLURM_STEP_ID']}"


def whole_number(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Returns the number in a variable; RendezvousError if it has none, and there is no default or it is no number."""
    text = variables.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.strip().isdecimal():
        found = "is not set" if text is None else f"is {text!r}"
        raise RendezvousError(f"{name} {found}; expected a number, because other variables of the same starter are set")
    return int(text)


def _starter() -> str:
    """Returns a name of the process that started the MPI ranks, for starters that give the job no name."""
    process, starter = os.getppid(), ""
    while process > 1:
        try:
            text = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            break
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        identity = f"{process}.{rest[19]}"  # with the start time, because process numbers are reused
        starter = starter or identity
        if name in _MPI_STARTERS:
            return identity
        process = int(rest[1])
    return starter
