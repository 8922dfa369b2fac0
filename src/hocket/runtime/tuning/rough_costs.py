"""Costs of an algorithm where nothing was timed: from its schedule, and from what cores and memory can do here.

They are rough. Who receives does the work: a byte that moves is copied, one that is reduced is added, and what a rank
sends it stages once for all its readers. The cores share all of that, but none does less than its busiest rank. A step
takes two hops of a cache line, there and back, and some instructions; where ranks outnumber cores, all ranks of a core
have their turn in it. Calls one after the other may overlap, which this leaves out.
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
_STEP_SECONDS, _TURN_SECONDS = 3e-7, 3e-6  # not measured: a step's own, and a rank's turn on a core that it shares


@dataclass(frozen=True)
class Work:
    """What a schedule does, and by rank what is copied and what is added, in the units of its traits."""

    traits: Traits
    moved: Floats
    added: Floats


def rough_entries(collective: str, num_ranks: int, sizes: Iterable[int], machine: MachineCosts) -> dict[int, Entry]:
    """What stands in for an entry of the tuner, about calls of about so many bytes each: no date, and no times."""
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


def rough_costs(work: Work, num_bytes: int, machine: MachineCosts) -> Costs:
    """Costs of a call of about so many bytes, of the vector or for all_to_all of what a rank gives."""
    p, traits = len(work.moved), work.traits
    cores = min(p, machine.num_cores)
    footprint = 2 * num_bytes * p / cores  # an input and an output of each rank on the core

    def seconds(some: Floats, kind: str) -> float:
        """Of each byte of the vector, for work in such bytes by rank."""
        return max(float(some.max()), float(some.sum()) / cores) * cores / machine.rate(kind, footprint, cores)

    return Costs(
        alpha=_STEP_SECONDS + _HOPS * machine.hop_seconds if p <= cores else p / cores * _TURN_SECONDS,
        beta=seconds(work.moved, "copy") / traits.sent if traits.sent else 0.0,
        gamma=seconds(work.added, "add") / traits.reduced if traits.reduced else 0.0,
        error=0.0,
    )


def work_of(schedule: Schedule) -> Work:
    """Counted from the rows."""
    p = schedule.num_ranks
    moved, added = np.zeros(p), np.zeros(p)
    for block in schedule.blocks:
        step = block.step
        away = step.src != step.dst
        targets = step.destinations()
        copied = away & ~np.isin(targets, targets[step.reduce])  # else it is the first operand of an addition
        columns = (step.src, step.src_buffer, step.src_chunk, step.count, step.stride)
        staged = np.unique(np.column_stack(columns)[away], axis=0)
        moved += block.repeat * np.bincount(step.dst[copied], step.count[copied], p)
        moved += block.repeat * np.bincount(staged[:, 0], staged[:, 3], p)
        added += block.repeat * np.bincount(step.dst[step.reduce], step.count[step.reduce], p)
    whole = schedule.num_chunks // (p if schedule.kind.blocks == "pair" else 1)
    return Work(traits_of(schedule), moved / whole, added / whole)
