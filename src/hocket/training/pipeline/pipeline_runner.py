"""Runs a pipeline table with PyTorch: each rank has some stages, and a step trains all of them on one batch.

    table = build_table("zb-h1", ranks=comm.size, microbatches=8)
    runner = Runner(table, {comm.rank: stage}, comm, loss=torch.nn.functional.mse_loss)
    loss = runner.step(batch, targets)           # the same on all ranks; gradients are added to .grad
    optimizer.step()

Any table runs that `verify_table` proves. Gradients have the bits of one process that adds up the same micro-batches in
the order in which the table has W and G. Left out: stages that give several tensors, tensors of a GPU, and, in tables
with B, `torch.utils.checkpoint` with use_reentrant=True, which PyTorch runs in a whole backward only.
"""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hocket.errors import CommunicationError, VerifyError
from hocket.runtime import Communicator, reason_of, stream
from hocket.training.pipeline.pipeline_law import verify_table
from hocket.training.pipeline.pipeline_messages import PipelineMessages, RankOperation, rank_operations
from hocket.training.pipeline.shared_weights import SharedWeights, check_facts, facts_of, find_shared
from hocket.training.pipeline.table import FORWARD, PipelineTable
from hocket.training.pipeline.table_run import Loss, TableRun


class Runner:
    """A pipeline under a proved table. All ranks construct it with the same table, and call `step` equally often.

    stages: the modules of this rank, by the number of the stage: those that `table.placement` puts here. A stage takes
    one tensor, and returns one of floating-point numbers, in the memory of the host. loss: a function of the last
    stage's output, and of the targets if `step` has them; it returns a tensor with one element. Without it, the last
    stage returns the loss.

    tied: parameters of this rank's stages that another rank has, too, by a name that both ranks give; for example the
    embedding, which the last stage uses to predict. Stages of one rank share the parameter itself, and need no name.
    Tied weights, and those of a stage on two ranks, begin equal, as on the lower rank; their gradients are added.
    Buffers, such as the averages of BatchNorm, are not: each rank has those of the micro-batches that it has seen.

    A stage does not write to its input, nor later to what it has returned: that may still be on its way. While a step
    runs, no other messages go through `comm`. ValueError on all ranks if some rank has other stages than the table
    says, or another table, or one that breaks a law, or tied weights that differ; VerifyError on that rank.
    """

    def __init__(
        self,
        table: PipelineTable,
        stages: Mapping[int, torch.nn.Module],
        comm: Communicator,
        *,
        loss: Loss | None = None,
        tied: Mapping[str, torch.nn.Parameter] | None = None,
    ) -> None:
        tied = {} if tied is None else tied
        broken: VerifyError | None = None
        problem = _find_problem(table, stages, comm, tied)
        try:
            verify_table(table)
        except VerifyError as error:
            broken, problem = error, f"Runner on rank {comm.rank}: {error}"
        shared = {} if problem else find_shared(table, comm.rank, stages, tied)
        said = comm.all_gather_object((problem, _digest(table), repr(table), facts_of(shared)))
        if broken is not None:
            raise broken
        for other, _, _, _ in said:
            if other:
                raise ValueError(other)
        for rank, (_, digest, text, _) in enumerate(said):
            if digest != said[0][1]:
                raise ValueError(
                    f"Runner: expected the same table on all ranks, found {said[0][2]} on rank 0 and {text} on rank "
                    f"{rank}, whose rows differ"
                )
        facts = [one for *_, one in said]
        check_facts(table, facts)
        self.table, self.stages = table, dict(stages)
        self._comm, self._loss = comm, loss
        self._operations = rank_operations(table, comm.rank)
        self._shared = SharedWeights(table, comm, shared, facts)

    def step(self, batch: Any = None, targets: Any = None) -> float:
        """Runs forward and backward of the whole table, and returns the loss on all ranks.

        The loss is the mean over the micro-batches of what `loss` returns, and the gradients, which are added to .grad,
        are those of this mean. For a loss over tokens or weights that differ between micro-batches, let `loss` divide
        by their number in the whole batch, and multiply by the number of micro-batches.

        batch: a tensor whose dim 0 the number of micro-batches divides, or a sequence of that many tensors of one shape
        and type. Only ranks that run the first stage need it. targets: the same, for the last stage; elements of a
        sequence may be anything. Other ranks may give None.

        ValueError for a wrong batch, before anything is sent. If a stage raises, the other ranks get PeerAborted, and
        the communicator can only be closed.
        """
        return self._run(self._operations, *self._microbatches("step", batch, targets), trains=True)

    def evaluate(self, batch: Any = None, targets: Any = None) -> float:
        """Returns the loss as `step` does, without gradients: runs the forwards of the table only.

        Modules stay in the mode that they are in: call eval() on them before.
        """
        forwards = [operation for operation in self._operations if operation.kind == FORWARD]
        return self._run(forwards, *self._microbatches("evaluate", batch, targets), trains=False)

    def _run(
        self, operations: Sequence[RankOperation], inputs: Sequence[Any], targets: Sequence[Any] | None, trains: bool
    ) -> float:
        messages = PipelineMessages(self.table, self._comm)
        run = TableRun(self.table, self.stages, self._loss, messages, inputs, targets, trains)
        try:
            with stream(None), torch.set_grad_enabled(trains):
                if trains:
                    self._shared.begin()
                run.run(operations)
                messages.finish()
                if trains:
                    self._shared.add_up()
                self._comm.all_reduce(run.losses)  # exact: one rank has a number, and the others 0
        except BaseException as error:
            with contextlib.suppress(CommunicationError):
                self._comm.abort(reason_of(error))
            raise
        losses: list[float] = run.losses.tolist()
        return sum(losses) / len(losses)

    def _microbatches(self, name: str, batch: Any, targets: Any) -> tuple[Sequence[Any], Sequence[Any] | None]:
        who, count = f"{name} on rank {self._comm.rank}", self.table.num_microbatches
        if batch is None:
            if any(operation.stage == 0 for operation in self._operations):
                raise ValueError(f"{who}: expected a batch, because this rank runs stage 0, found None")
            return (), _split(f"{who}: targets", targets, count)
        inputs = _split(f"{who}: batch", batch, count)
        assert inputs is not None
        kinds = [type(one).__name__ for one in inputs if not isinstance(one, torch.Tensor)]
        layouts = {(tuple(one.shape), one.dtype) for one in inputs if isinstance(one, torch.Tensor)}
        if kinds or len(layouts) > 1:
            found = (
                kinds[0] if kinds else " and ".join(f"{shape} of {dtype}" for shape, dtype in sorted(layouts, key=str))
            )
            raise ValueError(f"{who}: expected micro-batches that are tensors of one shape and type, found {found}")
        return inputs, _split(f"{who}: targets", targets, count)


