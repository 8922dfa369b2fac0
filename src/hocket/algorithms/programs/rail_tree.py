"""Trees on rails: for each network card of a host chains inside hosts and two trees across, with an equal share."""

import numpy as np

from hocket.algorithms.levels import Groups, hierarchical, near_square
from hocket.algorithms.programs.chain import chain_broadcast, chain_reduce
from hocket.algorithms.programs.double_tree import double_tree_all_reduce
from hocket.algorithms.programs.hierarchical import passed_on
from hocket.algorithms.programs.rail_ring import rails
from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder, compose

_ONE_RAIL = hierarchical(chain_reduce, double_tree_all_reduce, chain_broadcast)


def _orders(groups: Groups) -> list[list[int]]:
    return [np.concatenate(rail).tolist() for rail in rails(groups)]


def _sent(p: int, groups: Groups) -> float:
    """about 2: each rank is in the chains of all rails and at the head of one"""
    one, sent = passed_on(_ONE_RAIL.build(p, groups=groups))[:, 0], np.zeros(p)
    for order in _orders(groups):
        sent[order] += one / min(groups)
    return float(sent.max())


@algorithm(
    "all_reduce",
    name="rail_tree",
    chunks=lambda p, groups: _ONE_RAIL.build(p, groups=groups).num_chunks * min(groups),
    steps="2 * (M - 1 + ceil(log2(G)))",
    sent=_sent,
    labels=("same_on_all_ranks",),
    groups=near_square,
)
def rail_tree_all_reduce(schedule: Builder) -> None:
    """As many shares of the vector as the smallest group has ranks. Each share goes along a chain in every group to
    its head, up and down two trees of the heads, and back along the chains. Each rank is the head of one share.

    Best: all N at scale, sent in pieces, on hosts whose ranks have a card each: logarithmic across, by all cards
    Ranks: any
    Reference: NCCL 2.4
    """
    assert schedule.groups is not None
    p, one = schedule.num_ranks, _ONE_RAIL.build(schedule.num_ranks, groups=schedule.groups)
    parts = [
        compose.on(
            one,
            order,
            p,
            chunks=range(rail * one.num_chunks, (rail + 1) * one.num_chunks),
            num_chunks=schedule.num_chunks,
        )
        for rail, order in enumerate(_orders(schedule.groups))
    ]
    schedule.include(compose.beside(*parts))
