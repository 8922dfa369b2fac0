"""Symmetry is found if and only if it is there; laws 1 and 2 and plans are the same with it and without it."""

import random
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.errors import ResourceError, ScheduleError, VerifyError
from hocket.schedule import (
    COLUMNS,
    Builder,
    Places,
    Plan,
    Repeat,
    Schedule,
    Step,
    capacity,
    compose,
    lower,
    lower_all,
    shape,
    symmetry,
    verify,
)
from hocket.schedule.lowering import transfers
from hocket.schedule.proof.result import Contents, Modular, Symmetric
from hocket.schedule.symmetry import Symmetry
from tests.schedule.mutants import ROW_MUTATIONS, mutate_row
from tests.schedule.random_schedules import random_schedule
from tests.schedule.small_algorithms import SMALL
from tests.schedule.wide_algorithms import bruck, bruck_all_to_all, hierarchical, nonuniform_bruck


def through_scratch(collective: str, p: int, k: int) -> Schedule:
    """The ring of an all_gather, with each block going through scratch."""
    schedule = Builder(collective, p, p * k)
    rank = schedule.ranks
    for i in range(p - 1):
        with schedule.step():
            places = {"dst_buffer": "scratch", "src_chunk": (rank - i) % p * k, "dst_chunk": 0, "count": k}
            schedule.copy(src=rank, dst=(rank + 1) % p, **places)
        with schedule.step():
            places = {"src_buffer": "scratch", "src_chunk": 0, "dst_chunk": (rank - 1 - i) % p * k, "count": k}
            schedule.copy(src=rank, dst=rank, **places)
    return schedule.finish()


def renumbered(schedule: Schedule) -> Schedule:
    """The same with chunks in another order."""
    chunks = np.random.default_rng(1).permutation(schedule.num_chunks)
    everyone = range(schedule.num_ranks)
    return compose.on(
        schedule, everyone, len(everyone), chunks=chunks.tolist(), num_chunks=len(chunks), collective="all_reduce"
    )


WIDE: dict[str, Callable[[int], Schedule]] = {
    "bruck": bruck,
    "bruck of 3 chunks": lambda p: bruck(p, 3),
    "nonuniform_bruck": nonuniform_bruck,
    "nonuniform_bruck reduce_scatter": lambda p: compose.reversed(nonuniform_bruck(p)),
    "bruck all_reduce": lambda p: compose.refine(compose.then(compose.reversed(bruck(p)), bruck(p)), 2),
    "renumbered": lambda p: renumbered(compose.refine(compose.then(compose.reversed(bruck(p)), bruck(p)), 2)),
    "bruck all_to_all": bruck_all_to_all,
    "explicit all_to_all": lambda p: SMALL["all_to_all", "explicit"](p, 0, 2),
    "explicit all_to_all_v": lambda p: SMALL["all_to_all_v", "explicit"](p, 0, 1),
    "explicit reduce_scatter": lambda p: SMALL["reduce_scatter_v", "explicit"](p, 0, 2),
    "all_gather through scratch": lambda p: through_scratch("all_gather", p, 2),
    "all_gather_v through scratch": lambda p: through_scratch("all_gather_v", p, 2),
    "reduce_scatter through scratch": lambda p: compose.reversed(through_scratch("all_gather", p, 2)),
    "pairs": lambda p: SMALL["all_to_all", "pairwise"](p, 0, 2),
}


def built_in(*rank_counts: int) -> Iterator[tuple[str, Schedule]]:
    for key, algorithm in ALGORITHMS.items():
        for p in rank_counts:
            if algorithm.allows(p):
                yield f"{' '.join(key)}, {p} ranks", algorithm.build(p)


def folds(step: Step) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """Returns what a step writes: the operands of every (rank, buffer, chunk), in order."""
    columns = [getattr(step.expanded(), name).tolist() for name in COLUMNS]
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for src, dst, src_buffer, dst_buffer, src_chunk, dst_chunk, _, _, reduce in zip(*columns, strict=True):
        found.setdefault((dst, dst_buffer, dst_chunk), []).append((src, src_buffer, src_chunk, reduce))
    return found


def is_symmetric(schedule: Schedule, one: Symmetry) -> bool:
    """Returns whether the definition holds: rotating every operand and place of a step gives the same step."""

    def rotated(rank: int, buffer: int, chunk: int, *rest: int) -> tuple[int, ...]:
        there = int(one.rotated(buffer, np.array(chunk), 1))
        return ((rank + one.period) % schedule.num_ranks, buffer, there, *rest)

    for step in schedule.steps():
        found = folds(step)
        if {rotated(*place): [rotated(*operand) for operand in group] for place, group in found.items()} != found:
            return False
    return True


