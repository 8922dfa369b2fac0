"""The best bandwidth that a collective can have on a network, its bottleneck cut, and a schedule that reaches it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from hocket.answers.answer import Answer
from hocket.answers.networks import Network, named_network
from hocket.errors import TopologyError

if TYPE_CHECKING:
    from hocket.algorithms import Algorithm
    from hocket.network import Optimum, Synthesised, Topology
    from hocket.schedule import Schedule
    from hocket.view import Terminal

_MOST_NAMED = 8  # most links or nodes that are named


@dataclass(frozen=True, repr=False)
class BestBandwidth(Answer):
    """The best bandwidth of a collective on a network if latencies count as 0; rates in bytes per second.

    algbw: bytes of the whole vector per second, at most; busbw: the same, comparable with the bandwidth of links.
    all_reduce is reduce_scatter and then all_gather, the best that is known. num_trees: the number of equal shares per
    root that reach it; reached_algbw: what they reach, less than algbw only if exact shares would be too many. root:
    None if there is none. forwarding: idle accelerators may forward. changes: constants of links that are not the
    defaults. cut_ranks: the number of ranks on the sending side of the bottleneck cut. cut_before, cut_behind: nodes on
    the sending and on the other side, at most 8 of num_cut_before and num_cut_behind; cut_links: the links between, at
    most 8 of num_cut_links; cut_bytes_per_second: their sum. optimum: the same with every node and link.
    """

    collective: str
    topology: str
    num_ranks: int
    root: int | None
    forwarding: bool
    changes: tuple[str, ...]
    algbw: float
    busbw: float
    num_trees: int
    reached_algbw: float
    cut_ranks: int
    cut_before: tuple[str, ...]
    num_cut_before: int
    cut_behind: tuple[str, ...]
    num_cut_behind: int
    cut_links: tuple[str, ...]
    num_cut_links: int
    cut_bytes_per_second: float
    optimum: "Optimum" = field(compare=False)

    @classmethod
    def of(cls, optimum: "Optimum", **more: Any) -> Self:
        """Returns the answer for an optimum."""
        import numpy as np

        from hocket.network import changed_links
        from hocket.schedule import find_collective

        topology, kind = optimum.topology, find_collective(optimum.collective)
        names = topology.node_names
        carries = np.flatnonzero(optimum.shares)
        used = np.zeros(topology.num_nodes, bool)
        used[topology.link_source[carries]] = used[topology.link_target[carries]] = True
        sides = (used & optimum.before, used & ~optimum.before)
        before, behind = ([names[node] for node in np.flatnonzero(side)] for side in sides)
        return cls(
            collective=optimum.collective,
            topology=topology.name,
            num_ranks=topology.num_ranks,
            root=optimum.root if kind.rooted else None,
            forwarding=optimum.forwarding,
            changes=tuple(changed_links(topology)),
            algbw=optimum.bytes_per_second,
            busbw=optimum.bytes_per_second * kind.bus_factor(topology.num_ranks),
            num_trees=optimum.num_trees,
            reached_algbw=optimum.reached_bytes_per_second,
            cut_ranks=int(optimum.before[topology.ranks].sum()),
            cut_before=tuple(before[:_MOST_NAMED]),
            num_cut_before=len(before),
            cut_behind=tuple(behind[:_MOST_NAMED]),
            num_cut_behind=len(behind),
            cut_links=tuple(topology.link_names(optimum.links[:_MOST_NAMED].tolist())),
            num_cut_links=len(optimum.links),
            cut_bytes_per_second=float(topology.bytes_per_second[optimum.links].sum()),
            optimum=optimum,
            **more,
        )

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket optimum --json` does."""
        hidden = ("optimum", "schedule")
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in hidden}

    def _print(self, console: "Terminal") -> None:
        """Prints the bandwidth and the bottleneck cut."""
        from hocket.view import print_optimum

        print_optimum(console, self.as_json())


