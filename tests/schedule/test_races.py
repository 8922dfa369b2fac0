"""Law 3: the smallest broken example of each clause; lowered plans pass."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.errors import VerifyError
from hocket.schedule import Builder, Plan, Schedule, check_plans, find_collective, lower_all, run_plans
from hocket.schedule.lowering.dependencies import REMOTE
from hocket.schedule.proof import races
from hocket.schedule.proof.races import check, check_together
from tests.schedule.plan_text import listing, plan_of, plans_of
from tests.schedule.random_schedules import random_inputs


def exchange(num_chunks: int = 1, num_ranks: int = 2) -> Schedule:
    """A schedule that gives plans their ranks, chunks, and 9 steps."""
    builder = Builder("all_reduce", num_ranks, num_chunks)
    for _ in range(9):
        with builder.step():
            builder.copy(src=0, dst=0, chunk=0, dst_buffer="scratch", dst_chunk=0)
    return builder.finish()


def refusal(schedule: Schedule, in_place: bool, *lines: Sequence[str]) -> VerifyError:
    """The error for plans with these lines, rank by rank."""
    with pytest.raises(VerifyError) as caught:
        check_plans(plans_of(schedule, in_place, *lines), schedule)
    assert caught.value.law == 3
    return caught.value


@pytest.mark.parametrize("key", ALGORITHMS, ids=" ".join)
def test_all_built_in_algorithms_pass(key: tuple[str, str]) -> None:
    for num_ranks in filter(ALGORITHMS[key].allows, (*range(1, 10), 16)):
        for root in {0, num_ranks // 2, num_ranks - 1} if find_collective(key[0]).rooted else {0}:
            for in_place in (False, True):
                check(ALGORITHMS[key].build(num_ranks, root), in_place)


@pytest.mark.parametrize("num_ranks", [64, 65])
def test_many_ranks_pass(num_ranks: int) -> None:
    check(ALGORITHMS["all_reduce", "ring"].build(num_ranks), in_place=True)


@pytest.mark.parametrize("key", ALGORITHMS, ids=" ".join)
def test_what_holds_apart_holds_together(key: tuple[str, str]) -> None:
    check_together([ALGORITHMS[key].build(4, root) for root in (0, 3, 1)], (False, True))


@pytest.mark.parametrize("broken", range(3))
def test_together_each_is_held_to_the_law(broken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules = [ALGORITHMS["reduce", "binomial"].build(4, root) for root in (0, 2, 1)]  # rank 2 folds in all of them

    def change(schedule: Schedule, in_place: bool) -> list[Plan]:
        plans = lower_all(schedule, in_place)
        if schedule is schedules[broken]:
            changed = {name: np.asarray(value, np.int32) for name, value in changes[message](plans[2]).items()}
            plans[2] = replace(plans[2], **changed)
        return plans

    changes: dict[str, Callable[[Plan], dict[str, Any]]] = {
        "do not match": lambda plan: {"sources": plan.sources + (plan.sources[:, 1:2] == REMOTE) * [[0, 0, 1, 0]]},
        "a rank that does not": lambda plan: {
            "sources": plan.sources + (plan.sources[:, 1:2] == REMOTE) * [[4, 0, 0, 0]]
        },
        "its input is not": lambda plan: {"input_blocks": plan.input_blocks + 1},
        "does not cut its list": lambda plan: {"sources": plan.sources[:-1]},
        "race for": lambda plan: {
            "dependencies": plan.dependencies[:0],
            "instructions": plan.instructions * [1, 1, 1, 1, 0, 1],
        },
    }
    monkeypatch.setattr(races, "lower_all", change)
    for message in changes:
        with pytest.raises(VerifyError, match=message):
            check_together(schedules, (False,))


def test_a_correct_plan_of_one_exchange_passes() -> None:
    lines = ["0: o0 -> 1#0 | flags 2", "0: o0 + 1#1 -> o0 | after 0"]
    mirror = ["0: o0 -> 0#1 | flags 2", "0: 0#0 + o0 -> o0 | after 0"]
    check_plans(plans_of(exchange(), True, lines, mirror), exchange(), meaning=False)


MISMATCHED = {
    "a message that nobody receives": (["0: i0 -> 1#0", "0: i0 -> o0"], ["0: i0 -> o0"]),
    "a message that nobody sends": (["0: i0 -> o0"], ["0: i0 + 0#0 -> o0"]),
    "another order number": (["0: i0 -> 1#0", "0: i0 -> o0"], ["0: 0#1 -> o0"]),
    "another step, so that pieces pass in another order": (["0: i0 -> 1#0", "0: i0 -> o0"], ["1: 0#0 -> o0"]),
    "a message sent to the wrong rank": (["0: i0 -> 2#0", "0: i0 -> o0"], ["0: 0#0 -> o0"]),
}


@pytest.mark.parametrize("case", MISMATCHED)
def test_sends_and_receives_must_match(case: str) -> None:
    error = refusal(exchange(num_ranks=3), False, *MISMATCHED[case], ["0: i0 -> o0"])
    assert "do not match" in str(error)
    assert error.step is not None
    assert error.rank is not None


def test_size_classes_of_a_message_must_match() -> None:
    error = refusal(
        exchange(num_chunks=2),
        False,
        ["0: i0 -> 1#0", "0: i0 -> o0", "0: i1 -> o1 | chunk 1"],
        ["0: i0 -> o0", "0: 0#0 -> o1 | chunk 1"],
    )
    assert "size class 1" in str(error)


def test_a_message_sent_twice() -> None:
    error = refusal(exchange(), False, ["0: i0 -> 1#0", "0: i0 -> 1#0", "0: i0 -> o0"], ["0: 0#0 -> o0"])
    assert "sent twice" in str(error)


def test_a_plan_lists_the_messages_of_a_channel_in_their_order() -> None:
    error = refusal(
        exchange(),
        False,
        ["0: i0 -> 1#1", "0: i0 -> 1#0", "0: i0 -> o0"],
        ["0: 0#0 -> s0", "0: s0 + 0#1 -> o0 | after 0"],
    )
    assert "another order" in str(error)


def test_wait_cycle_of_lent_memory() -> None:
    # Each fold waits until the other rank has read what it overwrites; staged sends would do.
    error = refusal(
        exchange(), True, ["0: o0 -> 1#0", "0: 1#1 -> o0 | after 0"], ["0: o0 -> 0#1", "0: 0#0 -> o0 | after 0"]
    )
    assert str(error).count("rank 0's instruction") >= 2
    assert "wait cycle" in str(error)


def test_wait_cycle_of_capacity_one() -> None:
    # Two messages of one channel in one fold: the second is not sent before the first is read.
    error = refusal(exchange(), False, ["0: i0 -> 1#0", "0: i0 -> 1#1", "0: i0 -> o0"], ["0: 0#0 + 0#1 -> o0"])
    assert "another order" in str(error)  # of the receiver: one instruction is not listed after itself
    schedule = exchange(num_ranks=3)
    lines = (
        ["0: i0 -> 1#0, 2#3", "0: i0 -> 1#1", "0: i0 -> o0"],
        ["0: 0#0 -> s0", "0: 0#1 -> o0", "0: o0 -> 2#4 | after 1"],
        ["0: 0#3 + 1#4 -> o0"],
    )
    error = refusal(schedule, False, *lines)  # rank 2 reads message 3 only with message 4, which waits for message 1
    assert "wait cycle" in str(error)
    with pytest.raises(VerifyError, match="deadlock"):
        run_plans(plans_of(schedule, False, *lines), random_inputs(schedule, 4, 0), "sum", seed=0)


def test_a_dependency_must_not_point_to_a_later_step() -> None:
    error = refusal(exchange(), False, ["1: i0 -> s0", "0: s0 -> o0 | after 0"], ["0: i0 -> o0"])
    assert "listed after one of a later step" in str(error)


def test_a_dependency_must_point_backwards() -> None:
    error = refusal(exchange(), False, ["0: i0 -> o0 | after 0"], ["0: i0 -> o0"])
    assert "not an earlier one of its rank" in str(error)


RACES = {
    "reads what is not certainly written": ["0: i0 -> s0", "1: s0 -> o0"],
    "overwrites what is not certainly read": ["0: i0 -> s0", "1: s0 -> o0 | after 0", "2: i0 -> s0"],
    "may be overtaken by": ["0: i0 -> o0", "1: i0 -> o0"],
}


@pytest.mark.parametrize("kind", RACES)
def test_race(kind: str) -> None:
    error = refusal(exchange(), False, RACES[kind], ["0: i0 -> o0"])
    assert kind in str(error)
    assert (error.rank, error.step) == (0, {"0": 0, "1": 1, "2": 2}[RACES[kind][-1][0]])
    assert str(error).count("rank 0's instruction") == 2


def test_lent_source_overwritten_before_it_is_read_elsewhere() -> None:
    error = refusal(exchange(), True, ["0: o0 -> 1#0", "1: 1#0 -> o0"], ["0: 0#0 -> s0", "1: o0 -> 0#0"])
    assert "race for output[0]" in str(error)


def test_a_message_orders_what_no_dependency_does() -> None:
    # Rank 0 may overwrite what it lent: the message that it waits for is sent after rank 1 has read.
    lines = ["0: o0 -> 1#0", "1: 1#0 -> o0"], ["0: 0#0 -> s0", "1: s0 -> 0#0 | after 0"]
    check_plans(plans_of(exchange(), True, *lines), exchange(), meaning=False)


def test_a_channel_of_capacity_one_orders_no_memory() -> None:
    # If the channel holds one message, message 1 leaves only after message 0 was read; a transport may hold more.
    error = refusal(
        exchange(),
        True,
        ["0: o0 -> 1#0", "1: i0 -> 1#0", "2: 1#0 -> o0"],
        ["0: 0#0 -> s0", "1: 0#0 -> s1", "2: o0 -> 0#0"],
    )
    assert "race for output[0]" in str(error)


def test_in_place_input_and_output_are_one_location() -> None:
    lines = ["0: i0 -> 1#0", "1: 1#0 -> o0"], ["0: 0#0 -> s0", "1: i0 -> 0#0", "2: s0 -> o0 | after 0"]
    check_plans(plans_of(exchange(), False, *lines), exchange(), meaning=False)
    error = refusal(exchange(), True, *lines)
    assert "race for output[0]" in str(error)


def test_in_place_block_of_the_output_is_the_input() -> None:
    schedule = ALGORITHMS["all_gather", "direct"].build(2)
    lines = ["0: i0 -> 1#0", "0: 1#1 -> o1", "0: i0 -> o0 | after 0"], ["0: i0 -> 0#1", "0: 0#0 -> o1", "0: i0 -> o0"]
    check_plans(plans_of(schedule, False, *lines), schedule, meaning=False)
    error = refusal(schedule, True, *lines)
    assert (error.rank, "race for output[1]" in str(error)) == (1, True)


def test_the_input_is_not_written() -> None:
    error = refusal(exchange(), False, ["0: i0 -> o0", "1: o0 -> i0 | after 0"], ["0: i0 -> o0"])
    assert "writes the input" in str(error)
    schedule = ALGORITHMS["reduce", "binomial"].build(2)
    error = refusal(schedule, True, ["0: 1#0 -> o0"], ["0: i0 -> 0#0", "0: i0 -> i0"])  # off the root, even in place
    assert "writes the input" in str(error)


def test_nothing_is_read_before_it_is_written() -> None:
    error = refusal(exchange(), False, ["0: i0 -> s0", "0: s1 -> o0"], ["0: i0 -> o0"])
    assert "reads scratch[1] before anything is written there" in str(error)


def test_all_output_is_written() -> None:
    error = refusal(exchange(num_chunks=2), False, ["0: i0 -> o0"], ["0: i0 -> o0", "0: i1 -> o1 | chunk 1"])
    assert "rank 0 never writes output[1]" in str(error)


MALFORMED = {
    "has a step that does not exist": ["9: i0 -> o0"],
    "has a size class that does not exist": ["0: i0 -> o0 | chunk 2"],
    "reads a place or a rank that does not exist": ["0: i2 -> o0"],
    "writes a place or a rank that does not exist": ["0: i0 -> 0#0", "0: i0 -> o0"],
    "reads a chunk of another size class": ["0: i1 -> o0"],
    "neither a fold": ["0: i0 -> o0, 1#0"],
    "another size class than was written": ["0: i0 -> s0", "0: s0 -> o1 | chunk 1 | after 0", "0: i0 -> o0"],
}


@pytest.mark.parametrize("problem", MALFORMED)
def test_malformed_plans_are_refused(problem: str) -> None:
    error = refusal(exchange(num_chunks=2), False, MALFORMED[problem], ["0: i0 -> o0", "0: i1 -> o1 | chunk 1"])
    assert problem in str(error)


def test_lists_that_do_not_fit_their_ends_are_refused() -> None:
    plans = lower_all(exchange(), False)
    broken = type(plans[0])(**{**vars(plans[0]), "sources": plans[0].sources[:-1]})
    with pytest.raises(VerifyError, match="does not cut its list"):
        check_plans([broken, plans[1]], exchange(), meaning=False)
    with pytest.raises(VerifyError, match="plans are missing"):
        check_plans(plans[:1], exchange(), meaning=False)


MEANINGLESS = {
    "another order": ("0: i0* + 1#1* -> o0 | flags 1", "0: 1#1* + i0* -> o0 | flags 1"),
    "no division": ("0: i0* + 1#1* -> o0 | flags 1", "0: i0* + 1#1* -> o0"),
    "own contribution not raw": ("0: i0* + 1#1* -> o0 | flags 1", "0: i0 + 1#1* -> o0 | flags 1"),
    "message not raw": ("0: i0* + 1#1* -> o0 | flags 1", "0: i0* + 1#1 -> o0 | flags 1"),
    "raw once more": ("1: 1#1 -> o1 | chunk 1", "1: 1#1* -> o1 | chunk 1"),
    "another chunk": ("1: o0 -> 1#0 | after 1", "1: i0 -> 1#0"),
}


@pytest.mark.parametrize("case", MEANINGLESS)
def test_plans_must_compute_what_the_schedule_means(case: str) -> None:
    schedule = ALGORITHMS["all_reduce", "ring"].build(2)
    plans = lower_all(schedule, in_place=False)
    check_plans(plans, schedule)
    lines = listing(plans[0])
    right, wrong = MEANINGLESS[case]
    lines[lines.index(right)] = wrong
    plans[0] = plan_of(plans[0], lines)
    check_plans(plans, schedule, meaning=False)
    with pytest.raises(VerifyError, match="another value than the schedule") as caught:
        check_plans(plans, schedule)
    assert (caught.value.law, caught.value.chunk) == (3, int("chunk 1" in wrong))


def test_every_mark_for_raw_operands_is_proved() -> None:
    for name in ("ring", "direct", "halving_doubling"):
        schedule = ALGORITHMS["all_reduce", name].build(3)
        for in_place in (False, True):
            plans = lower_all(schedule, in_place)
            for rank, plan in enumerate(plans):
                for entry in range(len(plan.sources)):
                    sources = plan.sources.copy()
                    sources[entry, 3] ^= 1
                    with pytest.raises(VerifyError, match=r"another value than the schedule|mark for raw operands"):
                        check_plans([*plans[:rank], replace(plan, sources=sources), *plans[rank + 1 :]], schedule)


def test_where_nothing_is_reduced_no_operand_is_raw() -> None:
    schedule = ALGORITHMS["all_gather", "ring"].build(1)
    plan = lower_all(schedule, in_place=False)[0]
    with pytest.raises(VerifyError, match="another value than the schedule"):
        check_plans([plan_of(plan, ["0: i0* -> o0"])], schedule)
