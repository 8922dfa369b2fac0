"""Mutation: break one row of a built-in schedule, or its plans: one dependency, one number. Verify must notice.

Verify does not decide what is broken: for a schedule, the reference does on random data; for plans, 500 random
interleavings do. Algorithms and kinds of mutation take turns. `make mutation` tries more mutants than the test, and
writes docs/reports/mutation.md: python -m tests.schedule.mutants [NUMBER] [--seed SEED] [--output FILE]
"""

import argparse
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from hocket.algorithms import ALGORITHMS
from hocket.errors import ScheduleError
from hocket.schedule import (
    Plan,
    Reduction,
    Repeat,
    Schedule,
    Step,
    check_plans,
    find_collective,
    lower_all,
    premul_sum,
    reference,
    verify,
)
from hocket.schedule.interpreter import Interpreter
from tests.schedule.promise import even_lengths, input_sizes, named_lengths, promised_outputs
from tests.schedule.random_schedules import random_inputs
from tests.schedule.small_algorithms import SMALL

INTERLEAVINGS = 500
ARRAYS = ("instructions", "sources", "destinations", "dependencies")
Inputs = list[np.ndarray | None]
Key = tuple[str, str]
Mutation = Callable[[list[Step], int, int, Schedule, random.Random], None]


@dataclass
class Score:
    """Counts by (kind of mutation, algorithm): broken mutants, caught ones of them; harmless ones, refused of them."""

    broken: Counter[tuple[str, str]] = field(default_factory=Counter)
    caught: Counter[tuple[str, str]] = field(default_factory=Counter)
    harmless: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)

    def count(self, kind: str, key: Key, broken: bool, rejected: bool, where: str) -> None:
        column = kind, " ".join(key)
        (self.broken if broken else self.harmless)[column] += 1
        if rejected:
            (self.caught if broken else self.refused)[column] += 1
        elif broken:
            self.missed.append(f"{kind}: {' '.join(key)}, {where}")

    def __add__(self, other: "Score") -> "Score":
        names = ("broken", "caught", "harmless", "refused", "missed")
        return Score(*(getattr(self, name) + getattr(other, name) for name in names))

    def table(self, corner: str, part: int) -> str:
        """Returns the counts in Markdown, by kind of mutation (part 0) or by algorithm (part 1)."""
        rows = sorted({column[part] for column in self.broken | self.harmless})
        lines = [f"|{corner}|broken|caught|harmless|harmless, but refused|", "|---|---|---|---|---|"]
        for row in rows:
            counters = (self.broken, self.caught, self.harmless, self.refused)
            sums = (sum(number for column, number in one.items() if column[part] == row) for one in counters)
            lines.append(f"|{row}|{'|'.join(map(str, sums))}|")
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        head = f"mutants caught: {self.caught.total()} of {self.broken.total()} that are broken"
        return "\n".join([head, *self.missed])


def drop(steps: list[Step], step: int, row: int, schedule: Schedule, choice: random.Random) -> None:
    steps[step] = steps[step].take(np.delete(np.arange(len(steps[step])), row))


def duplicate(steps: list[Step], step: int, row: int, schedule: Schedule, choice: random.Random) -> None:
    rows = np.insert(np.arange(len(steps[step])), choice.randint(0, len(steps[step])), row)
    steps[step] = steps[step].take(rows)


def redirect(steps: list[Step], step: int, row: int, schedule: Schedule, choice: random.Random) -> None:
    _change(steps, step, row, choice.choice(("src", "dst")), choice.randrange(schedule.num_ranks))


def swap_chunk(steps: list[Step], step: int, row: int, schedule: Schedule, choice: random.Random) -> None:
    chunk = choice.randrange(schedule.num_chunks)
    for column in choice.choice((("src_chunk",), ("dst_chunk",), ("src_chunk", "dst_chunk"))):
        _change(steps, step, row, column, chunk)


def flip(steps: list[Step], step: int, row: int, schedule: Schedule, choice: random.Random) -> None:
    _change(steps, step, row, "reduce", not steps[step].reduce[row])


def reorder_rows(steps: list[Step], step: int, row: int, schedule: Schedule, choice: random.Random) -> None:
    rows = np.arange(len(steps[step]))
    other = choice.randrange(len(rows))
    rows[[row, other]] = rows[[other, row]]
    steps[step] = steps[step].take(rows)


def reorder_steps(steps: list[Step], step: int, row: int, schedule: Schedule, choice: random.Random) -> None:
    other = choice.randrange(len(steps))
    steps[step], steps[other] = steps[other], steps[step]


def _change(steps: list[Step], step: int, row: int, column: str, value: object) -> None:
    values = getattr(steps[step], column).copy()
    values[row] = value
    steps[step] = replace(steps[step], **{column: values})


