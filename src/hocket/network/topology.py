"""A network: nodes, directed links with bandwidth and latency, and the node of each rank.

A core, a memory channel or a PCIe lane is a link too. `kinds` makes networks by name and arguments, `files` from files;
`routing` finds paths; `bounds` computes what no algorithm can beat.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hocket.errors import TopologyError, did_you_mean, name_count
from hocket.network.flow_hash import mix
from hocket.network.reach import components, unreached

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Names = npt.NDArray[np.str_]

_NONE = -1
_MOST_PAIRS = 1 << 22  # of nodes; up to here a table costs less than a search
_FLOWS_AT_ONCE = 1 << 15  # keeps temporary arrays small: allocating new memory costs more than the arithmetic
_EXTREME = 1e100  # beyond this, sums and quotients would leave the range of float64

LINK_CLASSES = ("nic", "pcie", "socket", "nvlink", "nvswitch", "c2c", "ub", "core", "memory")
"""The classes of links; "socket" connects the processors of one host."""


@dataclass(frozen=True)
class Paths:
    """The paths of n flows: flow f crosses links[offsets[f] : offsets[f + 1]], in the order of travel.

    offsets: int64[n + 1]. links: int64[offsets[-1]]. seconds: float64[n], the sum of the latencies of each path.
    weights: float64[offsets[-1]], the share of the flow that crosses each link, if it takes several paths at once
    (seconds are then those of the longest); None: all of it. rate_weights: float64[n], the rates of flows that share a
    full link are in proportion to these (weighted max-min fairness); None: all are 1.
    """

    offsets: Ints
    links: Ints
    seconds: Floats
    weights: Floats | None = None
    rate_weights: Floats | None = None


class Routing(Protocol):
    """Finds the path of each flow; `routing` has the implementations."""

    def route(self, topology: "Topology", source: Ints, target: Ints, keys: Ints) -> Ints:
        """Returns the nodes that each flow visits, from source to target: int64[num_flows, longest path + 1].

        source, target: int64[num_flows], nodes; keys: int64[num_flows]. A shorter path is filled up with -1.
        Raises TopologyError if there is no route.
        """


@runtime_checkable
class Spreading(Protocol):
    """A routing that may send one flow along several paths at once."""

    def spread_paths(self, topology: "Topology", source: Ints, target: Ints) -> Paths:
        """Returns the paths of flows from source to target: int64[num_flows], nodes."""


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """An immutable network, checked when it is made. Raises a TopologyError that names the wrong node or link.

    node_kinds: str[num_nodes], the kind of each node: "gpu", "switch", "root" ... ranks: int64[num_ranks], the node of
    each rank, all different. link_source, link_target: int64[num_links], the ends of each link; a cable with two
    directions is two links. bytes_per_second, seconds: float64[num_links], bandwidth and latency. link_class:
    str[num_links], of LINK_CLASSES. lanes: int64[num_links], the number of physical links bundled in each link.
    forwards: bool[num_nodes], whether a node forwards traffic of others. reducing: bool[num_nodes], whether a switch
    reduces and multicasts. coordinates: int64[num_ranks, len(axes)], the position of each rank in a regular network
    (grid coordinates, or pod, switch and port), else no columns; bounds try groups along an axis as cuts.
    card_bytes_per_second: the most that a network card carries to another network; infinity if it is not known.
    names: of all nodes; if empty, a node is named by its kind and its number within that kind. unchanged: the network
    before with_links gave it other constants, None if it did not.
    """

    name: str
    node_kinds: Names
    ranks: Ints
    link_source: Ints
    link_target: Ints
    bytes_per_second: Floats
    seconds: Floats
    link_class: Names
    routing: Routing
    lanes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    forwards: Bools = field(default_factory=lambda: np.zeros(0, bool))
    reducing: Bools = field(default_factory=lambda: np.zeros(0, bool))
    axes: tuple[str, ...] = ()
    coordinates: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    names: tuple[str, ...] = ()
    unchanged: "Topology | None" = None
    card_bytes_per_second: float = math.inf

    def __post_init__(self) -> None:
        defaults: dict[str, Any] = {
            "lanes": lambda: np.ones(self.num_links, np.int64),
            "forwards": lambda: np.ones(self.num_nodes, bool),
            "reducing": lambda: np.zeros(self.num_nodes, bool),
            "coordinates": lambda: np.zeros((self.num_ranks, 0), np.int64),
        }
        for attribute, default in defaults.items():
            if not len(getattr(self, attribute)):
                object.__setattr__(self, attribute, default())
        self._check()

    def __repr__(self) -> str:
        counts = ((self.num_ranks, "rank"), (self.num_nodes, "node"), (self.num_links, "link"))
        return f"<Topology {self.name}: {', '.join(name_count(number, noun) for number, noun in counts)}>"

    @property
    def num_nodes(self) -> int:
        """The number of nodes: ranks, switches and other ends of links."""
        return len(self.node_kinds)

    @property
    def num_ranks(self) -> int:
        """The number of ranks placed on the network."""
        return len(self.ranks)

    @property
    def num_links(self) -> int:
        """The number of links; a cable counts as two."""
        return len(self.link_source)

    @cached_property
    def hosts(self) -> Ints:
        """The host of each rank: a number for each component that is connected without network links."""
        inside = self.link_class != "nic"
        return components(self.link_source[inside], self.link_target[inside], self.num_nodes)[self.ranks]

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """The name of each node, in the order of node numbers."""
        if self.names:
            return self.names
        count: dict[str, int] = {}
        made = []
        for kind in self.node_kinds.tolist():
            number = count.get(kind, 0)
            count[kind] = number + 1
            made.append(f"{kind}{number}")
        return tuple(made)

    @cached_property
    def node_numbers(self) -> dict[str, int]:
        """The number of each node, by name."""
        return {name: number for number, name in enumerate(self.node_names)}

    @cached_property
    def usable_links(self) -> Bools:
        """Whether ranks can use each link: its ends are ranks, or forward traffic of others. bool[num_links].

        Not usable are, for example, the links of an idle accelerator that does not forward.
        """
        may = self.forwards.copy()
        may[self.ranks] = True
        usable: Bools = may[self.link_source] & may[self.link_target]
        return usable

    def link_names(self, links: Iterable[int]) -> list[str]:
        """Returns each link as "source->target"."""
        names = self.node_names
        return [f"{names[self.link_source[link]]}->{names[self.link_target[link]]}" for link in links]

    @cached_property
    def outgoing(self) -> tuple[Ints, Ints]:
        """(links, begins): the links that leave node v are links[begins[v] : begins[v + 1]]."""
        return _by_node(self.link_source, self.num_nodes)

    @cached_property
    def incoming(self) -> tuple[Ints, Ints]:
        """(links, begins): the links that enter node v are links[begins[v] : begins[v + 1]]."""
        return _by_node(self.link_target, self.num_nodes)

    def paths(self, source_ranks: Ints, target_ranks: Ints, flow_keys: Ints | None = None) -> Paths:
        """Returns the path of each flow between two ranks, by this network's routing; empty from a rank to itself.

        flow_keys: int64, one per flow. Of several equally good paths, flows with different keys may take different
        ones; without keys, the two ends decide. Raises TopologyError if there is no route.
        """
        source, target = self.ranks[source_ranks], self.ranks[target_ranks]
        if isinstance(self.routing, Spreading):
            return self.routing.spread_paths(self, source, target)
        keys = source * np.int64(self.num_nodes) + target if flow_keys is None else np.asarray(flow_keys, np.int64)
        begins = range(0, max(len(source), 1), _FLOWS_AT_ONCE)
        parts = [self._ways(*(column[i : i + _FLOWS_AT_ONCE] for column in (source, target, keys))) for i in begins]
        lengths, links, seconds = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Paths(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), links, seconds)

    def _ways(self, source: Ints, target: Ints, keys: Ints) -> tuple[Ints, Ints, Floats]:
        """Returns the number of links of each flow, these links (one flow after the other), and the latencies."""
        nodes = self.routing.route(self, source, target, keys)
        goes = nodes >= 0
        goes[:, 0] = False
        lengths = sum(goes.T, start=np.zeros(len(nodes), np.int64))  # a sum row by row takes three times as long
        flow = np.repeat(np.arange(len(nodes)), lengths)
        visited, arrives = nodes.reshape(-1), np.flatnonzero(goes)
        links = self.links_between(visited[arrives - 1], visited[arrives], keys[flow])
        return lengths, links, np.bincount(flow, self.seconds[links], len(source)).astype(np.float64)

    def links_between(self, source: Ints, target: Ints, keys: Ints) -> Ints:
        """Returns the link from each source to its target; of parallel links, the key chooses one.

        Raises TopologyError if there is no link.
        """
        links, ends, parallel = self._by_ends
        wanted = source * np.int64(self.num_nodes) + target
        if self.num_nodes**2 <= _MOST_PAIRS:
            first = self._first_between[wanted]
        else:
            first = np.searchsorted(ends, wanted, "left")
            first[ends[np.minimum(first, len(ends) - 1)] != wanted] = _NONE
        missing = np.flatnonzero(first == _NONE)
        if len(missing):
            names, lost = self.node_names, int(missing[0])
            raise TopologyError(
                f"{self.name}: a route goes from {names[source[lost]]} to {names[target[lost]]}, but there is no such "
                "link; expected a routing that was made for this network"
            )
        chosen: Ints = links[first if parallel is None else first + mix(keys, wanted) % parallel[first]]
        return chosen

    def place(self, ranks: Sequence[int | str]) -> "Topology":
        """Returns the network with only these ranks: present ranks by number, or any nodes by name."""
        nodes = []
        for rank in ranks:
            if isinstance(rank, str):
                if rank not in self.node_numbers:
                    near = did_you_mean(rank, self.node_names)
                    raise TopologyError(
                        f"{self.name} has no node {rank!r}; its nodes are {_some(self.node_names)}{near}"
                    )
                nodes.append(self.node_numbers[rank])
            elif 0 <= rank < self.num_ranks:
                nodes.append(int(self.ranks[rank]))
            else:
                raise TopologyError(f"{self.name} has ranks 0 to {self.num_ranks - 1}; found rank {rank}")
        where = {int(node): row for row, node in enumerate(self.ranks)}
        known = bool(self.axes) and all(node in where for node in nodes)
        rows = [where[node] for node in nodes] if known else []
        return replace(
            self,
            ranks=np.array(nodes, np.int64),
            axes=self.axes if known else (),
            coordinates=self.coordinates[rows] if known else np.zeros((0, 0), np.int64),
        )

    def only(self, *classes: str) -> "Topology":
        """Returns the network with only the links of these classes."""
        return self.keep(np.isin(self.link_class, classes))

    def keep(self, links: Bools) -> "Topology":
        """Returns the network with only these links: bool[num_links]. Nodes keep their numbers."""
        columns = ("link_source", "link_target", "bytes_per_second", "seconds", "link_class", "lanes")
        kept = {column: getattr(self, column)[links] for column in columns}
        return replace(self, **kept, unchanged=self.unchanged and self.unchanged.keep(links))

    def with_links(
        self, which: str, *, bytes_per_second: float | None = None, seconds: float | None = None
    ) -> "Topology":
        """Returns the network with other constants of some links.

        which: a class, or source->target, each the name of a node or a kind of nodes, or source<->target for both
        directions; "" means all.
        """
        source, arrow, target = which.partition("<->" if "<->" in which else "->")
        if arrow:
            chosen = self._from_to(source, target, both=arrow == "<->")
        elif which in ("", *self.link_class.tolist()):
            chosen = (self.link_class == which) | (not which)
        else:
            classes = list(dict.fromkeys(self.link_class.tolist()))
            known = [*classes, *self._kinds_joined()]
            raise TopologyError(
                f"{self.name}: expected links by class ({', '.join(classes)}), or from->to or from<->to with nodes or "
                f"kinds of nodes ({', '.join(self._kinds_joined())}); found {which!r}{did_you_mean(which, known)}"
            )
        return replace(
            self,
            bytes_per_second=_where(chosen, bytes_per_second, self.bytes_per_second),
            seconds=_where(chosen, seconds, self.seconds),
            unchanged=self.unchanged or self,
        )

    def _from_to(self, source: str, target: str, *, both: bool) -> Bools:
        """Returns which links lead from source to target, or also back."""
        one, other = self._meant(source), self._meant(target)
        chosen = one[self.link_source] & other[self.link_target]
        if both:
            chosen |= other[self.link_source] & one[self.link_target]
        if not chosen.any():
            raise TopologyError(
                f"{self.name} has no link {source}{'<->' if both else '->'}{target}; links lead between these kinds of "
                f"nodes: {', '.join(self._kinds_joined())}"
            )
        return chosen

    def _meant(self, name: str) -> Bools:
        """Returns which nodes a name means: one node, or all of a kind."""
        number = self.node_numbers.get(name)
        meant: Bools = self.node_kinds == name if number is None else np.arange(self.num_nodes) == number
        if not meant.any():
            kinds = list(dict.fromkeys(self.node_kinds.tolist()))
            raise TopologyError(
                f"{self.name} has no node {name!r}; its nodes are {_some(self.node_names)}; kinds of nodes: "
                f"{', '.join(kinds)}{did_you_mean(name, [*kinds, *self.node_names])}"
            )
        return meant

    def _kinds_joined(self) -> list[str]:
        """Returns the kinds of nodes that links join, each two once, as "kind<->kind"."""
        kinds = self.node_kinds
        ends = dict.fromkeys(zip(kinds[self.link_source].tolist(), kinds[self.link_target].tolist(), strict=True))
        seen: dict[frozenset[str], str] = {}
        for one, other in ends:
            seen.setdefault(frozenset((one, other)), f"{one}<->{other}")
        return list(seen.values())

    @cached_property
    def _by_ends(self) -> tuple[Ints, Ints, Ints | None]:
        """Links ordered by their ends, a number for the ends of each, and the parallel links from there (None: 1)."""
        ends = self.link_source * np.int64(self.num_nodes) + self.link_target
        order = np.argsort(ends, kind="stable")
        ends = ends[order]
        if (np.diff(ends) != 0).all():
            return order, ends, None
        return order, ends, np.searchsorted(ends, ends, "right") - np.arange(len(ends))

    @cached_property
    def _first_between(self) -> Ints:
        """For each pair of nodes, the index of its first link in _by_ends, or _NONE."""
        _, ends, _ = self._by_ends
        table = np.full(self.num_nodes**2, _NONE)
        table[ends[::-1]] = np.arange(len(ends))[::-1]  # of several assignments the last one counts
        return table

    def _check(self) -> None:
        for column in ("link_target", "bytes_per_second", "seconds", "link_class", "lanes"):
            self._expect_length(column, self.num_links, "links")
        for column in ("forwards", "reducing"):
            self._expect_length(column, self.num_nodes, "nodes")
        self._expect_length("coordinates", self.num_ranks, "ranks")
        if self.names and len(set(self.names)) != self.num_nodes:
            raise TopologyError(f"{self.name}: expected {self.num_nodes} different names of nodes, found {self.names}")
        if not self.num_ranks:
            raise TopologyError(f"{self.name}: expected at least 1 rank, found none")
        for column in ("ranks", "link_source", "link_target"):
            nodes = getattr(self, column)
            wrong = np.flatnonzero((nodes < 0) | (nodes >= self.num_nodes))
            if len(wrong):
                raise TopologyError(
                    f"{self.name}: {column}[{wrong[0]}] is {nodes[wrong[0]]}; the nodes are 0 to {self.num_nodes - 1}"
                )
        counts = np.bincount(self.ranks)
        if counts.max() > 1:
            twice = self.node_names[int(counts.argmax())]
            raise TopologyError(f"{self.name}: node {twice} has several ranks; expected a different node for each rank")
        self._check_links()
        lost = unreached(self.ranks, self.link_source, self.link_target, self.num_nodes)
        if lost is not None:
            source, target = (self.node_names[node] for node in lost)
            raise TopologyError(
                f"{self.name} is disconnected: there is no path from {source} to {target}; expected that every rank "
                "reaches every other"
            )

    def _check_links(self) -> None:
        laws = (
            (self.link_source != self.link_target, "leads back to its source", "two different nodes"),
            (
                (self.bytes_per_second >= 1 / _EXTREME) & (self.bytes_per_second <= _EXTREME),
                "has {bytes_per_second:g} bytes_per_second",
                f"a positive number, {1 / _EXTREME:g} to {_EXTREME:g}",
            ),
            (
                (self.seconds >= 0) & (self.seconds <= _EXTREME),
                "has {seconds:g} seconds of latency",
                f"0 or more, to {_EXTREME:g}",
            ),
            (self.lanes > 0, "has {lanes} lanes", "1 or more"),
            (np.isin(self.link_class, LINK_CLASSES), "is of class {link_class!r}", f"one of {', '.join(LINK_CLASSES)}"),
        )
        for holds, found, expected in laws:
            if not holds.all():
                link = int(np.flatnonzero(~holds)[0])
                columns = ("bytes_per_second", "seconds", "lanes", "link_class")
                found = found.format(**{column: getattr(self, column)[link].item() for column in columns})
                unknown = " (unknown: please set it)" if " nan " in found else ""
                raise TopologyError(
                    f"{self.name}: link {self.link_names([link])[0]} {found}{unknown}; expected {expected}"
                )

    def _expect_length(self, column: str, expected: int, what: str) -> None:
        found = len(getattr(self, column))
        if found != expected:
            raise TopologyError(
                f"{self.name}: {column} has {found} entries; expected {expected}, because there are {expected} {what}"
            )


def _where(links: Bools, new: float | None, old: Floats) -> Floats:
    return old if new is None else np.where(links, new, old)


def _by_node(nodes: Ints, num_nodes: int) -> tuple[Ints, Ints]:
    order = np.argsort(nodes, kind="stable")
    return order, np.searchsorted(nodes[order], np.arange(num_nodes + 1))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= 12 else [*names[:11], "..."])
