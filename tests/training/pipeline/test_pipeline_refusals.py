"""What a pipeline refuses, and what its ranks are told if one of them fails: nothing hangs."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hocket
from hocket.errors import PeerAborted, PeerDied, VerifyError
from hocket.training.pipeline import Runner, build_table
from tests.training.pipeline.pipeline_world import operations_of, table_from
from tests.training.pipeline.runner_cases import DTYPES, WIDTH, make_data, make_stage, on_pipeline, squares
from tests.training.test_data import on_ranks

pytestmark = pytest.mark.usefixtures("one_thread_per_rank")


class Failing(nn.Module):
    """Raises in the forward of its third micro-batch, in its first backward, or never, as `fails` says."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage, self.fails, self._count = stage, "never", 0

    def forward(self, x: Any) -> Any:
        self._count += 1
        y = self.stage(x)
        if self.fails == "forward" and self._count == 3:
            raise ArithmeticError("no more")
        if self.fails == "backward":
            y.register_hook(self._raise)
        return y

    def _raise(self, _: Any) -> None:
        raise ArithmeticError("no more")


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("schedule", ["1f1b", "zbv", "dualpipe"])
@pytest.mark.parametrize("culprit", [0, 1, 3])
def test_a_rank_that_raises_in_a_stage_is_named_on_the_others(schedule: str, where: str, culprit: int) -> None:
    table = build_table(schedule, 4, 8)
    x, y = make_data(8)

    def program(runner: Runner, comm: Any) -> list[BaseException]:
        for module in runner.stages.values():
            module.fails = where if comm.rank == culprit else "never"
        errors: list[BaseException] = []
        for _ in range(2):
            with pytest.raises((ArithmeticError, PeerAborted)) as caught:
                runner.step(x, y)
            errors.append(caught.value)
        return errors

    for rank, (error, again) in enumerate(on_pipeline(table, program, lambda stage: Failing(make_stage(stage)))):
        if rank == culprit:
            kinds = "F" if where == "forward" else "BG"
            [note] = error.__notes__
            assert isinstance(error, ArithmeticError) and note.removeprefix("in ")[0] in kinds
            assert note.endswith(f"of pipeline {schedule}")
        else:
            assert isinstance(error, PeerAborted) and error.rank == culprit and "no more" in error.reason
        assert isinstance(again, PeerAborted)  # nothing hangs, and no half step is made


def die_in_a_stage(folder: str) -> None:
    class Dying(nn.Module):
        def forward(self, x: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)
            return x

    table = build_table("1f1b", 3, 4)
    with hocket.init() as comm:
        runner = Runner(table, {comm.rank: Dying() if comm.rank == 1 else make_stage(comm.rank)}, comm, loss=squares)
        try:
            runner.step(*make_data(4))
        except PeerDied as error:
            Path(folder, str(comm.rank)).write_text(str(error.rank))
            raise


@pytest.mark.slow("starts three processes, which import PyTorch")
def test_a_rank_that_dies_in_a_stage_is_named_on_the_others(tmp_path: Path) -> None:
    with pytest.raises(PeerDied, match=r"rank 1 of 3 .* was killed by SIGKILL"):
        hocket.run_ranks(die_in_a_stage, 3, args=(str(tmp_path),), kind="process")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"0": "1", "2": "1"}


def refusal(program: Callable[[Any], Any], size: int) -> str:
    """The text of the ValueError that all ranks raise; the communicator is usable afterwards."""

    def rank(comm: Any) -> str:
        with pytest.raises(ValueError) as caught:
            program(comm)
        comm.barrier()
        return str(caught.value)

    [text] = set(on_ranks(rank, size))
    return text


