"""Two levels: traffic across groups, groups of any sizes, any algorithms inside and across groups."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.algorithms import ALGORITHMS, Algorithm, registry
from hocket.algorithms.levels import hierarchical, near_square
from hocket.algorithms.registry import algorithm
from hocket.errors import ScheduleError
from hocket.schedule import Builder, Schedule, find_collective
from tests.schedule.promise import keeps_promise

BUILT_IN = [one for (_, name), one in ALGORITHMS.items() if name == "hierarchical"]
COLLECTIVES = [one.collective for one in BUILT_IN]

some_groups = st.lists(st.integers(1, 5), min_size=1, max_size=5).map(tuple)


def roots(one: Algorithm, p: int) -> list[int]:
    return sorted({0, p // 2, p - 1}) if find_collective(one.collective).rooted else [0]


def levels_of(collective: str) -> list[tuple[Algorithm, ...]]:
    """Returns all pairs of built-in algorithms, inside and across groups, that make this collective for any groups."""

    def named(part: str) -> dict[str, Algorithm]:
        return {
            one.name: one
            for one in ALGORITHMS.values()
            if one.collective == part and one.name != "hierarchical" and one.ranks is None
        }

    if collective != "all_reduce":
        return list(itertools.product(named(collective).values(), repeat=2))
    found = []
    for up, down in (("reduce_scatter", "all_gather"), ("reduce", "broadcast")):
        inside, back = named(up), named(down)
        for name in inside | back:  # A name that only one of them has goes with direct.
            ends = inside.get(name, inside["direct"]), back.get(name, back["direct"])
            found += [(ends[0], across, ends[1]) for across in named("all_reduce").values()]
    return found


def across(schedule: Schedule, groups: tuple[int, ...]) -> np.ndarray:
    """Returns the part of the whole vector that each rank sends to other groups."""
    group = np.repeat(np.arange(len(groups)), groups)
    sent = np.zeros(schedule.num_ranks)
    for step in schedule.steps():
        leaves = group[step.src] != group[step.dst]
        np.add.at(sent, step.src[leaves], step.count[leaves] / schedule.num_chunks)
    return sent


def test_groups_without_being_told() -> None:
    assert {p: near_square(p) for p in (1, 2, 3, 4, 5, 6, 7, 8, 12)} == {
        1: (1,),
        2: (2,),
        3: (3,),
        4: (2, 2),
        5: (3, 2),
        6: (3, 3),
        7: (4, 3),
        8: (4, 4),
        12: (4, 4, 4),
    }
    assert near_square(13) == (5, 4, 4), "a prime"
    assert near_square(22) == (6, 6, 5, 5), "two groups of 11 are too far from a square"
    assert near_square(16384) == (128,) * 128
    for p in range(1, 300):
        groups = near_square(p)
        assert sum(groups) == p and max(groups) - min(groups) <= 1
        assert p < 4 or math.sqrt(p) / 2 <= len(groups) <= math.sqrt(p)


@pytest.mark.slow("proves it for many rank counts")
@pytest.mark.parametrize("one", BUILT_IN, ids=COLLECTIVES)
def test_the_law_holds_for_all_rank_counts(one: Algorithm) -> None:
    for p in range(1, 34):
        for root in roots(one, p):
            assert one.verify(p, root, laws=(1, 2, 4, 5)).labels >= one.labels
    for p in range(1, 10):
        one.verify(p, p - 1, laws=(3,))


@pytest.mark.slow("proves it for random groups")
@pytest.mark.parametrize("one", BUILT_IN, ids=COLLECTIVES)
@given(some_groups, st.data())
@settings(max_examples=25, deadline=None)
def test_the_law_holds_for_any_groups(one: Algorithm, groups: tuple[int, ...], data: st.DataObject) -> None:
    p = sum(groups)
    root = data.draw(st.integers(0, p - 1))
    one.verify(p, root, groups=groups, laws=(1, 2, 4, 5))
    if p < 10:
        one.verify(p, root, groups=groups, laws=(3,))
    keeps_promise(one.build(p, root, groups=groups))


@pytest.mark.parametrize("collective", sorted({*COLLECTIVES} - {"all_to_all"}))
def test_any_algorithm_inside_and_any_across(collective: str) -> None:
    for levels in levels_of(collective):
        one = hierarchical(*levels)
        for root in roots(one, 5):
            one.verify(5, root, groups=(3, 2), laws=(1, 2, 4, 5))
        one.verify(5, groups=(3, 2), laws=(3,), modes=(False,))
        keeps_promise(one.build(5, groups=(3, 2)))


@pytest.mark.parametrize("collective", sorted({*COLLECTIVES} - {"all_to_all"}))
@given(some_groups, st.data())
@settings(max_examples=15, deadline=None)
def test_any_two_over_any_groups(collective: str, groups: tuple[int, ...], data: st.DataObject) -> None:
    one = hierarchical(*data.draw(st.sampled_from(levels_of(collective))))
    root = data.draw(st.sampled_from(roots(one, sum(groups))))
    one.verify(sum(groups), root, groups=groups, laws=(1, 2, 4))


@pytest.mark.parametrize("groups", [(4, 4), (3, 3, 3), (2, 2, 2, 2, 2)])
def test_what_goes_across(groups: tuple[int, ...]) -> None:
    """One M-th of what single ranks would send each other; in rooted collectives, the vector once per group."""
    number, size, p = len(groups), groups[0], sum(groups)
    share = (number - 1) / number / size
    for collective, of_each in (("all_reduce", 2 * share), ("reduce_scatter", share), ("all_gather", share)):
        assert across(ALGORITHMS[collective, "hierarchical"].build(p, groups=groups), groups) == pytest.approx(of_each)
    for collective in ("broadcast", "reduce"):
        assert across(ALGORITHMS[collective, "hierarchical"].build(p, 1, groups=groups), groups).sum() == number - 1
    crossing = across(ALGORITHMS["all_to_all", "hierarchical"].build(p, groups=groups), groups)
    assert crossing == pytest.approx((number - 1) * size / p**2)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"])
def test_only_counterparts_talk_across(collective: str) -> None:
    schedule = ALGORITHMS[collective, "hierarchical"].build(12, 7, groups=(4, 4, 4))
    pairs = {pair for step in schedule.steps() for pair in zip(step.src.tolist(), step.dst.tolist(), strict=True)}
    assert all(src // 4 == dst // 4 or src % 4 == dst % 4 for src, dst in pairs)
    if find_collective(collective).rooted:
        assert {src % 4 for src, dst in pairs if src // 4 != dst // 4} == {3}, "the root's"


def test_in_an_all_to_all_few_messages_go_across() -> None:
    schedule = ALGORITHMS["all_to_all", "hierarchical"].build(12, groups=(4, 4, 4))
    inside, beyond = schedule.steps()
    assert (inside.src // 4 == inside.dst // 4).all()
    assert (beyond.src % 4 == beyond.dst % 4).all()
    assert len(set(zip(beyond.src.tolist(), beyond.dst.tolist(), strict=True))) == 12 * 2


def test_unequal_groups_cut_the_vector_each_in_its_own_way() -> None:
    """3 + 2: six chunks for two rings of two, which hold 0 2 4 and 0 3; runs 0-1, 2, 3, 4-5 meet across."""
    schedule = ALGORITHMS["all_reduce", "hierarchical"].build(5, groups=(3, 2))
    assert schedule.num_chunks == 12
    meeting: dict[tuple[int, int], set[int]] = {}
    for step in schedule.steps():
        one, _ = step.spread()
        for src, dst, chunk in zip(one.src.tolist(), one.dst.tolist(), one.src_chunk.tolist(), strict=True):
            if (src < 3) != (dst < 3):
                meeting.setdefault((min(src, dst), max(src, dst)), set()).add(chunk // 2)
    assert meeting == {(0, 3): {0, 1}, (1, 3): {2}, (1, 4): {3}, (2, 4): {4, 5}}


def test_equal_groups_in_turn_do_the_same() -> None:
    """Shifting all ranks by one group, and the chunks in every shard with them, changes nothing."""
    groups, p, size, number = (3, 3, 3, 3), 12, 3, 4
    rings = (ALGORITHMS[name, "ring"] for name in ("reduce_scatter", "all_reduce", "all_gather"))
    schedule = hierarchical(*rings).build(p, groups=groups)
    assert schedule.num_chunks == p
    chunks = np.arange(p)
    there = chunks // number * number + (chunks + 1) % number

    def rows(step, rank, chunk) -> set[tuple[int, ...]]:
        columns = (rank[step.src], rank[step.dst], chunk[step.src_chunk], chunk[step.dst_chunk], step.reduce)
        return set(zip(*(column.tolist() for column in columns), strict=True))

    for step in schedule.steps():
        one, _ = step.spread()
        assert rows(one, np.arange(p), chunks) == rows(one, (np.arange(p) + size) % p, there)


def test_levels_may_have_levels() -> None:
    """Four at each of four levels: groups of 16, in which groups of 4 are pairs of pairs, and the same across."""
    for names in (("reduce_scatter", "all_reduce", "all_gather"), ("all_gather",) * 2, ("broadcast",) * 2):
        one = hierarchical(*(ALGORITHMS[name, "hierarchical"] for name in names))
        for p in (16, 20):
            one.verify(p, laws=(1, 2, 4))
            keeps_promise(one.build(p))


def test_declared_values_follow_the_groups() -> None:
    one = ALGORITHMS["all_reduce", "hierarchical"]
    assert one.declared(12, groups=(6, 6)).steps == 12 and one.declared(12, groups=(2,) * 6).steps == 8
    assert one.declared(5).sent == pytest.approx(2 - 2 / 6)
    assert one.declared(8, groups=(8,)).sent == Fraction(7, 4)
    with pytest.raises(ValueError, match="whole numbers from 1 whose sum is 5; found"):
        one.build(5, groups=(3, 3))


def test_many_ranks_take_few_rows() -> None:
    """16,384 ranks; across them all_gather in log2 steps."""

    @algorithm("all_gather", name="doubling_distance", chunks=lambda p: p)
    def gather(schedule: Builder) -> None:
        """Blocks of 1, 2, 4 ... ranks at a time."""
        p, rank = schedule.num_ranks, schedule.ranks
        for k in range((p - 1).bit_length()):
            with schedule.step():
                schedule.copy(src=rank, dst=(rank - 2**k) % p, chunk=rank, count=min(2**k, p - 2**k))

    del registry.REGISTERED["all_gather", "doubling_distance"]
    ring = (ALGORITHMS["reduce_scatter", "ring"], ALGORITHMS["all_gather", "ring"])
    one = hierarchical(ring[0], gather.reversed().then(gather), ring[1])
    one.verify(12, laws=(1, 2, 4))
    schedule = one.build(16384)
    assert (schedule.num_steps, schedule.num_chunks) == (2 * 127 + 2 * 7, 16384)
    assert sum(len(repeat.step) for repeat in schedule.repeats) < 2**19
    across = hierarchical(gather, ALGORITHMS["all_gather", "direct"]).build(1024)
    assert max(len(repeat.step) for repeat in across.repeats) == 1024 * 31, "a row for each rank of the group"


def test_levels_that_make_nothing() -> None:
    ring = ALGORITHMS["all_reduce", "ring"]
    with pytest.raises(ScheduleError, match="levels in one of the orders reduce_scatter, all_reduce, all_gather; "):
        hierarchical(ring, ring)
    with pytest.raises(ScheduleError, match="least common multiple far below 232792560"):
        ALGORITHMS["all_reduce", "hierarchical"].build(210, groups=tuple(range(1, 21)))