def agrees(schedule: Schedule) -> int:
    """Asserts that all symmetries of the schedule are found, and returns their number."""
    keys = np.array([[1, 2], [3, 4]], np.uint64)
    wanted = [one for one in symmetry._candidates(schedule) if is_symmetric(schedule, one)]
    found = [one for one in symmetry._candidates(schedule) if symmetry._holds(schedule, one, keys)]
    assert [one.period for one in found] == [one.period for one in wanted]
    assert (symmetry.of(schedule) is None) == (not wanted)
    return len(found)


def mutants(schedule: Schedule, seed: int, count: int) -> Iterator[tuple[str, Schedule]]:
    """Yields schedules of legal shape with one row of one rank changed, and the name of the change."""
    choice = random.Random(seed)
    for i in range(count):
        mutation = ROW_MUTATIONS[i % len(ROW_MUTATIONS)]
        mutant = mutate_row(schedule, mutation, choice)
        try:
            shape.check(mutant)
        except ScheduleError:
            continue
        yield mutation.__name__, mutant


def wrong_everywhere(schedule: Schedule, seed: int, count: int) -> Iterator[Schedule]:
    """Yields schedules of legal shape with one step changed alike for all ranks."""
    choice = random.Random(seed)
    p, num_chunks = schedule.num_ranks, schedule.num_chunks
    for i in range(count):
        steps = [step.spread()[0] for step in schedule.steps()]
        number = choice.randrange(len(steps))
        step = steps[number]
        if i % 5 == 0:
            del steps[number]
        elif i % 5 == 1:
            steps.insert(number, step)
        elif i % 5 == 2:
            steps[number] = replace(step, src=((step.src + choice.randrange(p)) % p).astype(np.int32))
        elif i % 5 == 3:
            column = choice.choice(("src_chunk", "dst_chunk"))
            moved = (getattr(step, column) + choice.randrange(num_chunks)) % num_chunks
            steps[number] = replace(step, **{column: moved.astype(np.int32)})
        else:
            steps[number] = replace(step, reduce=~step.reduce)
        mutant = replace(schedule, repeats=tuple(Repeat(step) for step in steps))
        try:
            shape.check(mutant)
        except ScheduleError:
            continue
        yield mutant


def law_2(contents: Contents) -> bool:
    try:
        for fold in contents.places.folds():
            contents.apply(fold)
        contents.finish()
    except VerifyError as error:
        assert error.law == 2 and error.rank is not None and error.rank < contents.places.num_ranks
        return False
    return True


def right(schedule: Schedule) -> bool:
    """Returns whether laws 1 and 2 hold, checked without symmetry, by naming contributions."""
    try:
        verify(schedule, laws=(1, 2))
    except VerifyError:
        return False
    return True


def same(left: Plan, right: Plan) -> bool:
    names = ("instructions", "sources", "destinations", "dependencies")
    return left.num_scratch == right.num_scratch and all(
        np.array_equal(getattr(left, name), getattr(right, name)) for name in names
    )