ROW_MUTATIONS: tuple[Mutation, ...] = (drop, duplicate, redirect, swap_chunk, flip, reorder_rows, reorder_steps)


def mutate_row(schedule: Schedule, mutation: Mutation, choice: random.Random) -> Schedule:
    """Returns the schedule with one row broken; every step becomes its own block."""
    steps = list(schedule.steps())
    step = choice.randrange(len(steps))
    mutation(steps, step, choice.randrange(len(steps[step])), schedule, choice)
    return replace(schedule, repeats=tuple(Repeat(step) for step in steps if len(step)))


def keeps_its_promise(schedule: Schedule) -> bool:
    """Returns whether the reference computes the right result from random data."""
    kind, p, k = schedule.kind, schedule.num_ranks, schedule.chunks_per_block
    lengths = even_lengths(schedule, 2 * k + 1 if k > 1 else 2)
    if kind.uneven:
        lengths += np.arange(len(lengths)) % 3
    generator = np.random.default_rng(0)
    sizes = input_sizes(schedule, lengths)
    if kind.exactly_once:
        trials = [[None if size is None else generator.integers(-(2**62), 2**62, size) for size in sizes]]
    else:  # The token of each rank in turn must reach all ranks.
        trials = [[np.full(size, rank == sender, np.int64) for rank, size in enumerate(sizes)] for sender in range(p)]
    for inputs in trials:
        wanted = promised_outputs(schedule, inputs, lengths, np.add.reduce if kind.exactly_once else np.maximum.reduce)
        try:
            outputs = reference.run(schedule, inputs, "sum", **named_lengths(schedule, lengths))
        except (ScheduleError, ValueError, IndexError):
            return False
        if not all(
            expected is None or np.array_equal(found, expected) for found, expected in zip(outputs, wanted, strict=True)
        ):
            return False
    return True


def is_rejected(check: Callable[[], object]) -> bool:
    try:
        check()
    except ScheduleError:
        return True
    return False


def drop_dependency(plan: Plan, index: int) -> Plan:
    """Returns the plan without entry `index` of its dependencies."""
    instructions = plan.instructions.copy()
    instructions[instructions[:, 4] > index, 4] -= 1
    return replace(plan, instructions=instructions, dependencies=np.delete(plan.dependencies, index))


def change_number(plan: Plan, choice: random.Random) -> Plan:
    """Returns the plan with one number of one of its arrays changed."""
    name = choice.choice([name for name in ARRAYS if getattr(plan, name).size])
    array = getattr(plan, name).copy()
    index = choice.randrange(array.size)
    array.flat[index] = choice.choice((array.flat[index] - 1, array.flat[index] + 1, choice.randrange(5)))
    return replace(plan, **{name: array})


def differs_from_reference(plans: list[Plan], schedule: Schedule) -> bool:
    """Returns whether one of INTERLEAVINGS random interleavings gives other bits than the reference, or a deadlock."""
    block, lengths = schedule.chunks_per_block + 1, None
    if schedule.kind.uneven:  # Equal blocks, so that a broken part is never empty.
        lengths = np.full(schedule.kind.num_blocks(schedule.num_ranks), block)
    trials, reduction = [random_inputs(schedule, block, 1, lengths)], "avg"
    if schedule.collective == "barrier":  # the token of each rank in turn must reach all ranks
        p, reduction = schedule.num_ranks, "max"
        trials = [[np.array([rank == sender], np.uint8) for rank in range(p)] for sender in range(p)]
    elif schedule.kind.reduces:
        trials, reduction = trials * 2, premul_sum(1.3)  # Each trial below has another reduction.
    reductions = [reduction, "avg"][: len(trials)] if schedule.kind.exactly_once else [reduction] * len(trials)
    expected = [
        reference.run(schedule, inputs, one, block_lengths=lengths)
        for inputs, one in zip(trials, reductions, strict=True)
    ]
    try:
        interpreters = [Interpreter(plans, capacity=capacity) for capacity in (1, 2)]
        return any(_differs(interpreters, trials, expected, reductions, lengths, seed) for seed in range(INTERLEAVINGS))
    except (ScheduleError, LookupError, ValueError):  # a deadlock, or numbers that make no sense at all
        return True


def _differs(
    interpreters: list[Interpreter],
    trials: list[Inputs],
    expected: list[Inputs],
    reductions: list[str | Reduction],
    lengths: np.ndarray | None,
    seed: int,
) -> bool:
    trial = seed // 2 % len(trials)
    found = interpreters[seed % 2].run(trials[trial], reductions[trial], seed, lengths)
    return any(
        left is not None and (right is None or left.tobytes() != right.tobytes())
        for left, right in zip(expected[trial], found, strict=True)
    )


