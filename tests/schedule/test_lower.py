"""Lowering: important properties of plans; the plans of every schedule are safe and compute the same."""

import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.errors import VerifyError
from hocket.schedule import (
    COLLECTIVES,
    Builder,
    Places,
    Reduction,
    Schedule,
    check_plans,
    lower,
    lower_all,
    premul_sum,
    reference,
    run_plans,
)
from hocket.schedule.lowering.lower import COMPLETES, STAGED
from tests.schedule.plan_text import listing
from tests.schedule.random_schedules import random_inputs, random_lengths, random_schedule


def check_equal_to_reference(schedule: Schedule, reduction: str | Reduction = "sum", seeds: range = range(4)) -> None:
    for in_place in (False, True):
        plans = lower_all(schedule, in_place)
        check_plans(plans, schedule)
        lengths = random_lengths(schedule, 7, seeds[0], in_place=in_place)
        inputs = random_inputs(schedule, 7, seeds[0], lengths)
        expected = reference.run(schedule, inputs, reduction, block_lengths=lengths)
        for seed in seeds:
            pieces = 1 + seed % 3
            found = run_plans(plans, inputs, reduction, seed=seed, num_pieces=pieces, block_lengths=lengths)
            for rank, (left, right) in enumerate(zip(expected, found, strict=True)):
                assert (left is None) == (right is None), (seed, in_place, rank)
                assert left is None or left.tobytes() == right.tobytes(), (seed, in_place, rank)


def test_first_fold_absorbs_the_copy_to_the_output() -> None:
    schedule = ALGORITHMS["all_reduce", "ring"].build(2)
    assert listing(lower(schedule, 0, in_place=False)) == [
        "0: i1 -> 1#0 | chunk 1",
        "0: i0* + 1#1* -> o0 | flags 1",
        "1: o0 -> 1#0 | after 1",
        "1: 1#1 -> o1 | chunk 1",
    ]


def test_in_place_input_and_output_are_one_memory() -> None:
    schedule = ALGORITHMS["all_reduce", "ring"].build(2)
    assert listing(lower(schedule, 0, in_place=True)) == [
        "0: o1 -> 1#0 | chunk 1",
        "0: o0* + 1#1* -> o0 | flags 1",
        "1: o0 -> 1#0 | after 1",
        "1: 1#1 -> o1 | after 0 | chunk 1",
    ]


def test_one_send_serves_all_peers_and_is_staged_where_overwritten() -> None:
    schedule = ALGORITHMS["all_reduce", "direct"].build(3)
    assert listing(lower(schedule, 1, in_place=False)) == ["0: i0 -> 0#1, 2#7", "0: 0#3* + i0* + 2#5* -> o0 | flags 1"]
    assert listing(lower(schedule, 1, in_place=True)) == [
        f"0: o0 -> 0#1, 2#7 | flags {STAGED}",
        "0: 0#3* + o0* + 2#5* -> o0 | after 0 | flags 1",
    ]


def test_output_that_no_row_writes_is_copied_unless_in_place() -> None:
    schedule = ALGORITHMS["all_gather", "direct"].build(2)
    assert listing(lower(schedule, 1, in_place=False)) == ["0: i0 -> 0#1", "0: 0#0 -> o0", "0: i0 -> o1"]
    assert listing(lower(schedule, 1, in_place=True)) == ["0: o1 -> 0#1", "0: 0#0 -> o0"]


def test_one_rank_reads_its_contribution_once_in_place_too_and_copies_anything_else() -> None:
    schedule = ALGORITHMS["all_reduce", "ring"].build(1)
    assert listing(lower(schedule, 0, in_place=False)) == ["0: i0* -> o0"]
    assert listing(lower(schedule, 0, in_place=True)) == ["0: o0* -> o0"]
    schedule = ALGORITHMS["all_gather", "ring"].build(1)
    assert listing(lower(schedule, 0, in_place=False)) == ["0: i0 -> o0"]
    assert listing(lower(schedule, 0, in_place=True)) == []
    assert lower(schedule, 0, in_place=True).num_steps == 1


def test_scratch_is_reused_once_dead() -> None:
    schedule = ALGORITHMS["reduce_scatter", "ring"].build(8)
    assert {plan.num_scratch for plan in lower_all(schedule, in_place=False)} == {2}
    assert {plan.num_scratch for plan in lower_all(schedule, in_place=True)} == {0}


def test_off_the_root_reduce_leaves_the_input_alone() -> None:
    schedule = ALGORITHMS["reduce", "binomial"].build(4)
    for in_place in (False, True):
        for plan in lower_all(schedule, in_place)[1:]:
            assert not (plan.destinations[:, 1] == 0).any()


