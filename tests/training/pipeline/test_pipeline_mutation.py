"""Every mutated table that does not compute what one process computes is refused, and no other. So are capacities."""

import random
from collections import Counter

import numpy as np
import pytest

from hocket.errors import VerifyError
from hocket.training.pipeline import SCHEDULES, PipelineTable, build_table, verify_table
from tests.training.pipeline.pipeline_world import World, mutate, operations_of, table_from

MUTANTS = 200  # of each table


def check_capacities(table: PipelineTable) -> None:
    """The fewest messages of the proof are enough in the world, and one less is not."""
    fewest = verify_table(table).fewest_messages
    seed = random.Random(len(table)).randrange(1 << 30)
    for tagged, number in ((True, fewest.tagged), (False, fewest.fifo)):
        if number is None:
            assert not World(table, None, tagged, seed).runs_well()
            continue
        assert World(table, number, tagged, seed).runs_well()
        if number:
            assert not World(table, number - 1, tagged, seed).runs_well()
            with pytest.raises(VerifyError, match=f"law 3.*hold {number - 1} messages, deadlock of"):
                verify_table(table, capacity=number - 1)


def tables() -> list[PipelineTable]:
    sizes = {"dualpipe": [(2, 4), (4, 8)], "dualpipev": [(2, 4), (3, 7)]}
    return [build_table(name, *size) for name in SCHEDULES for size in sizes.get(name, [(2, 3), (3, 5), (4, 8)])]


@pytest.mark.parametrize("table", tables(), ids=repr)
def test_capacities_are_the_fewest(table: PipelineTable) -> None:
    assert World(table).runs_well()
    check_capacities(table)


@pytest.mark.parametrize("table", tables(), ids=repr)
def test_tables_that_do_something_else_are_refused_and_no_others(table: PipelineTable) -> None:
    rng, count = random.Random(repr(table)), Counter[bool]()
    operations = operations_of(table)
    for _ in range(MUTANTS):
        mutant = mutate(operations, table.num_microbatches, rng)
        if rng.random() < 0.3:
            mutant = mutate(mutant, table.num_microbatches, rng)
        try:
            broken = table_from(mutant, table.placement, table.num_microbatches)
        except ValueError:
            continue  # a pair that is none
        try:
            verify_table(broken)
            accepted = True
        except VerifyError:
            accepted = False
        assert accepted == World(broken, seed=rng.randrange(1 << 30)).runs_well(), mutant
        if accepted and not np.array_equal(broken.stage, table.stage):
            check_capacities(broken)
        count[accepted] += 1
    assert count[False] > MUTANTS / 3 and count[True] > 0
