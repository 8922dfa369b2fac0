"""Searches synchronous schedules such as those of SCCL (Cai et al. 2021): C chunks per block, S steps, R rounds.

In a round, a link carries one chunk per lane. A step has one or more rounds, and a rank sends on what it received in an
earlier step. The solver z3 finds a schedule or proves that there is none, for a dozen ranks at most in useful time. All
ranks are linked directly: nodes that are no ranks are left out.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hocket.errors import ScheduleError, TopologyError
from hocket.network.reach import unreached
from hocket.network.topology import Topology
from hocket.schedule import Builder, Schedule, compose, find_collective

Lanes = Mapping[tuple[int, int], int]
"""The number of lanes from a rank to another, by (source, target)."""

_EVERYWHERE = -1  # the destination of a block that all ranks need
_BACKWARDS = {"reduce_scatter": "all_gather", "reduce": "broadcast"}
_COLLECTIVES = ("all_gather", "all_to_all", "broadcast", "gather", "scatter", *_BACKWARDS)

_Block = tuple[int, int]  # its source, and its destination
_Chunk = tuple[int, int, int]  # the same, and its number within the block


def lanes_of(topology: Topology) -> Lanes:
    """Returns the lanes between ranks. Raises TopologyError unless these alone let every rank reach every other."""
    rank = {int(node): number for number, node in enumerate(topology.ranks)}
    lanes: dict[tuple[int, int], int] = {}
    ends = zip(topology.link_source.tolist(), topology.link_target.tolist(), topology.lanes.tolist(), strict=True)
    for source, target, number in ends:
        if source in rank and target in rank:
            pair = rank[source], rank[target]
            lanes[pair] = lanes.get(pair, 0) + number
    source, target = np.array([*lanes], np.int64).reshape(-1, 2).T
    apart = unreached(np.arange(topology.num_ranks), source, target, topology.num_ranks)
    if apart is not None:
        one, other = (topology.node_names[topology.ranks[number]] for number in apart)
        raise TopologyError(
            f"{topology.name}: expected links between ranks, without switches, on which every rank reaches every "
            f"other; found none from {one} to {other}"
        )
    return lanes


def check_step_by_step(collective: str, known: Collection[str], num_ranks: int, root: int) -> None:
    """Raises ValueError for a collective that is not among those known, a single rank, or a root that is no rank."""
    if collective not in known:
        raise ValueError(f"expected one of {', '.join(known)}; found {collective!r}")
    if num_ranks < 2:
        raise ValueError("expected 2 ranks or more, found 1, which has nothing to send")
    if not 0 <= root < num_ranks:
        raise ValueError(f"expected a root from 0 to {num_ranks - 1}, found {root}")


def search_tuple(
    collective: str,
    lanes: Lanes,
    num_ranks: int,
    chunks: int,
    steps: int,
    rounds: int,
    *,
    root: int = 0,
    spread: Sequence[int] | None = None,
    turn: Sequence[int] = (),
) -> Schedule | None:
    """Returns a schedule with these chunks per block, steps, and rounds in all; None if there is none.

    spread: the rounds of each step; without it, all spreads are tried. turn: a renumbering of the ranks that does not
    change the lanes, and is its own inverse; the search is limited to schedules that it does not change. Raises
    ValueError for a collective that is not searched, a single rank or a wrong root; ScheduleError without z3
    (hocket[z3]).
    """
    check_step_by_step(collective, _COLLECTIVES, num_ranks, root)
    if min(chunks, steps) < 1 or rounds < steps:
        raise ValueError(f"expected 1 or more chunks, and a round or more per step; found {(chunks, steps, rounds)}")
    if collective in _BACKWARDS:
        turned = {(target, source): number for (source, target), number in lanes.items()}
        options: dict[str, Any] = {"root": root, "spread": spread and spread[::-1], "turn": turn}
        found = search_tuple(_BACKWARDS[collective], turned, num_ranks, chunks, steps, rounds, **options)
        return None if found is None else compose.reversed(found)
    spreads = _spreads(steps, rounds) if spread is None else iter([tuple(spread)])
    tried = (_search(collective, lanes, num_ranks, chunks, one, root, turn) for one in spreads)
    return next((found for found in tried if found is not None), None)


def rounds_of(schedule: Schedule, lanes: Lanes) -> int:
    """Returns the rounds of all steps: each needs those of its busiest link. KeyError for a send without a link."""
    total = 0
    for step in schedule.steps():
        sent: dict[tuple[int, int], int] = {}
        for source, target, count in zip(step.src.tolist(), step.dst.tolist(), step.count.tolist(), strict=True):
            sent[source, target] = sent.get((source, target), 0) + count
        total += max(-(-number // lanes[link]) for link, number in sent.items())
    return total


def _spreads(steps: int, rounds: int) -> Iterator[tuple[int, ...]]:
    """Yields all ways to spread rounds over steps, even ones first."""
    found = (one for one in itertools.product(range(1, rounds + 1), repeat=steps) if sum(one) == rounds)
    yield from sorted(found, key=lambda one: (max(one) - min(one), one))


def _blocks(collective: str, num_ranks: int, root: int) -> list[_Block]:
    """Returns the blocks of a collective in the order of its data."""
    if collective == "broadcast":
        return [(root, _EVERYWHERE)]
    if collective == "all_to_all":
        return [(source, target) for source in range(num_ranks) for target in range(num_ranks)]
    destination = {"all_gather": _EVERYWHERE, "gather": root}
    if collective == "scatter":
        return [(root, rank) for rank in range(num_ranks)]
    return [(rank, destination[collective]) for rank in range(num_ranks)]


def _search(
    collective: str,
    lanes: Lanes,
    num_ranks: int,
    chunks: int,
    rounds: tuple[int, ...],
    root: int,
    turn: Sequence[int],
) -> Schedule | None:
    """Returns a schedule whose steps have these rounds, or None if there is none."""
    try:
        import z3
    except ImportError:
        raise ScheduleError("the search for tuples needs z3; install it: pip install 'hocket[z3]'") from None
    where = _blocks(collective, num_ranks, root)
    moving = [(*block, k) for block in where if block[0] != block[1] for k in range(chunks)]
    image: Callable[[int], int] = (lambda rank: turn[rank] if rank >= 0 else rank) if turn else (lambda rank: rank)
    made: dict[tuple[int, ...], Any] = {}

    def sends(chunk: _Chunk, link: tuple[int, int], step: int) -> Any:
        """Returns the variable "the chunk crosses the link in this step", or None if it cannot."""
        if link not in lanes or link[1] == chunk[0] or (step == 0 and link[0] != chunk[0]):
            return None
        key = (*chunk, *link, step)
        other = (image(chunk[0]), image(chunk[1]), chunk[2], image(link[0]), image(link[1]), step)
        first = min(key, other)
        if first not in made:
            made[first] = z3.Bool(str(first))
        return made[first]

    def arriving(chunk: _Chunk, rank: int, before: int) -> list[Any]:
        found = [sends(chunk, (other, rank), step) for other in range(num_ranks) for step in range(before)]
        return [each for each in found if each is not None]

    solver = z3.Solver()
    for chunk in moving:
        for rank in range(num_ranks):
            if rank == chunk[0]:
                continue
            received = [(each, 1) for each in arriving(chunk, rank, len(rounds))]
            solver.add(z3.PbEq(received, 1) if chunk[1] in (_EVERYWHERE, rank) else z3.PbLe(received, 1))
            for step in range(len(rounds)):
                there = z3.Or(arriving(chunk, rank, step))
                for other in range(num_ranks):
                    onwards = sends(chunk, (rank, other), step)
                    if onwards is not None:
                        solver.add(z3.Implies(onwards, there))
    for link, number in lanes.items():
        for step, allowed in enumerate(rounds):
            crossing = [(each, 1) for chunk in moving if (each := sends(chunk, link, step)) is not None]
            if crossing:
                solver.add(z3.PbLe(crossing, number * allowed))
    if solver.check() != z3.sat:
        return None
    model = solver.model()
    rooted = find_collective(collective).rooted
    schedule = Builder(collective, num_ranks, len(where) * chunks, root if rooted else 0)
    for step in range(len(rounds)):
        rows = [
            (*link, where.index(chunk[:2]) * chunks + chunk[2])
            for chunk in moving
            for link in lanes
            if (each := sends(chunk, link, step)) is not None and z3.is_true(model[each])
        ]
        if rows:
            source, target, number = np.array(rows).T
            with schedule.step():
                schedule.copy(src=source, dst=target, chunk=number)
    return schedule.finish()
