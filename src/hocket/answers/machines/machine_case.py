"""One call of a GPU library on a machine, as plain values: what simulate, its sweeps and explain have in common."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.answers.simulation_case import row_of_loads

if TYPE_CHECKING:
    from hocket.network import LibraryTime, Machine, PlacedRanks, Topology


@dataclass(frozen=True)
class MachineCase:
    """One call to predict; small, so that it can be sent to another process.

    topology: the machine and its hosts, such as h100:4. num_ranks: the first ones of these hosts; None means all.
    protocol: "" means the fastest one that the algorithm has.
    """

    collective: str
    algorithm: str
    num_bytes: int
    topology: str
    num_ranks: int | None = None
    protocol: str = ""
    root: int = 0

    def network(self) -> "Topology":
        """Returns the machine's network with its ranks placed, at the full speed of its links."""
        return self.placed()[1].network

    def result(self, *, record: bool = False) -> "LibraryTime":
        """Returns the predicted time. Raises ValueError for record=True: no single message is simulated."""
        if record:
            raise ValueError("--trace: expected a topology; on a machine, no single message is simulated")
        return _times(self)

    def row(self) -> dict[str, Any]:
        """Returns the case and its result for JSON and CSV, in bytes, seconds and bytes per second."""
        machine, placed = self.placed()
        found = self.result()
        about = {
            "collective": self.collective,
            "algorithm": self.algorithm,
            "topology": self.topology,
            "num_ranks": placed.num_ranks,
            "num_bytes": self.num_bytes,
            "groups": None,
            "dims": None,
            "level": "machine",
            "changes": (),
            "overhead_seconds": 0.0,
        }
        steps = {"num_steps": found.num_steps, "machine": machine.title, "protocol": found.protocol}
        return about | row_of_loads(found, placed.network, self.collective, self.root) | steps

    def placed(self) -> "tuple[Machine, PlacedRanks]":
        """Returns the machine, and the ranks on its network."""
        from hocket.network import placed_on

        machine, hosts = machine_named(self.topology, self.num_ranks)
        return machine, placed_on(machine, hosts, self.num_ranks)


def machine_named(named: str, num_ranks: int | None = None) -> "tuple[Machine, int]":
    """Returns the machine of NAME[:HOSTS] and the number of hosts; without HOSTS, as many as num_ranks need.

    Raises TopologyError for an unknown machine, ValueError for a wrong number of hosts.
    """
    from hocket.network import load_machine, placed_on

    name, colon, hosts = named.rpartition(":")
    if not colon:
        machine = load_machine(named)
        return machine, 1 if num_ranks is None else max(1, -(-num_ranks // placed_on(machine, 1).num_ranks))
    if not hosts.isdecimal() or not int(hosts):
        raise ValueError(f"machine: expected NAME or NAME:HOSTS, such as h100:4; found {named!r}")
    return load_machine(name), int(hosts)


@functools.lru_cache(64)
def _times(case: MachineCase) -> "LibraryTime":
    from hocket.network import library_times

    machine, placed = case.placed()
    times: Iterator[LibraryTime] = library_times(
        machine,
        placed,
        case.collective,
        case.num_bytes,
        algorithm=case.algorithm,
        protocol=case.protocol,
        root=case.root,
    )
    return min(times, key=lambda one: one.seconds)
