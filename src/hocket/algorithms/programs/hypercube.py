"""Hypercube: every block in as many parts as there are dimensions, each part going through them in its own order."""

import numpy as np

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder


def _dims(p: int) -> int:
    return p.bit_length() - 1


def _is_power_of_two(p: int) -> bool:
    return p.bit_count() == 1


@algorithm(
    "all_gather",
    name="hypercube",
    chunks=lambda p: p * max(_dims(p), 1),
    steps=_dims,
    sent=lambda p: (p - 1) / p,
    ranks=("a power of two", _is_power_of_two, "bruck"),
)
def hypercube_all_gather(schedule: Builder) -> None:
    """Partners differ in one bit of their numbers, and exchange what they have. In each step part i of every block goes
    along another dimension than the others, so that all links of a rank are busy all the time.

    Steps: log2(P)
    Sent: (P - 1) / P * N
    Best: large N where each pair of ranks that differ in one bit has a link of its own
    Ranks: a power of two; bruck takes any number
    Reference: Johnsson and Ho, "Optimum broadcasting and personalized communication in hypercubes", 1989
    """
    rank, dims = schedule.ranks, _dims(schedule.num_ranks)
    for step in range(dims):
        with schedule.step():
            for part in range(dims):
                # This part of a block is held if the block differs from the rank's own in dimensions done only: those
                # from `part` upwards, which make up a row, and beyond the last one those from 0.
                high, low = min(step, dims - part), max(step - (dims - part), 0)
                first = rank & ~((2**high - 1 << part) | 2**low - 1)
                schedule.copy(
                    src=rank,
                    dst=rank ^ 2 ** ((part + step) % dims),
                    chunk=(first + np.arange(2**low)[:, None]) * dims + part,
                    count=2**high,
                    stride=2**part * dims,
                )


hypercube_reduce_scatter = algorithm(
    "reduce_scatter",
    name="hypercube",
    steps=_dims,
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""The hypercube's all_gather run backwards: part i of every block is summed along one dimension after another.

    Steps: log2(P)
    Sent: (P - 1) / P * N
    Best: large N where each pair of ranks that differ in one bit has a link of its own
    Ranks: a power of two; bruck takes any number
    Reference: Johnsson and Ho, "Optimum broadcasting and personalized communication in hypercubes", 1989
    """,
)(hypercube_all_gather.reversed())


hypercube_all_reduce = algorithm(
    "all_reduce",
    name="hypercube",
    steps=lambda p: 2 * _dims(p),
    sent=lambda p: 2 * (p - 1) / p,
    labels=("same_on_all_ranks",),
    ranks=("a power of two", _is_power_of_two, "halving_doubling"),
    doc="""Reduce_scatter, then all_gather of the hypercube.

    Steps: 2 * log2(P)
    Sent: 2 * (P - 1) / P * N
    Best: large N where each pair of ranks that differ in one bit has a link of its own
    Ranks: a power of two; halving_doubling takes any number
    Reference: Johnsson and Ho, "Optimum broadcasting and personalized communication in hypercubes", 1989
    """,
)(hypercube_reduce_scatter.then(hypercube_all_gather))
