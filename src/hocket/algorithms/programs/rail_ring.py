"""Rings on rails: a ring for each network card of a host, each with an equal share of the data."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from hocket.algorithms.levels import Groups, near_square
from hocket.algorithms.programs.ring import ring_all_gather, ring_all_reduce
from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder, compose


def rails(groups: Groups) -> Iterator[list[npt.NDArray[np.int64]]]:
    """For each rank of the smallest group a rail: the ranks of every group, from the one with this number on."""
    first = np.cumsum(groups) - groups
    for rail in range(min(groups)):
        yield [start + (rail + np.arange(size)) % size for start, size in zip(first, groups, strict=True)]


def _orders(groups: Groups) -> Iterator[list[int]]:
    """The ranks of each ring, in order. Every second group is passed backwards, so that a ring leaves a group at the
    number at which it enters the next one.
    """
    for rail in rails(groups):
        yield np.concatenate([ranks[:: -1 if i % 2 else 1] for i, ranks in enumerate(rail)]).tolist()


@algorithm(
    "all_gather",
    name="rail_ring",
    chunks=lambda p, groups: p * min(groups),
    steps="P - 1",
    sent="(P - 1) / P",
    groups=near_square,
)
def rail_ring_all_gather(schedule: Builder) -> None:
    """As many rings over all ranks as the smallest group has ranks. Ring i enters and leaves groups at their ranks i
    and i - 1, so it stays on the rails of their cards, and all cards of a host are used.

    Best: large N on hosts whose ranks have a card each; a ring in rank order leaves a host by one card
    Ranks: any
    Reference: NCCL's channels
    """
    assert schedule.groups is not None
    p, rails = schedule.num_ranks, min(schedule.groups)
    ring = ring_all_gather.build(p)
    parts = [
        compose.on(
            ring,
            order,
            p,
            chunks=[rank * rails + rail for rank in order],
            num_chunks=schedule.num_chunks,
            collective="all_gather",
        )
        for rail, order in enumerate(_orders(schedule.groups))
    ]
    schedule.include(compose.beside(*parts))


rail_ring_reduce_scatter = algorithm(
    "reduce_scatter",
    name="rail_ring",
    steps="P - 1",
    sent="(P - 1) / P",
    labels=("same_on_all_ranks",),
    doc="""The all_gather run backwards: a ring for each rank of the smallest group, on the rails of the cards.

    Best: large N on hosts whose ranks have a card each; a ring in rank order leaves a host by one card
    Ranks: any
    Reference: NCCL's channels
    """,
)(rail_ring_all_gather.reversed())


@algorithm(
    "all_reduce",
    name="rail_ring",
    chunks=lambda p, groups: p * min(groups),
    steps="2 * (P - 1)",
    sent="2 * (P - 1) / P",
    labels=("same_on_all_ranks",),
    groups=near_square,
)
def rail_ring_all_reduce(schedule: Builder) -> None:
    """As many rings over all ranks as the smallest group has ranks, each with an equal share of the vector, on the
    rails of the cards.

    Best: large N on hosts whose ranks have a card each; a ring in rank order leaves a host by one card
    Ranks: any
    Reference: NCCL's channels
    """
    assert schedule.groups is not None
    p, ring = schedule.num_ranks, ring_all_reduce.build(schedule.num_ranks)
    shares = [range(rail * p, (rail + 1) * p) for rail in range(min(schedule.groups))]
    parts = [
        compose.on(ring, order, p, chunks=share, num_chunks=schedule.num_chunks)
        for share, order in zip(shares, _orders(schedule.groups), strict=True)
    ]
    schedule.include(compose.beside(*parts))