def test_turns_come_round_and_follow_blocks() -> None:
    for schedule in (bruck(6, 2), hierarchical(3, 2), bruck_all_to_all(6), SMALL["all_to_all", "pairwise"](6, 0, 2)):
        p, k, kind = schedule.num_ranks, schedule.chunks_per_block, schedule.kind
        chunk = np.arange(schedule.num_chunks)
        assert list(symmetry._candidates(schedule))
        for one in symmetry._candidates(schedule):
            rotations = p // one.period
            assert (one.rotated(0, chunk, rotations) == chunk).all()
            for times in range(1, rotations):
                there = one.rotated(0, chunk, times)
                assert (one.rotated(0, there, -times) == chunk).all()
                assert (there != chunk).all() and (one.orbit(there) == one.orbit(chunk)).all()
                assert sorted(there) == chunk.tolist()
                if kind.blocks != "one":
                    ranks = np.arange(p)
                    for buffer, block_at in ((1, kind.input_block), (2, kind.output_block)):
                        position = one.rotated(buffer, ranks * 0, times) // k
                        block = block_at((ranks + times * one.period) % p, position, p)
                        assert (block == one.rotated(0, block_at(ranks, ranks * 0, p) * k, times) // k).all()


def test_every_symmetry_is_found_and_no_other() -> None:
    found = {name: agrees(schedule) for name, schedule in built_in(2, 4, 6)}
    assert found["all_reduce ring, 6 ranks"] and found["all_gather direct, 6 ranks"]
    assert not found["broadcast binomial, 6 ranks"] and not found["all_reduce tree, 6 ranks"]
    for name, make in WIDE.items():
        assert agrees(make(6)), name
        assert agrees(make(5)), name
    assert symmetry.of(hierarchical(3, 4)).period == symmetry.of(hierarchical(3, 4, interleaved=True)).period == 4
    assert agrees(hierarchical(3, 4)) and agrees(hierarchical(2, 3, interleaved=True))


def test_one_changed_row_ends_the_symmetry() -> None:
    symmetric = []
    for i, make in enumerate(WIDE.values()):
        symmetric += [agrees(mutant) > 0 for _, mutant in mutants(make(4), i, 14)]
    assert symmetric.count(False) > len(symmetric) // 2  # Not if only rows or steps change places.
    for seed in range(150):
        schedule = random_schedule(seed)
        try:
            shape.check(schedule)
        except ScheduleError:
            continue
        agrees(schedule)


def test_law_2_by_symmetry_is_law_2() -> None:
    verdicts = []
    for make in (
        *WIDE.values(),
        lambda p: hierarchical(p // 2, 2),
        lambda p: compose.refine(hierarchical(2, p // 2), 2),
    ):
        for p in (2, 6):
            schedule = make(p)
            assert law_2(Symmetric(Places(schedule, symmetry.of(schedule))))
            for mutant in wrong_everywhere(schedule, p, 10):
                if symmetry.of(mutant) and mutant.repeats:
                    verdicts.append(right(mutant))
                    assert law_2(Symmetric(Places(mutant, symmetry.of(mutant)))) == verdicts[-1]
    assert verdicts.count(False) > 60 and verdicts.count(True) > 10


@pytest.mark.parametrize("p", [65, 130])
def test_law_2_above_64_ranks(p: int) -> None:
    makes = [bruck, nonuniform_bruck, lambda p: compose.then(compose.reversed(nonuniform_bruck(p)), bruck(p))]
    if p % 2 == 0:
        makes.append(lambda p: hierarchical(p // 10, 10))
    for i, make in enumerate(makes):
        schedule = make(p)
        assert verify(schedule, laws=(1, 2, 5)).method == "modular, by symmetry"
        assert law_2(Modular(Places(schedule)))
        for name, mutant in mutants(schedule, i, 7):
            wrong = not law_2(Modular(Places(mutant)))
            assert right(mutant) != wrong
            if wrong and name != "reorder_steps":
                assert symmetry.of(mutant) is None
        for mutant in wrong_everywhere(schedule, i, 5):
            assert right(mutant) == law_2(Modular(Places(mutant)))


@pytest.mark.parametrize("name", ["nonuniform_hierarchical_ring", "tree"])
def test_what_is_once_modulo_the_prime_only_is_refused(name: str) -> None:
    right = ALGORITHMS["all_reduce", name].build(66)
    doubled = Builder("all_reduce", 66, right.num_chunks)
    for _ in range(61):  # 2**61 times, which is once modulo 2**61 - 1
        with doubled.step():
            doubled.reduce(src=doubled.ranks, dst=doubled.ranks, chunk=0, count=right.num_chunks)
    with pytest.raises(VerifyError) as caught:
        verify(replace(right, repeats=right.repeats + doubled.finish().repeats), laws=(1, 2))
    assert (caught.value.law, caught.value.found) == (2, "another sum")


def test_law_2_says_where() -> None:
    schedule = bruck(65)
    late = replace(schedule, repeats=(*schedule.repeats[:3], *schedule.repeats[4:]))
    with pytest.raises(VerifyError, match="holds nothing") as caught:
        verify(late, laws=(1, 2))
    assert (caught.value.law, caught.value.step, caught.value.rank) == (2, 3, 0)
    with pytest.raises(VerifyError) as caught:
        verify(replace(schedule, repeats=schedule.repeats[:-1]), laws=(1, 2))
    assert (caught.value.rank, caught.value.found) == (0, "nothing")
    backwards = compose.reversed(schedule)
    step = backwards.repeats[-1].step
    mixed = Repeat(replace(step, src_chunk=(step.src_chunk + 1) % 65))
    for repeats, found in (
        (backwards.repeats[1:], "another sum"),
        ((*backwards.repeats[:-1], mixed), "a sum of several chunks"),
        ((Repeat(replace(mixed.step, reduce=~step.reduce)),), "a sum of chunk 1"),
    ):
        with pytest.raises(VerifyError) as caught:
            verify(replace(backwards, repeats=repeats), laws=(1, 2))
        assert (caught.value.rank, caught.value.chunk, caught.value.found) == (0, 0, found)


@pytest.mark.parametrize("in_place", [False, True])
def test_plans_by_symmetry_are_those_without(monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    schedules = dict(built_in(1, 2, 5, 6)) | {f"{name}, {p}": make(p) for name, make in WIDE.items() for p in (2, 5, 6)}
    schedules |= {"hierarchical": compose.refine(hierarchical(3, 4), 2), "other": hierarchical(2, 3, interleaved=True)}
    for name, schedule in schedules.items():
        plans = lower_all(schedule, in_place)
        for largest in (-1, 1 << 30):
            monkeypatch.setattr(transfers, "_PLAIN_TO", largest)
            for rank in {0, 1, schedule.num_ranks - 1} & set(range(schedule.num_ranks)):
                assert same(lower(schedule, rank, in_place), plans[rank]), (name, rank)


def test_rows_are_numbered_as_in_the_expanded_step() -> None:
    for seed in range(100):
        schedule = random_schedule(seed)
        for step in [repeat.step for repeat in schedule.repeats] + [hierarchical(2, 3).repeats[0].step]:
            whole = step.expanded()
            rows = np.flatnonzero(np.random.default_rng(seed).integers(0, 2, len(step)))
            part, order, opens = step.part(rows)
            assert all(np.array_equal(getattr(part, name), getattr(whole, name)[order]) for name in COLUMNS)
            assert np.array_equal(opens, (np.diff(whole.group, prepend=-1) != 0)[order])


def test_two_thousand_ranks() -> None:
    for schedule in (compose.then(compose.reversed(nonuniform_bruck(2000)), bruck(2000)), hierarchical(40, 50)):
        assert verify(schedule, laws=(1, 2, 5)).method == "modular, by symmetry"
        assert len(lower(schedule, 1234, in_place=True).instructions) > 1999


def test_what_memory_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_ASK_FROM", 0)
    monkeypatch.setattr(capacity, "_available", lambda: 1 << 19)
    schedule = ALGORITHMS["all_reduce", "halving_doubling"].build(128)
    assert symmetry.of(schedule) is None or symmetry.of(schedule).period == 64
    with pytest.raises(ResourceError, match="expected at most half"):
        verify(schedule, laws=(1, 2))
    with pytest.raises(ResourceError, match="expected at most half"):
        lower(schedule, 1, in_place=False)
    verify(schedule, laws=(1, 5))


@pytest.mark.parametrize(
    ("collective", "p", "chunks", "writers", "slot", "what"),
    [
        ("all_reduce", 4, 1 << 22, 1, 0, "4 ranks of all_reduce in 4194304 chunks and 1 slots of scratch"),
        ("all_reduce", 128, 1 << 17, 1, 0, "128 ranks of all_reduce in 131072 chunks"),
        ("all_gather", 128, 1 << 18, 128, 0, "comparing 128 ranks of all_gather in 262144 chunks"),
        ("all_gather", 128, 128, 128, 1 << 28, "128 ranks of all_gather in 128 chunks and 268435457 slots of scratch"),
        ("all_gather", 4, 8, 4, 1 << 24, "16777217 slots of scratch of 4 ranks"),
        ("barrier", 1 << 13, 1, 1, 0, "8192 ranks of barrier in 1 chunks"),
    ],
)
def test_memory_is_asked_for_before_it_is_taken(
    collective: str, p: int, chunks: int, writers: int, slot: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "_ASK_FROM", 1 << 22)
    monkeypatch.setattr(capacity, "_available", lambda: 0)
    writer = Builder(collective, p, chunks)
    rank = writer.ranks[:writers]
    with writer.step():
        own = rank * (chunks // p) if collective == "all_gather" else 0
        writer.copy(rank, (rank + 1) % p, src_chunk=own, dst_chunk=slot, dst_buffer="scratch")
    schedule = writer.finish()
    tracemalloc.start()
    try:
        with pytest.raises(ResourceError, match=what):
            verify(schedule, laws=(1, 2))
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
