"""Registering algorithms: arguments, compositions, a user's own file."""

from pathlib import Path

import pytest

from hocket.algorithms import ALGORITHMS, algorithm, load
from hocket.errors import ScheduleError, VerifyError
from hocket.schedule.builder import Builder


@pytest.fixture(autouse=True)
def registry_as_before():
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)


def chain(schedule: Builder) -> None:
    """Rank by rank."""
    for rank in range(schedule.num_ranks - 1):
        with schedule.step():
            hop = (schedule.root + rank) % schedule.num_ranks
            schedule.copy(src=hop, dst=(hop + 1) % schedule.num_ranks, chunk=0)


def test_arguments_of_build_are_checked() -> None:
    ring = ALGORITHMS["all_reduce", "ring"]
    for arguments, message in (((0,), "at least 1 rank"), ((4, 4), "root from 0 to 3"), ((4, -1), "root from 0 to 3")):
        with pytest.raises(ValueError, match=message):
            ring.build(*arguments)


def test_schedules_are_remembered_and_roots_matter_only_where_there_are_roots() -> None:
    ring, tree = ALGORITHMS["all_reduce", "ring"], ALGORITHMS["broadcast", "binomial"]
    assert ring.build(4) is ring.build(4, 3)
    assert tree.build(4) is not tree.build(4, 3) and tree.build(4, 3) is tree.build(4, 3)


def test_a_constraint_on_ranks_is_part_of_the_promise() -> None:
    one = algorithm("broadcast", name="chain", chunks=lambda p: 1, ranks=("an even number of", lambda p: p % 2 == 0))
    made = one(chain)
    assert made.allows(4) and not made.allows(3) and made.doc == "Rank by rank."
    with pytest.raises(ValueError, match="expected an even number of ranks, found 3"):
        made.build(3)
    assert made.reversed().allows(3) is False


def test_promises_may_depend_on_the_root_and_are_held() -> None:
    promises = {"chunks": lambda p, root: 1, "steps": lambda p: p - 1}
    right = algorithm("broadcast", name="chain", sent=lambda p, root: min(p - 1, 1), **promises)(chain)
    assert right.verify(5, 2, laws=(1, 2, 4, 5)).num_steps == 4
    wrong = algorithm("broadcast", name="chain", sent=lambda p: p, **promises)(chain)
    with pytest.raises(VerifyError, match=r"law 5 .*expected 5, found 1") as caught:
        wrong.verify(5, laws=(5,))
    assert any(f"chain ({__file__}" in note for note in caught.value.__notes__)
    assert ALGORITHMS["broadcast", "chain"] is wrong


def test_built_in_algorithms_stay() -> None:
    with pytest.raises(ValueError, match=r"all_reduce ring .* is built in"):
        algorithm("all_reduce", name="ring", chunks=lambda p: 1)(chain)


def test_a_composition_is_an_algorithm() -> None:
    reduce, broadcast = ALGORITHMS["reduce", "binomial"], ALGORITHMS["broadcast", "binomial"]
    made = algorithm(
        "all_reduce",
        name="two_trees",
        steps=lambda p: 2 * (p - 1).bit_length(),
        labels=("balanced_tree",),
        doc="Up, down.",
    )(reduce.then(broadcast))
    assert made.doc == "Up, down." and made.source.startswith(__file__)
    for p in (1, 2, 5, 8):
        made.verify(p, laws=(1, 2, 4, 5))
    with pytest.raises(ScheduleError, match="expected a composition for all_gather"):
        algorithm("all_gather", name="x")(reduce.then(broadcast))
    with pytest.raises(ScheduleError, match="reduce then broadcast"):
        broadcast.then(reduce)
    fine = ALGORITHMS["all_gather", "ring"].refine(2).reversed()
    assert fine.collective == "reduce_scatter" and fine.build(3).num_chunks == 6


def test_an_algorithm_can_call_another() -> None:
    @algorithm("all_reduce", name="called", chunks=lambda p: p)
    def called(schedule: Builder) -> None:
        ALGORITHMS["reduce_scatter", "direct"](schedule)
        ALGORITHMS["all_gather", "ring"].refine(1)(schedule)

    assert called.verify(4, laws=(1, 2, 4)).num_steps == 4


def test_chunks_are_needed() -> None:
    with pytest.raises(ScheduleError, match=rf"{__file__}:\d+: expected chunks="):
        algorithm("broadcast", name="chain")(chain)


OWN = '''
import hocket.algorithms as h

@h.algorithm("broadcast", name="star", chunks=lambda p: 1, steps=lambda p: min(p - 1, 1), sent=lambda p: p - 1)
def star(schedule):
    """The root gives it to all."""
    with schedule.step():
        schedule.copy(src=schedule.root, dst=schedule.ranks[schedule.ranks != schedule.root], chunk=0)

@h.algorithm("barrier", name="wrong", chunks=lambda p: 1)
def wrong(schedule):
    with schedule.step():
        schedule.reduce(src=0, dst=schedule.num_ranks, chunk=0)
'''


def test_a_users_file_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    assert [one.name for one in load(str(file), prove=False)] == ["star", "wrong"]
    (star,) = load(f"{file}:star", prove=False)
    assert star.source.startswith(f"{file}:") and ALGORITHMS["broadcast", "star"] is star
    assert star.verify(4, 2, laws=(1, 2, 4, 5)).sent == 3
    with pytest.raises(ScheduleError, match=r"own.py:13: dst is not a rank"):
        ALGORITHMS["barrier", "wrong"].build(2)


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    with pytest.raises(ValueError, match="found no file"):
        load(str(tmp_path / "other.py"))
    with pytest.raises(ValueError, match=r"name='stra'.*\['star', 'wrong'\]"):
        load(f"{file}:stra")
    assert ("broadcast", "star") not in ALGORITHMS  # A file that failed leaves nothing behind.
    file.write_text("")
    with pytest.raises(ValueError, match="the file registers none"):
        load(str(file))
