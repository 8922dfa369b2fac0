"""The messages of one rank that runs a pipeline table: results of F go to the next stage, those of B and G back.

A receive is posted while the operation before it runs, and a send goes on while the operations after it run. The tag
of a message tells what computed it: kind, stage and micro-batch, as one number. Before the first result of a kind and
stage in a step goes its layout: type, shape, and order of the dims in memory, which PyTorch's kernels depend on. So
all other receives can be posted ahead, and another step may have a batch of another size.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from hocket.runtime import Communicator
from hocket.training.pipeline.table import FORWARD, WEIGHT_BACKWARD, Ints, PipelineTable

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
_MAX_DIMS = 8
_BACK, _LAYOUT = 1, 2  # added up, the kind of a message; 0: the result of F
_NUM_KINDS = 4


class _ResultLayout(NamedTuple):
    """shape: with the dims in the order in which they lie in memory; order: the dims of the tensor in this order."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]


def _layout_of(x: Any) -> _ResultLayout:
    order = tuple(sorted(range(x.dim()), key=lambda dim: -x.stride(dim)))
    if not x.permute(order).is_contiguous():  # it has gaps, or elements that are several at once
        order = tuple(range(x.dim()))
    return _ResultLayout(x.dtype, tuple(x.shape[dim] for dim in order), order)


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
        # Layouts by kind, stage that computed it, and rank at the other end.
        self._sent: dict[tuple[int, int, int], _ResultLayout] = {}
        self._received: dict[tuple[int, int, int], _ResultLayout] = {}
        self._posted: dict[int, tuple[Any, Any]] = {}  # by tag: the tensor that is filled, and its work
        self._here: dict[int, Any] = {}  # by tag, results for stages of this rank
        self._sends: list[Any] = []

    def post(self, operation: RankOperation) -> None:
        """Begins to receive the input of an operation, unless it is begun, or its layout is not known yet."""
        kind, stage = _input_of(operation)
        tag = self._tag(kind, stage, operation.microbatch)
        layout = self._received.get((kind, stage, operation.source))
        if layout is not None and tag not in self._posted:
            x = torch.empty(layout.shape, dtype=layout.dtype)
            self._posted[tag] = (
                x.permute(np.argsort(layout.order).tolist()),
                self._comm.irecv(x, operation.source, tag=tag),
            )

    def receive(self, operation: RankOperation) -> Any:
        """Waits for the input of an operation and returns it: a tensor without a history."""
        kind, stage = _input_of(operation)
        tag, source = self._tag(kind, stage, operation.microbatch), operation.source
        if source == self._comm.rank:
            return self._here.pop(tag)
        if (kind, stage, source) not in self._received:
            self._received[kind, stage, source] = self._receive_layout(kind, stage, source)
        self.post(operation)
        x, work = self._posted.pop(tag)
        work.wait()
        return x

    def send(self, operation: RankOperation, x: Any) -> None:
        """Begins to send the result of an operation, which nobody may write any more. ValueError for a result that has
        another shape or type than the one of the micro-batch before, or one that messages cannot have.
        """
        kind, x = 0 if operation.kind == FORWARD else _BACK, x.detach().resolve_conj().resolve_neg()
        tag = self._tag(kind, operation.stage, operation.microbatch)
        layout = self._agreed_layout(kind, operation, x)
        if operation.target == self._comm.rank:
            self._here[tag] = x
            return
        self._sends = [work for work in self._sends if not work.is_completed()]  # which frees what they sent
        self._sends.append(self._comm.isend(x.permute(layout.order).contiguous(), operation.target, tag=tag))

    def finish(self) -> None:
        """Waits until all results are sent."""
        for work in self._sends:
            work.wait()

    def _tag(self, kind: int, stage: int, microbatch: int) -> int:
        return (kind * self._table.num_stages + stage) * self._table.num_microbatches + microbatch

    def _agreed_layout(self, kind: int, operation: RankOperation, x: Any) -> _ResultLayout:
        """The layout that the receiver knows: that of the first such result in this step."""
        key, who = (kind, operation.stage, operation.target), f"rank {self._comm.rank}"
        where = f"{who}, {self._table.describe(operation.row)}"
        if x.dtype not in _DTYPES or x.dim() > _MAX_DIMS or x.device.type != "cpu":
            raise ValueError(
                f"{where}: expected a result of floating-point numbers in the memory of the host, with at most "
                f"{_MAX_DIMS} dims, found {x.dtype} on {x.device} of shape {tuple(x.shape)}"
            )
        if key not in self._sent:
            self._sent[key] = _layout_of(x)
            if operation.target != self._comm.rank:
                self._send_layout(key)
        dtype, shape, order = self._sent[key]
        if x.dtype != dtype or x.dim() != len(order) or tuple(x.shape[dim] for dim in order) != shape:
            expected = tuple(shape[order.index(dim)] for dim in range(len(order)))
            raise ValueError(
                f"{where}: expected a result of shape {expected} and {dtype}, as in the micro-batch before, found "
                f"{tuple(x.shape)} and {x.dtype}; a stage gives the same shape in every micro-batch of a step"
            )
        return self._sent[key]

    def _send_layout(self, key: tuple[int, int, int]) -> None:
        (kind, stage, target), (dtype, shape, order) = key, self._sent[key]
        padding = [0] * (_MAX_DIMS - len(shape))
        numbers = torch.tensor([_DTYPES.index(dtype), len(shape), *shape, *padding, *order, *padding])
        self._sends.append(self._comm.isend(numbers, target, tag=self._tag(kind + _LAYOUT, stage, 0)))

    def _receive_layout(self, kind: int, stage: int, source: int) -> _ResultLayout:
        numbers = torch.empty(2 + 2 * _MAX_DIMS, dtype=torch.int64)
        self._comm.recv(numbers, source, tag=self._tag(kind + _LAYOUT, stage, 0))
        dtype, num_dims, *dims = numbers.tolist()
        shape, order = (tuple(dims[first : first + num_dims]) for first in (0, _MAX_DIMS))
        return _ResultLayout(_DTYPES[dtype], shape, order)


def _input_of(operation: RankOperation) -> tuple[int, int]:
    """The kind of message that an operation needs, and the stage that computes it."""
    return (0, operation.stage - 1) if operation.kind == FORWARD else (_BACK, operation.stage + 1)