def _split(what: str, x: Any, count: int) -> Sequence[Any] | None:
    """The micro-batches of a tensor, or of a sequence of them."""
    if x is None:
        return None
    if isinstance(x, torch.Tensor):
        if x.dim() == 0 or len(x) % count or len(x) == 0:
            raise ValueError(
                f"{what}: expected a tensor that {count} micro-batches divide along dim 0, found shape "
                f"{tuple(x.shape)}; leave out or repeat samples"
            )
        parts: Sequence[Any] = x.chunk(count)
        return parts
    if not isinstance(x, Sequence) or len(x) != count:
        found = f"{len(x)} of them" if isinstance(x, Sequence) else type(x).__name__
        raise ValueError(f"{what}: expected a tensor, or a sequence of {count} micro-batches, found {found}")
    return x


def _find_problem(table: PipelineTable, stages: Mapping[int, Any], comm: Communicator, tied: Mapping[str, Any]) -> str:
    """What is wrong with the arguments of this rank, or ""."""
    who = f"Runner on rank {comm.rank}: {table.name}"
    if comm.size != table.num_ranks:
        return f"{who}: expected a communicator of {table.num_ranks} ranks, as the table has, found {comm.size}"
    expected = np.unique(np.nonzero(table.placement == comm.rank)[1]).tolist()
    if not isinstance(stages, Mapping) or set(stages) != set(expected):
        found = sorted(stages, key=str) if isinstance(stages, Mapping) else type(stages).__name__
        return f"{who}: expected modules by the number of their stage, for stages {expected}, found {found}"
    for stage, module in stages.items():
        if not isinstance(module, torch.nn.Module):
            return f"{who}: expected a torch.nn.Module for stage {stage}, found {type(module).__name__}"
    here = {id(weight) for module in stages.values() for weight in module.parameters()}
    for name, weight in tied.items():
        if id(weight) not in here:
            return f"{who}: expected tied {name!r} to be a parameter of stages {expected}, found another"
    return ""


def _digest(table: PipelineTable) -> str:
    """Equal for tables that run alike."""
    columns = (table.placement, table.rank, table.position, table.kind, table.stage, table.microbatch)
    digest = hashlib.sha256(str((table.num_microbatches, table.placement.shape)).encode())
    for column in columns:
        digest.update(np.ascontiguousarray(column, np.int64).tobytes())
    return digest.hexdigest()
