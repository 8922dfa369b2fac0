"""Schedules between ranks that are linked directly, found step by step: by a solver, or by greedy matching."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hocket.answers.answer import Answer
from hocket.answers.networks import Network, named_network

if TYPE_CHECKING:
    from hocket.network import Topology
    from hocket.schedule import Schedule
    from hocket.view import Terminal


@dataclass(frozen=True, repr=False)
class StepSchedule(Answer):
    """A schedule of so many chunks per block and steps, proved, or that there is none.

    root: None if there is none. method: "tuple", searched by a solver, or "matching". rounds: of all steps, one after
    the other; in a round a link carries a chunk per lane. schedule: None if there is none; then the solver has proved
    that.
    """

    collective: str
    topology: str
    num_ranks: int
    root: int | None
    method: str
    chunks: int
    num_steps: int
    rounds: int
    schedule: "Schedule | None" = field(compare=False)

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket optimum --json` does."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "schedule"}
        return values | {"exists": self.schedule is not None}

    def _print(self, console: "Terminal") -> None:
        """Prints one sentence."""
        from hocket.view import name_count

        parts = f"{name_count(self.chunks, 'chunk')} per block, {name_count(self.num_steps, 'step')}"
        root = "" if self.root is None else f", root {self.root},"
        what = f"{self.collective} of {name_count(self.num_ranks, 'rank')}{root} on {self.topology}"
        exists = "no schedule has" if self.schedule is None else "a proved schedule has"
        console.print(f"{what}: {exists} {parts}, {name_count(self.rounds, 'round')}", markup=False)


def stepwise(
    collective: str,
    ranks: int | None = None,
    *,
    topology: "str | Network | Topology",
    root: int | None = None,
    links: str | Sequence[str] = (),
    rounds: tuple[int, int, int] | None = None,
    chunks: int | None = None,
) -> StepSchedule:
    """Finds a schedule between ranks that are linked directly, and proves it.

    Give `rounds`, a tuple of chunks per block, steps and rounds, to search exactly such a schedule (z3 must be
    installed), or `chunks` per block to match links greedily. Raises ValueError for a bad argument, TopologyError if
    ranks are not linked directly.
    """
    from hocket.answers.network_options import topology_of
    from hocket.answers.quantities import read_num_ranks
    from hocket.answers.simulation_case import root_of
    from hocket.network import lanes_of, match_links, rounds_of, search_tuple
    from hocket.schedule import find_collective, find_collective_name, verify

    if (rounds is None) == (chunks is None):
        raise ValueError(f"expected rounds (--tuple) or chunks (--matching), one of them; found {rounds} and {chunks}")
    found = topology_of(named_network(topology), links, None if ranks is None else read_num_ranks(ranks))
    name = find_collective_name(collective) or collective
    at, lanes, made = root_of(name, root), lanes_of(found), None
    if rounds is not None:
        made = search_tuple(name, lanes, found.num_ranks, *rounds, root=at)
        method, asked = "tuple", rounds
    else:
        assert chunks is not None
        made = match_links(found, name, chunks, root=at)
        method, asked = "matching", (chunks, made.num_steps, rounds_of(made, lanes))
    if made is not None:
        verify(made)
    shown = at if find_collective(name).rooted else None
    return StepSchedule(name, found.name, found.num_ranks, shown, method, *asked, schedule=made)
