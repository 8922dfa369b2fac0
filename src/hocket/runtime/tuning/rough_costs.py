"""Rough costs of an algorithm that was not timed: from its schedule, and from the speed of cores and memory.

The receiver does the work: it copies a byte that moves, and adds a byte that is reduced. The sender stages its data
once for all its readers. The cores share all work, but a core does at least the work of its busiest rank. A step takes
two hops of a cache line, there and back, and some instructions; with more ranks than cores, all ranks of a core take
turns in it. Successive calls may overlap; these costs ignore that.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hocket.algorithms import ALGORITHMS
from hocket.runtime.tuning.fit import Costs, Floats, Traits, traits_of
from hocket.runtime.tuning.machine_costs import MachineCosts
from hocket.runtime.tuning.tuner import SIZES, Entry, Measured, candidates, job_of
from hocket.schedule import Schedule

_HOPS = 2
_STEP_SECONDS, _TURN_SECONDS = 3e-7, 3e-6  # assumed: for a step, and for a rank's turn on a shared core


@dataclass(frozen=True)
class ScheduleWork:
    """The work of a schedule: its traits, and what each rank copies and adds, in the units of the traits."""

    traits: Traits
    moved: Floats
    added: Floats


def rough_entries(collective: str, num_ranks: int, sizes: Iterable[int], machine: MachineCosts) -> dict[int, Entry]:
    """Returns an entry like the tuner's for calls of about each of these sizes, without a date and without times."""
    names = candidates(collective, num_ranks, job_of(collective, num_ranks, SIZES).names)
    works = {name: work_of(ALGORITHMS[collective, name].build(num_ranks)) for name in names}
    return {
        size: Entry(
            collective,
            num_ranks,
            "",
            tuple(
                Measured(name, work.traits, rough_costs(work, size, machine), (), names[name])
                for name, work in works.items()
            ),
        )
        for size in sizes
    }


def rough_costs(work: ScheduleWork, num_bytes: int, machine: MachineCosts) -> Costs:
    """Returns the costs of a call of about `num_bytes`: the whole vector, or for all_to_all the input of a rank."""
    p, traits = len(work.moved), work.traits
    cores = min(p, machine.num_cores)
    footprint = 2 * num_bytes * p / cores  # an input and an output of each rank on the core

    def seconds(some: Floats, kind: str) -> float:
        """Returns seconds per byte of the vector, for work that is given in such bytes by rank."""
        return max(float(some.max()), float(some.sum()) / cores) * cores / machine.rate(kind, footprint, cores)

    return Costs(
        alpha=_STEP_SECONDS + _HOPS * machine.hop_seconds if p <= cores else p / cores * _TURN_SECONDS,
        beta=seconds(work.moved, "copy") / traits.sent if traits.sent else 0.0,
        gamma=seconds(work.added, "add") / traits.reduced if traits.reduced else 0.0,
        error=0.0,
    )


def work_of(schedule: Schedule) -> ScheduleWork:
    """Counts the work from the rows of the schedule."""
    p = schedule.num_ranks
    moved, added = np.zeros(p), np.zeros(p)
    for repeat in schedule.repeats:
        step = repeat.step
        away = step.src != step.dst
        targets = step.destinations()
        copied = away & ~np.isin(targets, targets[step.reduce])  # else it is the first operand of an addition
        columns = (step.src, step.src_buffer, step.src_chunk, step.count, step.stride)
        staged = np.unique(np.column_stack(columns)[away], axis=0)
        moved += repeat.times * np.bincount(step.dst[copied], step.count[copied], p)
        moved += repeat.times * np.bincount(staged[:, 0], staged[:, 3], p)
        added += repeat.times * np.bincount(step.dst[step.reduce], step.count[step.reduce], p)
    whole = schedule.vector_chunks
    return ScheduleWork(traits_of(schedule), moved / whole, added / whole)
