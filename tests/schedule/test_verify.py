"""The laws, each with the smallest schedules that break it. (Law 3 has tests of its own.)"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.errors import ResourceError, ScheduleError, VerifyError
from hocket.schedule import Builder, Declared, Schedule, compose, verify, verify_together
from hocket.schedule.proof import races

LAWS = (1, 2, 4, 5)


def build(collective: str, p: int, chunks: int, *steps: Callable[[Builder], Any], root: int = 0) -> Schedule:
    schedule = Builder(collective, p, chunks, root)
    for write in steps:
        with schedule.step():
            write(schedule)
    return schedule.finish()


def refused(schedule: Schedule, law: int, declared: Declared | None = None) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        verify(schedule, declared=declared, laws=LAWS)
    assert caught.value.law == law
    return caught.value


def exchange(s: Builder) -> None:
    s.reduce(src=[0, 1], dst=[1, 0], chunk=0)


def spoil(s: Builder) -> None:
    s.reduce(src=0, dst=1, chunk=0)


def one_shot(p: int, order: Any = None) -> Schedule:
    ranks = np.arange(p) if order is None else np.asarray(order)

    def write(s: Builder) -> None:
        s.copy(src=ranks[0], dst=s.ranks, chunk=0)
        s.reduce(src=ranks[1:, None], dst=s.ranks, chunk=0)

    return build("all_reduce", p, 1, write)


# Law 1. The builder refuses these as well, so right schedules are broken behind its back.

BROKEN_COLUMNS = [
    ("src", 2, "src is not a rank"),
    ("dst", -1, "dst is not a rank"),
    ("src_buffer", 4, "no such buffer"),
    ("dst_buffer", 1, "a row writes the input"),
    ("src_buffer", 1, "data beside input and output"),
    ("dst_buffer", 3, "the destination does not exist"),
    ("src_chunk", 1, "the source does not exist"),
    ("count", 0, "a row moves no chunk"),
    ("stride", 0, "a row does not advance"),
]


@pytest.mark.parametrize(("column", "value", "message"), BROKEN_COLUMNS)
def test_law_1_refuses_columns_out_of_range(column: str, value: int, message: str) -> None:
    schedule = build("all_reduce", 2, 1, exchange)
    repeat = schedule.repeats[0]
    values = getattr(repeat.step, column).copy()
    values[1] = np.array(value).astype(values.dtype)
    broken = replace(schedule, repeats=(replace(repeat, step=replace(repeat.step, **{column: values})),))
    error = refused(broken, law=1)
    assert message in str(error) and error.step == 0 and error.expected is not None


def test_law_1_refuses_a_copy_that_is_not_first() -> None:
    schedule = one_shot(2)
    step = schedule.repeats[0].step
    broken = replace(schedule, repeats=(replace(schedule.repeats[0], step=replace(step, reduce=np.zeros(4, bool))),))
    error = refused(broken, law=1)
    assert "only the first row" in str(error) and (error.step, error.rank, error.chunk) == (0, 0, 0)


def test_law_1_refuses_partial_overlap() -> None:
    schedule = build("all_reduce", 3, 4, lambda s: s.reduce(src=[1, 2], dst=0, chunk=0, count=2))
    step = schedule.repeats[0].step
    chunk = np.array([0, 1], np.int32)
    step = replace(step, src_chunk=chunk, dst_chunk=chunk)
    error = refused(replace(schedule, repeats=(replace(schedule.repeats[0], step=step),)), law=1)
    assert "partly overlapping" in str(error) and error.chunk == 1


def test_law_1_refuses_a_shifted_range_that_runs_over_the_end() -> None:
    schedule = build("all_reduce", 2, 2, lambda s: s.reduce(src=0, dst=1, chunk=0, count=2))
    broken = replace(schedule, repeats=(replace(schedule.repeats[0], times=2, shift=1),))
    assert refused(broken, law=1).step == 1


def test_law_1_follows_sizes_through_scratch() -> None:
    def save(s: Builder) -> None:
        s.copy(src=0, dst=1, src_chunk=0, dst_chunk=0, dst_buffer="scratch")

    def restore(s: Builder) -> None:
        s.copy(src=1, dst=1, src_chunk=0, dst_chunk=1, src_buffer="scratch")

    error = refused(build("broadcast", 2, 2, save, restore), law=1)
    assert "different sizes" in str(error) and (error.step, error.rank, error.chunk) == (1, 1, 1)

    def fold(s: Builder) -> None:
        s.reduce(src=0, dst=1, src_chunk=1, dst_chunk=0, dst_buffer="scratch")

    assert refused(build("all_reduce", 2, 2, save, fold), law=1).step == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"collective": "all_to_some"}, "expected a collective"),
        ({"num_ranks": 0}, "at least 1 rank"),
        ({"root": 2}, "expected a root"),
        ({"collective": "all_gather"}, "multiple of 2 chunks"),
    ],
)
def test_law_1_refuses_what_is_no_schedule(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        verify(replace(build("all_reduce", 2, 1, exchange), **change), laws=LAWS)


# Law 2.


def test_law_2_a_contribution_is_missing() -> None:
    error = refused(build("all_reduce", 2, 1, lambda s: s.reduce(src=0, dst=1, chunk=0)), law=2)
    assert (error.rank, error.chunk) == (0, 0)
    assert (error.expected, error.found) == ("the contribution of ranks 0-1", "that of rank 0")


def test_law_2_a_contribution_comes_twice() -> None:
    error = refused(build("all_reduce", 2, 1, exchange, lambda s: s.reduce(src=0, dst=1, chunk=0)), law=2)
    assert (error.step, error.rank, error.chunk) == (1, 1, 0)
    assert error.found == "once more that of ranks 0-1" and __file__ in str(error)


def test_law_2_a_contribution_comes_three_times() -> None:
    """Three times the highest bit of a word: the carry must not hide it."""
    error = refused(build("reduce", 64, 1, lambda s: s.reduce(src=[63, 63, 63], dst=0, chunk=0)), law=2)
    assert error.found == "once more that of rank 63"


def test_law_2_a_row_reads_nothing() -> None:
    error = refused(build("broadcast", 2, 1, lambda s: s.copy(src=1, dst=0, chunk=0)), law=2)
    assert "holds nothing: copy rank 1 data[0] -> rank 0 data[0]" in str(error) and error.step == 0


def test_law_2_a_reduce_into_nothing() -> None:
    error = refused(build("broadcast", 2, 1, lambda s: s.reduce(src=0, dst=1, chunk=0)), law=2)
    assert "holds nothing" in str(error) and error.rank == 1


def test_law_2_an_output_is_never_written() -> None:
    error = refused(build("broadcast", 2, 1), law=2)
    assert (error.rank, error.found) == (1, "nothing")


def test_law_2_chunks_are_mixed_up() -> None:
    swap = build("all_gather", 2, 2, lambda s: s.copy(src=[0, 1], dst=[1, 0], src_chunk=[0, 1], dst_chunk=[0, 0]))
    assert refused(swap, law=2).found == "that of rank 1, of chunk 1"
    fold = build("reduce_scatter", 2, 2, lambda s: s.reduce(src=[0, 1], dst=[1, 0], src_chunk=0, dst_chunk=[1, 0]))
    assert "another chunk" in str(refused(fold, law=2))


def test_law_2_what_goes_nowhere_does_no_harm() -> None:
    """Rank 1 adds a contribution twice, to data that no rank reads any more. Larger schedules are judged alike."""
    for p in (2, 65):
        twice = build("reduce", p, 1, lambda s: s.reduce(src=s.ranks[1:], dst=0, chunk=0), exchange)
        verify(build("reduce", p, 1, lambda s: s.reduce(src=s.ranks[1:], dst=0, chunk=0), spoil), laws=LAWS)
        refused(twice, law=2)


def test_law_2_sources_are_read_before_any_write() -> None:
    verify(build("all_reduce", 2, 1, exchange), laws=LAWS)  # One exchange, not a chain.


def test_law_2_a_barrier_needs_everyone_once_at_least() -> None:
    twice = build("barrier", 2, 1, exchange, exchange)
    verify(twice, laws=LAWS)
    half = build("barrier", 2, 1, lambda s: s.reduce(src=0, dst=1, chunk=0))
    assert refused(half, law=2).rank == 0


@pytest.mark.parametrize("p", [64, 65, 130])
def test_law_2_by_either_method(p: int) -> None:
    right = one_shot(p)
    assert verify(right, laws=LAWS).method == ("symbolic" if p <= 64 else "modular")
    step = right.repeats[0].step
    for change in ("drop", "redirect", "duplicate"):
        src = step.src.copy()
        rows = np.arange(len(src))
        if change == "drop":
            rows = np.delete(rows, p + 5)
        elif change == "redirect":
            src[p + 5] = 7
        else:
            rows = np.append(rows, p + 5)
        broken = replace(right, repeats=(replace(right.repeats[0], step=replace(step, src=src).take(rows)),))
        assert refused(broken, law=2).chunk == 0


def test_law_2_modular_reads_of_nothing_and_barriers() -> None:
    assert refused(build("broadcast", 65, 1, lambda s: s.copy(src=1, dst=0, chunk=0)), law=2).step == 0
    assert refused(build("broadcast", 65, 1, lambda s: s.copy(src=0, dst=s.ranks[2:], chunk=0)), law=2).rank == 1
    assert refused(build("barrier", 65, 1, exchange), law=2).expected == "the contribution of ranks 0-64"


# Law 4.


def test_law_4_labels_of_one_shot() -> None:
    everywhere = {"same_on_all_ranks", "size_invariant"}
    assert verify(one_shot(3), laws=LAWS).labels == everywhere | {"rank_order"}
    assert verify(one_shot(3, [1, 0, 2]), laws=LAWS).labels == everywhere
    assert verify(one_shot(1), laws=LAWS).labels == everywhere | {"rank_order", "balanced_tree"}


def test_law_4_a_promised_label_is_not_earned() -> None:
    error = refused(one_shot(2, [1, 0]), law=4, declared=Declared(labels=frozenset({"rank_order"})))
    assert "does not earn rank_order" in str(error)
    with pytest.raises(ScheduleError, match="expected labels among"):
        verify(one_shot(2), declared=Declared(labels=frozenset({"best_order"})), laws=LAWS)


def test_law_4_own_contribution_first_differs_between_ranks() -> None:
    assert verify(build("all_reduce", 2, 1, exchange), laws=LAWS).labels == {"size_invariant"}


def test_law_4_rounding_is_part_of_the_order() -> None:
    """Three ranks from left to right in two steps: rounded twice, so not the left fold that is rounded once."""
    chain = build(
        "reduce",
        3,
        1,
        lambda s: (s.copy(src=0, dst=1, chunk=0), s.reduce(src=1, dst=1, chunk=0)),
        lambda s: (s.copy(src=1, dst=2, chunk=0), s.reduce(src=2, dst=2, chunk=0)),
        root=2,
    )
    labels = verify(chain, laws=LAWS).labels
    assert "rank_order" not in labels and "balanced_tree" in labels  # ((0 1) 2) is the balanced tree of three.


def test_law_4_an_order_per_chunk_is_not_size_invariant() -> None:
    def write(s: Builder) -> None:
        for chunk, (first, second) in enumerate([(0, 1), (1, 0)]):
            s.copy(src=first, dst=s.ranks, chunk=chunk)
            s.reduce(src=second, dst=s.ranks, chunk=chunk)

    assert verify(build("all_reduce", 2, 2, write), laws=LAWS).labels == {"same_on_all_ranks"}


def test_law_4_nothing_is_reduced() -> None:
    assert verify(build("broadcast", 2, 1, lambda s: s.copy(src=0, dst=1, chunk=0)), laws=LAWS).labels == frozenset()


# Law 5, and the certificate.


def test_law_5_steps_and_sent_are_those_emitted() -> None:
    schedule = one_shot(3)
    verify(schedule, declared=Declared(1, Fraction(2)), laws=LAWS)
    error = refused(schedule, law=5, declared=Declared(steps=2))
    assert (error.expected, error.found) == (2, 1)
    error = refused(schedule, law=5, declared=Declared(sent=Fraction(1)))
    assert (error.rank, error.expected, error.found) == (0, "1", "2")


def test_sent_of_all_to_all_counts_in_what_one_rank_gives() -> None:
    schedule = build("all_to_all", 2, 4, lambda s: s.copy([0, 1, 0, 1], [0, 1, 1, 0], [0, 3, 1, 2]))
    assert verify(schedule, declared=Declared(sent=Fraction(1, 2)), laws=LAWS).sent == Fraction(1, 2)
    assert "in units of a rank's own vector" in str(refused(schedule, law=5, declared=Declared(sent=Fraction(1, 4))))


def test_sent_is_a_maximum_and_leaves_out_local_rows() -> None:
    schedule = build("broadcast", 3, 2, lambda s: s.copy(src=0, dst=[0, 1, 2], chunk=0, count=2))
    assert verify(schedule, laws=LAWS).sent == 2
    half = build("broadcast", 3, 2, lambda s: s.copy(src=0, dst=[1, 2], chunk=0, count=2), lambda s: s.copy(2, 1, 0))
    assert verify(half, laws=LAWS).sent == 2


def test_certificate_says_what_was_proved() -> None:
    schedule = one_shot(2)
    certificate = verify(schedule, laws=(2, 4))
    assert certificate.as_dict() == {
        "collective": "all_reduce",
        "num_ranks": 2,
        "root": 0,
        "digest": schedule.digest,
        "labels": ["balanced_tree", "rank_order", "same_on_all_ranks", "size_invariant"],
        "method": "symbolic",
        "num_steps": 1,
        "sent": 1.0,
        "laws": [1, 2, 4],
        "modes": [],
    }
    with pytest.raises(ValueError, match="laws from 1 to 5"):
        verify(schedule, laws=(6,))


def test_input_output_and_scratch() -> None:
    def write(s: Builder) -> None:
        s.copy(src=0, dst=s.ranks, chunk=0, src_buffer="input", dst_buffer="output")
        s.reduce(src=1, dst=s.ranks, chunk=0, src_buffer="input", dst_buffer="output")

    assert "rank_order" in verify(build("all_reduce", 2, 1, write), laws=LAWS).labels

    def through_scratch(s: Builder) -> None:
        s.copy(src=0, dst=1, chunk=0, dst_buffer="scratch")

    def home(s: Builder) -> None:
        s.copy(src=1, dst=1, chunk=0, src_buffer="scratch")

    verify(build("broadcast", 2, 1, through_scratch, home), laws=LAWS)
    assert refused(build("broadcast", 2, 1, home, through_scratch), law=2).step == 0


def test_roots_together_get_the_certificates_that_each_gets_alone() -> None:
    algorithm = ALGORITHMS["scatter_v", "direct"]
    schedules, declared = [], []
    for root in range(5):
        schedules.append(algorithm.build(5, root))
        declared.append(algorithm.declared(5, root))
    assert verify_together(schedules, declared) == [algorithm.verify(5, root) for root in range(5)]
    declared[3] = Declared(steps=2)
    with pytest.raises(VerifyError, match="the declared one"):
        verify_together(schedules, declared)


def test_schedules_of_other_chunk_counts_are_held_to_the_law_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = ALGORITHMS["broadcast", "binomial"]
    schedules = [compose.refine(algorithm.build(3, root), 1 + root // 2) for root in range(3)]
    asked = []
    monkeypatch.setattr(races, "check_together", lambda some, modes: asked.append((list(some), tuple(modes))))
    verify_together(schedules, [Declared()] * 3)
    assert asked == [(schedules[:2], (False, True)), (schedules[2:], (False, True))]


def _holds(prove: Callable[..., object], *arguments: object) -> bool:
    try:
        prove(*arguments)
    except ScheduleError:
        return False
    return True


@pytest.mark.parametrize(
    "key",
    [
        ("broadcast", "chain"),
        ("broadcast", "scatter_all_gather"),
        ("broadcast", "nonuniform_bruck"),
        ("reduce", "double_tree"),
        ("reduce", "binomial"),
        ("scatter", "binomial"),
        ("gather", "direct"),
        ("gather_v", "direct"),
    ],
)
def test_roots_that_differ_in_names_only_are_proved_once(key: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    one, roots = ALGORITHMS[key], (0, 5, 17)
    schedules, declared = [one.build(18, root) for root in roots], [one.declared(18, root) for root in roots]
    assert verify_together(schedules, declared) == [one.verify(18, root) for root in roots]
    if key != ("reduce", "binomial"):  # It folds by number of rank, so its roots differ.
        asked = []
        with monkeypatch.context() as patch:
            patch.setattr(races, "check_together", lambda some, modes: asked.extend(some))
            verify_together(schedules, declared)
        assert asked == schedules[:1]
    num_refused = 0
    for number in (1, 2):
        for index, column in ((0, "src"), (-1, "dst"), (0, "reduce"), (0, "src_chunk"), (-1, "dst_chunk")):
            repeats = list(schedules[number].repeats)
            values = getattr(repeats[index].step, column).copy()
            values[0] = ~values[0] if column == "reduce" else (values[0] + 1) % 18
            repeats[index] = replace(repeats[index], step=replace(repeats[index].step, **{column: values}))
            mutant = replace(schedules[number], repeats=tuple(repeats))
            if not _holds(verify, mutant):
                assert not _holds(verify_together, [schedules[0], mutant], [declared[0], declared[number]])
                num_refused += 1
    assert num_refused >= 8  # of 10: some move a chunk that is there already


def test_roots_whose_ranks_send_in_another_order_are_proved_each(monkeypatch: pytest.MonkeyPatch) -> None:
    one = ALGORITHMS["scatter", "direct"]
    first, second = one.build(18, 0), one.build(18, 1)
    (repeat,) = second.repeats
    turned_round = repeat.step.take(np.arange(len(repeat.step))[::-1])
    second = replace(second, repeats=(replace(repeat, step=turned_round),))
    asked: list[Schedule] = []
    monkeypatch.setattr(races, "check_together", lambda some, modes: asked.extend(some))
    verify_together([first, second], [Declared()] * 2)
    assert asked == [first, second]


def test_a_range_that_runs_over_the_end_for_one_root_only_is_found() -> None:
    p = 18

    def in_thirds(root: int, first: int) -> Schedule:
        others = (root + np.arange(1, p)) % p
        schedule = build("broadcast", p, p, lambda s: s.copy(src=root, dst=others, chunk=first, count=6), root=root)
        return replace(schedule, repeats=(replace(schedule.repeats[0], times=3, shift=6),))

    verify_together([in_thirds(0, 0), in_thirds(2, 0)], [Declared()] * 2)
    broken = in_thirds(2, 2)
    assert refused(broken, law=1).step == 2
    with pytest.raises(VerifyError, match="law 1"):
        verify_together([in_thirds(0, 0), broken], [Declared()] * 2)


@pytest.mark.parametrize(("column", "values"), [("stride", (0, 1)), ("count", (0, 1)), ("count", (-1, 3))])
def test_a_root_whose_rows_make_no_sense_is_not_taken_for_another(column: str, values: tuple[int, ...]) -> None:
    one = ALGORITHMS["broadcast", "direct"]
    first, second = one.build(18, 0), one.build(18, 1)
    (repeat,) = second.repeats
    step = repeat.step.take(np.append(0, np.arange(len(repeat.step))))  # The first row twice, its counts 1 in all.
    if column == "stride":
        step = repeat.step
    changed = getattr(step, column).copy()
    changed[:2] = values
    mutant = replace(second, repeats=(replace(repeat, step=replace(step, **{column: changed})),))
    assert refused(mutant, law=1).step == 0
    with pytest.raises(VerifyError, match="law 1"):
        verify_together([first, mutant], [Declared()] * 2)


def test_roots_of_another_collective_are_proved_each() -> None:
    first = ALGORITHMS["broadcast", "direct"].build(18, 0)
    second = replace(ALGORITHMS["broadcast", "direct"].build(18, 1), collective="reduce")
    with pytest.raises(VerifyError, match="law 2"):
        verify_together([first, second], [Declared()] * 2)


def test_a_certificate_is_one_line_in_a_notebook() -> None:
    ring = ALGORITHMS["broadcast", "chain"].verify(3, 1)
    assert repr(ring).startswith("<Certificate: broadcast of 3 ranks, root 1, laws 1-5")
    assert repr(replace(ring, laws=(1, 2), labels=frozenset({"b", "a"}))) == (
        "<Certificate: broadcast of 3 ranks, root 1, laws 1, 2, a, b>"
    )


def test_plans_that_memory_cannot_hold_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.schedule.capacity._available", lambda: 1 << 28)
    schedule = ALGORITHMS["all_gather", "ring"].build(600)
    with pytest.raises(
        ResourceError, match=r"plans of all 600 ranks, which do 359,400 rows \(law 3\), would take 0\.343"
    ):
        races.check_together([schedule], (False, True))