def test_swap_of_chunks_between_ranks_is_staged() -> None:
    builder = Builder("all_reduce", 2, 1)
    with builder.step():
        builder.copy(src=[0, 1], dst=[1, 0], chunk=0)
    schedule = builder.finish()
    assert listing(lower(schedule, 0, in_place=True)) == ["0: o0 -> 1#0 | flags 2", "0: 1#1* -> o0 | after 0"]
    assert listing(lower(schedule, 0, in_place=False)) == ["0: i0 -> 1#0", "0: 1#1* -> o0"]
    check_equal_to_reference(schedule)


def test_exchange_of_several_chunks_over_one_channel_goes_through_scratch() -> None:
    builder = Builder("all_reduce", 2, 2)
    with builder.step():
        builder.reduce(src=[0, 1], dst=[1, 0], chunk=0, count=2)
    schedule = builder.finish()
    assert listing(lower(schedule, 0, in_place=True)) == [
        "0: o0 -> s0",
        "0: o1 -> s1 | chunk 1",
        "0: s0 -> 1#0 | after 0",
        "0: s1 -> 1#1 | after 1 | chunk 1",
        "0: o0* + 1#2* -> o0 | after 0 | flags 1",
        "0: o1* + 1#3* -> o1 | after 1 | flags 1 | chunk 1",
    ]
    check_equal_to_reference(schedule)


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_rotation_of_one_chunk_round_the_ranks(num_ranks: int) -> None:
    builder = Builder("all_reduce", num_ranks, 1)
    rank = builder.ranks
    for _ in range(2):
        with builder.step():
            builder.copy(src=rank, dst=(rank + 1) % num_ranks, chunk=0)
    schedule = builder.finish()
    assert all(plan.instructions[0, 5] == STAGED for plan in lower_all(schedule, in_place=True))
    check_equal_to_reference(schedule)


def test_local_swap_goes_through_scratch() -> None:
    builder = Builder("all_gather", 2, 2)
    rank, other = builder.ranks, 1 - builder.ranks
    with builder.step():
        builder.copy(src=rank, dst=other, chunk=rank)
    with builder.step():
        builder.copy(src=rank, dst=rank, src_chunk=rank, dst_chunk=other)
        builder.copy(src=rank, dst=rank, src_chunk=other, dst_chunk=rank)
    schedule = builder.finish()
    assert [line for line in listing(lower(schedule, 0, in_place=True)) if line.startswith("1")] == [
        "1: o0 -> s0",
        "1: o1 -> s1 | after 1",
        "1: s0 -> o1 | after 2, 3",
        "1: s1 -> o0 | after 0, 2, 3",
    ]
    check_equal_to_reference(schedule)


def test_several_messages_of_one_peer_in_a_group_are_received_one_by_one() -> None:
    builder = Builder("all_reduce", 2, 1)
    with builder.step():
        builder.copy(src=0, dst=0, chunk=0, dst_buffer="scratch", dst_chunk=0)
    with builder.step():
        builder.reduce(src=0, dst=1, src_chunk=0, dst_chunk=0, src_buffer="scratch")
        builder.reduce(src=0, dst=1, chunk=0)
    schedule = builder.finish()
    assert listing(lower(schedule, 1, in_place=True)) == ["1: 0#0 -> s0", "1: o0* + s0 + 0#1* -> o0 | after 0"]
    check_equal_to_reference(schedule)


def test_a_send_is_not_merged_past_another_message_of_its_channels() -> None:
    builder = Builder(
        "all_gather", 3, 6
    )  # two chunks a block: rank 0 sends chunks a and b, crosswise, to ranks 1 and 2
    with builder.step():
        for dst, chunk in ((1, 0), (2, 1), (1, 1), (2, 0)):
            builder.copy(src=0, dst=dst, chunk=chunk)
    with builder.step():
        builder.copy(src=[1, 1, 2, 2], dst=[0, 2, 0, 1], chunk=[2, 2, 4, 4], count=2)
    schedule = builder.finish()
    sends = [line for line in listing(lower(schedule, 0, in_place=True)) if line.startswith("0")]
    assert sends == ["0: o0 -> 1#0", "0: o1 -> 2#1, 1#2 | chunk 1", "0: o0 -> 2#3"]
    check_equal_to_reference(schedule)


def test_explicit_input_read_after_its_memory_is_overwritten_is_saved_first() -> None:
    builder = Builder("all_reduce", 2, 1)
    other = 1 - builder.ranks
    with builder.step():
        builder.copy(src=other, dst=builder.ranks, chunk=0, src_buffer="input", dst_buffer="output")
    with builder.step():
        builder.reduce(src=builder.ranks, dst=builder.ranks, chunk=0, src_buffer="input", dst_buffer="output")
    schedule = builder.finish()
    assert listing(lower(schedule, 0, in_place=True)) == [
        "0: o0 -> s0",
        "0: s0 -> 1#1 | after 0",
        "0: 1#0* -> o0 | after 0",
        "1: o0 + s0* -> o0 | after 0, 2 | flags 1",
    ]
    assert lower(schedule, 0, in_place=False).num_scratch == 0
    check_equal_to_reference(schedule)


