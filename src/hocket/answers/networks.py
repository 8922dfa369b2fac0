"""hocket.topology: a network by its name or from a file, its nodes and links, and how devices reach each other."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hocket.answers.answer import Answer

if TYPE_CHECKING:
    from hocket.network import Topology
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

    devices and ways: up to 256 accelerators and network cards, and how each reaches each other, in the letters of
    `nvidia-smi topo -m`; sockets: the socket of each; cards: those by which it leaves its host; None if there are more.
    topology: the network itself, with every node and link.
    """

    name: str
    num_ranks: int
    nodes: dict[str, int]
    links: tuple[LinkClass, ...]
    changes: tuple[str, ...]
    devices: tuple[str, ...] | None
    ways: tuple[tuple[str, ...], ...] | None
    sockets: tuple[str, ...] | None
    cards: tuple[str, ...] | None
    topology: "Topology" = field(compare=False)

    def _print(self, console: "Terminal") -> None:
        """Prints nodes and links, and the matrix of ways."""
        from hocket.view import print_topology

        print_topology(console, self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket show topology --json` does."""
        from hocket.view import facts_of

        return facts_of(self.topology)

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
    ways = facts.get("ways")
    return Network(
        name=facts["topology"],
        num_ranks=facts["ranks"],
        nodes=facts["nodes"],
        links=tuple(
            LinkClass(one["class"], one["bytes_per_second"], one["seconds"], one["number"]) for one in facts["links"]
        ),
        changes=facts["changes"],
        devices=None if ways is None else tuple(facts["devices"]),
        ways=None if ways is None else tuple(map(tuple, ways)),
        sockets=None if ways is None else tuple(facts["sockets"]),
        cards=None if ways is None else tuple(facts["cards"]),
        topology=found,
    )


def named_network(given: "str | Network | Topology") -> "str | Topology":
    """Returns what a simulation takes: a name, or the topology of what `topology` returned."""
    return given.topology if isinstance(given, Network) else given