def keys() -> list[Key]:
    return list(dict.fromkeys((*ALGORITHMS, *SMALL)))


def any_schedule(key: Key, choice: random.Random, most_ranks: int) -> tuple[str, Schedule]:
    """Returns a schedule of the algorithm for a random rank count from 2 on and a random root, and its description."""
    most_ranks = most_ranks if "all_to_all" not in key[0] else 4
    counts = [p for p in range(2, most_ranks + 1) if key not in ALGORITHMS or ALGORITHMS[key].allows(p)]
    num_ranks = choice.choice(counts)
    root = choice.randrange(num_ranks) if find_collective(key[0]).rooted else 0
    schedule = ALGORITHMS[key].build(num_ranks, root) if key in ALGORITHMS else SMALL[key](num_ranks, root, 1)
    return f"{num_ranks} ranks, root {root}", schedule


def mutation_score(num_rows: int, num_plans: int, seed: int = 0) -> Score:
    """Tries mutants: num_rows of schedules of 2 to 8 ranks, and num_plans of each kind for plans of 2 to 5 ranks."""
    choice, score, all_keys = random.Random(seed), Score(), keys()
    for i in range(num_rows):
        turn, number = divmod(i, len(all_keys))
        where, schedule = any_schedule(all_keys[number], choice, 8)
        mutation = ROW_MUTATIONS[(turn + number) % len(ROW_MUTATIONS)]
        mutant = mutate_row(schedule, mutation, choice)
        if mutant.digest != schedule.digest:
            rejected = is_rejected(lambda mutant=mutant: verify(mutant))
            score.count(mutation.__name__, all_keys[number], not keeps_its_promise(mutant), rejected, where)
    for i in range(2 * num_plans):
        key = all_keys[i // 2 % len(all_keys)]
        where, schedule = any_schedule(key, choice, 5)
        plans = lower_all(schedule, in_place=choice.random() < 0.5)
        rank = choice.choice([plan.rank for plan in plans if len(plan.dependencies) or i % 2] or [0])
        plan = plans[rank]
        if i % 2:
            plans[rank] = change_number(plan, choice)
        elif len(plan.dependencies):
            plans[rank] = drop_dependency(plan, choice.randrange(len(plan.dependencies)))
        if any(not np.array_equal(getattr(plan, array), getattr(plans[rank], array)) for array in ARRAYS):
            rejected = is_rejected(lambda plans=plans, schedule=schedule: check_plans(plans, schedule))
            broken = differs_from_reference(plans, schedule)
            score.count(("drop_dependency", "change_number")[i % 2], key, broken, rejected, f"{where}, rank {rank}")
    return score


HEAD = """\
# What the proof catches: mutants of every algorithm

`make mutation` wrote this page from its results; do not edit it. **{caught} of {broken} broken mutants caught.**

There are two kinds of mutants:

- a schedule of 2 to 8 ranks in which one row is dropped, duplicated, redirected, moved to another chunk, turned from
  copy to reduce or back, or moved to another position, or in which two steps change places;
- the plans of 2 to 5 ranks, in which one dependency is dropped or one number is changed.

Two tests that do not use the proof decide whether a mutant is broken. A schedule is broken if the reference interpreter
computes a wrong result from random data. Plans are broken if one of {interleavings} random interleavings deadlocks or
gives other bits than the reference. The others are harmless. The proof may refuse a harmless mutant: for example, plans
that have lost a dependency but still run in the right order for another reason.

Seed {seed}. The tables include small algorithms of the tests, which are not in the registry.

"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "number", type=int, nargs="?", default=12000, help="mutants of schedules; of plans a fifth each"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[2] / "docs" / "reports" / "mutation.md")
    arguments = parser.parse_args()
    num_parts = 4 * len(os.sched_getaffinity(0))
    rows, plans = (-(-number // num_parts) for number in (arguments.number, arguments.number // 5))
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        seeds = [arguments.seed + part for part in range(num_parts)]
        score = sum(pool.map(mutation_score, [rows] * num_parts, [plans] * num_parts, seeds), Score())
    head = HEAD.format(
        caught=score.caught.total(), broken=score.broken.total(), interleavings=INTERLEAVINGS, seed=arguments.seed
    )
    missed = "".join(f"- missed: {one}\n" for one in score.missed)
    arguments.output.write_text(head + missed + score.table("kind", 0) + "\n" + score.table("algorithm", 1))
    print(f"{score}\nseed {arguments.seed}: {arguments.output}")
    return bool(score.missed)


if __name__ == "__main__":
    sys.exit(main())
