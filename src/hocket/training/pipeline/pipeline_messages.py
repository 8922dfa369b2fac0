"""The messages of one rank that runs a pipeline table: results of F go to the next stage, those of B and G back.

A receive is posted while the operation before it runs, and a send goes on while the operations after it run. The tag
of a message tells what computed it: kind, stage and micro-batch, as one number. Before the first result of a stage in
a step, shape and type go to its receiver; the gradient that comes back has the same. So receives of a step can be
posted ahead once the first message has come, and another step may have a batch of another size.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from hocket.runtime import Communicator
from hocket.training.pipeline.table import FORWARD, WEIGHT_BACKWARD, Ints, PipelineTable

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
_MAX_DIMS = 8
_RESULT, _GRADIENT, _LAYOUT = range(3)
_NUM_KINDS = 3

_Layout = tuple[tuple[int, ...], torch.dtype]
"""Shape and type."""


class RankOperation(NamedTuple):
    """A row of a table, with the ranks that its input comes from and its result goes to; -1: none, because the
    operation is at an end of the pipeline, or W. Either may be the rank of the row itself.
    """

    row: int
    kind: int
    stage: int
    microbatch: int
    source: int
    target: int


def rank_operations(table: PipelineTable, rank: int) -> list[RankOperation]:
    """The operations of a rank, in their order."""
    rows = np.arange(table.first_row[rank], table.first_row[rank + 1])
    kind, stage, microbatch = table.kind[rows], table.stage[rows], table.microbatch[rows]
    forward = np.where(kind == FORWARD, 1, -1)
    ends: list[Ints] = []
    for neighbour in (stage - forward, stage + forward):
        exists = (kind != WEIGHT_BACKWARD) & (neighbour >= 0) & (neighbour < table.num_stages)
        ends.append(np.where(exists, table.home(np.clip(neighbour, 0, table.num_stages - 1), microbatch), -1))
    columns = (rows, kind, stage, microbatch, *ends)
    return [RankOperation(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def first_free_tag(table: PipelineTable) -> int:
    """The lowest tag that no message of a table has."""
    return _NUM_KINDS * table.num_stages * table.num_microbatches


class PipelineMessages:
    """The messages of one rank in one step, which takes its operations in their order."""

    def __init__(self, table: PipelineTable, comm: Communicator) -> None:
        self._table, self._comm = table, comm
        # Of what F of a stage gives, by stage and by the rank at the other end.
        self._sent: dict[tuple[int, int], _Layout] = {}
        self._received: dict[tuple[int, int], _Layout] = {}
        self._posted: dict[int, tuple[Any, Any]] = {}  # by tag: the tensor that is filled, and its work
        self._here: dict[int, Any] = {}  # by tag, results for stages of this rank
        self._sends: list[Any] = []

    def post(self, operation: RankOperation) -> None:
        """Begins to receive the input of an operation, unless it is begun, or its shape is not known yet."""
        tag, source = self._input_tag(operation), operation.source
        if source in (-1, self._comm.rank) or tag in self._posted:
            return
        if operation.kind == FORWARD:
            layout = self._received.get((operation.stage - 1, source))
        else:
            layout = self._sent.get((operation.stage, source))
        if layout is not None:
            shape, dtype = layout
            x = torch.empty(shape, dtype=dtype)
            self._posted[tag] = x, self._comm.irecv(x, source, tag=tag)

    def receive(self, operation: RankOperation) -> Any:
        """Waits for the input of an operation and returns it: a tensor without a history."""
        tag, source = self._input_tag(operation), operation.source
        if source == self._comm.rank:
            return self._here.pop(tag)
        if operation.kind == FORWARD and (operation.stage - 1, source) not in self._received:
            self._received[operation.stage - 1, source] = self._receive_layout(operation)
        self.post(operation)
        x, work = self._posted.pop(tag)
        work.wait()
        return x

    def send(self, operation: RankOperation, x: Any) -> None:
        """Begins to send the result of an operation, which nobody may write any more. ValueError for a result of F
        that has another shape or type than the one before, or one that messages cannot have.
        """
        tag, target = self._tag(int(operation.kind != FORWARD), operation.stage, operation.microbatch), operation.target
        x = x.detach()
        if operation.kind == FORWARD:
            self._check_layout(operation, x)
        if target == self._comm.rank:
            self._here[tag] = x
            return
        self._sends = [work for work in self._sends if not work.is_completed()]  # which frees what they sent
        self._sends.append(self._comm.isend(x.contiguous(), target, tag=tag))

    def finish(self) -> None:
        """Waits until all results are sent."""
        for work in self._sends:
            work.wait()

    def _tag(self, kind: int, stage: int, microbatch: int) -> int:
        return (kind * self._table.num_stages + stage) * self._table.num_microbatches + microbatch

    def _input_tag(self, operation: RankOperation) -> int:
        if operation.kind == FORWARD:
            return self._tag(_RESULT, operation.stage - 1, operation.microbatch)
        return self._tag(_GRADIENT, operation.stage + 1, operation.microbatch)

    def _check_layout(self, operation: RankOperation, x: Any) -> None:
        layout = tuple(x.shape), x.dtype
        key = operation.stage, operation.target
        who = f"rank {self._comm.rank}, {self._table.describe(operation.row)}"
        if x.dtype not in _DTYPES or x.dim() > _MAX_DIMS or x.device.type != "cpu":
            raise ValueError(
                f"{who}: expected a result of floating-point numbers in the memory of the host, with at most "
                f"{_MAX_DIMS} dims, found {x.dtype} on {x.device} of shape {tuple(x.shape)}"
            )
        if key not in self._sent:
            self._sent[key] = layout
            if operation.target != self._comm.rank:
                self._send_layout(operation, x)
        elif self._sent[key] != layout:
            shape, dtype = self._sent[key]
            raise ValueError(
                f"{who}: expected a result of shape {shape} and {dtype}, as in the micro-batch before, found "
                f"{tuple(x.shape)} and {x.dtype}; a stage gives the same shape in every micro-batch of a step"
            )

    def _send_layout(self, operation: RankOperation, x: Any) -> None:
        numbers = [_DTYPES.index(x.dtype), x.dim(), *x.shape, *[0] * (_MAX_DIMS - x.dim())]
        tag = self._tag(_LAYOUT, operation.stage, 0)
        self._sends.append(self._comm.isend(torch.tensor(numbers), operation.target, tag=tag))

    def _receive_layout(self, operation: RankOperation) -> _Layout:
        numbers = torch.empty(2 + _MAX_DIMS, dtype=torch.int64)
        self._comm.recv(numbers, operation.source, tag=self._tag(_LAYOUT, operation.stage - 1, 0))
        dtype, num_dims, *dims = numbers.tolist()
        return tuple(dims[:num_dims]), _DTYPES[dtype]
