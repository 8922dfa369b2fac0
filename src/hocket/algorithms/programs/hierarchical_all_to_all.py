"""Hierarchical all_to_all: blocks for other groups are collected inside a group first, and cross in larger messages."""

import numpy as np
import numpy.typing as npt

from hocket.algorithms.levels import near_square
from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder

Ints = npt.NDArray[np.int64]


def _sent(p: int, groups: tuple[int, ...]) -> float:
    """2 - 1 / G - 1 / M for groups of equal size: what crosses by way of another rank is sent twice"""
    # Each rank first gives to others of its group, then sends to other groups what its whole group has for them.
    sizes = np.array(groups)
    most = 0
    for size in groups:
        crossing = np.array([np.bincount(np.arange(other) % size, minlength=size) for other in sizes]).sum(axis=0)
        crossing -= 1  # Each number comes once in the own group, which does not count.
        most = max(most, int((p - 1 - crossing + size * crossing).max()))
    return most / p


@algorithm(
    "all_to_all",
    name="hierarchical",
    chunks="P * P",
    steps="min(G, 2)",
    sent=_sent,
    groups=near_square,
)
def hierarchical_all_to_all(schedule: Builder) -> None:
    """Each rank sends its block for a rank of another group to the rank of its own group that has the same number
    there. These ranks then send across what their whole group has for the other rank.

    Best: small N and many groups: G - 1 messages leave a rank for other groups, each M times as large
    Ranks: any
    Reference: "2DH" in Hwang et al., "Tutel: adaptive mixture-of-experts at scale", 2022, and in MSCCL,
      https://github.com/microsoft/msccl/pull/15

    In a group that is smaller than another one, a rank collects for several ranks.
    """
    p, rank = schedule.num_ranks, schedule.ranks
    sizes = np.array(schedule.groups)
    size, first = (
        np.repeat(sizes, sizes),
        np.repeat(np.cumsum(sizes) - sizes, sizes),
    )  # Size and first rank of each rank's group.
    src, dst = np.tile(rank, p), ((rank + rank[:, None]) % p).ravel()  # The next neighbour first.
    collector = first[src] + (dst - first[dst]) % size[src]
    inside = first[src] == first[dst]
    own = ~inside & (collector == src)
    collected = ~inside & ~own
    slot = _numbered(collector[collected])
    with schedule.step():
        schedule.copy(
            src[inside],
            dst[inside],
            src_buffer="input",
            src_chunk=dst[inside],
            dst_buffer="output",
            dst_chunk=src[inside],
        )
        schedule.copy(
            src[collected],
            collector[collected],
            src_buffer="input",
            src_chunk=dst[collected],
            dst_buffer="scratch",
            dst_chunk=slot,
        )
    with schedule.step():
        schedule.copy(
            src[own], dst[own], src_buffer="input", src_chunk=dst[own], dst_buffer="output", dst_chunk=src[own]
        )
        schedule.copy(
            collector[collected],
            dst[collected],
            src_buffer="scratch",
            src_chunk=slot,
            dst_buffer="output",
            dst_chunk=src[collected],
        )


def _numbered(values: Ints) -> Ints:
    """For each entry, how often its value has come before."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    number = np.empty_like(values)
    number[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return number
