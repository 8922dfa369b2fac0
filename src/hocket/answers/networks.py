"""hocket.topology: a network by its name or from a file, its nodes and links, and how devices reach each other."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hocket.answers.answer import Answer

if TYPE_CHECKING:
    from hocket.network import Affinity, Topology
    from hocket.view import Terminal


@dataclass(frozen=True)
class LinkClass:
    """Links with equal constants: their class, the bandwidth of one direction, the latency, and how many there are."""

    name: str
    bytes_per_second: float
    seconds: float
    number: int


@dataclass(frozen=True, repr=False)
class Network(Answer):
    """A network: its ranks, nodes by kind, and links by class. changes: which constants are not those of its name.

    topology: the network itself, with every node and link. Properties say how its devices reach each other. They are
    None for more than 256 devices, and are computed when one is first read: for 256 ranks this takes about a second.
    """

    name: str
    num_ranks: int
    nodes: dict[str, int]
    links: tuple[LinkClass, ...]
    changes: tuple[str, ...]
    topology: "Topology" = field(compare=False)

    @property
    def devices(self) -> tuple[str, ...] | None:
        """The names of all devices: accelerators, then network cards."""
        return None if self._matrix is None else self._matrix.devices

    @property
    def ways(self) -> tuple[tuple[str, ...], ...] | None:
        """How each device reaches each other, in the letters of `nvidia-smi topo -m`."""
        return None if self._matrix is None else self._matrix.ways

    @property
    def sockets(self) -> tuple[str, ...] | None:
        """The socket of each device."""
        return None if self._matrix is None else self._matrix.sockets

    @property
    def cards(self) -> tuple[str, ...] | None:
        """The network cards through which each device leaves its host."""
        return None if self._matrix is None else self._matrix.cards

    @cached_property
    def _matrix(self) -> "Affinity | None":
        from hocket.view import matrix_of

        return matrix_of(self.topology)

    def _print(self, console: "Terminal") -> None:
        """Prints nodes and links, and the matrix of ways."""
        from hocket.view import print_topology

        print_topology(console, self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket show topology --json` does."""
        from hocket.view import facts_of

        return facts_of(self.topology, self._matrix)

    def svg(self) -> str:
        """Returns the nodes and links as SVG."""
        from hocket.view import draw_network

        return draw_network(self.topology)


def topology(named: "str | Topology", ranks: int | None = None, *, links: str | Sequence[str] = ()) -> Network:
    """Returns a network: "torus:4x4", "dgx-h100:2", a file, or any other KIND:ARGS of `hocket show topology`.

    ranks: only the first ranks; N in KIND:ARGS stands for their number. links: changed constants, one text or several,
    for example "nic:bandwidth=25GB/s", as --link takes them. Raises TopologyError for an impossible network, ValueError
    for a bad argument.
    """
    from hocket.answers.network_options import topology_of
    from hocket.view import facts_of

    found = topology_of(named, links, ranks)
    facts = facts_of(found)
    return Network(
        name=facts["topology"],
        num_ranks=facts["ranks"],
        nodes=facts["nodes"],
        links=tuple(
            LinkClass(one["class"], one["bytes_per_second"], one["seconds"], one["number"]) for one in facts["links"]
        ),
        changes=facts["changes"],
        topology=found,
    )


def named_network(given: "str | Network | Topology") -> "str | Topology":
    """Returns what a simulation takes: a name, or the topology of what `topology` returned. TypeError for others."""
    from hocket.network import Topology

    found = given.topology if isinstance(given, Network) else given
    if not isinstance(found, str | Topology):
        raise TypeError(f"topology: expected KIND:ARGS, a file, or what hocket.topology returns; found {found!r}")
    return found
