"""Gather, scatter, exchanges, and blocks of unequal length: proved, lowered and run in both alias modes."""

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.errors import ScheduleError, VerifyError
from hocket.schedule import (
    Builder,
    Schedule,
    compose,
    find_collective,
    lower,
    lower_all,
    premul_sum,
    reference,
    run_plans,
    verify,
)
from tests.schedule.mutants import keeps_its_promise
from tests.schedule.plan_text import listing
from tests.schedule.random_schedules import random_inputs, random_lengths
from tests.schedule.small_algorithms import SMALL
from tests.schedule.test_lower import check_equal_to_reference

KEYS = pytest.mark.parametrize("key", SMALL, ids=" ".join)


def made(collective: str, name: str, p: int, root: int = 0, k: int = 1) -> Schedule:
    return SMALL[collective, name](p, root, k)


@KEYS
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8])
def test_proved_lowered_and_run_as_the_collective_says(key: tuple[str, str], p: int) -> None:
    for root in sorted({0, p - 1}) if find_collective(key[0]).rooted else (0,):
        for k in (1, 2) if p == 3 else (1,):
            schedule = made(*key, p, root, k)
            verify(schedule)
            assert keeps_its_promise(schedule)
            check_equal_to_reference(schedule, "avg" if schedule.kind.reduces else "sum", range(2))


@KEYS
def test_blocks_of_no_elements_at_all(key: tuple[str, str]) -> None:
    schedule = made(*key, 3)
    lengths = np.zeros(schedule.kind.num_blocks(3), np.int64) if schedule.kind.uneven else None
    inputs = random_inputs(schedule, 0, 0, lengths)
    for in_place in (False, True):
        for output in run_plans(lower_all(schedule, in_place), inputs, seed=0, block_lengths=lengths):
            assert output is None or output.size == 0


def test_composed_with_what_there_is() -> None:
    for p in (1, 3, 4):
        for root in (0, p - 1):
            scatter, gather = made("scatter", "linear", p, root), made("gather", "chain", p, root)
            broadcast = compose.then(scatter, ALGORITHMS["all_gather", "ring"].build(p))
            reduce = compose.then(ALGORITHMS["reduce_scatter", "ring"].build(p), gather)
            assert (verify(broadcast).collective, verify(reduce).collective) == ("broadcast", "reduce")
            assert (broadcast.root, reduce.root) == (root, root)
            assert verify(compose.reversed(gather)).collective == "scatter"
            check_equal_to_reference(reduce, "avg")
    moved = compose.on(made("all_to_all", "pairwise", 4, k=2), [2, 0, 3, 1], 4)
    verify(moved)
    assert keeps_its_promise(moved)


# Law 1: which ranks know the length of a chunk.


def test_law_1_refuses_a_row_whose_size_one_end_does_not_know() -> None:
    schedule = Builder("gather_v", 3, 3)
    with pytest.raises(ScheduleError, match=r"destination does not know .*\(rank 2, chunk 1\)"), schedule.step():
        schedule.copy(src=1, dst=2, chunk=1)
    with pytest.raises(ScheduleError, match=r"source does not know .*\(rank 1, chunk 2\)"), schedule.step():
        schedule.copy(src=1, dst=0, chunk=[1, 2])
    exchange = Builder("all_to_all_v", 3, 9)
    with pytest.raises(ScheduleError, match=r"destination does not know .*\(rank 2, chunk 1\)"), exchange.step():
        exchange.copy(src=0, dst=2, chunk=1)
    anyone = Builder("all_gather_v", 3, 3)  # all of data is the output of every rank
    with anyone.step():
        anyone.copy(src=1, dst=2, chunk=0)


def test_law_1_follows_repetitions_to_what_a_rank_does_not_know() -> None:
    schedule = Builder("scatter_v", 3, 3)
    with pytest.raises(VerifyError, match=r"law 1 \(step 1, rank 1, chunk 2\).*destination does not know"):
        for i in schedule.repeat(2):
            schedule.copy(src=0, dst=1, chunk=1 + i)
        verify(schedule.finish())


