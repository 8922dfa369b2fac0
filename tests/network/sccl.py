"""Searches synchronous schedules like SCCL (Cai et al. 2021), with the solver z3: C chunks, S steps, R rounds.

In a round, a link carries one chunk per lane. Step t has rounds[t] rounds. A rank sends on what it received in an
earlier step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import z3

from hocket.schedule import Builder, Schedule

Lanes = Mapping[tuple[int, int], int]


def search(
    collective: str, lanes: Lanes, num_ranks: int, chunks: int, rounds: Sequence[int], turn: Sequence[int] = ()
) -> Schedule | None:
    """Returns a schedule of all_gather or all_to_all with `chunks` chunks per block, or None if there is none.

    lanes: by (source, target). turn: a renumbering of the ranks that does not change the lanes, and is its own
    inverse; the search is limited to schedules that it does not change.
    """
    pairs = collective == "all_to_all"
    where = [(i, j) if pairs else (i, -1) for i in range(num_ranks) for j in (range(num_ranks) if pairs else (0,))]
    moving = [(*block, k) for block in where if block[0] != block[1] for k in range(chunks)]
    image: Callable[[int], int] = (lambda rank: turn[rank] if rank >= 0 else rank) if turn else (lambda rank: rank)
    made: dict[tuple[int, ...], Any] = {}

    def sends(chunk: tuple[int, int, int], link: tuple[int, int], step: int) -> Any:
        """Returns the variable "the chunk crosses the link in this step", or None if it cannot."""
        if link not in lanes or link[1] == chunk[0] or (step == 0 and link[0] != chunk[0]):
            return None
        key = (*chunk, *link, step)
        other = (image(chunk[0]), image(chunk[1]), chunk[2], image(link[0]), image(link[1]), step)
        first = min(key, other)
        if first not in made:
            made[first] = z3.Bool(str(first))
        return made[first]

    def arriving(chunk: tuple[int, int, int], rank: int, before: int) -> list[Any]:
        found = [sends(chunk, (other, rank), step) for other in range(num_ranks) for step in range(before)]
        return [each for each in found if each is not None]

    solver = z3.Solver()
    for chunk in moving:
        for rank in range(num_ranks):
            if rank == chunk[0]:
                continue
            received = [(each, 1) for each in arriving(chunk, rank, len(rounds))]
            solver.add(z3.PbEq(received, 1) if chunk[1] in (-1, rank) else z3.PbLe(received, 1))
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
    schedule = Builder(collective, num_ranks, len(where) * chunks)
    for step in range(len(rounds)):
        rows = [
            (*link, where.index(chunk[:2]) * chunks + chunk[2])
            for chunk in moving
            for link in lanes
            if (each := sends(chunk, link, step)) is not None and z3.is_true(model[each])
        ]
        source, target, number = np.array(rows).T
        with schedule.step():
            schedule.copy(src=source, dst=target, chunk=number)
    return schedule.finish()


def rounds_of(schedule: Schedule, lanes: Lanes) -> int:
    """Returns the rounds of all steps: each needs those of its busiest link. KeyError for a send without a link."""
    total = 0
    for step in schedule.steps():
        sent: dict[tuple[int, int], int] = {}
        for source, target, count in zip(step.src.tolist(), step.dst.tolist(), step.count.tolist(), strict=True):
            sent[source, target] = sent.get((source, target), 0) + count
        total += max(-(-number // lanes[link]) for link, number in sent.items())
    return total
