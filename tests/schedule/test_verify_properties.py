"""Verify and the reference agree on schedules that nobody designed: built-in ones with one random change.

The reference runs on random data, independently of verify, so it can say which schedules are right.
"""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.algorithms import ALGORITHMS
from hocket.errors import ScheduleError, VerifyError
from hocket.schedule import Places, Repeat, Schedule, Step, reference, verify
from hocket.schedule.proof.result import Modular
from tests.schedule.promise import even_lengths, input_sizes, named_lengths, promised_outputs

KEYS = [key for key in ALGORITHMS if key[0] != "barrier"]
CHANGES = ("drop", "duplicate", "src", "dst", "src_chunk", "dst_chunk", "chunk", "flip", "swap rows", "swap steps")


def changed(schedule: Schedule, change: str, random: np.random.Generator) -> Schedule:
    """Returns the schedule with one row, or the order of two rows or steps, changed."""
    steps = [step.expanded() for step in schedule.steps()]
    number = int(random.integers(len(steps)))
    step = replace(steps[number], group=None)
    row, other = (int(random.integers(len(step))) for _ in range(2))
    order = np.arange(len(step))
    if change == "drop":
        step = step.take(np.delete(order, row))
    elif change == "duplicate":
        step = step.take(np.insert(order, other, row))
    elif change == "swap rows":
        order[[row, other]] = order[[other, row]]
        step = step.take(order)
    elif change == "swap steps":
        earlier = int(random.integers(len(steps)))
        step, steps[earlier] = steps[earlier], step
    else:
        columns = {"flip": ["reduce"], "chunk": ["src_chunk", "dst_chunk"]}.get(change, [change])
        limit = schedule.num_ranks if change in ("src", "dst") else schedule.num_chunks
        value = int(random.integers(limit))
        for column in columns:
            values = getattr(step, column).copy()
            values[row] = ~values[row] if change == "flip" else value
            step = replace(step, **{column: values})
    steps[number] = step
    repeats = tuple(Repeat(plain(step)) for step in steps if len(step))
    return replace(schedule, repeats=repeats)


def plain(step: Step) -> Step:
    return replace(step, group=None)


def right_result(schedule: Schedule) -> bool:
    """Returns whether the reference is right on random integers, where no two wrong sums are alike."""
    random = np.random.default_rng(7)
    lengths = even_lengths(schedule, 2 * schedule.chunks_per_block)
    sizes = input_sizes(schedule, lengths)
    inputs = [None if size is None else random.integers(0, 2**62, size).astype(np.int64) for size in sizes]
    try:
        outputs = reference.run(schedule, inputs, **named_lengths(schedule, lengths))
    except ScheduleError:
        return False
    wanted = promised_outputs(schedule, inputs, lengths)
    return all(found is None or np.array_equal(found, want) for found, want in zip(outputs, wanted, strict=True))


def broken_law(schedule: Schedule) -> int:
    try:
        verify(schedule, laws=(1, 2))
    except VerifyError as error:
        return error.law
    return 0


def holds_modular(schedule: Schedule) -> bool:
    places = Places(schedule)
    contents = Modular(places)
    try:
        for fold in places.folds():
            contents.apply(fold)
        contents.finish()
    except VerifyError:
        return False
    return True


KEYS_AND_RANKS = [(key, p) for key in KEYS for p in range(2, 7) if ALGORITHMS[key].allows(p)]
cases = st.tuples(
    st.sampled_from(KEYS_AND_RANKS), st.sampled_from(CHANGES), st.integers(0, 2**32 - 1), st.integers(1, 2)
)


@given(cases)
@settings(max_examples=300, deadline=None)
def test_law_2_is_what_the_reference_finds(case) -> None:
    (key, p), change, seed, num_changes = case
    random = np.random.default_rng(seed)
    schedule = ALGORITHMS[key].build(p, int(random.integers(p)))
    for _ in range(num_changes):
        if schedule.num_steps:
            schedule = changed(schedule, change, random)
    law = broken_law(schedule)
    if law != 1:
        right = right_result(schedule)
        assert (law == 0) == right, change
        assert holds_modular(schedule) == right, change


@given(cases)
@settings(max_examples=150, deadline=None)
def test_labels_mean_bits(case) -> None:
    (key, p), change, seed, _ = case
    random = np.random.default_rng(seed)
    schedule = ALGORITHMS[key].build(p)
    if not schedule.kind.reduces:
        return
    try:
        mutant = changed(schedule, "swap rows" if seed % 2 else change, random)
        labels = verify(mutant, laws=(1, 2, 4)).labels
    except VerifyError:
        return
    inputs = [random.standard_normal(3 * mutant.num_chunks).astype(np.float16) for _ in range(p)]
    named = named_lengths(mutant, even_lengths(mutant, inputs[0].size // mutant.kind.num_blocks(p)))
    outputs = [output for output in reference.run(mutant, inputs, **named) if output is not None]
    if schedule.kind.blocks == "rank":
        outputs = [np.concatenate(outputs)]
    total = inputs[0].astype(np.float32)
    for x in inputs[1:]:
        total = total + x
    for output in outputs:
        if "rank_order" in labels:
            assert np.array_equal(output, total.astype(np.float16))
        if "same_on_all_ranks" in labels:
            assert np.array_equal(output, outputs[0])
