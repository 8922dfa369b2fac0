"""One pass of a rank over the operations of a table, with autograd.

    F   runs the stage, and keeps its input and output
    B   the gradient of the input; keeps the graph for W
    W   the gradients of the weights, added to .grad
    G   both at once

W runs the backward of the stage once more, on the way to its weights: B and W of a stage together take longer than G,
by up to the time of B.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from hocket.training.pipeline.pipeline_messages import PipelineMessages, RankOperation
from hocket.training.pipeline.table import FORWARD, FULL_BACKWARD, WEIGHT_BACKWARD, PipelineTable

Loss = Callable[..., Any]
"""(output of the last stage[, targets]) to a tensor with one element."""


class _Held(NamedTuple):
    """What F leaves for the backward; the gradient of the output is for W."""

    input: Any
    output: Any
    gradient: Any = None


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
        self._weights = {
            stage: [one for one in module.parameters() if one.requires_grad] for stage, module in stages.items()
        }
        self._held: dict[tuple[int, int], _Held] = {}
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
            self._held[operation.stage, operation.microbatch] = _Held(x, y)

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
        x, y, _ = self._held.pop(cell)
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
            if y.requires_grad and operation.stage > 0:
                [below] = torch.autograd.grad(y, x, above, retain_graph=True, allow_unused=True)
            self._held[cell] = _Held(x, y, above)
        if operation.stage > 0:
            self._messages.send(operation, torch.zeros_like(x) if below is None else below)

    def _weight_backward(self, operation: RankOperation) -> None:
        _, y, above = self._held.pop((operation.stage, operation.microbatch))
        weights = self._weights[operation.stage]
        if y.requires_grad and weights:
            torch.autograd.backward(y, above, inputs=weights)
