"""One simulated call as plain values: what `hocket simulate`, its sweep and `hocket explain` have in common."""

import argparse
import functools
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.algorithms import Algorithm
    from hocket.network import Result, SwitchTree, Topology
    from hocket.schedule import Schedule

IN_SWITCHES = "in_switches"
"""An all_reduce by switches that reduce and multicast: a name beside those of algorithms, which ranks could run."""

DEFAULT_BYTES = 64 << 20
"""Of the whole vector."""

_MOST_NAMED = 8  # links of a row that are named
_SWITCH_PIECE_BYTES, _MOST_SWITCH_PIECES = 1 << 22, 64


@dataclass(frozen=True)
class Case:
    """One call to be simulated; small, so that it can be sent to another process.

    num_ranks: the first ones of the topology; None: all. links: what --link changes; reduce, overhead: what these
    options say. The others as on a command line.
    """

    collective: str
    algorithm: str
    num_bytes: int
    topology: str
    num_ranks: int | None = None
    links: tuple[str, ...] = ()
    reduce: str = ""
    level: str = "events"
    root: int = 0
    overhead: str = ""

    def network(self) -> "Topology":
        """The topology with the ranks placed, remembered from case to case."""
        return _network(self.topology, self.links, self.num_ranks)

    def check(self) -> None:
        """ValueError where the algorithm has no schedule for these ranks and this root; cheap, and so asked first."""
        network = self.network()
        if self.algorithm != IN_SWITCHES:
            self._found().layout(network.num_ranks, self.root)
        elif not switches_reduce(self.collective, network):
            raise ValueError(
                f"{IN_SWITCHES}: expected an all_reduce, and switches that reduce and join all ranks in a tree, or "
                f"equal groups of them, as in dgx-h100:1,reduces=yes; found {self.collective} on {network.name}"
            )

    def prove(self) -> None:
        """Holds the schedule of an algorithm that is not built in to the laws, as what may not run has no time.

        VerifyError where it breaks one. Where a proof would take too long, standard error says that there is none.
        """
        from hocket.algorithms import is_built_in
        from hocket.cli.limits import laws_asked
        from hocket.errors import ResourceError

        if self.algorithm == IN_SWITCHES or is_built_in((one := self._found()).source):
            return
        num_ranks = self.network().num_ranks
        schedule = one.build(num_ranks, self.root)
        laws, missing = laws_asked(schedule), f"there are {schedule.num_rows:,} rows"
        if laws:
            try:
                one.prove(schedule, one.declared(num_ranks, self.root), laws=laws)
            except ResourceError:  # a prediction may do with less
                missing = "memory is short"
            else:
                return
        print(
            f"hocket simulate: {one} is not proved here for {num_ranks:,} ranks, as {missing}: hocket verify",
            file=sys.stderr,
            flush=True,
        )

    def schedule(self) -> "Schedule":
        """What the algorithm does with the ranks placed; of switches that reduce, which are ranks behind the others."""
        if self.algorithm == IN_SWITCHES:
            from hocket.network import all_reduce_in_switches, all_reduce_in_tree

            pieces = max(1, min(_MOST_SWITCH_PIECES, self.num_bytes // _SWITCH_PIECE_BYTES))
            network = self.network()
            if _each_joins_its_own(network):
                return all_reduce_in_switches(network.num_ranks, int(network.reducing.sum()), pieces)
            return all_reduce_in_tree(_tree(network).parents, pieces)
        return self._found().build(self.network().num_ranks, self.root)

    def result(self, *, record: bool = False) -> "Result":
        """Simulates it; record keeps what was sent when."""
        from hocket.cli.network_arguments import options_of
        from hocket.network import simulate

        options = options_of(self.reduce, self.overhead)
        network = self.network()
        if self.algorithm == IN_SWITCHES:
            self.check()
            network = _network_with_switches(network) if _each_joins_its_own(network) else _tree(network).network
        return simulate(self.schedule(), network, self.num_bytes, level=self.level, options=options, record=record)

    def row(self) -> dict[str, Any]:
        """What was simulated and what came out, for JSON and CSV; bytes, seconds, and bytes per second.

        None for a ratio or a bandwidth where nothing takes any time, or no bytes are moved, as in a barrier.
        """
        from hocket.cli.network_arguments import options_of
        from hocket.network import lower_bound

        network, result = self.network(), self.result()
        # Of the ranks alone: a result of switches that reduce counts these as ranks.
        bound = lower_bound(
            network,
            self.collective,
            self.num_bytes,
            root=self.root,
            reduce_seconds_per_byte=1 / options_of(self.reduce).reduce_bytes_per_second,
        ).seconds
        algbw = _known(result.algorithm_bytes_per_second) if result.schedule.kind.exactly_once else None
        return {
            "collective": self.collective,
            "algorithm": self.algorithm,
            "topology": network.name,
            "num_ranks": network.num_ranks,
            "num_bytes": self.num_bytes,
            "level": self.level,
            "seconds": result.seconds,
            "bound_seconds": bound,
            "ratio": result.seconds / bound if bound else None,
            "algbw": algbw,
            "busbw": None if algbw is None else algbw * result.schedule.kind.bus_factor(network.num_ranks),
            "latency": result.parts.latency,
            "bandwidth": result.parts.bandwidth,
            "reduction": result.parts.reduction,
            "contention": result.parts.contention,
            "num_steps": result.schedule.num_steps,
            "num_binding_links": len(result.binding_links),
            "binding_links": network.link_names(result.binding_links[:_MOST_NAMED].tolist()),
            "binding_share": result.binding_share,
        }

    def _found(self) -> "Algorithm":
        from hocket.algorithms import find, only

        return only(self.algorithm, find(self.algorithm, self.collective, prove=False))


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def cases_of(arguments: argparse.Namespace) -> list[Case]:
    """What the arguments of `hocket simulate` ask for, in the order of topologies, ranks, sizes and algorithms.

    ValueError for a collective that there is not, for a size or a root where there is none, and for a case that has no
    schedule, VerifyError for one that breaks a law: told before the first one runs, so that what has run is not lost.
    """
    from hocket.cli.argument_types import root_of

    check_collective(arguments.collective)
    sizes, root = arguments.bytes or [DEFAULT_BYTES], root_of(arguments.collective, arguments.root)
    if arguments.collective == "barrier":
        if arguments.bytes is not None:
            raise ValueError("expected no --bytes, as barrier moves none; see hocket simulate --help")
        sizes = [1]
    cases = []
    for topology in arguments.topology:
        for num_ranks in arguments.ranks or [None]:
            placed = _network(topology, tuple(arguments.link), num_ranks)
            names = arguments.algorithm.split(",") if arguments.algorithm else candidates(arguments.collective, placed)
            cases += [
                Case(
                    arguments.collective,
                    name,
                    num_bytes,
                    topology,
                    num_ranks,
                    tuple(arguments.link),
                    arguments.reduce,
                    arguments.level,
                    root,
                    arguments.overhead,
                )
                for num_bytes in sizes
                for name in names
            ]
            for case in cases[-len(names) :]:  # all sizes are alike
                case.check()
    for case in {(case.algorithm, case.network().num_ranks): case for case in cases}.values():
        case.prove()
    return cases


def check_collective(name: str) -> None:
    """ValueError for what cannot be simulated: blocks of unequal length, whose lengths nobody gave, and the unknown."""
    from hocket.schedule import COLLECTIVES

    known = [kind for kind, one in COLLECTIVES.items() if not one.uneven]
    if name not in known:
        raise ValueError(f"expected a collective, one of {', '.join(known)}; found {name!r}")


def candidates(collective: str, network: "Topology") -> list[str]:
    """The built-in algorithms that have a schedule for its ranks, by name; of equal schedules one.

    ValueError for so many ranks that writing all schedules takes minutes, of some very many more.
    """
    from hocket.algorithms import ALGORITHMS
    from hocket.cli.limits import MOST_RANKS

    num_ranks = network.num_ranks
    if num_ranks > MOST_RANKS:
        raise ValueError(
            f"expected at most {MOST_RANKS} ranks where all algorithms are tried, found {num_ranks} on {network.name}; "
            "name some with hocket simulate --algorithm A,..."
        )
    by_digest: dict[str, str] = {}
    for kind, name in sorted(ALGORITHMS):
        if kind == collective and ALGORITHMS[kind, name].allows(num_ranks):
            by_digest.setdefault(ALGORITHMS[kind, name].build(num_ranks).digest, name)
    return [*by_digest.values(), *([IN_SWITCHES] if switches_reduce(collective, network) else [])]


def switches_reduce(collective: str, network: "Topology") -> bool:
    """Whether switches of the network can do it: each with the ranks of its host, or all in a tree."""
    from hocket.network import switch_tree

    if collective != "all_reduce" or not network.reducing.any():
        return False
    return _each_joins_its_own(network) or switch_tree(network) is not None


def _each_joins_its_own(network: "Topology") -> bool:
    """Whether each switch that reduces joins equally many ranks in a row, and they are all ranks."""
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
    """The same with the switches that reduce as ranks behind the others."""
    import numpy as np

    switches = [network.node_names[node] for node in np.flatnonzero(network.reducing)]
    return network.place([*range(network.num_ranks), *switches])


@functools.lru_cache(8)
def _tree(network: "Topology") -> "SwitchTree":
    from hocket.network import switch_tree

    found = switch_tree(network)
    assert found is not None, "switches_reduce has been asked"
    return found


@functools.lru_cache(8)
def _network(text: str, links: tuple[str, ...], num_ranks: int | None) -> "Topology":
    from hocket.cli.network_arguments import topology_of

    return topology_of(text, list(links), num_ranks)