def test_explicit_copy_of_the_input_to_its_own_memory_is_no_instruction() -> None:
    builder = Builder("all_gather", 2, 2)
    with builder.step():
        rank, other = builder.ranks, 1 - builder.ranks
        builder.copy(src=rank, dst=rank, src_chunk=0, dst_chunk=rank, src_buffer="input", dst_buffer="output")
        builder.copy(src=rank, dst=other, src_chunk=0, dst_chunk=rank, src_buffer="input", dst_buffer="output")
    schedule = builder.finish()
    assert listing(lower(schedule, 1, in_place=True)) == ["0: o1 -> 0#3", "0: 0#2 -> o0"]
    check_equal_to_reference(schedule)


def test_reading_what_holds_nothing_is_refused() -> None:
    builder = Builder("broadcast", 3, 1)
    with builder.step():
        builder.copy(src=1, dst=2, chunk=0)
    with pytest.raises(VerifyError, match=r"law 2 \(step 0, rank 1.*data\[0\], which holds nothing"):
        lower(builder.finish(), 1, in_place=False)


@pytest.mark.parametrize("key", [key for key in ALGORITHMS if COLLECTIVES[key[0]].counts_contributions], ids=" ".join)
def test_every_output_chunk_completes_once(key: tuple[str, str]) -> None:
    """Every output comes from one fold that completes it, on this rank or on its source.

    Several ranks may complete the same chunk, as in recursive doubling; if one rank alone wants it, one does.
    """
    for num_ranks in filter(ALGORITHMS[key].allows, (2, 3, 5, 8)):
        schedule = ALGORITHMS[key].build(num_ranks)
        num_folds, of_outputs = completing_folds(schedule)
        assert (of_outputs == 1).all(), num_ranks
        if schedule.kind.name != "all_reduce":
            assert num_folds == schedule.num_chunks
        plans = lower_all(schedule, in_place=False)
        assert sum(np.count_nonzero(plan.instructions[:, 5] & COMPLETES) for plan in plans) == num_folds, num_ranks


def completing_folds(schedule: Schedule) -> tuple[int, Any]:
    """Returns how many folds make a sum complete, and through how many such folds every output has come."""
    places, num_folds = Places(schedule), 0
    contributions, passed = np.zeros(places.count, int), np.zeros(places.count, int)
    contributions[places.inputs()[0]] = 1
    for step in places.folds():
        starts, counts = step.pattern.starts, step.pattern.counts
        total = np.add.reduceat(contributions[step.reads], starts)
        completes = (counts > 1) & (total == schedule.num_ranks)
        before = np.add.reduceat(passed[step.reads], starts)
        contributions[step.writes], passed[step.writes] = total, before + completes
        num_folds += int(completes.sum())
    return num_folds, passed[places.outputs()[0]]


@pytest.mark.parametrize("key", ALGORITHMS, ids=" ".join)
def test_one_rank_lowered_alone_has_the_same_plan(key: tuple[str, str]) -> None:
    for num_ranks in filter(ALGORITHMS[key].allows, (1, 3, 8)):
        schedule = ALGORITHMS[key].build(num_ranks)
        for in_place in (False, True):
            for plan in lower_all(schedule, in_place):
                alone = lower(schedule, plan.rank, in_place)
                assert alone.num_scratch == plan.num_scratch
                for name in ("instructions", "sources", "destinations", "dependencies"):
                    found, expected = getattr(alone, name), getattr(plan, name)
                    assert found.dtype == expected.dtype == np.int32
                    assert np.array_equal(found, expected)


@pytest.mark.slow("random schedules, each in many interleavings")
@pytest.mark.parametrize("first", range(0, 400, 50))
def test_plans_of_any_schedule_are_safe_and_equal_the_reference(first: int) -> None:
    for seed in range(first, first + 50):
        schedule = random_schedule(seed)
        reductions = ("max",) if schedule.collective == "barrier" else ("avg", premul_sum(3.1))
        check_equal_to_reference(schedule, reductions[seed % len(reductions)], range(seed, seed + 1))


@pytest.mark.slow("a schedule of a thousand ranks")
def test_one_rank_of_a_thousand_is_lowered_without_the_global_table() -> None:
    schedule = ALGORITHMS["all_reduce", "ring"].build(1024)
    tracemalloc.start()
    begin = time.perf_counter()
    plan = lower(schedule, 5, in_place=False)
    seconds, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(plan.instructions) == 2 * schedule.num_steps
    assert seconds < 3  # 0.2 s on the machine that this was written on, without the tracing
    assert peak < 80e6  # the whole table would be 2 million rows of 9 columns
