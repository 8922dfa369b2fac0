"""The five laws of pipelines. A table that passes `verify_table` computes every gradient once, and never hangs.

1. complete: each stage runs F, and G or B and W, once for each micro-batch, on the rank that has the stage.
2. ordered: no operations wait for each other in a cycle (pipeline_order.py); else the shortest cycle is told.
3. channels: the fewest messages that channels must hold (pipeline_channels.py), and whether they hold so many.
4. memory: the peak of activations on each rank is what the schedule promises, or less.
5. promise: makespan and cost are what the schedule promises, in the times of `PipelinePromise`.

All laws take time in proportion to the table, if most ranks can work at the same time.
"""

from dataclasses import dataclass

import numpy as np

from hocket.errors import VerifyError
from hocket.training.pipeline.pipeline_channels import Channels, FewestMessages
from hocket.training.pipeline.pipeline_order import check_complete, find_sources
from hocket.training.pipeline.pipeline_timing import PipelineTiming, time_sources
from hocket.training.pipeline.table import FORWARD, INPUT_BACKWARD, WEIGHT_BACKWARD, Ints, PipelineTable


@dataclass(frozen=True, eq=False)
class PipelineProof:
    """What was proved of a table.

    fewest_messages: that each channel must hold. peak_activations: by rank, the most forwards at once whose B or G has
    not run yet. peak_until_weight: the same until W or G, because W needs a part of them. Both count stages of the
    table. timing: with F, B and W of 1, and messages of 0.
    """

    fewest_messages: FewestMessages
    peak_activations: Ints
    peak_until_weight: Ints
    timing: PipelineTiming


def verify_table(table: PipelineTable, *, capacity: int | None = None) -> PipelineProof:
    """Prove a table. VerifyError (law, rank, and step: the position) at the first breach.

    capacity: how many messages each channel holds, tagged, at least; 0 for rendezvous, None for as many as it must.
    """
    if capacity is not None and (not isinstance(capacity, int) or capacity < 0):
        raise ValueError(f"expected a capacity of 0 or more messages, found {capacity!r}")
    check_complete(table)
    sources = find_sources(table)
    timing = time_sources(table, sources, F=1.0, B=1.0, W=1.0, message=0.0, pair=3.0)
    channels = Channels(table, sources)
    fewest = channels.fewest()
    if capacity is not None and capacity < fewest.tagged:
        text = f"{table.name}: with channels that hold {capacity} messages, {channels.deadlock(capacity)}"
        raise VerifyError(text, law=3, expected=f"a capacity of at least {fewest.tagged}", found=capacity)
    peak, until_weight = _peak(table, INPUT_BACKWARD), _peak(table, WEIGHT_BACKWARD)
    _check_memory(table, "peak_activations", peak)
    _check_memory(table, "peak_until_weight", until_weight)
    for name, found in (("makespan", timing.makespan), ("cost", timing.cost)):
        promised = getattr(table.promise, name)
        if promised is not None and abs(promised - found) > 1e-9 * promised:
            raise VerifyError(
                f"{table.name}: the {name} is not the promised one", law=5, expected=promised, found=found
            )
    return PipelineProof(fewest, peak, until_weight, timing)


def _peak(table: PipelineTable, last: int) -> Ints:
    """By rank, the most activations between F and G, or the kind `last`."""
    change = np.where(
        table.kind == FORWARD, 1, np.where(table.kind == (INPUT_BACKWARD + WEIGHT_BACKWARD - last), 0, -1)
    )
    live = np.cumsum(change)  # 0 at the end of each rank, because the table is complete
    return np.maximum.reduceat(live, table.first_row[:-1])


def _check_memory(table: PipelineTable, name: str, peak: Ints) -> None:
    promised = getattr(table.promise, name)
    if promised is None:
        return
    if len(promised) != len(peak):
        raise ValueError(f"{table.name}: expected a promise of {name} for {len(peak)} ranks, found {len(promised)}")
    above = np.flatnonzero(peak > promised)
    if len(above):
        rank = int(above[0])
        raise VerifyError(
            f"{table.name}: {name} is more than the schedule promises",
            law=4,
            rank=rank,
            expected=promised[rank],
            found=int(peak[rank]),
        )
