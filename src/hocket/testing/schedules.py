"""Checks of schedules and algorithms: their proof, and their plans run in random orders against the reference."""

from typing import Any

import numpy as np

from hocket.algorithms import Algorithm
from hocket.schedule import (
    Certificate,
    Reduction,
    Schedule,
    interpreter,
    lower_all,
    numpy_dtype,
    premul_sum,
    reference,
    verify,
)


def check_schedule(schedule: Schedule | Algorithm, num_ranks: int = 4, root: int = 0, *, seeds: int = 5) -> Certificate:
    """Prove a schedule, then run its plans in `seeds` random orders and compare every bit with the reference.

    An algorithm is first built for num_ranks and root, and its promises are part of the proof. VerifyError if the proof
    fails; AssertionError if plans and reference differ, which would be a bug in Hocket.
    """
    if isinstance(schedule, Algorithm):
        certificate = schedule.verify(num_ranks, root)
        schedule = schedule.build(num_ranks, root)
    else:
        certificate = verify(schedule)
    # A barrier may count a contribution twice, which max does not show. A factor shows contributions that are read too
    # often, or never.
    reductions: tuple[str | Reduction, ...] = ("sum", premul_sum(1.5)) if schedule.kind.exactly_once else ("max",)
    for in_place in (False, True):
        plans = lower_all(schedule, in_place)
        lengths = random_block_lengths(schedule, seed=0, in_place=in_place)
        inputs = random_inputs(schedule, seed=0, block_lengths=lengths)
        expected = [reference.run(schedule, inputs, reduction, block_lengths=lengths) for reduction in reductions]
        for seed in range(seeds):
            chosen, pieces = seed % len(reductions), 1 + seed % 3
            found = interpreter.run_plans(
                plans, inputs, reductions[chosen], seed=seed, num_pieces=pieces, block_lengths=lengths
            )
            assert_same_bits(found, expected[chosen])
    return certificate


def random_block_lengths(schedule: Schedule, *, seed: int, in_place: bool = False, most: int = 0) -> Any:
    """Elements of every block of an uneven collective, int64, some of them 0 and none above `most`; else None.

    With most=0 there are a few elements per chunk. In place, what two ranks exchange is equally long in both
    directions.
    """
    kind, p = schedule.kind, schedule.num_ranks
    if not kind.uneven:
        return None
    choose = np.random.default_rng(seed)
    lengths = choose.integers(1, (most or 4 * schedule.chunks_per_block) + 1, kind.num_blocks(p))
    lengths[choose.random(len(lengths)) < 0.25] = 0
    if in_place and kind.blocks == "pair":
        upper = np.triu(lengths.reshape(p, p))
        lengths = (upper + np.triu(upper, 1).T).ravel()
    return lengths


def random_inputs(
    schedule: Schedule, *, seed: int, dtype: str = "float32", block: int = 0, block_lengths: Any = None
) -> list[Any]:
    """Inputs for every rank of a schedule; None for a rank without input.

    Blocks have `block` elements (a few per chunk if 0), or as many as block_lengths says (see random_block_lengths).
    """
    kind, p = schedule.kind, schedule.num_ranks
    choose, stored = np.random.default_rng(seed), numpy_dtype(dtype)
    if block_lengths is None:
        block_lengths = np.full(kind.num_blocks(p), block or 3 * schedule.chunks_per_block + 1)
    inputs: list[Any] = []
    for rank in range(p):
        blocks = kind.input_blocks(rank, p, schedule.root)
        count = int(block_lengths[blocks].sum())
        if stored.kind == "c":
            values = choose.standard_normal(count) + 1j * choose.standard_normal(count)
        elif stored.kind in "iu":
            values = choose.integers(0, 100, count)
        else:
            values = choose.integers(0, 2, count) if stored.kind == "b" else choose.standard_normal(count)
        inputs.append(values.astype(stored) if blocks else None)
    return inputs


def assert_same_bits(found: list[Any], expected: list[Any]) -> None:
    """AssertionError unless both are the same outputs by rank; any NaN equals any NaN."""
    assert len(found) == len(expected)
    for rank, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one is None or other is None:
            assert one is None and other is None, f"rank {rank}: expected {other}, found {one}"
            continue
        assert one.dtype == other.dtype and one.shape == other.shape, (
            f"rank {rank}: {one.dtype}{list(one.shape)}, expected {other.dtype}{list(other.shape)}"
        )
        same = (one == other) & (_signs(one) == _signs(other)) | (one != one) & (other != other)
        wrong = np.flatnonzero(~same)
        assert not wrong.size, f"rank {rank}: element {wrong[:1]} is {one[wrong[:1]]}, expected {other[wrong[:1]]}"


def _signs(array: Any) -> Any:
    """Where the sign bit, which tells -0 from 0, is set in the real or the imaginary part."""
    if array.dtype.kind == "c":
        return np.signbit(array.real) * 2 + np.signbit(array.imag)
    return np.signbit(array) if array.dtype.kind in "fV" else array < 0