@dataclass(frozen=True, repr=False)
class Synthesis(BestBandwidth):
    """A schedule that reaches the best bandwidth for long vectors, proved.

    schedule: for as many ranks as the network has. num_steps: of it. Properties: `network` is the topology with the
    paths that the schedule counts on, for hocket.simulate; `algorithm` is what a communicator runs.
    """

    num_steps: int
    schedule: "Schedule" = field(compare=False)

    @cached_property
    def network(self) -> "Topology":
        """The topology, with the paths that the schedule counts on. With forwarding, idle accelerators forward."""
        import numpy as np

        made = self._made.network
        if not self.forwarding:
            return made
        forwards = np.ones(made.num_nodes, bool)
        forwards[made.ranks] = made.forwards[made.ranks]
        return replace(made, forwards=forwards)

    @cached_property
    def algorithm(self) -> "Algorithm":
        """The algorithm for this number of ranks."""
        from hocket.answers.synthesis.synthesised_algorithm import algorithm_of

        return algorithm_of(self._made)

    @cached_property
    def _made(self) -> "Synthesised":
        from hocket.answers.synthesis.synthesised_algorithm import made_for

        return made_for(self.optimum)


def optimum(
    collective: str,
    ranks: int | None = None,
    *,
    topology: "str | Network | Topology",
    root: int | None = None,
    links: str | Sequence[str] = (),
    forwarding: bool = False,
) -> BestBandwidth:
    """Returns the best bandwidth of a collective on a network, and its bottleneck cut; latencies count as 0.

    topology: KIND:ARGS, a file, or what hocket.topology returns. ranks: only the first ranks. links: changed constants,
    as --link takes them. forwarding: accelerators that are no ranks may forward. Raises ValueError for a bad argument
    and for a collective without a known optimum, TopologyError for an impossible network.
    """
    return BestBandwidth.of(_optimum_of(collective, ranks, topology, root, links, forwarding))


def synthesise(
    collective: str,
    ranks: int | None = None,
    *,
    topology: "str | Network | Topology",
    root: int | None = None,
    links: str | Sequence[str] = (),
    forwarding: bool = False,
) -> Synthesis:
    """Makes and proves a schedule that reaches the best bandwidth of a collective on a network, for long vectors.

    From now on, algorithm="synthesised" is this algorithm, in calls of this process for this collective and any root:
    all ranks have to make it. What was found stays in the cache on disk. Arguments and errors are those of `optimum`;
    also TopologyError if switches with unequal bandwidths in and out leave no trees that reach the optimum.
    """
    from hocket.algorithms import add_algorithms
    from hocket.answers.synthesis.synthesised_algorithm import algorithm_of, made_for

    made = made_for(_optimum_of(collective, ranks, topology, root, links, forwarding))
    algorithm = algorithm_of(made)
    algorithm.verify(made.schedule.num_ranks, made.schedule.root)
    add_algorithms(algorithm)
    return Synthesis.of(made.optimum, num_steps=made.schedule.num_steps, schedule=made.schedule)


def synthesised_named(
    algorithm: object,
    collective: str | None,
    ranks: int | None,
    *,
    topology: "str | Network | Topology",
    root: int | None = None,
) -> "tuple[Algorithm, int]":
    """Returns the algorithm "synthesised" for a network, of all_reduce if no collective is given, and its rank count.

    Raises ValueError if `algorithm` is another one, and what `optimum` raises.
    """
    from hocket.answers.synthesis.synthesised_algorithm import SYNTHESISED, algorithm_of, made_for

    if algorithm != SYNTHESISED:
        found = "none" if algorithm is None else algorithm
        raise ValueError(
            f"topology: only {SYNTHESISED} is made for a network; found {found!s}; leave the topology out, or see "
            "`hocket show topology` for the network and `hocket simulate` for an algorithm on it"
        )
    made = made_for(_optimum_of(collective or "all_reduce", ranks, topology, root, (), False))
    return algorithm_of(made), made.schedule.num_ranks


def _optimum_of(
    collective: str,
    ranks: int | None,
    topology: "str | Network | Topology",
    root: int | None,
    links: str | Sequence[str],
    forwarding: bool,
) -> "Optimum":
    from hocket.answers.network_options import topology_of
    from hocket.answers.quantities import read_num_ranks
    from hocket.answers.simulation_case import check_collective, root_of
    from hocket.network import find_optimum
    from hocket.schedule import find_collective_name

    name = find_collective_name(collective) or collective
    check_collective(name)
    found = topology_of(named_network(topology), links, None if ranks is None else read_num_ranks(ranks))
    try:
        return find_optimum(found, name, root_of(name, root), forwarding=forwarding)
    except TopologyError as error:
        if forwarding or found.usable_links.all():
            raise
        hint = "accelerators that are no ranks forward only with --forwarding (forwarding=True)"
        raise TopologyError(f"{error}; {hint}") from None
