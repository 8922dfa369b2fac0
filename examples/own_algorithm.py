"""Your own all_reduce, made of two parts: a reduce_scatter that is written, and the same run backwards.

    hocket verify examples/own_algorithm.py --ranks 1-16
    hocket run -n 4 -- examples/own_algorithm.py

Neighbours 0 and 1, 2 and 3, ... share fast links. So each pair adds first, half of the vector each; then all even ranks
add their half, and all odd ranks the other half. No algorithm sends less, and few have as few steps.
"""

import numpy as np

import hocket

EVEN = ("an even number of", lambda p: p % 2 == 0, "ring")  # "ring" works for any number of ranks


@hocket.algorithm(
    "reduce_scatter",
    name="pairs",
    chunks="P",
    steps="min(P // 2, 2)",
    sent="(P - 1) / P",
    ranks=EVEN,
)
def pairs_reduce_scatter(schedule: hocket.Builder) -> None:
    """In each pair, one rank folds the even chunks, the other the odd ones; then each chunk is folded at its owner."""
    p, rank = schedule.num_ranks, schedule.ranks
    partner = rank ^ 1
    with schedule.step():
        schedule.reduce(src=rank, dst=partner, chunk=partner % 2, count=p // 2, stride=2)
    owner = (rank + 2 * np.arange(1, p // 2)[:, None]) % p  # one row for each distance
    with schedule.step():
        schedule.reduce(src=rank, dst=owner, chunk=owner)


pairs_all_reduce = hocket.algorithm(
    "all_reduce",
    name="pairs",
    steps="2 * min(P // 2, 2)",
    sent="2 * (P - 1) / P",
    labels=("same_on_all_ranks",),
    doc="Each chunk is added up on the way to its owner, and spread on the way back.",
)(pairs_reduce_scatter.then(pairs_reduce_scatter.reversed()))


def main() -> None:
    """Runs one rank: compares the sums of both algorithms with NumPy's; whole numbers are exact in any order."""
    with hocket.init() as comm:
        everybody = [np.arange(100 * comm.size) * (rank + 1) for rank in range(comm.size)]
        expected = np.sum(everybody, axis=0)
        part = comm.reduce_scatter(everybody[comm.rank], algorithm="pairs")
        whole = comm.all_reduce(everybody[comm.rank], algorithm="pairs")
        right = np.array_equal(whole, expected) and np.array_equal(part, np.split(expected, comm.size)[comm.rank])
        print(f"rank {comm.rank} of {comm.size}: the sums are NumPy's: {right}")
        if comm.rank == 0:
            proved = pairs_all_reduce.verify(comm.size)
            print(f"proved: {proved.num_steps} steps, a rank sends {float(proved.sent)} times the vector")


if __name__ == "__main__":
    main()
