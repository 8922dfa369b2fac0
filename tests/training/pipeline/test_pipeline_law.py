"""Each law refuses its smallest broken table, and tells what is wrong; a deadlock is told as its shortest cycle."""

import random
from dataclasses import replace

import numpy as np
import pytest

from hocket.errors import VerifyError
from hocket.training.pipeline import (
    MessageOrder,
    PipelinePromise,
    PipelineTable,
    build_table,
    rendezvous_order,
    time_table,
    verify_table,
)
from hocket.training.pipeline.deadlock import shortest_cycle
from hocket.training.pipeline.pipeline_order import finish_times
from tests.training.pipeline.pipeline_world import Operation, mutate, operations_of, table_from

TWO = np.array([[0, 1]])  # two stages on two ranks


def table_of_text(*ranks: str, placement: np.ndarray = TWO, num_microbatches: int = 1) -> PipelineTable:
    """A table from texts such as "F0.1 G0.1+": kind, stage, micro-batch; + overlaps the operation before."""
    rows: list[list[Operation]] = [
        [(word[0], *map(int, word[1:].rstrip("+").split(".")), int(word.endswith("+"))) for word in rank.split()]  # type: ignore[misc]
        for rank in ranks
    ]
    return table_from(rows, placement, num_microbatches)


def refuse(table: PipelineTable, law: int, message: str, capacity: int | None = None) -> VerifyError:
    with pytest.raises(VerifyError, match=message) as refused:
        verify_table(table, capacity=capacity)
    assert refused.value.law == law
    return refused.value


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (("F0.0 B0.0", "F1.0 G1.0"), "stage 0 does not run micro-batch 0.*expected 1 F.*found 1 F, 1 B, 0 W, 0 G"),
        (("F0.0 G0.0 W0.0", "F1.0 G1.0"), "found 1 F, 0 B, 1 W, 1 G"),
        (("F0.0 F0.0 G0.0", "F1.0 G1.0"), "found 2 F, 0 B, 0 W, 1 G"),
        (("G0.0", "F1.0 G1.0"), "found 0 F, 0 B, 0 W, 1 G"),
        (("F0.0", "F1.0 G1.0 G0.0"), "G of stage 0, micro-batch 0 is on rank 1, but its stage on 0"),
    ],
)
def test_an_incomplete_table_breaks_law_1(ranks: tuple[str, ...], message: str) -> None:
    refuse(table_of_text(*ranks), 1, message)
    with pytest.raises(VerifyError, match="law 1"):
        time_table(table_of_text(*ranks))


def test_a_table_that_names_far_too_much_breaks_law_1_at_once() -> None:
    error = refuse(table_of_text("F0.0 G0.0", "F1.0 G1.0", num_microbatches=10**9), 1, "1000000000 micro-batches")
    assert error.found == 4


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (("G0.0 F0.0", "F1.0 G1.0"), "rank 0 runs G of stage 0, micro-batch 0 at position 0, but F .* at 1"),
        (("F0.0 W0.0 B0.0", "F1.0 G1.0"), "rank 0 runs W of stage 0, micro-batch 0 at position 1, but B .* at 2"),
    ],
)
def test_an_order_on_one_rank_breaks_law_2(ranks: tuple[str, ...], message: str) -> None:
    error = refuse(table_of_text(*ranks), 2, message)
    assert error.rank == 0 and "deadlock of 1 operation" in str(error)


def test_an_order_of_stages_on_one_rank_breaks_law_2() -> None:
    table = table_of_text("F1.0 F0.0 G1.0 G0.0", placement=np.array([[0, 0]]))
    refuse(table, 2, "runs F of stage 1, micro-batch 0 at position 0, but F of stage 0, micro-batch 0.* at 1")


def test_ranks_that_wait_for_each_other_break_law_2() -> None:
    table = table_of_text("F0.0 G0.0 F0.1 G0.1", "F1.1 G1.1 F1.0 G1.0", num_microbatches=2)
    error = refuse(table, 2, "deadlock of 2 ranks")
    assert str(error).endswith(
        "rank 0 waits in position 1 for G of stage 1, micro-batch 0, which rank 1 runs in position 3; "
        "rank 1 waits in position 0 for F of stage 0, micro-batch 1, which rank 0 runs in position 2"
    )


def test_a_pair_waits_for_the_inputs_of_both() -> None:
    """Rank 1 needs F of stage 2 before it gives what G of stage 0 waits for: so these two must not overlap."""
    loop, second = np.array([[0, 1, 0, 1]]), "F1.0 F3.0 G3.0 F1.1 F3.1 G1.0 G3.1 G1.1"
    first = "F0.0 F2.0 G2.0 F0.1 F2.1 G0.0{} G2.1 G0.1"
    verify_table(table_of_text(first.format(""), second, placement=loop, num_microbatches=2))
    paired = table_of_text(first.format("+"), second, placement=loop, num_microbatches=2)
    error = refuse(paired, 2, "deadlock of 2 ranks")
    assert "rank 0 waits in position 4 for G of stage 1, micro-batch 0, which rank 1 runs in position 5" in str(error)


