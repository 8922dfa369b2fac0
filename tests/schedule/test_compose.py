"""The operators: composing right schedules gives right schedules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.algorithms import ALGORITHMS
from hocket.errors import ScheduleError, VerifyError
from hocket.schedule import Buffer, Builder, Certificate, Schedule, compose, find_collective, reference, verify
from tests.schedule.promise import even_lengths, named_lengths
from tests.schedule.random_schedules import random_inputs


def holds(schedule: Schedule) -> Certificate:
    return verify(schedule, laws=(1, 2, 4, 5))


def made(collective: str, name: str, p: int, root: int = 0) -> Schedule:
    return ALGORITHMS[collective, name].build(p, root)


@pytest.mark.parametrize("name", ["ring", "direct"])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
def test_backwards_and_backwards_again(name: str, p: int) -> None:
    for collective, reverse in (("all_gather", "reduce_scatter"), ("reduce_scatter", "all_gather")):
        schedule = made(collective, name, p)
        back = compose.reversed(schedule)
        assert back.collective == reverse and back.num_steps == schedule.num_steps
        assert len(back.repeats) == len(schedule.repeats)
        holds(back)
        assert holds(compose.reversed(back)).collective == collective
    gather = made("all_gather", "ring", p)
    assert compose.reversed(compose.reversed(gather)).digest == gather.digest


@pytest.mark.parametrize("p", [1, 2, 5, 8])
def test_trees_backwards_for_all_roots(p: int) -> None:
    for root in range(p):
        assert holds(compose.reversed(made("broadcast", "binomial", p, root))).collective == "reduce"
        assert holds(compose.reversed(made("reduce", "binomial", p, root))).collective == "broadcast"


def test_backwards_through_scratch() -> None:
    schedule = Builder("all_gather", 3, 3)
    for holder in range(3):  # Twice through the same slot: the second use must not see the first.
        with schedule.step():
            schedule.copy(src=holder, dst=(holder + 1) % 3, src_chunk=holder, dst_chunk=0, dst_buffer="scratch")
        for target in (holder + 1, holder + 2):
            with schedule.step():
                schedule.copy((holder + 1) % 3, target % 3, src_chunk=0, dst_chunk=holder, src_buffer="scratch")
    gather = schedule.finish()
    holds(gather)
    assert holds(compose.reversed(gather)).collective == "reduce_scatter"


def test_what_cannot_run_backwards() -> None:
    for collective, name in (("all_reduce", "ring"), ("barrier", "dissemination")):
        with pytest.raises(ScheduleError, match="run backwards"):
            compose.reversed(made(collective, name, 2))


@pytest.mark.parametrize("key", ALGORITHMS, ids="-".join)
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_refining_changes_nothing_but_the_number_of_rows(key: tuple[str, str], chunks: int) -> None:
    for p in filter(ALGORITHMS[key].allows, (1, 2, 5)):
        schedule = made(*key, p)
        fine = compose.refine(schedule, chunks)
        assert (fine.num_chunks, fine.num_rows) == (schedule.num_chunks * chunks, schedule.num_rows * chunks)
        before, after = holds(schedule), holds(fine)
        assert (after.labels, after.sent, after.num_steps) == (before.labels, before.sent, before.num_steps)
        lengths = even_lengths(schedule, 10)
        inputs, named = random_inputs(schedule, 10, p, lengths), named_lengths(schedule, lengths)
        results = (reference.run(one, inputs, **named) for one in (schedule, fine))
        for left, right in zip(*results, strict=True):
            assert (left is None and right is None) or np.array_equal(left, right)


def test_refining_strided_rows() -> None:
    schedule = Builder("all_reduce", 2, 4)
    with schedule.step():
        schedule.reduce(src=[0, 1], dst=[1, 0], chunk=0, count=2, stride=2)
        schedule.reduce(src=[0, 1], dst=[1, 0], chunk=1, count=2, stride=2)
    holds(compose.refine(schedule.finish(), 3))


@given(
    st.permutations(range(5)),
    st.sampled_from([key for key in ALGORITHMS if ALGORITHMS[key].allows(5)]),
    st.integers(1, 2),
)
@settings(max_examples=40, deadline=None)
def test_on_a_permutation_of_ranks_a_schedule_still_holds(ranks: list[int], key: tuple[str, str], chunks: int) -> None:
    schedule = compose.refine(made(*key, 5, 2 if find_collective(key[0]).rooted else 0), chunks)
    moved = compose.on(schedule, ranks, 5)
    assert moved.uses_data == schedule.uses_data
    assert holds(moved).sent == holds(schedule).sent
    assert moved.root == (ranks[2] if schedule.kind.rooted else 0)


def test_on_the_same_ranks_is_the_same() -> None:
    schedule = made("all_reduce", "ring", 4)
    assert compose.on(schedule, range(4), 4).digest == schedule.digest


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_hierarchical_all_reduce_over_unequal_groups(sizes: list[int], random) -> None:
    """Reduce in every group, all_reduce among their leaders, broadcast in every group."""
    p = sum(sizes)
    ranks = list(range(p))
    random.shuffle(ranks)
    groups = [ranks[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))]
    up, down = (
        [compose.on(made(kind, "binomial", len(group)), group, p) for group in groups]
        for kind in ("reduce", "broadcast")
    )
    middle = compose.on(made("all_reduce", "ring", len(groups)), [group[0] for group in groups], p)

    def side_by_side(parts: list[Schedule]) -> Schedule:
        whole = parts[0]
        for part in parts[1:]:
            whole = compose.beside(whole, part, collective="all_reduce")
        return whole

    whole = compose.then(
        compose.then(side_by_side(up), middle, collective="all_reduce"), side_by_side(down), collective="all_reduce"
    )
    assert "same_on_all_ranks" in holds(whole).labels
    inputs = [np.arange(7) * (rank + 1) for rank in range(p)]
    for output in reference.run(whole, inputs):
        assert np.array_equal(output, sum(inputs))


def test_two_level_reduce_scatter_and_all_gather() -> None:
    """Groups of two: scatter inside, all_reduce each half across, gather inside. Parts stay periodic."""
    p, groups = 4, ([0, 1], [2, 3])
    scatter, gather = (made(kind, "ring", 2) for kind in ("reduce_scatter", "all_gather"))
    inside, back = (
        compose.beside(
            compose.on(kind, groups[0], p, collective="all_reduce"),
            compose.on(kind, groups[1], p, collective="all_reduce"),
        )
        for kind in (scatter, gather)
    )
    across = Builder("all_reduce", p, 2)
    with across.step():
        across.reduce(src=[0, 1, 2, 3], dst=[2, 3, 0, 1], chunk=[0, 1, 0, 1])
    whole = compose.then(compose.then(inside, across.finish(), collective="all_reduce"), back, collective="all_reduce")
    assert holds(whole).num_steps == 3


def test_rings_side_by_side_stay_periodic() -> None:
    ring = made("reduce_scatter", "ring", 4)
    both = compose.beside(
        compose.on(ring, range(4), 8, collective="all_reduce"),
        compose.on(ring, range(4, 8), 8, collective="all_reduce"),
    )
    assert len(both.repeats) == 1 and both.num_steps == 3 and both.num_rows == 2 * ring.num_rows


def test_side_by_side_with_other_periods() -> None:
    """Three repetitions beside one step and then two: cut where they meet."""
    ring = compose.on(made("all_gather", "ring", 4), range(4), 7, collective="all_reduce")
    other = compose.refine(compose.on(made("broadcast", "binomial", 3), [4, 5, 6], 7), 4)
    both = compose.beside(ring, other, collective="all_reduce")
    assert both.num_steps == 3
    rows = [len(step.expanded()) for step in both.steps()]
    assert rows == [4 + 4, 4 + 4, 4]


def test_side_by_side_with_other_chunks_stay_periodic() -> None:
    """Repetitions of a part with fewer chunks advance by the same part of the vector."""
    three = compose.on(made("all_gather", "ring", 3), range(3), 5, collective="all_reduce")
    two = compose.on(made("all_gather", "ring", 2), [3, 4], 5, collective="all_reduce")
    both = compose.beside(three, two)
    moved = [step.take(step.dst < 3) for step in both.steps()]
    for found, expected in zip(moved, made("all_gather", "ring", 3).steps(), strict=True):
        assert found.src_chunk.tolist() == (expected.src_chunk * 2).tolist() and (found.count == 2).all()


@pytest.mark.parametrize("buffer", ["data", "scratch"])
def test_some_chunks_may_be_left_out(buffer: str) -> None:
    """The blocks of ranks 0 and 2 in a ring of three, also if they travel through scratch."""
    schedule = Builder("all_gather", 3, 3)
    rank = schedule.ranks
    for i in range(2):
        sent = {"chunk": (rank - i) % 3}
        if buffer == "scratch":
            sent = {"src_chunk": (rank - i) % 3, "dst_chunk": i, "dst_buffer": "scratch"}
            sent |= {"src_chunk": 0, "src_buffer": "scratch"} if i else {}
        with schedule.step():
            schedule.copy(src=rank, dst=(rank + 1) % 3, **sent)
    part = compose.on(schedule.finish(), range(3), 3, chunks=[0, -1, 1], num_chunks=2, collective="broadcast")
    assert part.num_rows == 4
    for step in part.steps():
        assert (step.dst_buffer == Buffer[buffer.upper()]).all() and len(step) == 2
    pairs = [sorted(zip(step.src.tolist(), step.dst.tolist(), strict=True)) for step in part.steps()]
    assert pairs == [[(0, 1), (2, 0)], [(0, 1), (1, 2)]]


def test_rows_stay_whole_where_chunks_are_equally_far_apart() -> None:
    schedule = compose.refine(made("all_gather", "direct", 2), 4)
    places = [0, 3, 6, 9, 1, 2, 7, 4]  # Distances for rank 1: one, five, minus three.
    part = compose.on(schedule, range(2), 2, chunks=places, num_chunks=10, collective="all_reduce")
    step = part.repeats[0].step
    rows = zip(step.src.tolist(), step.src_chunk.tolist(), step.count.tolist(), step.stride.tolist(), strict=True)
    assert sorted(rows) == [(0, 0, 4, 3), (1, 1, 2, 1), (1, 4, 1, 1), (1, 7, 1, 1)]
    assert sorted(step.expanded().dst_chunk.tolist()) == sorted(places)


def test_scratch_of_the_second_lies_behind_that_of_the_first() -> None:
    def part(src: int, dst: int) -> Schedule:
        schedule = Builder("broadcast", 3, 1)
        with schedule.step():
            schedule.copy(src=src, dst=dst, chunk=0, dst_buffer="scratch")
        with schedule.step():
            schedule.copy(src=dst, dst=dst, chunk=0, src_buffer="scratch")
        return schedule.finish()

    both = compose.beside(part(0, 1), part(0, 2))
    assert both.num_scratch == 2
    holds(both)
    assert compose.then(part(0, 1), part(0, 2), collective="broadcast").num_scratch == 1


def test_then_takes_the_common_chunks() -> None:
    scatter = compose.refine(made("reduce_scatter", "ring", 3), 2)
    gather = compose.refine(made("all_gather", "direct", 3), 3)
    whole = compose.then(scatter, gather)
    assert (whole.collective, whole.num_chunks) == ("all_reduce", 18)
    holds(whole)
    for root in range(3):
        holds(compose.then(made("reduce", "binomial", 3, root), made("broadcast", "binomial", 3, root)))
        gathered = compose.then(made("gather", "binomial", 3, root), made("broadcast", "binomial", 3, root))
        assert (holds(gathered).collective, gathered.root) == ("all_gather", 0)


def test_what_does_not_compose() -> None:
    ring = made("all_gather", "ring", 4)
    broadcast = made("broadcast", "binomial", 4)
    explicit = Builder("broadcast", 2, 1)
    with explicit.step():
        explicit.copy(src=0, dst=[0, 1], chunk=0, src_buffer="input", dst_buffer="output")
    wrong = [
        (lambda: compose.then(ring, broadcast), "reduce_scatter then all_gather"),
        (
            lambda: compose.then(made("reduce", "binomial", 2, 0), made("broadcast", "binomial", 2, 1)),
            "one root, found 0 and 1",
        ),
        (lambda: compose.then(made("reduce_scatter", "ring", 2), ring), "equal rank counts, found 2 and 4"),
        (lambda: compose.beside(ring, broadcast), "found all_gather and broadcast"),
        (
            lambda: compose.beside(broadcast, broadcast),
            r"parts write in one step, found \d in step 0, first data\[0\] of rank 2 \(.*\); put .*compose.on\(",
        ),
        (lambda: compose.on(ring, [0, 1, 2], 4), "4 different ranks"),
        (lambda: compose.on(ring, [0, 1, 2, 2], 4), "4 different ranks"),
        (lambda: compose.on(ring, 3, 4), "4 different ranks, found 3"),
        (lambda: compose.on(broadcast, range(4), 4, chunks=0, num_chunks=1), "1 different chunks, found 1: 0"),
        (lambda: compose.on(ring, [0, 1, 2, 4], 4), "ranks from 0 to 3"),
        (lambda: compose.on(ring, [0, 1, 2, 3], 8), "the whole that it is a part of"),
        (lambda: compose.refine(ring, 0), "1 or more, found 0"),
        (
            lambda: compose.refine(ring, 2.5),
            "refine: expected to cut every chunk in a whole number of parts, found 2.5",
        ),
        (lambda: compose.refine(ring, 2**40), r"refine: expected fewer than 2\*\*31 chunks, found 4398046511104"),
        (lambda: compose.on(broadcast, [0.5, 1.9, 2, 3], 4), r"on: expected ranks as whole numbers, found \[0.5, 1.9"),
        (lambda: compose.on(ring, [0, 1, [2, 3]], 4), r"on: expected ranks as whole numbers, found \[0, 1, \[2"),
        (lambda: compose.on(ring, range(4), 4.0), r"on: expected num_ranks as a whole number, found 4.0"),
        (
            lambda: compose.on(broadcast, range(4), 4, chunks=[0]),
            r"on: expected num_chunks= as a whole number, found None",
        ),
        (
            lambda: compose.on(broadcast, range(4), 4, num_chunks=1.5),
            r"on: expected num_chunks= as a whole number, found 1.5",
        ),
        (
            lambda: compose.on(broadcast, range(4), 4, chunks=[0.5], num_chunks=2),
            r"chunks= as whole numbers, found \[0.5\]",
        ),
        (
            lambda: compose.on(broadcast, range(4), 4, chunks=[2**35], num_chunks=2**40),
            r"num_chunks= below 2\*\*31, found 10995",
        ),
        (lambda: compose.reversed(explicit.finish()), "schedule on data"),
    ]
    for composing, message in wrong:
        with pytest.raises(ScheduleError, match=message):
            composing()


def test_only_schedules_are_composed_with_schedules() -> None:
    ring = made("all_gather", "ring", 4)
    with pytest.raises(TypeError, match=r"^then: expected a schedule, such as algorithm.build.*; found int 3$"):
        compose.then(ring, 3)
    algorithm = ALGORITHMS["all_gather", "ring"]
    with pytest.raises(
        TypeError, match=r"^beside: expected a schedule, .*; found Algorithm all_gather ring \(.*ring.py"
    ):
        compose.beside(ring, ring, algorithm)


def test_a_part_is_not_the_whole() -> None:
    with pytest.raises(VerifyError, match="law 2"):
        holds(compose.on(made("all_reduce", "ring", 2), [0, 2], 3))
