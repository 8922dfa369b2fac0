"""Split binary tree: each half of the data goes down one half of the tree, then pairs exchange what they lack."""

from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder


def _steps(p: int) -> int:
    return p.bit_length() - (p < 3)


def _sent(p: int) -> float:
    return 1.5 if p > 5 else min(p - 1, 1)


@algorithm("broadcast", name="split_binary", chunks=lambda p: 2 if p > 2 else 1, steps=_steps, sent=_sent)
def split_binary_broadcast(schedule: Builder) -> None:
    """Two binary trees hang from the root, of equally many ranks; one passes the first half of the data down, the other
    the second. In the last step every rank of one gives its half to its like in the other.

    Steps: floor(log2(P)) + min(P // 3, 1)
    Sent: (min(P - 1, 1) + min(P // 6, 1) / 2) * N
    Best: medium N, which is sent in pieces
    Ranks: any
    Reference: Pjesivac-Grbovic, Angskun, Bosilca, Fagg, Gabriel and Dongarra, "Performance analysis of MPI collective
      operations", 2005; Open MPI, split binary tree

    Half of N goes to each child, and half is exchanged.
    """
    p = schedule.num_ranks
    order = (schedule.ranks + schedule.root) % p
    root, left, right = order[:1], order[1 : p // 2 + 1], order[p // 2 + 1 :]
    for level in range((p // 2).bit_length()):
        with schedule.step():
            for half, tree in enumerate((left, right)):
                node = schedule.ranks[2**level - 1 : min(2 ** (level + 1) - 1, len(tree))]
                parent = tree[(node - 1) // 2] if level else root[: len(node)]
                schedule.copy(src=parent, dst=tree[node], chunk=half)
    if p > 2:
        pairs = len(right)
        with schedule.step():
            schedule.copy(src=left[:pairs], dst=right, chunk=0)
            schedule.copy(src=right, dst=left[:pairs], chunk=1)
            schedule.copy(src=right[pairs - 1], dst=left[pairs:], chunk=1)  # One is left over if P is even.


split_binary_reduce = algorithm(
    "reduce",
    name="split_binary",
    steps=_steps,
    sent=lambda p: min(p - 1, 1),
    labels=("same_on_all_ranks",),
    doc="""The broadcast run backwards: pairs exchange halves, and each half is summed on its way up one of the trees.

    Steps: floor(log2(P)) + min(P // 3, 1)
    Sent: min(P - 1, 1) * N
    Best: medium N, which is sent in pieces
    Ranks: any
    Reference: as for broadcast
    """,
)(split_binary_broadcast.reversed())
