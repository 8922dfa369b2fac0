"""Algorithms with few rows for many ranks, to test what is proved and lowered without expansion."""

from collections.abc import Callable

import numpy as np

from hocket.schedule import Builder, Schedule


def bruck(p: int, k: int = 1) -> Schedule:
    """Bruck's all_gather: rank r sends its first 2**i blocks, from its own on, to rank r - 2**i."""
    schedule = Builder("all_gather", p, p * k)
    ranks = schedule.ranks
    for i in range((p - 1).bit_length()):
        with schedule.step():
            count = min(1 << i, p - (1 << i)) * k
            schedule.copy(src=ranks, dst=(ranks - (1 << i)) % p, chunk=ranks * k, count=count)
    return schedule.finish()


def nonuniform_bruck(p: int) -> Schedule:
    """all_gather, far to near: rank r sends every 2**(i + 1)th block, from its own back, to rank r + 2**i."""
    schedule = Builder("all_gather", p, p)
    ranks = schedule.ranks
    for i in reversed(range((p - 1).bit_length())):
        stride = 2 << i
        count = (p - 1 + (1 << i)) // stride
        with schedule.step():
            first = (ranks - (count - 1) * stride) % p
            schedule.copy(src=ranks, dst=(ranks + (1 << i)) % p, chunk=first, count=count, stride=stride)
    return schedule.finish()


def hierarchical(num_groups: int, size: int, *, interleaved: bool = False) -> Schedule:
    """all_reduce: reduce_scatter in each group, all_reduce of each shard between the groups, all_gather; all by rings.

    Shard a is the a-th part of all chunks, or, if they are interleaved, every size-th of them.
    """
    p = num_groups * size
    schedule = Builder("all_reduce", p, p)
    group, place = np.divmod(schedule.ranks, size)
    right, across = group * size + (place + 1) % size, (schedule.ranks + size) % p
    step, stride = (1, size) if interleaved else (num_groups, 1)

    def within(shard: np.ndarray) -> dict[str, np.ndarray | int]:
        return {"chunk": shard % size * step, "count": num_groups, "stride": stride}

    def lap(write: Callable[..., None], begin: int) -> None:
        if interleaved:
            for i in range(size - 1):
                with schedule.step():
                    write(src=schedule.ranks, dst=right, **within(place - begin - i))
        else:
            for i in schedule.repeat(size - 1):
                write(src=schedule.ranks, dst=right, **within(place - begin - i))

    lap(schedule.reduce, 1)
    for begin, write in ((1, schedule.reduce), (0, schedule.copy)):
        for i in range(num_groups - 1):
            with schedule.step():
                write(src=schedule.ranks, dst=across, chunk=place * step + (group - begin - i) % num_groups * stride)
    lap(schedule.copy, 0)
    return schedule.finish()


def bruck_all_to_all(p: int) -> Schedule:
    """Blocks are in scratch by the distance that they must go. In step i, those with bit i in it move by 2**i."""
    schedule = Builder("all_to_all", p, p * p)
    ranks, distance = schedule.ranks[:, None], np.arange(p)
    with schedule.step():
        places = {"src_buffer": "input", "dst_buffer": "scratch"}
        schedule.copy(src=schedule.ranks, dst=schedule.ranks, src_chunk=schedule.ranks, dst_chunk=0, count=p, **places)
    for i in range((p - 1).bit_length()):
        moving = distance[distance >> i & 1 > 0]
        with schedule.step():
            places = {"src_buffer": "scratch", "dst_buffer": "scratch"}
            schedule.copy(src=ranks, dst=(ranks + (1 << i)) % p, chunk=moving, **places)
    with schedule.step():
        places = {"src_buffer": "scratch", "dst_buffer": "output"}
        schedule.copy(src=ranks, dst=ranks, src_chunk=distance, dst_chunk=(ranks - distance) % p, **places)
    return schedule.finish()