def test_law_1_follows_what_scratch_holds_to_a_rank_that_does_not_know_it() -> None:
    schedule = Builder("gather_v", 3, 3)
    with schedule.step():
        schedule.copy(src=[1, 2], dst=0, chunk=[1, 2])
    with schedule.step():
        schedule.copy(src=1, dst=1, src_chunk=1, dst_chunk=0, dst_buffer="scratch")
    with schedule.step():
        schedule.copy(src=1, dst=2, src_chunk=0, dst_chunk=0, src_buffer="scratch", dst_buffer="scratch")
    with pytest.raises(VerifyError, match=r"law 1 \(step 2, rank 2, chunk 1\).*destination does not know"):
        verify(schedule.finish())


def test_law_1_refuses_to_put_a_block_in_the_place_of_another() -> None:
    schedule = Builder("all_gather_v", 2, 2)
    with pytest.raises(ScheduleError, match=r"different sizes.*one chunk of data"), schedule.step():
        schedule.copy(src=0, dst=1, src_chunk=0, dst_chunk=1)
    explicit = Builder("gather_v", 2, 2)
    with pytest.raises(ScheduleError, match="different sizes"), explicit.step():
        explicit.copy(src=1, dst=0, src_chunk=0, dst_chunk=0, src_buffer="input", dst_buffer="output")


# Law 2.


@pytest.mark.parametrize(
    ("collective", "change", "found"),
    [
        ("gather", {"src": 1}, (0, 2, "nothing")),
        ("scatter", {"dst": 1}, (1, 1, "of chunk 2")),
        ("all_to_all", {"dst": 1}, (1, 1, "of chunk 2")),
    ],
)
def test_law_2_names_what_is_not_where_it_should_be(collective: str, change: dict, found: tuple[int, int, str]) -> None:
    right = {
        "gather": {"src": 2, "dst": 0, "src_chunk": 0, "dst_chunk": 2},
        "scatter": {"src": 0, "dst": 2, "src_chunk": 2, "dst_chunk": 0},
        "all_to_all": {"src": 0, "dst": 2, "src_chunk": 2, "dst_chunk": 0},
    }[collective]
    places = {"src_buffer": "input", "dst_buffer": "output"}

    def schedule(row: dict[str, int]) -> Schedule:
        builder = Builder(collective, 3, 9 if collective == "all_to_all" else 3)
        with builder.step():
            if collective == "gather":
                builder.copy(src=[0, 1], dst=0, src_chunk=0, dst_chunk=[0, 1], **places)
            elif collective == "scatter":
                builder.copy(src=0, dst=[0, 1], src_chunk=[0, 1], dst_chunk=0, **places)
            else:
                src, dst = np.divmod(np.delete(np.arange(9), 2), 3)
                builder.copy(src=src, dst=dst, src_chunk=dst, dst_chunk=src, **places)
        with builder.step():
            builder.copy(**row, **places)
        return builder.finish()

    verify(schedule(right))
    with pytest.raises(VerifyError) as caught:
        wrong = right | change
        verify(schedule(wrong))
    rank, chunk, text = found
    if collective == "gather":  # rank 1's block lies where that of rank 2 should
        text = "that of rank 1, of chunk 1"
    assert (caught.value.law, caught.value.rank, caught.value.chunk) == (2, rank, chunk)
    assert text in str(caught.value.found)


# Exchanges in place: what is received takes the place of what is still to be sent.


def test_an_exchange_in_place_saves_what_a_later_step_sends() -> None:
    for name in ("pairwise", "explicit"):
        schedule = made("all_to_all_v", name, 3)
        lines = listing(lower(schedule, 0, in_place=True))
        assert "o1 -> 1#" in " ".join(lines)  # staged, because its new content comes in another step or at once
        assert any(line.split(": ")[1].startswith("o") and "-> s0" in line for line in lines), lines
        assert lower(schedule, 0, in_place=False).num_scratch == 0


