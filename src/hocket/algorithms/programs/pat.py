"""Parallel aggregated trees: far ranks first, and messages of no more than a few blocks."""

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder

_AGGREGATED = 8  # Blocks in a message, a power of two. NCCL derives it from the sizes of block and buffer.


def _trees(p: int) -> int:
    """Ranks between two roots of the trees that are walked block by block, a power of two."""
    return max((1 << (p - 1).bit_length()) // _AGGREGATED, 1)


def _steps(p: int) -> int:
    return min((p - 1).bit_length(), _AGGREGATED.bit_length() - 1) + _trees(p) - 1


@algorithm("all_gather", name="pat", chunks=lambda p: p, steps=_steps, sent=lambda p: (p - 1) / p)
def pat_all_gather(schedule: Builder) -> None:
    """Each block goes down a binomial tree, far ranks first, until 8 ranks at equal distances have it. From these it is
    handed on through what lies between, a tree each, in depth-first order: 8 blocks, one for each tree, in one message.

    Steps: min(ceil(log2(P)), 3) + max(2 ** ceil(log2(P)) / 8, 1) - 1
    Sent: (P - 1) / P * N
    Best: small N and many ranks, where far links are slow or shared, and little memory can be had
    Ranks: any
    Reference: Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", 2025
      (arXiv 2506.20252); NCCL 2.23

    ceil(log2 P) steps up to 16 ranks, with the messages of `nonuniform_bruck`; then about P / 8 steps, and 8 blocks at
    most in a message. NCCL sends more blocks at once if they are small.
    """
    apart = _trees(schedule.num_ranks)
    for distance in (apart << k for k in reversed(range(_steps(schedule.num_ranks) - apart + 1))):
        _hand_on(schedule, goal=distance, distance=distance, stride=2 * distance)
    for goal in range(1, apart):
        _hand_on(schedule, goal, distance=goal & -goal, stride=apart)


def _hand_on(schedule: Builder, goal: int, distance: int, stride: int) -> None:
    """One step: blocks get `goal`, goal + stride ... ranks away from home, from where they are `distance` nearer."""
    p, rank = schedule.num_ranks, schedule.ranks
    with schedule.step():
        schedule.copy(
            src=rank,
            dst=(rank - distance) % p,
            chunk=(rank + goal - distance) % p,
            count=(p - 1 - goal) // stride + 1,
            stride=stride,
        )


pat_reduce_scatter = algorithm(
    "reduce_scatter",
    name="pat",
    steps=_steps,
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""PAT's all_gather run backwards: trees of near ranks are summed in depth-first order, so that few sums wait
    unfinished, then their roots' sums from far away.

    Steps: min(ceil(log2(P)), 3) + max(2 ** ceil(log2(P)) / 8, 1) - 1
    Sent: (P - 1) / P * N
    Best: small N and many ranks, where far links are slow or shared, and little memory can be had
    Ranks: any
    Reference: Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", 2025
      (arXiv 2506.20252); NCCL 2.23

    Beside its input and output a rank needs memory for about 8 blocks for each level of a tree, where other logarithmic
    algorithms need it for N / 2.
    """,
)(pat_all_gather.reversed())


pat_all_reduce = algorithm(
    "all_reduce",
    name="pat",
    steps=lambda p: 2 * _steps(p),
    sent=lambda p: 2 * (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""Reduce_scatter, then all_gather of PAT.

    Steps: 2 * (min(ceil(log2(P)), 3) + max(2 ** ceil(log2(P)) / 8, 1) - 1)
    Sent: 2 * (P - 1) / P * N
    Best: small N and many ranks, where far links are slow or shared
    Ranks: any
    Reference: Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", 2025
      (arXiv 2506.20252)

    NCCL has it for reduce_scatter and all_gather only.
    """,
)(pat_reduce_scatter.then(pat_all_gather))
