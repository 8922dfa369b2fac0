"""Observes a schedule step by step: which chunks each rank holds, and how many it sends and receives."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hocket.schedule import Schedule


def holdings(schedule: Schedule) -> Iterator[np.ndarray]:
    """Returns which chunks each rank holds at first and after every step: bool[ranks, chunks]. For copies only."""
    p, k = schedule.num_ranks, schedule.chunks_per_block
    held = np.zeros((p, schedule.num_chunks), bool)
    for rank in range(p):
        for block in schedule.kind.input_blocks(rank, p, schedule.root):
            held[rank, block * k : (block + 1) * k] = True
    yield held.copy()
    for step in schedule.steps():
        rows, _ = step.spread()
        assert not rows.reduce.any() and held[rows.src, rows.src_chunk].all()
        assert not held[rows.dst, rows.dst_chunk].any(), "nobody is told twice"
        held[rows.dst, rows.dst_chunk] = True
        yield held.copy()


def moved(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of chunks that each rank sends, and receives, in each step: int[steps, ranks] twice."""
    sent: list[Any] = []
    received: list[Any] = []
    for step in schedule.steps():
        away = step.src != step.dst
        sent.append(np.bincount(step.src[away], step.count[away], schedule.num_ranks))
        received.append(np.bincount(step.dst[away], step.count[away], schedule.num_ranks))
    return np.array(sent, int), np.array(received, int)
