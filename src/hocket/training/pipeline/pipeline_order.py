"""Laws 1 and 2 of pipelines: a table is complete, and no operation waits for ever.

An operation waits for the one before it on its rank, and for its *source*: F for F of the stage before, B or G for the
backward of the stage after, each of the same micro-batch; B or G also for its F, and W for its B. On one rank the table
must have them in this order. Between ranks, `finish_times` runs all ranks side by side until none can go on.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hocket.errors import VerifyError, name_count
from hocket.training.pipeline.deadlock import shortest_cycle
from hocket.training.pipeline.table import (
    FORWARD,
    KINDS,
    WEIGHT_BACKWARD,
    Floats,
    Ints,
    PipelineTable,
)


class Sources(NamedTuple):
    """What rows and blocks of a complete table wait for; -1: nothing.

    row: the source of each row, if it is on another rank, so that a message comes from there. needs: for the first row
    of each block, and, if there are overlapped pairs, for the second, the block of its source on another rank.
    """

    row: Ints
    needs: Sequence[Ints]


def check_complete(table: PipelineTable) -> None:
    """VerifyError (law 1) unless each stage has F, and G or B and W, once for each micro-batch, on the right rank."""
    home = table.home(table.stage, table.microbatch)
    away = np.flatnonzero(home != table.rank)
    if len(away):
        row = int(away[0])
        raise breach(table, 1, row, f"{table.describe(row)} is on rank {table.rank[row]}, but its stage on {home[row]}")
    cells = table.num_stages * table.num_microbatches
    if cells > 8 * len(table):  # also keeps a small file from asking for much memory
        text = f"{table.name}: {table.num_stages} stages do not run {table.num_microbatches} micro-batches completely"
        raise VerifyError(text, law=1, expected=f"at least {2 * cells} operations", found=len(table))
    cell = table.stage.astype(np.int64) * table.num_microbatches + table.microbatch
    counts = [np.bincount(cell[table.kind == kind], minlength=cells) for kind in range(len(KINDS))]
    forwards, inputs, weights, fulls = counts
    wrong = np.flatnonzero((forwards != 1) | (inputs + fulls != 1) | (weights != inputs))
    if len(wrong):
        stage, microbatch = divmod(int(wrong[0]), table.num_microbatches)
        found = [f"{count[wrong[0]]} {kind}" for kind, count in zip(KINDS, counts, strict=True)]
        raise VerifyError(
            f"{table.name}: stage {stage} does not run micro-batch {microbatch} completely",
            law=1,
            rank=int(table.home(np.array([stage]), np.array([microbatch]))[0]),
            expected="1 F, and 1 G or 1 B and 1 W",
            found=", ".join(found),
        )


def find_sources(table: PipelineTable) -> Sources:
    """The sources of a complete table. VerifyError (law 2) if a rank runs an operation before what it waits for."""
    count, cells = table.num_microbatches, table.num_stages * table.num_microbatches
    cell = table.stage.astype(np.int64) * count + table.microbatch
    rows = np.arange(len(table), dtype=np.int32)
    forward, backward = (np.full(cells, -1, np.int32) for _ in range(2))
    is_forward, is_backward = table.kind == FORWARD, table.backward
    forward[cell[is_forward]], backward[cell[is_backward]] = rows[is_forward], rows[is_backward]
    is_weight = table.kind == WEIGHT_BACKWARD
    _check_local(table, backward, forward)
    _check_local(table, rows[is_weight], backward[cell[is_weight]])
    source = np.full(len(table), -1, np.int32)
    waits = is_forward & (table.stage > 0)
    source[waits] = forward[cell[waits] - count]
    waits = is_backward & (table.stage < table.num_stages - 1)
    source[waits] = backward[cell[waits] + count]
    local = np.flatnonzero((source >= 0) & (table.rank[source] == table.rank))
    _check_local(table, local, source[local])
    source[local] = -1
    return Sources(source, _needs(table, source))


def _needs(table: PipelineTable, source: Ints) -> Sequence[Ints]:
    block = np.where(source >= 0, table.block[source], np.int32(-1))
    second = np.zeros(len(table), bool)
    second[1:] = table.block[1:] == table.block[:-1]
    if not second.any():
        return [block]
    partner = np.full(int(table.first_block[-1]), -1, np.int32)
    partner[table.block[second]] = block[second]
    return [block[~second], partner]


def _check_local(table: PipelineTable, later: Ints, earlier: Ints) -> None:
    wrong = np.flatnonzero(table.block[later] <= table.block[earlier])
    if len(wrong):
        row, needed = int(later[wrong[0]]), int(earlier[wrong[0]])
        text = f"deadlock of 1 operation: rank {table.rank[row]} runs {table.describe(row)} at position "
        text += f"{table.position[row]}, but {table.describe(needed)}, for which it waits, at {table.position[needed]}"
        raise breach(table, 2, row, text)


def finish_times(first: Ints, needs: Sequence[Ints], seconds: Floats, message: float) -> Floats:
    """When each node ends, if each rank runs its nodes one after the other, each as soon as it can; NaN: never.

    first: of each rank, its first node, and at last the number of nodes. needs: nodes that each node waits for, or -1;
    their result comes `message` after their end. seconds: how long each node takes. Time begins at 0, in any unit.
    """
    end = np.full(len(seconds) + 1, np.nan)
    end[-1] = -np.inf  # what a need of -1 reads
    at, free = first[:-1].astype(np.int64), np.zeros(len(first) - 1)
    ranks = np.flatnonzero(at < first[1:])
    while len(ranks):
        nodes = at[ranks]
        start = free[ranks]
        for need in needs:
            start = np.maximum(start, end[need[nodes]] + message)  # NaN wins
        ready = np.flatnonzero(start == start)
        if not len(ready):
            break
        moved, nodes = ranks[ready], nodes[ready]
        end[nodes] = free[moved] = start[ready] + seconds[nodes]
        at[moved] += 1
        ranks = ranks[at[ranks] < first[ranks + 1]]
    return end[:-1]


def check_order(table: PipelineTable, sources: Sources, end: Floats) -> None:
    """VerifyError (law 2) with the shortest cycle if some block never ends, by the result of `finish_times`."""
    if not np.isnan(end).any():
        return
    row_of = np.searchsorted(table.block, np.arange(len(end)))
    cycle = shortest_cycle(table.first_block, sources.needs, np.isnan(end))
    lines = []
    for waiting, needed in cycle:
        row, other = int(row_of[waiting]), _needed_row(table, sources, int(row_of[waiting]), needed)
        lines.append(
            f"rank {table.rank[row]} waits in position {table.position[row]} for {table.describe(other)}, which rank "
            f"{table.rank[other]} runs in position {table.position[other]}"
        )
    text = f"deadlock of {name_count(len(cycle), 'rank')}: {'; '.join(lines)}"
    raise breach(table, 2, int(row_of[cycle[0][0]]), text)


def _needed_row(table: PipelineTable, sources: Sources, row: int, block: int) -> int:
    pair = [row, row + 1]
    return next(
        int(sources.row[one]) for one in pair if sources.row[one] >= 0 and table.block[sources.row[one]] == block
    )


def breach(table: PipelineTable, law: int, row: int, text: str) -> VerifyError:
    """The error for a law that a row breaks; its `step` is the position of the row."""
    return VerifyError(f"{table.name}: {text}", law=law, rank=int(table.rank[row]), step=int(table.position[row]))
