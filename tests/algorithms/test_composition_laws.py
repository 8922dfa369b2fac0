"""The laws of composition, for all algorithms: a composition of proved parts is proved, and right."""

import itertools

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from hocket.errors import VerifyError
from hocket.schedule import Buffer, Schedule, compose, find_collective, reference, verify
from tests.schedule.promise import keeps_promise


def named(collective: str) -> list[Algorithm]:
    return [one for one in ALGORITHMS.values() if one.collective == collective]


def pairs(first: str, second: str) -> list[tuple[Algorithm, Algorithm]]:
    return list(itertools.product(named(first), named(second)))


def names(algorithms: tuple[Algorithm, ...]) -> str:
    return "-".join(one.name for one in algorithms)


def rank_counts(*algorithms: Algorithm) -> list[int]:
    """Returns some rank counts that all of them allow; not 1, which the first test of all algorithms has."""
    return [p for p in (2, 3, 5, 8) if all(one.allows(p) for one in algorithms)]


def holds(schedule: Schedule, collective: str) -> None:
    certificate = verify(schedule, laws=(1, 2, 4, 5))
    assert certificate.collective == collective
    keeps_promise(schedule)


def transfers(schedule: Schedule) -> list[list[tuple[int, ...]]]:
    """Returns for each step which rank sends which chunk to which rank, whether it is added there or not."""
    found = []
    for step in schedule.steps():
        one, _ = step.spread()
        one = one.take(one.src != one.dst)
        columns = (one.src, one.dst, one.src_buffer, one.dst_buffer, one.src_chunk, one.dst_chunk)
        found.append(sorted(zip(*(column.tolist() for column in columns), strict=True)))
    return [rows for rows in found if rows]


@pytest.mark.parametrize("both", pairs("reduce_scatter", "all_gather"), ids=names)
def test_an_all_reduce_is_a_reduce_scatter_and_then_an_all_gather(both: tuple[Algorithm, Algorithm]) -> None:
    scatter, gather = both
    for p in rank_counts(*both):
        if p == 3:
            continue  # Half of all pairs are in this test; 2, 5 and 8 are enough for each.
        whole = compose.then(scatter.build(p), gather.build(p))
        holds(whole, "all_reduce")
        assert whole.num_steps == scatter.build(p).num_steps + gather.build(p).num_steps


@pytest.mark.parametrize("both", pairs("reduce", "broadcast"), ids=names)
def test_an_all_reduce_is_a_reduce_and_then_a_broadcast(both: tuple[Algorithm, Algorithm]) -> None:
    reduce, broadcast = both
    for p in rank_counts(*both):
        for root in range(p) if p < 5 else (1, p - 1):
            holds(compose.then(reduce.build(p, root), broadcast.build(p, root)), "all_reduce")


@pytest.mark.parametrize("both", pairs("gather", "broadcast"), ids=names)
def test_an_all_gather_is_a_gather_and_then_a_broadcast(both: tuple[Algorithm, Algorithm]) -> None:
    gather, broadcast = both
    for p in rank_counts(*both):
        for root in range(p) if p < 5 else (1, p - 1):
            holds(compose.then(gather.build(p, root), broadcast.build(p, root)), "all_gather")


@pytest.mark.parametrize("both", pairs("scatter", "all_gather") + pairs("reduce_scatter", "gather"), ids=names)
def test_the_rooted_ones_come_from_halves_too(both: tuple[Algorithm, Algorithm]) -> None:
    """broadcast = scatter and then all_gather; reduce = reduce_scatter and then gather."""
    first, second = both
    whole = "broadcast" if first.collective == "scatter" else "reduce"
    for p in rank_counts(*both)[1:]:
        made = compose.then(first.build(p, p - 1), second.build(p, p - 1))
        assert made.root == p - 1
        holds(made, whole)


def test_lowered_wholes_have_plans_that_end() -> None:
    """Law 3, for each algorithm in at least one pair."""
    for one in ("reduce_scatter", "reduce", "gather"):
        other = {"reduce_scatter": "all_gather", "reduce": "broadcast", "gather": "broadcast"}[one]
        firsts, seconds = named(one), named(other)
        for i in range(max(len(firsts), len(seconds))):
            both = firsts[i % len(firsts)], seconds[i % len(seconds)]
            for p in [p for p in rank_counts(*both) if p < 5][-1:]:
                verify(compose.then(both[0].build(p), both[1].build(p)), laws=(3,))


@pytest.mark.parametrize(
    "one",
    [one for one in ALGORITHMS.values() if find_collective(one.collective).reverse],
    ids=lambda one: f"{one.collective}-{one.name}",
)
def test_backwards_it_is_the_other_collective_and_backwards_again_the_same(one: Algorithm) -> None:
    kind = find_collective(one.collective)
    for p in rank_counts(one):
        for root in range(p) if kind.rooted and p < 5 else (p - 1 if kind.rooted else 0,):
            schedule = one.build(p, root)
            if not schedule.uses_data:
                continue
            back = compose.reversed(schedule)
            again = compose.reversed(back)
            assert (back.collective, again.collective) == (kind.reverse, kind.name)
            for before, made in ((schedule, back), (back, again)):
                if made.kind.reduces and gives_again(before):
                    with pytest.raises(VerifyError, match="a contribution is added twice"):
                        verify(made, laws=(2,))
                    continue
                assert verify(made, laws=(1, 2, 4, 5)).root == (root if kind.rooted else 0)
                if not kind.uneven:
                    keeps_promise(made)
            assert transfers(again) == transfers(schedule)


def gives_again(schedule: Schedule) -> bool:
    """Returns whether a rank receives a chunk that it has: backwards, it would add its contribution twice."""
    k, p = schedule.chunks_per_block, schedule.num_ranks
    held = [{b * k + i for b in schedule.kind.input_blocks(r, p, schedule.root) for i in range(k)} for r in range(p)]
    for rows in transfers(schedule):
        for _, dst, _, dst_buffer, _, chunk in rows:
            if dst_buffer == Buffer.DATA:
                if chunk in held[dst]:
                    return True
                held[dst].add(chunk)
    return False


@pytest.mark.parametrize("one", named("all_reduce"), ids=lambda one: one.name)
def test_in_a_larger_group_a_schedule_leaves_the_others_alone(one: Algorithm) -> None:
    members = [6, 1, 4, 3]
    part = compose.on(one.build(4), members, 8)
    inputs = [np.arange(5) * (rank + 1) ** 2 for rank in range(8)]
    total = sum(inputs[rank] for rank in members)
    for rank, output in enumerate(reference.run(part, inputs)):
        assert np.array_equal(output, total if rank in members else inputs[rank])


@pytest.mark.parametrize("one", ALGORITHMS.values(), ids=map("-".join, ALGORITHMS))
def test_in_a_larger_group_transfers_are_the_same(one: Algorithm) -> None:
    schedule = one.build(4)
    if not schedule.uses_data:
        return
    members = np.array([6, 1, 4, 3])
    part = compose.on(schedule, members.tolist(), 8, collective=one.collective)
    for before, after in zip(schedule.steps(), part.steps(), strict=True):
        for name in ("src", "dst"):
            assert np.array_equal(members[getattr(before, name)], getattr(after, name))
        for name in ("src_chunk", "dst_chunk", "src_buffer", "dst_buffer", "count", "stride", "reduce"):
            assert np.array_equal(getattr(before, name), getattr(after, name))