@pytest.mark.parametrize(
    ("stages_of", "expected"),
    [
        (
            lambda rank: {rank: make_stage(rank)} if rank != 1 else {2: make_stage(2)},
            "Runner on rank 1: 1f1b: expected modules by the number of their stage, for stages [1], found [2]",
        ),
        (
            lambda rank: {rank: make_stage(rank)} if rank != 2 else {},
            "Runner on rank 2: 1f1b: expected modules by the number of their stage, for stages [2], found []",
        ),
        (
            lambda rank: {rank: make_stage(rank)} if rank != 2 else make_stage(2),
            "Runner on rank 2: 1f1b: expected modules by the number of their stage, for stages [2], found Sequential",
        ),
        (
            lambda rank: {rank: make_stage(rank) if rank else torch.tanh},
            "Runner on rank 0: 1f1b: expected a torch.nn.Module for stage 0, found builtin_function_or_method",
        ),
    ],
)
def test_wrong_stages_are_refused_on_all_ranks(stages_of: Callable[[int], Any], expected: str) -> None:
    table = build_table("1f1b", 3, 4)
    assert refusal(lambda comm: Runner(table, stages_of(comm.rank), comm), 3) == expected


def test_a_table_for_other_ranks_and_tables_that_differ_are_refused() -> None:
    def smaller(comm: Any) -> None:
        Runner(build_table("1f1b", 2, 4), {comm.rank: make_stage(comm.rank)}, comm)

    text = refusal(smaller, 3)
    assert text == "Runner on rank 0: 1f1b: expected a communicator of 2 ranks, as the table has, found 3"

    def differing(comm: Any) -> None:
        table = build_table("gpipe" if comm.rank == 2 else "1f1b", 3, 4)
        Runner(table, {comm.rank: make_stage(comm.rank)}, comm)

    text = refusal(differing, 3)
    assert "expected the same table on all ranks" in text
    assert (
        "1f1b: 3 ranks" in text and "<PipelineTable gpipe: 3 ranks, 3 stages, 4 micro-batches, 24 operations>" in text
    )


def test_a_table_that_breaks_a_law_is_not_run() -> None:
    source = build_table("1f1b", 2, 4)
    rows = operations_of(source)
    rows[1][0], rows[1][1] = rows[1][1], rows[1][0]
    table = table_from(rows, source.placement, 4)

    def program(comm: Any) -> int:
        with pytest.raises(VerifyError) as caught:
            Runner(table, {comm.rank: make_stage(comm.rank)}, comm)
        return caught.value.law

    assert on_ranks(program, 2) == [2, 2]

    def on_one(comm: Any) -> str:
        with pytest.raises((VerifyError, ValueError)) as caught:
            Runner(table if comm.rank == 1 else source, {comm.rank: make_stage(comm.rank)}, comm)
        return f"{type(caught.value).__name__} {caught.value}"

    first, second = on_ranks(on_one, 2)
    assert first.startswith("ValueError Runner on rank 1: law 2") and second.startswith("VerifyError law 2")


