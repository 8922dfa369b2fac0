"""Ranks of one form share the outline of their plans, and get it with their own names."""

from unittest.mock import patch

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.schedule import COLLECTIVES, Plan, Schedule, lower, lower_all
from hocket.schedule.lowering import lower as lowering
from hocket.schedule.lowering.forms import Ends, Forms, ends_of_all
from hocket.schedule.lowering.transfers import transfers
from tests.schedule.random_schedules import random_schedule


def same(left: Plan, right: Plan) -> bool:
    return all(np.array_equal(mine, its) for mine, its in zip(vars(left).values(), vars(right).values(), strict=True))


def num_forms(schedule: Schedule, in_place: bool = False) -> int:
    return len({form for ends in ends_of_all(schedule) for form in Forms(ends, in_place).forms})


def test_ranks_that_do_the_same_have_one_form() -> None:
    for in_place in (False, True):  # the last rank's row stands before that of the rank it hears from
        assert num_forms(ALGORITHMS["all_reduce", "ring"].build(7), in_place) == 2
    assert num_forms(ALGORITHMS["broadcast", "direct"].build(7)) == 2


def test_roots_have_their_forms_in_common() -> None:
    for key in (("broadcast", "binomial"), ("gather", "binomial"), ("scatter", "direct")):
        found = [
            {form for ends in ends_of_all(ALGORITHMS[key].build(6, root)) for form in Forms(ends, in_place=True).forms}
            for root in (1, 4)
        ]
        assert found[0] == found[1], key


@pytest.mark.parametrize("seed", range(0, 300, 3))
def test_what_was_lowered_before_changes_no_plan(seed: int) -> None:
    schedule = random_schedule(seed)
    for in_place in (False, True):
        lower_all(schedule, in_place)
        warm = lower_all(schedule, in_place)
        for rank, plan in enumerate(warm):
            with patch.object(lowering, "_outlines", {}):
                assert same(lower(schedule, rank, in_place), plan)


def test_a_known_form_is_not_lowered_again() -> None:
    with patch.object(lowering, "_outlines", {}):
        lower_all(ALGORITHMS["broadcast", "binomial"].build(8, root=0), in_place=True)
        with patch.object(lowering, "_FormLowering", side_effect=AssertionError):
            lower_all(ALGORITHMS["broadcast", "binomial"].build(8, root=5), in_place=True)


def test_only_so_many_outlines_are_kept() -> None:
    with patch.object(lowering, "_outlines", {}), patch.object(lowering, "_NUM_KEPT", 3):
        plans = lower_all(ALGORITHMS["all_reduce", "direct"].build(6), in_place=False)
        assert len(lowering._outlines) == 3
        again = lower_all(ALGORITHMS["all_reduce", "direct"].build(6), in_place=False)
        assert all(same(left, right) for left, right in zip(plans, again, strict=True))


def test_some_ranks_at_a_time_make_the_same_forms() -> None:
    for name in COLLECTIVES:
        schedule = next(one for key, one in ALGORITHMS.items() if key[0] == name).build(5)
        rows = transfers(schedule)
        for in_place in (False, True):
            together = Forms(Ends(schedule, rows, range(5)), in_place).forms
            apart = [Forms(Ends(schedule, rows, part), in_place).forms for part in (range(2), range(2, 5))]
            assert together == apart[0] + apart[1]
