"""Dragonfly (Kim et al. 2008) and dragonfly+ (Shpiner et al. 2017): groups of switches, cables between any two groups.

Dragonfly: a group has `a` routers, fully connected, each with `p` hosts and `h` cables to other groups.
Dragonfly+: a group has `a` leaves with `p` hosts each; every leaf is linked to each of the `spines`, which have `h`
cables to other groups each. Port q of a group leads to the group 1 + q mod (g - 1) ahead, so any two groups have
equally many cables.
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
    """g groups of `a` routers (or leaves) with p hosts each, and h global cables per router (or spine).

    spines: 0 for a dragonfly. detour: the path to another group. "minimal" takes one global cable; "valiant" goes
    through a third group chosen by the flow's key, which spreads any traffic pattern (Valiant 1982).
    """

    a: int
    p: int
    h: int
    g: int
    spines: int = 0
    detour: str = "minimal"

    @property
    def num_gates(self) -> int:
        """The number of switches with global cables in a group."""
        return self.spines or self.a

    @property
    def cables(self) -> int:
        """The number of global cables between any two groups."""
        return self.num_gates * self.h // (self.g - 1) if self.g > 1 else 0

    def draw(self, link: Link, global_link: Link, name: str) -> Topology:
        """Returns the network: hosts first, then the routers (or leaves) of all groups, then all spines."""
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
            other = mix(keys, 1) % (self.g - 2)  # one of the groups that are neither source nor target
            low, high = np.minimum(group, goal), np.maximum(group, goal)
            other += other >= low
            other += other >= high
            away = group != goal
            nodes += self._cross(group, np.where(away, other, goal), keys)
            between = self._cross(np.where(away, other, goal), goal, mix(keys, 2))
            if self.spines:  # between two spines of a group, the path goes through a leaf
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
        """Returns the two ends of a global cable between two groups, chosen by the key; NOWHERE for equal groups."""
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
        """Returns the port of a group that has cable number `copy` to a peer group."""
        return (peer - group - 1) % self.g + copy * (self.g - 1)
