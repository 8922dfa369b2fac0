"""The algorithm "synthesised": a schedule that is made for one network, and kept on disk."""

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.algorithms import Algorithm, Layout
    from hocket.network import Optimum, Synthesised, Topology
    from hocket.schedule import Schedule

SYNTHESISED = "synthesised"
"""Name of the algorithm that is made for one network. All other names are algorithms for many."""


@functools.lru_cache(8)
def synthesised_on(topology: "Topology", collective: str, root: int) -> "Synthesised":
    """Returns the schedule for all ranks of a network, and the network with its paths. It is not proved yet."""
    from hocket.network import find_optimum

    return made_for(find_optimum(topology, collective, root))


def made_for(optimum: "Optimum") -> "Synthesised":
    """Returns the schedule that reaches an optimum, by what is kept in the cache on disk."""
    from hocket.answers.synthesis.kept_forests import KeptForests
    from hocket.network import synthesise_schedule

    return synthesise_schedule(optimum, KeptForests())


def algorithm_of(made: "Synthesised") -> "Algorithm":
    """Returns a synthesised schedule as an algorithm for this number of ranks; for another root it makes another."""
    from hocket.algorithms import Algorithm
    from hocket.network import find_optimum

    schedule, name = made.schedule, made.optimum.topology.name
    num_ranks = schedule.num_ranks

    def produce(layout: "Layout") -> "Schedule":
        if layout.root == schedule.root:
            return schedule
        one = made.optimum
        return made_for(find_optimum(one.topology, one.collective, layout.root, forwarding=one.forwarding)).schedule

    return Algorithm(
        collective=schedule.collective,
        name=SYNTHESISED,
        doc=f"Spanning trees that reach the best bandwidth of {name}.",
        source=f"{name}:1",
        produce=produce,
        ranks=(f"exactly {num_ranks}", lambda p: p == num_ranks),
    )