def test_tied_weights_that_do_not_fit_are_refused_on_all_ranks() -> None:
    table = build_table("1f1b", 3, 4)

    def run(tied: Callable[[int, nn.Module], dict[str, Any]]) -> str:
        def program(comm: Any) -> None:
            stage = make_stage(comm.rank)
            Runner(table, {comm.rank: stage}, comm, tied=tied(comm.rank, stage))

        return refusal(program, 3)

    text = run(lambda rank, stage: {"embedding": stage[0].weight} if rank == 2 else {})
    assert "expected 'tied embedding' on two ranks, found it on rank 2 alone; give it on each rank" in text
    text = run(lambda rank, stage: {"embedding": stage[2 * (rank // 2)].weight} if rank != 1 else {})
    assert "to have the same shape, type and requires_grad on all ranks" in text and "on rank 2" in text
    text = run(lambda rank, stage: {"embedding": make_stage(7)[0].weight} if rank == 1 else {})
    assert text == "Runner on rank 1: 1f1b: expected tied 'embedding' to be a parameter of stages [1], found another"


def test_replicas_of_a_stage_must_be_alike() -> None:
    table = build_table("dualpipe", 2, 4)

    def program(comm: Any) -> None:
        stages = {stage: make_stage(stage, DTYPES[comm.rank * stage]) for stage in (0, 1)}
        Runner(table, stages, comm)

    assert "dualpipe: expected 'stage 1, 0.bias' to have the same shape, type" in refusal(program, 2)


@pytest.mark.parametrize(
    ("batch", "targets", "expected"),
    [
        (torch.ones(10, WIDTH), None, "batch: expected a tensor that 4 micro-batches divide along dim 0, found shape"),
        (torch.ones(()), None, "batch: expected a tensor that 4 micro-batches divide along dim 0, found shape ()"),
        (torch.ones(8, WIDTH), torch.ones(9), "targets: expected a tensor that 4 micro-batches divide"),
        ([torch.ones(2)] * 3, None, "batch: expected a tensor, or a sequence of 4 micro-batches, found 3 of them"),
        (
            [torch.ones(2)] * 3 + [torch.ones(1)],
            None,
            ": expected micro-batches that are tensors of one shape and type",
        ),
        ([1.0] * 4, None, ": expected micro-batches that are tensors of one shape and type, found float"),
        (7, None, "batch: expected a tensor, or a sequence of 4 micro-batches, found int"),
    ],
)
def test_a_wrong_batch_is_refused_before_anything_is_sent(batch: Any, targets: Any, expected: str) -> None:
    def program(runner: Runner, comm: Any) -> float:
        for call, name in ((runner.step, "step"), (runner.evaluate, "evaluate")):
            with pytest.raises(ValueError) as caught:
                call(batch, targets)
            assert str(caught.value).startswith(f"{name} on rank {comm.rank}") and expected in str(caught.value)
        return runner.step(*make_data(4))

    assert len(set(on_pipeline(build_table("1f1b", 2, 4), program))) == 1


def test_the_first_stage_needs_a_batch() -> None:
    def program(runner: Runner, comm: Any) -> None:
        if comm.rank == 0:
            with pytest.raises(ValueError, match="step on rank 0: expected a batch, because this rank runs stage 0"):
                runner.step()
        runner.step(make_data(4)[0] if comm.rank == 0 else None, make_data(4)[1] if comm.rank == 1 else None)

    on_pipeline(build_table("1f1b", 2, 4), program)


def assert_ended(comm: Any) -> None:
    with pytest.raises(PeerAborted):
        comm.barrier()


class Giving(nn.Module):
    """A stage that gives what a function makes of the number of the micro-batch and its input."""

    def __init__(self, make: Callable[[int, Any], Any]) -> None:
        super().__init__()
        self._make, self._count = make, 0

    def forward(self, x: Any) -> Any:
        self._count += 1
        return self._make(self._count - 1, x)


@pytest.mark.parametrize(
    ("stage", "make", "kind", "expected"),
    [
        (1, lambda n, x: (x, x), TypeError, "F of stage 1, micro-batch 0: expected a stage that returns one tensor"),
        (1, lambda n, x: x.long(), ValueError, "rank 1, F of stage 1, micro-batch 0: expected a result of floating-p"),
        (0, lambda n, x: x.view(3, *[1] * 7, -1), ValueError, "with at most 8 dims, found torch.float64 on cpu of sh"),
        (
            0,
            lambda n, x: x[: 3 - n],
            ValueError,
            "rank 0, F of stage 0, micro-batch 1: expected a result of shape (3, 5) and torch.float64, as in the "
            "micro-batch before, found (2, 5)",
        ),
        (2, lambda n, x: x[:, :2], RuntimeError, "size"),
    ],
)
def test_a_stage_that_gives_something_else(stage: int, make: Any, kind: type[Exception], expected: str) -> None:
    def program(runner: Runner, comm: Any) -> None:
        with pytest.raises(kind if comm.rank == stage else PeerAborted) as caught:
            runner.step(*make_data(4))
        if comm.rank == stage:
            assert expected in str(caught.value)
        else:
            assert caught.value.rank == stage
        assert_ended(comm)

    on_pipeline(
        build_table("1f1b", 3, 4), program, lambda number: Giving(make) if number == stage else make_stage(number)
    )


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (None, "expected the last stage to return a tensor with one element, found shape (3, 5); give loss= to Runner"),
        (lambda y, target: y, "expected loss to return a tensor with one element, found shape (3, 5)"),
        (lambda y, target: 1.0, "expected loss to return a tensor with one element, found float"),
    ],
)
def test_a_loss_has_one_element(loss: Any, expected: str) -> None:
    def program(runner: Runner, comm: Any) -> None:
        with pytest.raises(ValueError if comm.rank == 1 else PeerAborted) as caught:
            runner.step(*make_data(4))
        assert expected in str(caught.value)
        assert_ended(comm)

    on_pipeline(build_table("1f1b", 2, 4), program, loss=loss)
