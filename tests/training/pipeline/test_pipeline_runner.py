"""A pipeline computes what one process computes: to the bit, if it adds up the micro-batches in the same order."""

import itertools
import random
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hocket.errors import VerifyError
from hocket.training.pipeline import (
    SCHEDULES,
    PipelineTable,
    Runner,
    build_table,
    forward,
    full,
    read_torch_csv,
    verify_table,
    write_torch_csv,
)
from hocket.training.pipeline import backward as backward_of
from tests.training.pipeline.pipeline_world import mutate, operations_of, table_from
from tests.training.pipeline.runner_cases import (
    DTYPES,
    SAMPLES,
    WIDTH,
    Gradients,
    assert_equal_bits,
    few,
    gradients_of,
    make_data,
    make_stage,
    on_pipeline,
    one_process,
    placed,
    squares,
    through,
    train_once,
)
from tests.training.test_data import on_ranks
from tests.training.test_data_parallel import seeded

pytestmark = pytest.mark.usefixtures("one_thread_per_rank")


def defined(counts: tuple[int, ...]) -> Iterator[Any]:
    """Every schedule for 2, 3 and 4 ranks and so many micro-batches, where it is defined, with 1 to 3 chunks."""
    for name, p, m, chunks in itertools.product(SCHEDULES, (2, 3, 4), counts, (1, 2, 3)):
        if chunks > 1 and SCHEDULES[name].chunks is not None:
            continue
        try:
            table = build_table(name, p, m, chunks if SCHEDULES[name].chunks is None else None)
        except ValueError:
            continue
        yield pytest.param(table, id=f"{name}-{p}-{m}-{chunks}")


TABLES = list(defined((1, 2, 5, 8)))