def test_blocks_exchanged_in_place_must_be_equally_long_both_ways() -> None:
    schedule = made("all_to_all_v", "pairwise", 2)
    lengths = np.array([1, 2, 3, 1])
    inputs = random_inputs(schedule, 0, 0, lengths)
    with pytest.raises(ValueError, match=r"rank 0: .* equally long"):
        run_plans(lower_all(schedule, in_place=True), inputs, seed=0, block_lengths=lengths)
    expected = reference.run(schedule, inputs, block_lengths=lengths)
    found = run_plans(lower_all(schedule, in_place=False), inputs, seed=0, block_lengths=lengths)
    assert [output.tolist() for output in found] == [output.tolist() for output in expected]


def test_lengths_are_asked_for_where_blocks_are_uneven_and_only_there() -> None:
    uneven, even = made("gather_v", "linear", 2), made("gather", "linear", 2)
    pair = [np.ones(2), np.ones(3)]
    for run in (reference.run, lambda s, x, **named: run_plans(lower_all(s, False), x, seed=0, **named)):
        with pytest.raises(ValueError, match="lengths of 2 blocks"):
            run(uneven, pair)
        with pytest.raises(ValueError, match="no "):
            run(even, pair, block_lengths=np.array([2, 3]))
        with pytest.raises(ValueError, match=r"elements, found"):
            run(uneven, pair, block_lengths=np.array([3, 2]))


# premul: every contribution is multiplied once, in the accumulator type, where it is first read.

REDUCING = [key for key in ALGORITHMS if key[0] in ("all_reduce", "reduce", "reduce_scatter")]
REDUCING += [key for key in SMALL if key[0] == "reduce_scatter_v"]


@pytest.mark.parametrize(
    ("key", "p"),
    [(key, p) for key in REDUCING for p in (1, 2, 3, 5, 8) if key in SMALL or ALGORITHMS[key].allows(p)],
)
def test_premul_multiplies_every_contribution_once(key: tuple[str, str], p: int) -> None:
    schedule = ALGORITHMS[key].build(p) if key in ALGORITHMS else made(*key, p)
    lengths = random_lengths(schedule, 5, seed=p, in_place=True)
    size = 4 * p if lengths is None else int(lengths.sum())
    inputs = [np.arange(size) * (rank + 2) - 7 for rank in range(p)]
    total = 3 * np.sum(inputs, axis=0)
    each = np.full(schedule.kind.num_blocks(p), size // schedule.kind.num_blocks(p)) if lengths is None else lengths
    begins = np.cumsum(each) - each
    trials = [reference.run(schedule, inputs, premul_sum(3), block_lengths=lengths)]
    for in_place in (False, True):
        plans = lower_all(schedule, in_place)
        trials.append(run_plans(plans, inputs, premul_sum(3), seed=p, num_pieces=2, block_lengths=lengths))
    for outputs in trials:
        for rank, output in enumerate(outputs):
            blocks = schedule.kind.output_blocks(rank, p)
            if blocks:
                begin = begins[blocks[0]]
                assert output is not None and output.tolist() == total[begin : begin + each[blocks].sum()].tolist()


def test_premul_rounds_where_a_contribution_is_copied_and_not_where_it_is_added() -> None:
    p, factor = 3, 1.1
    inputs = [np.random.default_rng(rank).standard_normal(64).astype(np.float16) for rank in range(p)]
    scaled = [x.astype(np.float32) * np.float32(factor) for x in inputs]
    direct = reference.run(ALGORITHMS["all_reduce", "direct"].build(p), inputs, premul_sum(factor))
    assert np.array_equal(direct[0], (scaled[0] + scaled[1] + scaled[2]).astype(np.float16))
    copied = Builder("reduce", p, 1)
    with copied.step():
        copied.copy(src=1, dst=2, chunk=0, dst_buffer="scratch", dst_chunk=0)
    with copied.step():
        copied.reduce(src=2, dst=0, src_chunk=0, dst_chunk=0, src_buffer="scratch")
        copied.reduce(src=2, dst=0, chunk=0)
    found = reference.run(copied.finish(), inputs, premul_sum(factor))[0]
    rounded = scaled[1].astype(np.float16).astype(np.float32)
    assert np.array_equal(found, (scaled[0] + rounded + scaled[2]).astype(np.float16))
    check_equal_to_reference(copied.finish(), premul_sum(factor))
