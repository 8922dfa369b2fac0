"""How the ranks of a job on several hosts find rank 0, by what each starter tells them."""

from collections.abc import Mapping

from hocket.errors import RendezvousError
from hocket.runtime.ranks.starters import Assigned, slurm_step, whole_number
from hocket.runtime.rendezvous.boards.agent_store import AgentStore
from hocket.runtime.rendezvous.boards.board import Board
from hocket.runtime.rendezvous.boards.process_manager import ProcessManager
from hocket.runtime.rendezvous.boards.slurm_ports import SlurmPorts
from hocket.runtime.variables import ADDRESS


def board_across_hosts(assigned: Assigned, variables: Mapping[str, str], meeting: str | None, timeout: float) -> Board:
    """Returns the board of a job that spans hosts and was told no HOST:PORT.

    meeting: a name that the caller gives this meeting. timeout: of the meeting, in seconds. Raises RendezvousError if
    the starter tells nothing that finds rank 0.
    """
    if assigned.source == "torchrun":
        if variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            run = variables.get("TORCHELASTIC_RUN_ID", "")
            port = whole_number(variables, "MASTER_PORT")
            return AgentStore(variables.get("MASTER_ADDR", ""), port, run, *([meeting] if meeting else []))
        why = (
            "TORCHELASTIC_USE_AGENT_STORE is not True, so no agent serves a store at MASTER_PORT: that port is for the "
            "store that PyTorch makes in rank 0"
        )
    elif assigned.source == "Slurm":
        step, node = slurm_step(variables), whole_number(variables, "SLURM_NODEID", 0)
        return SlurmPorts(variables.get("SLURM_STEP_NODELIST", ""), step, node)
    elif "PMI_FD" in variables and assigned.names[0] == "PMI_RANK":
        return ProcessManager(whole_number(variables, "PMI_FD"), timeout)
    elif assigned.names[0] == "PMI_RANK":
        why = "PMI_FD is not set, so there is no process manager that tells where rank 0 is"
    elif assigned.source == "MPI":
        why = f"Open MPI does not tell where rank 0 is; pass it on with `mpirun -x {ADDRESS}`"
    else:
        why = f"{ADDRESS} is {variables.get(ADDRESS, '')!r}, which is a name on one host"
    raise RendezvousError(
        f"{assigned.source} assigned rank {assigned.rank} of {assigned.size}, and {assigned.local_size} of them on "
        f"this host, but nothing tells where rank 0 is: {why}. Set {ADDRESS}=HOST:PORT on all ranks, where HOST is "
        "rank 0's host, as the others reach it, and PORT one that is free there; an IPv6 address as [ADDRESS]:PORT"
    )
