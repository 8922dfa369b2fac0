"""The commands that start the ranks of a contender on several hosts, those of a lab (tests/hosts/lab.py)."""

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import peers

from comparison import contenders
from comparison.contenders import Setting

INTERFACE, PORT = "eth0", 29500
MEMORY_FOLDER = Path("/dev/shm")  # of each host


class Host(Protocol):
    """What is needed of a host."""

    name: str
    environment: dict[str, str]

    def command(self, argv: Sequence[str]) -> list[str]:
        """Returns the command that runs `argv` on this host."""


class Lab(Protocol):
    """Hosts, and the program that runs commands on them as ssh does."""

    hosts: Sequence[Host]
    agent: Path


def misplaced(names: Sequence[str], lab: Lab | None) -> str:
    """Returns what is wrong with the hosts on which ranks are, in the order of ranks; "" if nothing is."""
    expected = [host.name for host in lab.hosts for _ in range(len(names) // len(lab.hosts))] if lab else names
    return "" if list(names) == list(expected) else f"ranks are on {', '.join(names)}, not on {', '.join(expected)}"


def commands(
    group: str, setting: Setting, num_ranks: int, address: Path, place: str, python: Path, lab: Lab
) -> tuple[list[list[str]], dict[str, str]]:
    """Returns the processes to start, and their environment, like contenders.commands; each host has as many ranks."""
    per_host = num_ranks // len(lab.hosts)
    (line, *_), environment = contenders.commands(group, setting, num_ranks, address, place, python)
    environment = {**lab.hosts[0].environment, "GLOO_SOCKET_IFNAME": INTERFACE, **environment}
    if group in peers.MPIS:
        mpiexec, *rest = line
        names = ",".join(f"{host.name}:{per_host}" for host in lab.hosts)
        environment["OMPI_MCA_btl_sm_backing_directory"] = os.fspath(MEMORY_FOLDER)
        return [lab.hosts[0].command([mpiexec, *launching(group, names, per_host, lab.agent), *rest])], environment
    program = line[:-3]
    return of_ranks(lambda rank: [*program, str(rank), str(num_ranks), place], num_ranks, lab), environment


def of_ranks(program: Callable[[int], Sequence[str]], num_ranks: int, lab: Lab) -> list[list[str]]:
    """Returns the commands that start a program on Hocket's ranks; each host has as many."""
    per_host = num_ranks // len(lab.hosts)
    where = {"HOCKET_ADDRESS": f"{lab.hosts[0].name}:{PORT}", "HOCKET_KEY": secrets.token_hex(32)}
    sizes = {"HOCKET_SIZE": str(num_ranks), "HOCKET_LOCAL_SIZE": str(per_host)}
    lines = []
    for rank in range(num_ranks):
        numbers = {"HOCKET_RANK": str(rank), "HOCKET_LOCAL_RANK": str(rank % per_host)}
        own = [f"{name}={value}" for name, value in (where | sizes | numbers).items()]
        lines.append(lab.hosts[rank // per_host].command(["env", *own, *program(rank)]))
    return lines


def launching(group: str, names: str, per_host: int, agent: Path) -> list[str]:
    """Returns the arguments with which the mpiexec of the group starts ranks on these hosts."""
    if group == "openmpi":
        where = ["--host", names, "--map-by", f"ppr:{per_host}:node:oversubscribe"]
        return ["--prtemca", "plm_ssh_agent", os.fspath(agent), *where, "-x", "PYTHONPATH"]
    return ["-launcher", "ssh", "-launcher-exec", os.fspath(agent), "-iface", INTERFACE, "-hosts", names]
