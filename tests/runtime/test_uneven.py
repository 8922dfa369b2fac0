"""Collectives with blocks of different length, also zero; and ranks that disagree about a length."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveMismatch, CommunicationError
from hocket.runtime import run_ranks

LARGE = 50_000  # rows: several pieces


def counts_of(size: int, case: str) -> list[int]:
    """Rows of each rank."""
    if case == "large":
        return [LARGE * (rank % 3) + rank for rank in range(size)]
    return {"none": [0] * size, "one": [int(rank == size - 1) for rank in range(size)]}.get(
        case, [(5 * rank + 3) % 7 for rank in range(size)]
    )


def block(source: int, destination: int, count: int, dtype: str = "float32") -> Any:
    return (np.arange(2 * count).reshape(count, 2) % 97 + 10 * source + destination).astype(dtype)


CASES = pytest.mark.parametrize("case", ["mixed", "none", "one", "large"])
SIZES = pytest.mark.parametrize("size", [1, 2, 3, 5])


@SIZES
@CASES
def test_all_gather_v(size: int, case: str) -> None:
    counts = counts_of(size, case)
    expected = np.concatenate([block(rank, 0, count) for rank, count in enumerate(counts)])

    def main() -> None:
        with hocket.init() as comm:
            for algorithm in ("direct", "ring"):
                x = block(comm.rank, 0, counts[comm.rank])
                assert (comm.all_gather_v(x, counts, algorithm=algorithm) == expected).all()
                whole = np.full(expected.shape, -1, "float32")
                begin = sum(counts[: comm.rank])
                part = whole[begin : begin + counts[comm.rank]]
                part[:] = x
                assert comm.all_gather_v(part, counts, out=whole, algorithm=algorithm) is whole
                assert (whole == expected).all()

    run_ranks(main, size, kind="thread")


@SIZES
@CASES
def test_gather_v_and_scatter_v(size: int, case: str) -> None:
    counts = counts_of(size, case)
    expected = np.concatenate([block(rank, 0, count) for rank, count in enumerate(counts)])

    def main() -> None:
        with hocket.init() as comm:
            for root in range(size):
                at_root = comm.rank == root
                x = block(comm.rank, 0, counts[comm.rank])
                found = comm.gather_v(x, counts if at_root else None, root)
                assert (found == expected).all() if at_root else found is None
                out = np.full(x.shape, -1, "float32")
                comm.scatter_v(expected if at_root else None, counts if at_root else None, root, out=out)
                assert (out == x).all()

    run_ranks(main, size, kind="thread")


@SIZES
@CASES
def test_reduce_scatter_v(size: int, case: str) -> None:
    counts = counts_of(size, case)

    def main() -> None:
        with hocket.init() as comm:
            for algorithm in ("direct", "ring", "tree"):
                x = block(comm.rank, 0, sum(counts), "int64")
                begin = sum(counts[: comm.rank])
                whole = sum(block(rank, 0, sum(counts), "int64") for rank in range(size))
                expected = whole[begin : begin + counts[comm.rank]]
                assert (comm.reduce_scatter_v(x, counts, algorithm=algorithm) == expected).all()
                part = x[begin : begin + counts[comm.rank]]
                assert comm.reduce_scatter_v(x, counts, out=part, algorithm=algorithm) is part
                assert (part == expected).all()

    run_ranks(main, size, kind="thread")


@SIZES
@CASES
def test_all_to_all_v(size: int, case: str) -> None:
    def count(source: int, destination: int) -> int:
        return counts_of(size, case)[(source + 2 * destination) % size]

    def main() -> None:
        with hocket.init() as comm:
            me, others = comm.rank, range(size)
            x = np.concatenate([block(me, other, count(me, other)) for other in others])
            expected = np.concatenate([block(other, me, count(other, me)) for other in others])
            sent, received = [count(me, other) for other in others], [count(other, me) for other in others]
            for algorithm in ("direct", "pairwise"):
                assert (comm.all_to_all_v(x, sent, received, algorithm=algorithm) == expected).all()

    run_ranks(main, size, kind="thread")


def test_all_to_all_v_in_place_needs_equal_counts() -> None:
    def main() -> None:
        with hocket.init() as comm:
            symmetric = [1, 2, 3], [2, 0, 4], [3, 4, 1]
            mine = symmetric[comm.rank]
            x = np.concatenate([block(comm.rank, other, mine[other]) for other in range(3)])
            expected = np.concatenate([block(other, comm.rank, mine[other]) for other in range(3)])
            assert comm.all_to_all_v(x, mine, mine, out=x) is x
            assert (x == expected).all()
            other = list(mine)
            one, two = (rank for rank in range(3) if rank != comm.rank)
            other[one], other[two] = mine[one] + mine[two], 0
            with pytest.raises(ValueError, match="equal send_counts and recv_counts"):
                comm.all_to_all_v(x, mine, other, out=x)
                comm.all_to_all_v(x, [mine[0]] * 3, [mine[0], 0, 2 * mine[0]][: comm.rank] + [mine[0]] * 3, out=x)

    run_ranks(main, 3, kind="thread")


@pytest.mark.parametrize(("sent", "expected"), [(5, 3), (0, 3), (5, 0), (LARGE, LARGE - 1)])
def test_two_ranks_that_differ_about_a_length_are_named(sent: int, expected: int) -> None:
    """Rank 1 sends to rank 2 what rank 2 does not expect."""

    def main() -> Any:
        with hocket.init() as comm:
            send, receive = [2, 2, 2], [2, 2, 2]
            if comm.rank == 1:
                send[2] = sent
            if comm.rank == 2:
                receive[1] = expected
            with pytest.raises(CollectiveMismatch) as caught:
                comm.all_to_all_v(np.zeros(sum(send)), send, receive)
                comm.barrier()  # at the latest, a rank outside the pair learns of it in the barrier
            assert caught.value.field == "count"
            assert caught.value.values == {1: sent, 2: expected}
            assert "from rank 1 to rank 2" in str(caught.value)
            with pytest.raises(CommunicationError):
                comm.barrier()

    run_ranks(main, 3, kind="thread")


@pytest.mark.parametrize("size", [2, 3, 5])
def test_blocks_of_several_chunks(size: int, tmp_path: Path) -> None:
    """Each uneven block is cut in three, so that chunks begin inside blocks of different length."""
    (tmp_path / "cut.py").write_text(
        "import hocket\n"
        "for collective, name in (('all_gather_v', 'ring'), ('reduce_scatter_v', 'ring')):\n"
        "    one = hocket.algorithms(collective)[name]\n"
        "    hocket.algorithm(collective, name='cut')(one.refine(3))\n"
    )
    counts = [LARGE * (rank % 2) + 4 * rank for rank in range(size)]
    expected = np.concatenate([block(rank, 0, count) for rank, count in enumerate(counts)])

    def main() -> None:
        with hocket.init() as comm:
            cut = f"{tmp_path}/cut.py:cut"
            mine = slice(sum(counts[: comm.rank]), sum(counts[: comm.rank + 1]))
            assert (comm.all_gather_v(block(comm.rank, 0, counts[comm.rank]), counts, algorithm=cut) == expected).all()
            x = expected.astype("int64")
            assert (comm.reduce_scatter_v(x, counts, algorithm=cut) == size * x[mine]).all()
            assert (comm.reduce_scatter_v(x, counts, out=x[mine], algorithm=cut) == size * expected[mine]).all()

    run_ranks(main, size, kind="thread")


def test_counts_that_differ_in_all_gather_v_are_a_mismatch() -> None:
    def main() -> None:
        with hocket.init() as comm:
            counts = [1, 2, 4] if comm.rank == 0 else [1, 2, 3]
            x = np.zeros(counts[comm.rank])
            with pytest.raises(CollectiveMismatch, match="count"):
                comm.all_gather_v(x, counts)
                comm.barrier()

    run_ranks(main, 3, kind="thread")


def test_equal_sums_do_not_hide_counts_that_differ() -> None:
    def main() -> None:
        with hocket.init() as comm:
            counts = [1, 3, 2] if comm.rank == 0 else [1, 2, 3]
            with pytest.raises(CollectiveMismatch, match="count"):
                comm.all_gather_v(np.zeros(counts[comm.rank]), counts)
                comm.barrier()

    run_ranks(main, 3, kind="thread")
