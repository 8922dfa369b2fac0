"""Dragonfly (Kim et al. 2008) and dragonfly+ (Shpiner et al. 2017): groups of switches, cables between any two groups.

Dragonfly: a group is `a` routers, each joined with each, each with `p` hosts and `h` cables to other groups.
Dragonfly+: a group is `a` leaves with `p` hosts each, joined with each of `spines`, which have the `h` cables each.
Port q of a group's cables leads to the group that is 1 + q mod (g - 1) ahead, so any two groups have equally many.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hocket.errors import TopologyError
from hocket.network.drawing import Drawing, expect_room
from hocket.network.flow_hash import mix
from hocket.network.links import Link
from hocket.network.routing import NOWHERE, fill
from hocket.network.topology import Ints, Topology


@dataclass(frozen=True)
class Dragonfly:
    """a routers or leaves in each of g groups, p hosts on each, h global cables on each router, or spine.

    spines: 0 for a dragonfly. detour: how traffic gets to another group, "minimal" over one global cable, or "valiant"
    over a third group, taken by the flow's key, which spreads any pattern (Valiant 1982).
    """

    a: int
    p: int
    h: int
    g: int
    spines: int = 0
    detour: str = "minimal"

    @property
    def num_gates(self) -> int:
        """Of a group: the switches with global cables."""
        return self.spines or self.a

    @property
    def cables(self) -> int:
        """Global cables between any two groups."""
        return self.num_gates * self.h // (self.g - 1) if self.g > 1 else 0

    def draw(self, link: Link, global_link: Link, name: str) -> Topology:
        """The network: hosts first, then the routers (or leaves) of all groups, then the spines of all groups."""
        if min(self.a, self.p, self.g) < 1 or min(self.h, self.spines) < 0:
            raise TopologyError(f"{name}: expected sizes of 1 or more")
        if self.g > 1 and not self.cables:
            raise TopologyError(
                f"{name}: a group has {self.num_gates} x {self.h} global cables; expected one to each of the "
                f"{self.g - 1} other groups"
            )
        drawing = Drawing(name)
        ranks = drawing.nodes("host", self.g * self.a * self.p, forwards=False)
        routers = drawing.nodes("leaf" if self.spines else "router", self.g * self.a)
        drawing.cable(ranks, routers[ranks // self.p], link)
        in_group = routers.reshape(self.g, self.a)
        gates = in_group
        if self.spines:
            gates = drawing.nodes("spine", self.g * self.spines).reshape(self.g, self.spines)
            drawing.cable(in_group[:, :, None], gates[:, None, :], link)
        else:
            drawing.clique(in_group, link)
        if self.g > 1:
            expect_room(name, drawing.num_nodes, drawing.num_links + self.g * self.cables * (self.g - 1))
            group, port = np.indices((self.g, self.cables * (self.g - 1)))
            peer = (group + 1 + port % (self.g - 1)) % self.g
            once = group < peer
            there = gates[peer, self._port(peer, group, port // (self.g - 1)) // self.h]
            drawing.cable(gates[group, port // self.h][once], there[once], global_link)
        router = ranks // self.p
        places = np.stack((router // self.a, router % self.a, ranks % self.p), axis=1)
        return drawing.topology(ranks, self, axes=("group", "router", "port"), coordinates=places)

    def route(self, topology: Topology, source: Ints, target: Ints, keys: Ints) -> Ints:
        """See Routing."""
        first = self.g * self.a * self.p
        router, last = source // self.p, target // self.p
        group, goal = router // self.a, last // self.a
        nodes: list[npt.NDArray[np.int64]] = [source, first + router]
        if self.detour == "valiant" and self.g > 2:
            other = mix(keys, 1) % (self.g - 2)  # among the groups that are neither
            low, high = np.minimum(group, goal), np.maximum(group, goal)
            other += other >= low
            other += other >= high
            away = group != goal
            nodes += self._cross(group, np.where(away, other, goal), keys)
            between = self._cross(np.where(away, other, goal), goal, mix(keys, 2))
            if self.spines:  # from spine to spine a group is passed by a leaf
                leaf = first + other * self.a + mix(keys, 3) % self.a
                nodes.append(np.where(away & (nodes[-1] != between[0]), leaf, NOWHERE))
            nodes += between
        else:
            nodes += self._cross(group, goal, keys)
        if self.spines:
            within = first + self.g * self.a + goal * self.spines + mix(keys, 4) % self.spines
            nodes.append(np.where((group == goal) & (router != last), within, NOWHERE))
        ways = fill([*nodes, first + last, target])
        ways[source == target, 1:] = NOWHERE
        return ways

    def _cross(self, group: Ints, goal: Ints, keys: Ints) -> list[Ints]:
        """The two ends of a global cable from one group to another, by the key; nothing where they are the same."""
        if self.g == 1:
            return []
        copy = mix(keys, group * np.int64(self.g) + goal) % self.cables
        base = self.g * self.a * self.p + (self.g * self.a if self.spines else 0)
        stays = group == goal
        ends = []
        for here, there in ((group, goal), (goal, group)):
            gate = base + here * self.num_gates + self._port(here, there, copy) // self.h
            ends.append(np.where(stays, NOWHERE, gate))
        return ends

    def _port(self, group: Ints, peer: Ints, copy: Ints) -> Ints:
        """The port of a group that has the copy-th cable to a peer."""
        return (peer - group - 1) % self.g + copy * (self.g - 1)
