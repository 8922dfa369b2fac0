"""A pipeline computes what one process computes: to the bit, if it adds up the micro-batches in the same order."""

import itertools
import os
import random
import signal
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hocket
from hocket.errors import PeerAborted, PeerDied, VerifyError
from hocket.training.pipeline import SCHEDULES, PipelineTable, Runner, build_table, forward, full, verify_table
from hocket.training.pipeline import backward as backward_of
from tests.training.pipeline.pipeline_world import mutate, operations_of, table_from
from tests.training.test_data import on_ranks

WIDTH, SAMPLES = 5, 3  # samples of a micro-batch
DTYPES = [torch.float32, torch.float64]
_seeding = threading.Lock()  # held by the rank that draws weights: the generator belongs to the process

Gradients = dict[tuple[int, int, str], Any]
"""By rank, stage and name of the parameter."""


@pytest.fixture(autouse=True)
def one_thread_per_rank() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_stage(stage: int, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Equal weights on each call; some of them are used twice."""
    with _seeding:
        torch.manual_seed(stage)
        layers = nn.Linear(WIDTH, WIDTH + 2), nn.Tanh(), nn.Linear(WIDTH + 2, WIDTH), nn.LayerNorm(WIDTH)
        return nn.Sequential(*layers).to(dtype)


def make_data(m: int, dtype: torch.dtype = torch.float64, seed: int = 0, samples: int = SAMPLES) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(100 + seed)
    return tuple(torch.randn(m * samples, WIDTH, generator=generator, dtype=dtype) for _ in range(2))  # type: ignore[return-value]


def placed(table: PipelineTable, rank: int) -> list[int]:
    return np.unique(np.nonzero(table.placement == rank)[1]).tolist()


def squares(y: Any, target: Any) -> Any:
    return ((y - target) ** 2).mean()


def through(modules: list[nn.Module], x: Any) -> Any:
    for module in modules:
        x = module(x)
    return x


def one_process(
    table: PipelineTable, modules: list[nn.Module], x: Any, y: Any, loss: Any = squares
) -> tuple[Gradients, float]:
    """Gradients of one process that adds up micro-batches in the order in which the table has W and G on each rank.

    Each micro-batch goes through all stages, and back, at once. Where a stage is on two ranks, the lower one is first.
    """
    m = table.num_microbatches
    names = [(stage, *pair) for stage, module in enumerate(modules) for pair in module.named_parameters()]
    trained = [(stage, name, one) for stage, name, one in names if one.requires_grad]
    values, losses = [], []
    for part, target in zip(x.chunk(m), y.chunk(m), strict=True):
        value = loss(through(modules, part), target)
        losses.append(value.item())
        if trained:
            found = torch.autograd.grad(value / m, [one for _, _, one in trained], allow_unused=True)
        values.append({(stage, name): g for (stage, name, _), g in zip(trained, found, strict=True)} if trained else {})
    sums: Gradients = {}
    for rank, rows in enumerate(operations_of(table)):
        for kind, stage, microbatch, _ in rows:
            for (where, name), gradient in values[microbatch].items() if kind in "WG" else ():
                if where == stage and gradient is not None:
                    key = rank, stage, name
                    sums[key] = sums[key] + gradient if key in sums else gradient
    for stage, name, _ in names:
        homes = sorted(rank for rank, where, what in sums if (where, what) == (stage, name))
        total = sum_of([sums[rank, stage, name] for rank in homes])
        sums |= {(rank, stage, name): total for rank in homes}
    return sums, sum(losses) / m


def sum_of(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else sum_of([parts[0] + parts[1], *parts[2:]]) if parts else None


def gradients_of(runner: Runner, rank: int) -> Gradients:
    return {
        (rank, stage, name): one.grad.clone()
        for stage, module in runner.stages.items()
        for name, one in module.named_parameters()
        if one.grad is not None
    }


Stages = Callable[[int], nn.Module]
Program = Callable[[Runner, Any], Any]


def on_pipeline(
    table: PipelineTable, program: Program, make: Stages = make_stage, loss: Any = squares, tied: Any = None
) -> list[Any]:
    """What a program returns on each rank; it gets the runner and the communicator. tied: from stages to `tied`."""
    made = threading.Barrier(table.num_ranks)  # a rank that fails early must not end the construction on others

    def rank(comm: Any) -> Any:
        stages = {stage: make(stage) for stage in placed(table, comm.rank)}
        runner = Runner(table, stages, comm, loss=loss, tied=tied(stages) if tied else None)
        made.wait(timeout=60)
        return program(runner, comm)

    return on_ranks(rank, table.num_ranks)


def train_once(
    table: PipelineTable, x: Any, y: Any, make: Stages = make_stage, loss: Any = squares, tied: Any = None
) -> tuple[Gradients, list[float]]:
    """The gradients of all ranks after one step, and the losses."""

    def program(runner: Runner, comm: Any) -> tuple[Gradients, float]:
        value = runner.step(x, y)
        return gradients_of(runner, comm.rank), value

    ranks = on_pipeline(table, program, make, loss, tied)
    return {key: one for gradients, _ in ranks for key, one in gradients.items()}, [value for _, value in ranks]


def assert_equal_bits(found: Gradients, expected: Gradients) -> None:
    assert found.keys() == expected.keys() and found
    for key, gradient in expected.items():
        assert found[key].dtype == gradient.dtype
        assert torch.equal(found[key], gradient), f"rank, stage, name {key}"


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
FEW = [build_table(name, 4, 8) for name in SCHEDULES] + [build_table("zb-h1", 3, 2)]
few = pytest.mark.parametrize("table", FEW, ids=lambda table: f"{table.name}-{table.num_ranks}")


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
    """An output lives from F to W or G: so many are alive when a stage runs, as the proof says, and no more."""
    x, y = make_data(table.num_microbatches)

    def program(runner: Runner, comm: Any) -> int:
        alive: weakref.WeakSet[Any] = weakref.WeakSet()
        peak = 0

        class Counted(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, value: Any) -> Any:
                nonlocal peak
                alive.add(ctx)
                peak = max(peak, len(alive))
                return value.clone()

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                return gradient

        for stage in runner.stages.values():
            stage.register_forward_hook(lambda _module, _inputs, output: Counted.apply(output))
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
    assert "send" not in first + last and first.count("recv") == 0 and last.count("recv") == 1  # of the first shape
    assert first[:4] == ["F", "isend", "isend", "irecv"] and first.count("irecv") == first.count("F") == 6
    # The last rank runs F and then G; the receive of the next F begins before G, which sends.
    assert last == ["recv", "irecv", *["F", "irecv", "isend"] * 5, "F", "isend"]


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


# Failures -----------------------------------------------------------------------------------------------------------


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
