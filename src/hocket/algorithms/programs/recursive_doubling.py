"""Recursive doubling: partners 1, 2, 4 ... ranks apart exchange all that they have."""

import numpy as np

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder


def _steps(p: int) -> int:
    return p.bit_length() - 1 + 2 * (p.bit_count() > 1)


def _sent(p: int) -> int:
    return p.bit_length() - 1 + (p.bit_count() > 1)


@algorithm(
    "all_reduce",
    name="recursive_doubling",
    chunks=lambda p: 1,
    steps=_steps,
    sent=_sent,
    labels=("same_on_all_ranks", "size_invariant"),
)
def recursive_doubling_all_reduce(schedule: Builder) -> None:
    """Partners 1, 2, 4 ... apart exchange their sums, so that in each step twice as many ranks have been summed. Where
    P is 2**k + r, the first 2 * r ranks add up in pairs before, and get the result after.

    Steps: floor(log2(P)) + 2 * (ceil(log2(P)) - floor(log2(P)))
    Sent: ceil(log2(P)) * N
    Best: small N
    Ranks: any
    Reference: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005

    The lower ranks are the left operand on both sides of an exchange, so that bits are equal on all ranks.
    """
    p = schedule.num_ranks
    power = 1 << p.bit_length() - 1
    folded = schedule.ranks[: 2 * (p - power) : 2]  # The first of each pair, which goes on for both.
    active, index = np.setdiff1d(schedule.ranks, folded + 1), np.arange(power)
    with schedule.step():
        schedule.reduce(src=folded + 1, dst=folded, chunk=0)
    for k in range(power.bit_length() - 1):
        low, high = active[index >> k & 1 == 0], active[index >> k & 1 == 1]
        with schedule.step():
            schedule.reduce(src=high, dst=low, chunk=0)
            schedule.copy(src=low, dst=high, chunk=0)
            schedule.reduce(src=high, dst=high, chunk=0)
    with schedule.step():
        schedule.copy(src=folded, dst=folded + 1, chunk=0)


@algorithm("barrier", name="recursive_doubling", chunks=lambda p: 1, steps=_steps, sent=_sent)
def recursive_doubling_barrier(schedule: Builder) -> None:
    """The all_reduce of this name, of one token.

    Steps: floor(log2(P)) + 2 * (ceil(log2(P)) - floor(log2(P)))
    Sent: ceil(log2(P)) * N
    Best: powers of two; otherwise `dissemination` takes one step less
    Ranks: any
    Reference: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005
    """
    recursive_doubling_all_reduce(schedule)


@algorithm(
    "all_gather",
    name="recursive_doubling",
    chunks=lambda p: p,
    steps=lambda p: p.bit_length() - 1,
    sent=lambda p: (p - 1) / p,
    ranks=("a power of two", lambda p: p.bit_count() == 1, "bruck"),
)
def recursive_doubling_all_gather(schedule: Builder) -> None:
    """Partners 1, 2, 4 ... apart exchange all blocks that they have, one range of them.

    Steps: log2(P)
    Sent: (P - 1) / P * N
    Best: small and medium N; the largest messages go farthest
    Ranks: a power of two; bruck takes any number
    Reference: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005
    """
    p, rank = schedule.num_ranks, schedule.ranks
    for k in range(p.bit_length() - 1):
        with schedule.step():
            schedule.copy(src=rank, dst=rank ^ 2**k, chunk=rank >> k << k, count=2**k)
