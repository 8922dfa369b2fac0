"""How long a pipeline takes: every operation starts when its rank is free and its message has come.

Times are in any one unit. Left out: what limits messages, such as a link that several of them share.
"""

from dataclasses import dataclass

import numpy as np

from hocket.training.pipeline.pipeline_order import Sources, check_complete, check_order, find_sources, finish_times
from hocket.training.pipeline.table import Floats, PipelineTable


@dataclass(frozen=True, eq=False)
class PipelineTiming:
    """When each operation runs, in the unit of the given times.

    start, end: by row of the table. makespan: from 0 to the last end. work: by rank, how long it computes. cost: the
    longest time from the first start to the last end of one rank: what a step costs if steps follow each other.
    """

    start: Floats
    end: Floats
    makespan: float
    work: Floats
    cost: float

    @property
    def idle(self) -> Floats:
        """By rank, how long it does not compute until the makespan."""
        return self.makespan - self.work

    @property
    def bubble_rate(self) -> float:
        """The part of the cost in which the rank that works most does not compute; as in the Zero Bubble papers."""
        return float((self.cost - self.work.max()) / self.cost) if self.cost else 0.0


def time_table(
    table: PipelineTable,
    *,
    F: float = 1.0,  # noqa: N803 - F, B and W are the names of the field
    B: float = 1.0,  # noqa: N803
    W: float = 1.0,  # noqa: N803
    message: float = 0.0,
    pair: float | None = None,
) -> PipelineTiming:
    """Time a table. VerifyError if it is not complete (law 1) or has a deadlock (law 2).

    F, B, W: of one operation of one stage; G takes B + W. pair: an overlapped pair, by default F + B + W. message: from
    the end of an operation until another rank has its result. ValueError for a time that is negative or not finite.
    """
    times = {"F": F, "B": B, "W": W, "message": message, "pair": F + B + W if pair is None else pair}
    for name, value in times.items():
        if not 0 <= value < float("inf"):
            raise ValueError(f"expected a time of 0 or more for {name}, found {value}")
    check_complete(table)
    return time_sources(table, find_sources(table), **times)


def time_sources(
    table: PipelineTable,
    sources: Sources,
    *,
    F: float,  # noqa: N803
    B: float,  # noqa: N803
    W: float,  # noqa: N803
    message: float,
    pair: float,
) -> PipelineTiming:
    """As `time_table`, for the sources of a complete table. VerifyError (law 2) for a deadlock."""
    lasts = np.ones(len(table), bool)
    lasts[:-1] = table.block[1:] != table.block[:-1]
    of_block = np.array([F, B, W, B + W])[table.kind[lasts]]
    of_block[np.diff(np.flatnonzero(lasts), prepend=-1) == 2] = pair
    end = finish_times(table.first_block, sources.needs, of_block, message)
    check_order(table, sources, end)
    start = end - of_block
    first, last = table.first_block[:-1], table.first_block[1:] - 1
    work = np.add.reduceat(of_block, first)
    return PipelineTiming(
        start[table.block], end[table.block], float(end.max()), work, float((end[last] - start[first]).max())
    )