def test_all_schedules_are_among_the_tables() -> None:
    names = Counter((one.values[0].name, one.values[0].num_ranks) for one in TABLES)
    assert names.keys() == set(itertools.product(SCHEDULES, (2, 3, 4))) - {("dualpipe", 3)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("table", TABLES)
def test_gradients_have_the_bits_of_one_process(table: PipelineTable, dtype: torch.dtype) -> None:
    x, y = make_data(table.num_microbatches, dtype)
    found, losses = train_once(table, x, y, lambda stage: make_stage(stage, dtype))
    modules = [make_stage(stage, dtype) for stage in range(table.num_stages)]
    expected, loss = one_process(table, modules, x, y)
    assert_equal_bits(found, expected)
    assert losses == [loss] * table.num_ranks
    whole = squares(through(modules, x), y)
    whole.backward()
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    assert loss == pytest.approx(whole.item(), rel=tolerance)
    for (_, stage, name), gradient in found.items():
        other = modules[stage].get_parameter(name).grad
        assert (gradient - other).abs().max() <= tolerance * other.abs().max().clamp(min=1e-3)


@few
@pytest.mark.parametrize("clears", [True, False])
def test_steps_in_a_row_are_those_of_one_process(table: PipelineTable, clears: bool) -> None:
    """Without zero_grad, each step adds to the gradients of the steps before."""
    data = [make_data(table.num_microbatches, seed=step) for step in range(3)]

    def program(runner: Runner, comm: Any) -> tuple[Gradients, list[float]]:
        optimizer = torch.optim.SGD([one for stage in runner.stages.values() for one in stage.parameters()], lr=0.1)
        losses = []
        for x, y in data:
            losses.append(runner.step(x, y))
            optimizer.step()
            if clears:
                optimizer.zero_grad()
        weights = {
            (comm.rank, stage, name): one.detach()
            for stage, module in runner.stages.items()
            for name, one in module.named_parameters()
        }
        return weights, losses

    modules = [make_stage(stage) for stage in range(table.num_stages)]
    optimizer = torch.optim.SGD([one for module in modules for one in module.parameters()], lr=0.1)
    expected = []
    for x, y in data:
        loss = squares(through(modules, x), y)
        loss.backward()
        optimizer.step()
        if clears:
            optimizer.zero_grad()
        expected.append(loss.item())
    for weights, losses in on_pipeline(table, program):
        assert losses == pytest.approx(expected, rel=1e-10)
        for (_, stage, name), weight in weights.items():
            assert torch.allclose(weight, modules[stage].get_parameter(name), rtol=1e-10, atol=1e-12)


@few
def test_the_second_step_has_the_bits_of_the_first(table: PipelineTable) -> None:
    """Nothing of a step is left over; a batch of another size in between changes shapes."""
    x, y = make_data(table.num_microbatches)
    more = make_data(table.num_microbatches, samples=2 * SAMPLES)

    def program(runner: Runner, comm: Any) -> tuple[Gradients, ...]:
        found = []
        for batch, targets in ((x, y), more, (x, y)):
            for module in runner.stages.values():
                module.zero_grad()
            runner.step(batch, targets)
            found.append(gradients_of(runner, comm.rank))
        return tuple(found)

    for first, between, second in on_pipeline(table, program):
        assert_equal_bits(second, first)
        assert any(not torch.equal(between[key], first[key]) for key in first)


class Embedding(nn.Module):
    """The first stage: rows of the weight."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, tokens: Any) -> Any:
        return self.weight[tokens]


class Prediction(Embedding):
    """The last stage: the likelihood of each row of the weight."""

    def forward(self, x: Any) -> Any:
        return torch.tanh(x) @ self.weight.T


def new_weight() -> nn.Parameter:
    return nn.Parameter(torch.randn(11, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64))


@few
def test_tied_embeddings_have_the_gradient_of_both_uses(table: PipelineTable) -> None:
    generator = torch.Generator().manual_seed(5)
    tokens, targets = (torch.randint(11, (table.num_microbatches * SAMPLES,), generator=generator) for _ in range(2))
    last = table.num_stages - 1

    def program(comm: Any) -> tuple[Gradients, Any]:
        weight = new_weight()
        if comm.rank == table.num_ranks - 1:
            weight.data.add_(1)  # until the runner makes them equal
        ends = {0: Embedding(weight), last: Prediction(weight)}
        stages = {stage: ends.get(stage) or make_stage(stage) for stage in placed(table, comm.rank)}
        alone = table.placement.shape[0] == 1 and {0, last} <= set(stages)  # then the parameter itself is shared
        tied = {"embedding": weight} if not alone and {0, last} & set(stages) else {}
        runner = Runner(table, stages, comm, loss=nn.functional.cross_entropy, tied=tied)
        for _ in range(2):
            runner.step(tokens, targets)
        return gradients_of(runner, comm.rank), weight.detach()

    ranks = on_ranks(program, table.num_ranks)
    weight = new_weight()
    modules = [Embedding(weight), *(make_stage(stage) for stage in range(1, last)), Prediction(weight)]
    for _ in range(2):
        nn.functional.cross_entropy(through(modules, tokens), targets).backward()
    uses = set()
    for rank, (gradients, begun) in enumerate(ranks):
        for (_, stage, name), gradient in gradients.items():
            expected = modules[stage].get_parameter(name).grad
            assert (gradient - expected).abs().max() <= 1e-10 * expected.abs().max()
            if stage in (0, last):
                assert torch.equal(begun, new_weight())
                uses.add((rank, stage, gradient.numpy().tobytes()))
    assert len({stage for _, stage, _ in uses}) == 2 and len({gradient for *_, gradient in uses}) == 1


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tied_gradients_are_added_in_the_order_of_ranks(schedule: str, dtype: torch.dtype) -> None:
    table = build_table(schedule, 3, 4)
    x, y = make_data(4, dtype)

    def tied(stages: dict[int, Any]) -> dict[str, Any]:
        [(stage, module)] = stages.items()
        return {} if stage == 1 else {"first": module[0].weight}

    def make(stage: int) -> nn.Module:
        made = make_stage(stage, dtype)
        if stage == 2:
            made[0].weight.data.copy_(make_stage(0, dtype)[0].weight)
        return made

    found, _ = train_once(table, x, y, make, tied=tied)
    expected, _ = one_process(table, [make(stage) for stage in range(3)], x, y)
    both = expected[0, 0, "0.weight"] + expected[2, 2, "0.weight"]
    assert_equal_bits(found, expected | {(0, 0, "0.weight"): both, (2, 2, "0.weight"): both})


@few
@pytest.mark.parametrize("frozen", [{0}, {1}, {"last"}, {0, 1}], ids=str)
def test_frozen_stages_get_no_gradient_and_pass_on_that_of_others(table: PipelineTable, frozen: set[Any]) -> None:
    names = {table.num_stages - 1 if stage == "last" else stage for stage in frozen}

    def make(stage: int) -> nn.Module:
        return make_stage(stage).requires_grad_(stage not in names)

    x, y = make_data(table.num_microbatches)
    found, _ = train_once(table, x, y, make)
    expected, _ = one_process(table, [make(stage) for stage in range(table.num_stages)], x, y)
    assert_equal_bits(found, expected)
    assert {stage for _, stage, _ in found} == set(range(table.num_stages)) - names


@few
def test_a_pipeline_without_anything_to_train_has_a_loss(table: PipelineTable) -> None:
    x, y = make_data(table.num_microbatches)
    gradients, losses = train_once(table, x, y, lambda stage: make_stage(stage).requires_grad_(False))
    modules = [make_stage(stage) for stage in range(table.num_stages)]
    assert gradients == {} and losses == [one_process(table, modules, x, y)[1]] * table.num_ranks


class Odd(nn.Module):
    """A stage with a weight that it does not use; its result depends on its input, or on its other weight alone."""

    def __init__(self, passes: bool) -> None:
        super().__init__()
        self.used, self.unused = (nn.Parameter(torch.ones(WIDTH, dtype=torch.float64)) for _ in range(2))
        self._passes = passes

    def forward(self, x: Any) -> Any:
        return x if self._passes else x.detach() * self.used


@few
@pytest.mark.parametrize("passes", [True, False])
def test_odd_stages(table: PipelineTable, passes: bool) -> None:
    """A stage that returns its input, or cuts the history: stages before it get gradients of 0."""

    def make(stage: int) -> nn.Module:
        return Odd(passes) if stage == 1 else make_stage(stage)

    x, y = make_data(table.num_microbatches)
    found, _ = train_once(table, x, y, make)
    expected, _ = one_process(table, [make(stage) for stage in range(table.num_stages)], x, y)
    if not passes:
        before = {key: one for key, one in found.items() if key[1] == 0}
        assert before and all(not one.any() for one in before.values())
        found = {key: one for key, one in found.items() if key[1] > 0}
    assert_equal_bits(found, expected)


@few
def test_evaluation_leaves_no_gradients_and_no_history(table: PipelineTable) -> None:
    x, y = make_data(table.num_microbatches, samples=2)

    def program(runner: Runner, comm: Any) -> tuple[float, float, float]:
        seen: list[Any] = []
        for module in runner.stages.values():
            module.register_forward_hook(lambda _module, _inputs, output: seen.append(output.requires_grad))
        before = runner.evaluate(x, y)
        assert gradients_of(runner, comm.rank) == {} and seen and not any(seen)
        trained = runner.step(*make_data(table.num_microbatches))
        gradients = gradients_of(runner, comm.rank)
        after = runner.evaluate(x, y)
        assert_equal_bits(gradients_of(runner, comm.rank), gradients)
        return before, trained, after

    modules = [make_stage(stage) for stage in range(table.num_stages)]
    expected, trained = (one_process(table, modules, *data)[1] for data in ((x, y), make_data(table.num_microbatches)))
    assert on_pipeline(table, program) == [(expected, trained, expected)] * table.num_ranks


@few
def test_memory_of_activations_is_what_was_proved(table: PipelineTable) -> None:
    """What W needs lives from F to W or G: so many are alive when a stage runs, as the proof says, and no more."""
    x, y = make_data(table.num_microbatches)

    def program(runner: Runner, comm: Any) -> int:
        alive: weakref.WeakSet[Any] = weakref.WeakSet()
        peak = 0

        class Counted(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, value: Any, weight: Any) -> Any:
                nonlocal peak
                alive.add(ctx)
                peak = max(peak, len(alive))
                return value.clone()

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                return gradient, None

        weight = torch.ones((), requires_grad=True)
        for stage in runner.stages.values():
            stage.register_forward_hook(lambda _module, _inputs, output: Counted.apply(output, weight))
        runner.step(x, y)
        assert not alive
        return peak

    assert on_pipeline(table, program) == verify_table(table).peak_until_weight.tolist()


class Recording:
    """A communicator that notes what a rank begins."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.notes = comm, []

    def __getattr__(self, name: str) -> Any:
        if name in ("irecv", "isend", "send", "recv"):
            self.notes.append(name)
        return getattr(self.comm, name)


def test_receives_are_posted_before_the_operation_that_comes_before_them() -> None:
    table = build_table("1f1b", 2, 6)
    x, y = make_data(6)

    def program(comm: Any) -> list[str]:
        recording = Recording(comm)
        stage = make_stage(comm.rank)
        stage.register_forward_hook(lambda *_: recording.notes.append("F"))
        runner = Runner(table, {comm.rank: stage}, recording, loss=squares)  # type: ignore[arg-type]
        runner.step(x, y)
        return recording.notes

    first, last = on_ranks(program, 2)
    # Once in each direction a rank receives a layout and then its message; the others are posted one operation ahead.
    assert first == ["F", "isend", "isend", "F", "isend", "recv", "irecv", *["irecv", "F", "isend"] * 4, "irecv"]
    assert last == ["recv", "irecv", "F", "irecv", "isend", "isend", *["F", "irecv", "isend"] * 4, "F", "isend"]


@few
def test_long_messages_are_no_deadlock(table: PipelineTable) -> None:
    """These wait for their receive, with which 1F1B would hang if sends blocked."""
    x, y = make_data(table.num_microbatches, samples=8000)  # 320 KB a message
    found, _ = train_once(table, x, y)
    assert_equal_bits(found, one_process(table, [make_stage(stage) for stage in range(table.num_stages)], x, y)[0])


def proved_mutants(count: int) -> list[Any]:
    rng, found = random.Random(7), []
    while len(found) < count:
        source = build_table(rng.choice(["1f1b-interleaved", "zb-h1", "zbv", "zb-h2"]), 3, 4)
        ranks = operations_of(source)
        for _ in range(rng.randrange(1, 9)):
            mutant = mutate(ranks, 4, rng)
            table = None
            try:
                table = table_from(mutant, source.placement, 4)
                verify_table(table)
            except (ValueError, VerifyError):
                continue
            ranks = mutant
        if ranks != operations_of(source):
            found.append(table_from(ranks, source.placement, 4))
    return found


@pytest.mark.parametrize("table", proved_mutants(12), ids=lambda _: "mutant")
def test_any_proved_table_runs(table: PipelineTable) -> None:
    x, y = make_data(4)
    found, _ = train_once(table, x, y)
    assert_equal_bits(found, one_process(table, [make_stage(stage) for stage in range(table.num_stages)], x, y)[0])


def test_the_order_of_the_table_decides_the_bits() -> None:
    def reversed_gpipe(rank: int, p: int, m: int, v: int) -> list[np.ndarray]:
        return [forward(rank, m).take(), full(backward_of(rank, m).take())[::-1]]

    x, y = make_data(8, torch.float32)
    modules = [make_stage(stage, torch.float32) for stage in range(2)]
    results = []
    for schedule in ("gpipe", reversed_gpipe):
        table = build_table(schedule, 2, 8)
        found, _ = train_once(table, x, y, lambda stage: make_stage(stage, torch.float32))
        assert_equal_bits(found, one_process(table, modules, x, y)[0])
        results.append(found)
    assert any(not torch.equal(results[0][key], results[1][key]) for key in results[0])


def test_microbatches_in_a_list_and_a_loss_that_the_last_stage_returns() -> None:
    table = build_table("1f1b", 2, 4)
    x, y = make_data(4)

    class Squares(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x**2).mean()

    def make(stage: int) -> nn.Module:
        return make_stage(stage) if stage == 0 else nn.Sequential(make_stage(stage), Squares())

    def program(runner: Runner, comm: Any) -> tuple[Gradients, float]:
        loss = runner.step(list(x.chunk(4)) if comm.rank == 0 else None)
        return gradients_of(runner, comm.rank), loss

    ranks = on_pipeline(table, program, make, loss=None)
    expected, loss = one_process(table, [make(stage) for stage in range(2)], x, y, loss=lambda value, _: value)
    assert_equal_bits({**ranks[0][0], **ranks[1][0]}, expected)
    assert [value for _, value in ranks] == [loss] * 2

    def labelled(runner: Runner, comm: Any) -> float:
        return runner.step(x if comm.rank == 0 else None, ["a", "b", "a", "b"] if comm.rank == 1 else None)

    losses = on_pipeline(table, labelled, loss=lambda value, label: value.sum() * 0 + "ab".index(label))
    assert losses == [0.5, 0.5]


@pytest.mark.parametrize("messages", [False, True])
def test_tables_of_torch_run(messages: bool, tmp_path: Path) -> None:
    source = build_table("1f1b-interleaved", 2, 4)
    write_torch_csv(source, tmp_path / "table.csv", messages=messages)
    table = read_torch_csv(tmp_path / "table.csv")
    x, y = make_data(4)
    assert_equal_bits(train_once(table, x, y)[0], train_once(source, x, y)[0])


class Turned(nn.Module):
    """Turns its input, so that its result does not lie in one piece."""

    def forward(self, x: Any) -> Any:
        return x.T


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, *DTYPES], ids=str)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("turned", ["result", "gradient"])
def test_types_and_results_that_are_not_contiguous(turned: str, schedule: str, dtype: torch.dtype) -> None:
    """Kernels round differently for other orders of dims in memory, so these travel with the messages."""
    samples = 50

    def make(stage: int) -> nn.Module:
        if turned == "result":
            parts = make_stage(stage, dtype), Turned()
            return nn.Sequential(*(parts if stage == 0 else parts[::-1]))
        layer = seeded(lambda: nn.Linear(WIDTH, WIDTH).to(dtype), stage)
        return layer if stage == 0 else nn.Sequential(Turned(), nn.LayerNorm(samples).to(dtype), Turned(), layer)

    table = build_table(schedule, 2, 4)
    x, y = make_data(4, dtype, samples=samples)
    found, losses = train_once(table, x, y, make)
    expected, loss = one_process(table, [make(0), make(1)], x, y)
    assert_equal_bits(found, expected)
    assert losses == [loss] * 2
