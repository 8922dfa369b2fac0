"""Slurm tells all ranks the hosts of their step, but carries nothing between them: rank 0's port follows from the step.

Rank 0 is on the first host, at the first of some ports that is free there. That is nearly always the very first, so the
others try it every second time: they often come before rank 0, and then must not wait until all ports had their turn. A
program that has taken a port fails the handshake. Slurm carries no key.
"""

import hashlib
from collections.abc import Sequence

from hocket.errors import RendezvousError, TopologyError
from hocket.network import expand_host_list

NUM_PORTS = 16
_FIRST_PORT, _AFTER_PORTS = 10240, 32768  # below the ports that Linux gives to connections


class SlurmPorts:
    """The ports of a step. hosts: SLURM_STEP_NODELIST; step: of job and step; node: SLURM_NODEID of this rank."""

    carries_key = False
    listens_at: tuple[str, int] | None = None

    def __init__(self, hosts: str, step: str, node: int) -> None:
        try:
            names = expand_host_list(hosts, "SLURM_STEP_NODELIST")
        except TopologyError as error:
            raise RendezvousError(f"{error}; tell all ranks where rank 0 is by HOCKET_ADDRESS=HOST:PORT") from error
        if not names:
            raise RendezvousError(
                "SLURM_STEP_NODELIST is empty, expected the hosts of the step; tell all ranks where rank 0 is by "
                "HOCKET_ADDRESS=HOST:PORT"
            )
        self._host, self._node = names[0], node
        number = int.from_bytes(hashlib.sha256(step.encode()).digest()[:8])
        first = _FIRST_PORT + NUM_PORTS * (number % ((_AFTER_PORTS - _FIRST_PORT) // NUM_PORTS))
        self.ports: Sequence[int] = range(first, first + NUM_PORTS)
        self._tried = 0
        self.where = f"Slurm's first host {self._host}, ports {first} to {self.ports[-1]} (step {step})"

    def publish(self, text: str) -> None:
        """Does nothing: the ranks try all ports. Raises RendezvousError if this is not the host where they try."""
        if self._node != 0:
            raise RendezvousError(
                f"rank 0 is on host number {self._node} of SLURM_STEP_NODELIST, but the other ranks look for it on the "
                f"first, {self._host}; tell all ranks where rank 0 is by HOCKET_ADDRESS=HOST:PORT, or let Slurm give "
                "rank 0 to the first host (--distribution=block)"
            )

    def find(self, seconds: float) -> str | None:
        """Returns HOST:PORT at once: the first port, and then by turns the next of the others and the first again."""
        tried, self._tried = self._tried, self._tried + 1
        return f"{self._host}:{self.ports[1 + tried // 2 % (NUM_PORTS - 1) if tried % 2 else 0]}"
