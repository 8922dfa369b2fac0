"""Law 1 is checked on ranges without expansion; it finds the same errors as in the expanded rows."""

import random

import numpy as np
import pytest

from hocket.schedule import Builder, Step, find_collective
from hocket.schedule.shape import Shape

CHUNKS = 12


def random_step(seed: int) -> Step:
    """Rows between two ranks, of ranges that exist, with one stride, two, or any; often some rows are there twice."""
    choice = random.Random(seed)
    strides = choice.choice(([1], [2], [3], [1, 2], [2, 3], [1, 2, 3, 4]))
    rows: list[tuple[int, int, int, int, bool]] = []
    for _ in range(choice.randint(1, 5)):
        stride, first = choice.choice(strides), choice.randrange(CHUNKS)
        count = choice.randint(1, (CHUNKS - 1 - first) // stride + 1)
        rows.append((choice.randrange(2), first, count, stride if count > 1 else 1, choice.random() < 0.8))
    rows += [(*choice.choice(rows)[:4], choice.random() < 0.9) for _ in range(choice.choice((0, 0, 1, 2)))]
    dst, chunk, count, stride, reduce = (np.array(column) for column in zip(*rows, strict=True))
    chunk, buffer = chunk.astype(np.int32), np.zeros(len(rows), np.uint8)
    numbers = {"src": 1 - dst, "dst": dst, "count": count, "stride": stride}
    columns = {name: column.astype(np.int32) for name, column in numbers.items()}
    return Step(**columns, src_buffer=buffer, dst_buffer=buffer, src_chunk=chunk, dst_chunk=chunk, reduce=reduce)


def first_fault(step: Step) -> tuple[str, int, int] | None:
    """Returns the error, its row and its chunk, found by writing chunk by chunk."""
    leader: dict[tuple[int, int], int] = {}
    copies, overlaps = [], []
    ranges = list(zip(step.dst_chunk.tolist(), step.count.tolist(), step.stride.tolist(), strict=True))
    for row, (first, count, stride) in enumerate(ranges):
        for chunk in range(first, first + count * stride, stride):
            before = leader.setdefault((int(step.dst[row]), chunk), row)
            if before != row and not step.reduce[row]:
                copies.append(("only the first row", row, chunk))
            if ranges[before] != ranges[row]:
                overlaps.append(("rows of one step write partly overlapping", row, chunk))
    return (copies or overlaps or [None])[0]


def test_ranges_that_meet_are_those_that_share_a_chunk() -> None:
    shape = Shape(find_collective("all_reduce"), 2, CHUNKS, 0)
    seen = {True: 0, False: 0}
    for seed in range(4000):
        step = random_step(seed)
        fault, wanted = shape.find_fault(step), first_fault(step)
        seen[wanted is None] += 1
        if wanted is None:
            assert fault is None, seed
        else:
            assert fault is not None and fault.message.startswith(wanted[0]), seed
            assert (fault.row, fault.chunk) == wanted[1:], seed
    assert min(seen.values()) > 500


@pytest.mark.parametrize("stride", [1, 3])
def test_many_chunks_are_not_expanded(stride: int) -> None:
    """A million million chunks in a thousand rows."""
    count = 10**9 // stride
    schedule = Builder("all_reduce", 1000, 10**9)
    with schedule.step():
        schedule.reduce(src=schedule.ranks, dst=(schedule.ranks + 1) % 1000, chunk=0, count=count, stride=stride)
        if stride > 1:
            schedule.reduce(src=schedule.ranks, dst=(schedule.ranks + 1) % 1000, chunk=1, count=count, stride=stride)
    assert len(schedule.finish().repeats[0].step) == 1000 * min(stride, 2)