def test_operations_of_a_pair_do_not_wait_for_each_other() -> None:
    both = table_of_text("F0.0 F1.0 G1.0 G0.0", placement=np.array([[0, 0]]))
    verify_table(both)
    pair = table_of_text("F0.0 F1.0 G0.0+ G1.0", placement=np.array([[0, 0]]))
    refuse(pair, 2, "rank 0 runs G of stage 0, micro-batch 0 at position 1, but G of stage 1, .* at 2")


@pytest.mark.parametrize("seed", range(6))
def test_the_cycle_is_the_shortest(seed: int) -> None:
    rng, lengths = random.Random(seed), set()
    operations = operations_of(build_table("1f1b-interleaved", 4, 4, 2))
    for _ in range(300):
        ranks = operations
        for _ in range(4):
            ranks = mutate(ranks, 4, rng)
        try:
            table = table_from(ranks, np.tile(np.arange(4), 2)[None], 4)
            verify_table(table)
        except ValueError:
            continue
        except VerifyError as error:
            text = str(error)
            if "law 2" in text and "ranks: rank" in text:
                length = int(text.split("deadlock of ")[1].split()[0])
                assert length == text.count(" waits in position ") == brute_force_cycle(table), text
                lengths.add(length)
    assert lengths


def brute_force_cycle(table: PipelineTable) -> int:
    """The fewest waits for other ranks in any cycle of rows, by trying every row."""
    place = {(k, s, m): (r, i) for r, rows in enumerate(operations_of(table)) for i, (k, s, m, _) in enumerate(rows)}
    waits: dict[tuple[int, int], tuple[int, int]] = {}
    for (kind, stage, microbatch), here in place.items():
        following = stage - 1 if kind == "F" else stage + 1
        there = place.get(("F" if kind == "F" else "G", following, microbatch))
        if there and there[0] != here[0]:
            waits[here] = there
    best = 1 << 30
    for start in waits:
        reached, steps = {start}, 0
        while reached and steps < best:
            steps += 1
            needed = {waits[one] for one in reached if one in waits}
            if any(rank == start[0] and index >= start[1] for rank, index in needed):
                best = min(best, steps)
            reached = {(rank, index) for rank, last in needed for index in range(last + 1)}
    return best


def test_of_many_stuck_operations_those_where_ranks_stop_are_told() -> None:
    operations = operations_of(build_table("1f1b", 40, 60))
    operations[20] = [("F", 20, 1, 0), *(row for row in operations[20] if row[:3] != ("F", 20, 1))]
    operations[19] = [row for row in operations[19] if row[:3] != ("F", 19, 1)]
    operations[19].insert(operations[19].index(("G", 19, 0, 0)) + 1, ("F", 19, 1, 0))
    table = table_from(operations, np.arange(40)[None], 60)
    refuse(table, 2, "deadlock of 2 ranks: rank (19|20) waits")


def test_a_shortest_cycle_may_lie_behind_where_ranks_stop() -> None:
    """Three ranks stop in a cycle of three; behind it, two of them would wait for each other."""
    first = np.array([0, 3, 6, 8])
    need = np.full(8, -1)
    need[0], need[3], need[6] = 5, 7, 2  # heads: rank 0 waits for rank 1, that for rank 2, that for rank 0
    need[1], need[4] = 4, 1
    stuck = np.isnan(finish_times(first, [need], np.ones(8), 0.0))
    assert stuck.all()
    assert [(a, b) for a, b in shortest_cycle(first, [need], stuck)] in (
        [(1, 4), (4, 1)],
        [(4, 1), (1, 4)],
        [(0, 5), (4, 1)],
    )


def test_one_forward_one_backward_deadlocks_under_rendezvous() -> None:
    error = refuse(build_table("1f1b", 2, 3), 3, "law 3: 1f1b: with channels that hold 0 messages", capacity=0)
    assert str(error).endswith(
        "deadlock of 2 ranks: rank 0 waits to send the result of F of stage 0, micro-batch 1 to rank 1, which does not "
        "receive it yet; rank 1 waits to send the result of G of stage 1, micro-batch 0 to rank 0, which does not "
        "receive it yet; expected a capacity of at least 1, found 0"
    )
    verify_table(build_table("1f1b", 2, 3), capacity=1)


@pytest.mark.parametrize("capacity", [-1, 0.5])
def test_a_capacity_is_a_count(capacity: int) -> None:
    with pytest.raises(ValueError, match="expected a capacity of 0 or more messages, found"):
        verify_table(build_table("gpipe", 2, 2), capacity=capacity)


def test_receives_placed_where_messages_are_sent_need_no_channel() -> None:
    for name, p, m in (("1f1b", 4, 8), ("1f1b-interleaved", 2, 6), ("zbv", 4, 8), ("dualpipe", 4, 8)):
        table = build_table(name, p, m)
        ordered = replace(table, messages=rendezvous_order(table))
        assert verify_table(table).fewest_messages.tagged > 0
        assert verify_table(ordered, capacity=0).fewest_messages == (0, 0)


