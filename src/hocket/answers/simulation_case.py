"""One call to simulate, as plain values: what simulate, its sweeps and explain have in common."""

import functools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

from hocket.answers.network_options import DEFAULT_LEVEL, read_links
from hocket.answers.quantities import ranks_of_layout, read_layout
from hocket.answers.synthesis.synthesised_algorithm import SYNTHESISED, algorithm_of, synthesised_on

if TYPE_CHECKING:
    from hocket.algorithms import Algorithm, GroupsOfRanks, Layout
    from hocket.network import LinkLoads, SimulationResult, SwitchTree, Synthesised, Topology
    from hocket.schedule import Schedule

IN_SWITCHES = "in_switches"
"""Name of the all_reduce done by switches that reduce and multicast. All other names are algorithms that ranks run."""

DEFAULT_BYTES = 64 << 20
"""Default size of the whole vector."""

_MOST_NAMED = 8  # most links that a row names
_SWITCH_PIECE_BYTES, _MOST_SWITCH_PIECES = 1 << 22, 64


@dataclass(frozen=True)
class SimulationCase:
    """One call to simulate; small, so that it can be sent to another process.

    num_ranks: number of ranks, the first ones of the topology; None means all. links, reduce, overhead: texts, as the
    options --link, --reduce and --overhead take them. program: the algorithm itself, if it was given; a case with one
    stays in this process. groups, dims: only for an algorithm that takes them; without groups, it takes the hosts of
    the topology.
    """

    collective: str
    algorithm: str
    num_bytes: int
    topology: "str | Topology"
    num_ranks: int | None = None
    links: tuple[str, ...] = ()
    reduce: str = ""
    level: str = DEFAULT_LEVEL
    root: int = 0
    overhead: str = ""
    program: "Algorithm | None" = None
    groups: tuple[int, ...] | None = None
    dims: tuple[int, ...] | None = None

    def network(self) -> "Topology":
        """Returns the topology with its ranks placed; cached across cases."""
        return _network(self.topology, self.links, self.num_ranks)

    def check(self) -> None:
        """Raises ValueError if the algorithm has no schedule for these ranks and this root. Cheap: builds nothing."""
        network = self.network()
        if self.algorithm != IN_SWITCHES:
            self._layout()
        elif not switches_reduce(self.collective, network):
            raise ValueError(
                f"{IN_SWITCHES}: expected an all_reduce, and reducing switches that connect all ranks in a tree or "
                f"in equal groups, such as dgx-h100:1,reduces=yes; found {self.collective} on {network.name}"
            )

    def prove(self) -> str:
        """Proves the schedule if its algorithm is not built in, because a schedule that may not run has no time.

        Raises VerifyError if it breaks a law. Returns a sentence if a proof would take too long, else "".
        """
        from hocket.algorithms import is_built_in
        from hocket.answers.limits import laws_asked
        from hocket.errors import ResourceError

        if self.algorithm == IN_SWITCHES or is_built_in((one := self._found()).source):
            return ""
        num_ranks, taken = self.network().num_ranks, self._taken()
        schedule = one.build(num_ranks, self.root, **taken)
        laws, missing = laws_asked(schedule), f"its schedule has {schedule.num_rows:,} rows"
        if laws:
            try:
                one.prove(schedule, one.declared(num_ranks, self.root, **taken), laws=laws)
            except ResourceError:  # a prediction does not need the proof
                missing = "memory is too small"
            else:
                return ""
        return f"{one} was not proved for {num_ranks:,} ranks, because {missing}; use hocket verify"

    def schedule(self) -> "Schedule":
        """Returns the schedule for the placed ranks. Switches that reduce appear as extra ranks after the others."""
        if self.algorithm == IN_SWITCHES:
            from hocket.network import all_reduce_in_switches, all_reduce_in_tree

            pieces = max(1, min(_MOST_SWITCH_PIECES, self.num_bytes // _SWITCH_PIECE_BYTES))
            network = self.network()
            if _each_joins_its_own(network):
                return all_reduce_in_switches(network.num_ranks, int(network.reducing.sum()), pieces)
            return all_reduce_in_tree(_tree(network).parents, pieces)
        one = self._found()
        return one.build(self.network().num_ranks, self.root, **self._taken())

    def result(self, *, record: bool = False) -> "SimulationResult":
        """Simulates the call; record=True keeps what was sent when."""
        from hocket.answers.network_options import options_of
        from hocket.network import simulate

        options = options_of(self.reduce, self.overhead)
        network = self.network()
        if self.algorithm == IN_SWITCHES:
            self.check()
            network = _network_with_switches(network) if _each_joins_its_own(network) else _tree(network).network
        elif self._made is not None:
            network = self._made.network
        return simulate(self.schedule(), network, self.num_bytes, level=self.level, options=options, record=record)

    def row(self) -> dict[str, Any]:
        """Returns the case and its result for JSON and CSV, in bytes, seconds and bytes per second.

        A ratio or bandwidth is None if nothing takes any time or, as in a barrier, no bytes are moved.
        """
        from hocket.answers.network_options import changes_of, options_of

        network, result, options = self.network(), self.result(), options_of(self.reduce, self.overhead)
        layout = None if self.algorithm == IN_SWITCHES else self._layout()
        about = {
            "collective": self.collective,
            "algorithm": self.algorithm,
            "topology": network.name,
            "num_ranks": network.num_ranks,
            "num_bytes": self.num_bytes,
            "groups": layout and layout.groups,
            "dims": layout and layout.dims,
            "level": self.level,
            "changes": changes_of(network, options, self.level),
            "overhead_seconds": options.send_seconds,
        }
        steps = {"num_steps": result.schedule.num_steps, "machine": "", "protocol": ""}
        work = 1 / options.reduce_bytes_per_second
        return about | row_of_loads(result, network, self.collective, self.root, reduce_seconds_per_byte=work) | steps

    @property
    def _made(self) -> "Synthesised | None":
        """The schedule that is made for this network, with the paths it counts on; None for another algorithm."""
        if self.algorithm != SYNTHESISED or self.program is not None:
            return None
        return synthesised_on(self.network(), self.collective, self.root)

    def _layout(self) -> "Layout":
        return self._found().layout(self.network().num_ranks, self.root, **self._taken())

    def _taken(self) -> dict[str, Any]:
        """Returns the groups and the grid for the algorithm, if it takes them."""
        return self._found().taken(self.groups or groups_on(self.network()), self.dims)

    def _found(self) -> "Algorithm":
        from hocket.algorithms import find, only

        if self.program is not None:
            return self.program
        if self._made is not None:
            return algorithm_of(self._made)
        return only(self.algorithm, find(self.algorithm, self.collective))


def row_of_loads(
    result: "LinkLoads", network: "Topology", collective: str, root: int, *, reduce_seconds_per_byte: float = 0.0
) -> dict[str, Any]:
    """Returns what a row says of a simulated call among the ranks of this network: times, bound, parts, bottleneck.

    The result may count reducing switches as ranks too. A ratio or bandwidth is None if nothing takes any time or, as
    in a barrier, no bytes are moved.
    """
    from hocket.network import lower_bound
    from hocket.schedule import find_collective

    kind, size = find_collective(collective), result.num_bytes
    bound = lower_bound(network, collective, size, root=root, reduce_seconds_per_byte=reduce_seconds_per_byte).seconds
    algbw = _known(result.algorithm_bytes_per_second) if kind.exactly_once else None
    return {
        "seconds": result.seconds,
        "bound_seconds": bound,
        "num_idle": int((~network.forwards).sum() - (~network.forwards)[network.ranks].sum()),
        "ratio": result.seconds / bound if bound else None,
        "algbw": algbw,
        "busbw": None if algbw is None else algbw * kind.bus_factor(network.num_ranks),
        "latency": result.parts.latency,
        "bandwidth": result.parts.bandwidth,
        "reduction": result.parts.reduction,
        "contention": result.parts.contention,
        "num_binding_links": len(result.binding_links),
        "binding_links": network.link_names(result.binding_links[:_MOST_NAMED].tolist()),
        "binding_share": result.binding_share,
    }


def hosts_on(network: "Topology") -> list[int]:
    """Returns the host of each rank; none if all are on one, or if the network has no hosts but only ranks."""
    hosts: list[int] = network.hosts.tolist()
    count = len(set(hosts))
    return hosts if count > 1 and (count < len(hosts) or "host" in network.axes) else []


def groups_on(network: "Topology") -> "GroupsOfRanks | None":
    """Returns the groups of ranks that share a host; None for the defaults of algorithms."""
    from hocket.algorithms import groups_by_host

    hosts = hosts_on(network)
    return groups_by_host(hosts) if hosts else None


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def cases_of(
    collective: str,
    topologies: "Sequence[str | Topology]",
    *,
    algorithms: "Sequence[str | Algorithm]" = (),
    sizes: Sequence[int] = (),
    rank_counts: Sequence[int] = (),
    links: str | Sequence[str] = (),
    reduce: str = "",
    overhead: str = "",
    level: str = DEFAULT_LEVEL,
    root: int | None = None,
    groups: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
) -> tuple[list[SimulationCase], list[str]]:
    """Returns the cases, ordered by topology, ranks, size and algorithm, and a sentence for each that is not proved.

    Without algorithms all are tried; without sizes, DEFAULT_BYTES is the only one; without rank_counts, as many ranks
    as groups or dims describe take part, by default all. Raises ValueError for an unknown collective, a size or root
    that the collective does not take, or a case without a schedule, and VerifyError for a broken law. All this happens
    before the first case runs, so that no result is lost.
    """
    check_collective(collective)
    root, layout, changes = root_of(collective, root), read_layout(groups, dims), read_links(links)
    if collective == "barrier":
        if sizes:
            raise ValueError("expected no num_bytes (--bytes), as barrier moves no data; leave it out")
        sizes = [1]
    cases: list[SimulationCase] = []
    counts: Sequence[int | None] = rank_counts or [ranks_of_layout(*layout)]
    named: dict[str, str] = {}
    for topology in topologies:
        for num_ranks in counts:
            placed = _network(topology, changes, num_ranks)
            if isinstance(topology, str):
                _check_name(placed.name, topology, num_ranks, named)
            tried = algorithms or candidates(collective, placed, *layout)
            shared = (num_ranks, changes, reduce, level, root, overhead)
            cases += [
                SimulationCase(collective, name, num_bytes, topology, *shared, own, *layout)
                for num_bytes in sizes or [DEFAULT_BYTES]
                for name, own in (_named(one, collective) for one in tried)
            ]
            check_layout(cases[-len(tried) :])
            for case in cases[-len(tried) :]:  # the check does not depend on the size
                case.check()
    distinct = {(case.algorithm, case.network().num_ranks): case for case in cases}.values()
    return cases, [note for case in distinct if (note := case.prove())]


def _check_name(name: str, given: str, num_ranks: int | None, named: dict[str, str]) -> None:
    """Remembers in `named` what was given for a name. Raises ValueError if that was another network."""
    from hocket.answers.network_options import filled_in

    given = filled_in(given, num_ranks)
    before = named.setdefault(name, given)
    if before != given:
        raise ValueError(
            f"expected networks of different names, because rows and pictures name them; found {name!r} in {before} "
            f"and in {given}; write another name: in one of the files"
        )


def check_layout(cases: "Iterable[SimulationCase]") -> None:
    """Raises ValueError if these cases of one call have groups or dims, and none of their algorithms takes them."""
    from hocket.algorithms import check_taken

    asked = list(cases)
    ranked = [case._found() for case in asked if case.algorithm != IN_SWITCHES]
    check_taken(asked[0].collective, ranked, groups=asked[0].groups, dims=asked[0].dims)


def algorithms_of(asked: "str | Algorithm | Sequence[str | Algorithm]") -> "list[str | Algorithm]":
    """Returns the algorithms that are asked for: one, several, or a text such as "ring,direct"."""
    from hocket.algorithms import Algorithm

    if isinstance(asked, Algorithm):
        return [asked]
    return [*(asked.split(",") if isinstance(asked, str) and asked else asked)]


def _named(one: "str | Algorithm", collective: str) -> "tuple[str, Algorithm | None]":
    """Returns the name, and the algorithm if it was given itself. Raises ValueError if it is for another collective."""
    from hocket.algorithms import find

    if isinstance(one, str):
        return one, None
    (own,) = find(one, collective)
    return own.name, own


def root_of(collective: str, root: int | None) -> int:
    """Returns the root, 0 for None. Raises ValueError if one is given and the collective has none, TypeError for a root
    that is no whole number.
    """
    from hocket.schedule import find_collective

    if root is None:
        return 0
    if not find_collective(collective).rooted:
        raise ValueError(f"expected no root, because {collective} has none; found {root}")
    try:
        return index(root)
    except TypeError:
        raise TypeError(f"root: expected a rank, such as 0; found {root!r}") from None


def check_collective(name: str) -> None:
    """Raises ValueError for an unknown collective and for one with uneven blocks, whose lengths are not given."""
    from hocket.errors import did_you_mean
    from hocket.schedule import COLLECTIVES

    known = [kind for kind, one in COLLECTIVES.items() if not one.uneven]
    if name not in known:
        near = did_you_mean(name, known)
        raise ValueError(f"expected a collective, one of {', '.join(known)}; found {name!r}{near}")


def candidates(
    collective: str,
    network: "Topology",
    groups: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
    asked: Collection[str] = (),
) -> list[str]:
    """Returns the names of the registered algorithms that support the network's ranks.

    Of built-in ones with the same schedule only the first is named; algorithms of users, those that are asked for, and
    those that take the given groups or dims all are; "synthesised" only if it is asked for. Raises ValueError if there
    are so many ranks that building all schedules takes minutes or much longer.
    """
    from hocket.algorithms import ALGORITHMS, is_built_in
    from hocket.answers.limits import MOST_RANKS

    num_ranks = network.num_ranks
    if num_ranks > MOST_RANKS:
        raise ValueError(
            f"expected at most {MOST_RANKS} ranks to try all algorithms, found {num_ranks} on {network.name}; "
            "choose some with algorithm= (--algorithm A,...)"
        )
    by_digest: dict[str, str] = {}
    on_hosts = groups_on(network)
    for (kind, name), one in sorted(ALGORITHMS.items()):
        if kind == collective and name != SYNTHESISED and one.allows(num_ranks):  # It was made for another network.
            stays = name in asked or not is_built_in(one.source) or any(one.taken(groups, dims).values())
            key = name if stays else one.build(num_ranks, **one.taken(on_hosts)).digest
            by_digest.setdefault(key, name)
    found = dict.fromkeys([*by_digest.values(), *(name for name in asked if name == SYNTHESISED)])
    return [*found, *([IN_SWITCHES] if switches_reduce(collective, network) else [])]


def switches_reduce(collective: str, network: "Topology") -> bool:
    """Returns whether switches of the network can do the collective: each for the ranks of a host, or as a tree."""
    from hocket.network import switch_tree

    if collective != "all_reduce" or not network.reducing.any():
        return False
    return _each_joins_its_own(network) or switch_tree(network) is not None


def _each_joins_its_own(network: "Topology") -> bool:
    """Returns whether the reducing switches split all ranks into equal groups of consecutive ranks."""
    import numpy as np

    switches = np.flatnonzero(network.reducing)
    if network.num_ranks % len(switches):
        return False
    ranks = network.ranks.reshape(len(switches), -1)
    joined = set(zip(network.link_source.tolist(), network.link_target.tolist(), strict=True))
    return all(
        (rank, switch) in joined and (switch, rank) in joined
        for switch, group in zip(switches.tolist(), ranks.tolist(), strict=True)
        for rank in group
    )


def _network_with_switches(network: "Topology") -> "Topology":
    """Returns the network with the reducing switches added as ranks after the others."""
    import numpy as np

    switches = [network.node_names[node] for node in np.flatnonzero(network.reducing)]
    return network.place([*range(network.num_ranks), *switches])


@functools.lru_cache(8)
def _tree(network: "Topology") -> "SwitchTree":
    from hocket.network import switch_tree

    found = switch_tree(network)
    assert found is not None, "switches_reduce was not called first"
    return found


@functools.lru_cache(8)
def _network(named: "str | Topology", links: tuple[str, ...], num_ranks: int | None) -> "Topology":
    from hocket.answers.network_options import topology_of

    return topology_of(named, links, num_ranks)
