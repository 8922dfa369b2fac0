"""One pass of a rank over the operations of a table, with autograd.

F   runs the stage, and keeps its input and output
B   the gradient of the input; keeps what W needs
W   the gradients of the weights, added to .grad
G   both at once
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hocket.training.pipeline.pipeline_messages import PipelineMessages, RankOperation
from hocket.training.pipeline.split_backward import SplitBackward
from hocket.training.pipeline.table import FORWARD, FULL_BACKWARD, WEIGHT_BACKWARD, PipelineTable

Loss = Callable[..., Any]
"""(output of the last stage[, targets]) to a tensor with one element."""


class TableRun:
    """Runs operations of one rank on the micro-batches of one step. losses: by micro-batch, 0 where it ran elsewhere.

    inputs, targets: by micro-batch, for the first and the last stage. trains: whether gradients will be computed.
    """

    def __init__(
        self,
        table: PipelineTable,
        stages: Mapping[int, Any],
        loss: Loss | None,
        messages: PipelineMessages,
        inputs: Sequence[Any],
        targets: Sequence[Any] | None,
        trains: bool,
    ) -> None:
        self._table, self._stages, self._loss, self._messages = table, stages, loss, messages
        self._inputs, self._targets, self._trains = inputs, targets, trains
        self._held: dict[tuple[int, int], tuple[Any, Any]] = {}  # input and output of F
        self._split: dict[tuple[int, int], SplitBackward] = {}  # between B and W
        self._last = table.num_stages - 1
        self.losses = torch.zeros(table.num_microbatches, dtype=torch.float64)

    def run(self, operations: Sequence[RankOperation]) -> None:
        """Runs operations one after the other; the messages of each begin while the one before runs."""
        for number, operation in enumerate(operations):
            for following in operations[number + 1 : number + 2]:
                self._messages.post(following)
            try:
                self._perform(operation)
            except Exception as error:
                error.add_note(f"in {self._table.describe(operation.row)} of pipeline {self._table.name}")
                raise

    def _perform(self, operation: RankOperation) -> None:
        if operation.kind == FORWARD:
            self._forward(operation)
        elif operation.kind == WEIGHT_BACKWARD:
            self._weight_backward(operation)
        else:
            self._backward(operation)

    def _forward(self, operation: RankOperation) -> None:
        if operation.stage == 0:
            x = self._inputs[operation.microbatch].detach()
        else:
            x = self._messages.receive(operation).requires_grad_(self._trains)
        y = self._stages[operation.stage](x)
        if operation.stage == self._last:
            y = self._loss_of(operation, y)
        elif not isinstance(y, torch.Tensor):
            where = self._table.describe(operation.row)
            raise TypeError(f"{where}: expected a stage that returns one tensor, found {type(y).__name__}")
        else:
            self._messages.send(operation, y)
        if self._trains:
            self._held[operation.stage, operation.microbatch] = x, y

    def _loss_of(self, operation: RankOperation, y: Any) -> Any:
        """The part of a micro-batch in the loss of the step."""
        if self._loss is not None:
            targets = () if self._targets is None else (self._targets[operation.microbatch],)
            y = self._loss(y, *targets)
        if not isinstance(y, torch.Tensor) or y.numel() != 1:
            found = f"shape {tuple(y.shape)}" if isinstance(y, torch.Tensor) else type(y).__name__
            who = "the last stage" if self._loss is None else "loss"
            hint = "; give loss= to Runner" if self._loss is None else ""
            where = self._table.describe(operation.row)
            raise ValueError(f"{where}: expected {who} to return a tensor with one element, found {found}{hint}")
        self.losses[operation.microbatch] = y.item()
        return y / self._table.num_microbatches

    def _backward(self, operation: RankOperation) -> None:
        cell = operation.stage, operation.microbatch
        x, y = self._held.pop(cell)
        above = None if operation.stage == self._last else self._messages.receive(operation)
        below = None
        if operation.kind == FULL_BACKWARD:
            found: list[Any] = []
            if operation.stage > 0:
                x.register_hook(found.append)  # x.grad would lie in memory as x does, which can change later bits
            if y.requires_grad:
                torch.autograd.backward(y, above)
            below = found[0] if found else None
        else:
            self._split[cell] = SplitBackward(x if operation.stage > 0 else None, y)
            below = self._split[cell].input_gradient(above)
        if operation.stage > 0:
            self._messages.send(operation, torch.zeros_like(x) if below is None else below)

    def _weight_backward(self, operation: RankOperation) -> None:
        self._split.pop((operation.stage, operation.microbatch)).add_weight_gradients()
