"""A pipeline schedule as a table: which rank runs which operation, of which stage and micro-batch, in which order.

    F   forward
    B   input backward: the gradient of the input, which the stage before waits for
    W   weight backward: the gradient of the weights, any time after B
    G   full backward: B and W at once

A row is (rank, position, kind, stage, micro-batch). Two rows of one position, F and G of different stages, are an
*overlapped pair*: they start and end together. Messages are not in the table, because they follow from it: F goes to
the next stage, B or G to the stage before, wherever these are on other ranks.

A table may be wrong in any way: `verify_table` (pipeline_law.py) proves that it is not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]

KINDS = "FBWG"
FORWARD, INPUT_BACKWARD, WEIGHT_BACKWARD, FULL_BACKWARD = range(4)
_MAX_RANKS = 1 << 15  # ranks are sorted as 16-bit numbers


@dataclass(frozen=True)
class PipelinePromise:
    """What a schedule promises if every F, B and W takes 1, G 2, an overlapped pair 3, and a message 0.

    makespan: from the first start to the last end. cost: the longest time from the first start to the last end of one
    rank. peak_activations: by rank, the most forwards at once whose B or G has not run yet. peak_until_weight: the same
    until W or G; None is no promise.
    """

    makespan: float | None = None
    cost: float | None = None
    peak_activations: Sequence[int] | None = None
    peak_until_weight: Sequence[int] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class MessageOrder:
    """Where each rank sends and receives, if a file says so; else ranks receive before use and send after computing.

    Columns of equal length, sorted by rank: rank; row, the row that sends, or the row that uses what is received;
    sends, whether the rank sends here, or receives; position, that of the first operation after it.
    """

    rank: Ints
    row: Ints
    sends: npt.NDArray[np.bool_]
    position: Ints


@dataclass(frozen=True, eq=False, repr=False)
class PipelineTable:
    """The rows of all ranks, as columns of equal length, sorted by rank and position. ValueError if they are malformed.

    placement: the rank of each stage, of shape (directions, stages). With two directions, the second half of the
    micro-batches enters at the other end. position: 0, 1, ... on each rank; kind: an index of KINDS.
    """

    name: str
    num_microbatches: int
    placement: Ints
    rank: Ints
    position: Ints
    kind: Ints
    stage: Ints
    microbatch: Ints
    promise: PipelinePromise = PipelinePromise()
    messages: MessageOrder | None = None

    def __post_init__(self) -> None:
        columns = (self.rank, self.position, self.kind, self.stage, self.microbatch)
        if {column.shape for column in columns} != {(len(self.rank),)}:
            shapes = ", ".join(str(column.shape) for column in columns)
            raise ValueError(f"{self.name}: expected five columns of equal length, found shapes {shapes}")
        if self.num_microbatches < 1 or self.placement.ndim != 2 or self.placement.size == 0:
            raise ValueError(
                f"{self.name}: expected at least 1 micro-batch and a placement of shape (directions, stages), "
                f"found {self.num_microbatches} and shape {self.placement.shape}"
            )
        if self.placement.min() < 0:
            raise ValueError(f"{self.name}: expected ranks of 0 or more in the placement, found {self.placement.min()}")
        missing = np.flatnonzero(np.bincount(self.placement.ravel()) == 0)
        if len(missing) or self.num_ranks > _MAX_RANKS:
            found = f"none on rank {missing[0]}" if len(missing) else f"{self.num_ranks} ranks"
            raise ValueError(f"{self.name}: expected a stage on each of at most {_MAX_RANKS} ranks, found {found}")
        limits = {
            "rank": self.num_ranks,
            "kind": len(KINDS),
            "stage": self.num_stages,
            "microbatch": self.num_microbatches,
        }
        for column, limit in limits.items():
            values = getattr(self, column)
            outside = np.flatnonzero((values < 0) | (values >= limit))
            if len(outside):
                row = int(outside[0])
                raise ValueError(
                    f"{self.name}: expected {column} from 0 to {limit - 1}, found {values[row]} in row {row}"
                )
        self._check_positions()
        if self.messages is not None:
            _check_columns(self, self.messages)

    def _check_positions(self) -> None:
        follows = np.diff(self.rank, prepend=-1) == 0
        step = np.diff(self.position, prepend=-1)
        wrong = np.where(follows, (step < 0) | (step > 1), self.position != 0) | (np.diff(self.rank, prepend=0) < 0)
        second = np.flatnonzero(follows & (step == 0))
        first = second - 1
        unfit = (self.kind[first] != FORWARD) | (self.kind[second] != FULL_BACKWARD)
        unfit |= self.stage[first] == self.stage[second]
        unfit[1:] |= np.diff(second) == 1
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"{self.name}: expected rows sorted by rank, with positions 0, 1, ... on each, "
                f"found rank {self.rank[row]}, position {self.position[row]} in row {row}"
            )
        if unfit.any():
            row = int(second[unfit.argmax()])
            raise ValueError(
                f"{self.name}: expected an overlapped pair to be F and then G of two stages, "
                f"found {self.describe(row - 1)} and {self.describe(row)}"
            )

    @property
    def num_ranks(self) -> int:
        """Ranks, of which each has at least one stage."""
        return int(self.placement.max()) + 1

    @property
    def num_stages(self) -> int:
        """Stages of the whole pipeline."""
        return int(self.placement.shape[1])

    def __len__(self) -> int:
        return len(self.rank)

    def __repr__(self) -> str:
        return (
            f"<PipelineTable {self.name}: {self.num_ranks} ranks, {self.num_stages} stages, "
            f"{self.num_microbatches} micro-batches, {len(self)} operations>"
        )

    def home(self, stage: Ints, microbatch: Ints) -> Ints:
        """The rank on which `placement` has these stages, for these micro-batches."""
        directions = len(self.placement)
        if directions == 1:
            direction: Ints = np.zeros_like(microbatch)
        else:
            direction = microbatch.astype(np.int64) * directions // self.num_microbatches
        ranks: Ints = self.placement[direction, stage]
        return ranks

    @cached_property
    def first_row(self) -> Ints:
        """The first row of each rank, and at last the number of rows."""
        return np.searchsorted(self.rank, np.arange(self.num_ranks + 1))

    @cached_property
    def block(self) -> Ints:
        """A number for each row: rows of an overlapped pair share it, and it counts through all ranks."""
        starts = np.ones(len(self), bool)
        starts[1:] = (self.position[1:] != self.position[:-1]) | (self.rank[1:] != self.rank[:-1])
        return np.cumsum(starts, dtype=np.int32) - np.int32(1)

    @cached_property
    def first_block(self) -> Ints:
        """The first block of each rank, and at last the number of blocks."""
        return np.append(self.block, self.block[-1:] + 1)[self.first_row] if len(self) else self.first_row

    @cached_property
    def backward(self) -> npt.NDArray[np.bool_]:
        """Whether a row is B or G: what ends the life of an activation, and what the stage before waits for."""
        is_backward: npt.NDArray[np.bool_] = (self.kind == INPUT_BACKWARD) | (self.kind == FULL_BACKWARD)
        return is_backward

    def describe(self, row: int) -> str:
        """A row in words, for example "F of stage 2, micro-batch 5"."""
        return f"{KINDS[self.kind[row]]} of stage {self.stage[row]}, micro-batch {self.microbatch[row]}"


def _check_columns(table: PipelineTable, messages: MessageOrder) -> None:
    columns = (messages.rank, messages.row, messages.sends, messages.position)
    if {column.shape for column in columns} != {(len(messages.rank),)} or (np.diff(messages.rank) < 0).any():
        raise ValueError(f"{table.name}: expected four columns of messages, of equal length and sorted by rank")
    for column, limit in (("rank", table.num_ranks), ("row", len(table))):
        values = getattr(messages, column)
        if ((values < 0) | (values >= limit)).any():
            raise ValueError(f"{table.name}: expected messages with {column} from 0 to {limit - 1}, found others")
    if ((np.diff(messages.rank) == 0) & (np.diff(messages.position) < 0)).any():
        raise ValueError(f"{table.name}: expected the messages of a rank sorted by position, found others")


def table_of(
    name: str,
    num_microbatches: int,
    placement: Ints,
    operations: Sequence[Ints],
    promise: PipelinePromise = PipelinePromise(),
    messages: MessageOrder | None = None,
) -> PipelineTable:
    """A table from the operations of each rank: arrays of shape (n, 4), with columns kind, stage, micro-batch, and 1
    where an operation overlaps the one before it, else 0.
    """
    lengths = [len(rank) for rank in operations]
    kind, stage, microbatch = np.concatenate(operations)[:, :3].T
    rank = np.repeat(np.arange(len(operations), dtype=np.int32), lengths)
    positions = [np.cumsum(1 - rank[:, 3], dtype=np.int32) - np.int32(1) for rank in operations]
    columns = (rank, np.concatenate(positions), kind.astype(np.int8), stage.copy(), microbatch.copy())
    return PipelineTable(name, num_microbatches, placement, *columns, promise, messages)