def messages(*rows: tuple[int, int, bool, int]) -> MessageOrder:
    rank, row, sends, position = zip(*rows, strict=True)
    return MessageOrder(np.array(rank), np.array(row), np.array(sends), np.array(position))


SMALL = ("F0.0 G0.0", "F1.0 G1.0")  # rows 0, 1 on rank 0 and 2, 3 on rank 1
GOOD = [(0, 0, True, 1), (0, 1, False, 1), (1, 2, False, 0), (1, 3, True, 2)]


def test_messages_of_a_table_may_be_given() -> None:
    assert verify_table(replace(table_of_text(*SMALL), messages=messages(*GOOD))).fewest_messages == (0, 0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (GOOD[1:], "rank 0 sends the result of F of stage 0, micro-batch 0 0 times, expected 1"),
        ([GOOD[0], *GOOD], "rank 0 sends the result of F of stage 0, micro-batch 0 2 times, expected 1"),
        (GOOD[:2] + GOOD[3:], "rank 1 receives the input of F of stage 1, micro-batch 0 0 times, expected 1"),
        ([(0, 0, True, 0), *GOOD[1:]], "rank 0 sends the result of F of stage 0, micro-batch 0 before it runs"),
        ([*GOOD[:2], (1, 2, False, 1), GOOD[3]], "rank 1 receives the input of F of stage 1, micro-batch 0 after"),
        ([(0, 2, False, 0), *GOOD[:2], GOOD[3]], "rank 0 receives .* of stage 1, micro-batch 0 on another rank"),
        ([GOOD[1], GOOD[0], *GOOD[2:]], "deadlock of 2 ranks: .*, whatever channels hold"),
    ],
)
def test_messages_that_are_wrong_break_law_3(rows: list[tuple[int, int, bool, int]], message: str) -> None:
    refuse(replace(table_of_text(*SMALL), messages=messages(*rows)), 3, message)


def test_more_activations_than_promised_break_law_4() -> None:
    table = replace(build_table("gpipe", 2, 3), promise=PipelinePromise(peak_activations=[3, 2]))
    error = refuse(table, 4, "peak_activations is more than the schedule promises")
    assert (error.rank, error.expected, error.found) == (1, 2, 3)
    table = replace(build_table("zb-h1", 2, 3), promise=PipelinePromise(peak_until_weight=[1, 2]))
    assert refuse(table, 4, "peak_until_weight").rank == 0


def test_a_promise_is_for_every_rank() -> None:
    table = replace(build_table("gpipe", 2, 3), promise=PipelinePromise(peak_activations=[3]))
    with pytest.raises(ValueError, match="gpipe: expected a promise of peak_activations for 2 ranks, found 1"):
        verify_table(table)


@pytest.mark.parametrize("name", ["makespan", "cost"])
def test_another_time_than_promised_breaks_law_5(name: str) -> None:
    table = build_table("1f1b", 3, 4)
    error = refuse(replace(table, promise=PipelinePromise(**{name: 17.0})), 5, f"the {name} is not the promised one")
    assert (error.expected, error.found) == (17.0, 18.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": np.array([0, 4, 0, 3])}, "expected kind from 0 to 3, found 4 in row 1"),
        ({"rank": np.array([0, 0, 1, 2])}, "expected rank from 0 to 1, found 2 in row 3"),
        ({"stage": np.array([0, -1, 1, 1])}, "expected stage from 0 to 1, found -1 in row 1"),
        ({"microbatch": np.array([0, 0, 1, 0])}, "expected microbatch from 0 to 0, found 1 in row 2"),
        ({"rank": np.array([0, 1, 0, 1])}, "expected rows sorted by rank, .* in row 1"),
        ({"position": np.array([0, 2, 0, 1])}, "found rank 0, position 2 in row 1"),
        ({"position": np.array([1, 2, 0, 1])}, "found rank 0, position 1 in row 0"),
        (
            {"position": np.array([0, 0, 0, 1])},
            "pair to be F and then G of two stages, found F of stage 0, .* and G of",
        ),
        ({"kind": np.array([0, 3, 0])}, r"five columns of equal length, found shapes \(4,\), .* \(3,\)"),
        ({"num_microbatches": 0}, "expected at least 1 micro-batch"),
        ({"placement": np.array([0, 1])}, r"placement of shape \(directions, stages\), found 1 and shape \(2,\)"),
        ({"placement": np.array([[0, 2]])}, "found none on rank 1"),
        ({"messages": MessageOrder(*np.zeros((4, 1, 1), int))}, "expected four columns of messages, of equal length"),
        ({"messages": MessageOrder(*np.array([[0], [4], [0], [0]]))}, "expected messages with row from 0 to 3"),
        ({"messages": MessageOrder(*np.array([[0, 0], [0, 0], [1, 1], [1, 0]]))}, "of a rank sorted by position"),
        ({"placement": np.array([[-1, 0]])}, "expected ranks of 0 or more in the placement, found -1"),
    ],
)
def test_a_malformed_table_is_none(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(table_of_text(*SMALL), **changes)
