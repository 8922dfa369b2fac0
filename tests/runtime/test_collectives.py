"""gather, scatter and all_to_all for a user: shapes, roots, in place or not, and memory that must not change."""

import math
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveMismatch
from hocket.runtime import run_ranks

Comm = hocket.Communicator
SIZES = (1, 2, 3, 5)


def rows(rank: int, count: int = 2, width: int = 3) -> Any:
    """Rows that show their source."""
    return rank * 1000 + np.arange(count * width, dtype="int64").reshape(count, width)


@pytest.mark.parametrize("size", SIZES)
def test_gather_concatenates_at_the_root_only(size: int) -> None:
    def main() -> None:
        with hocket.init() as comm:
            for root in range(size):
                x = rows(comm.rank)
                found = comm.gather(x, root)
                assert (x == rows(comm.rank)).all()
                if comm.rank == root:
                    assert (found == np.concatenate([rows(rank) for rank in range(size)])).all()
                else:
                    assert found is None

    run_ranks(main, size, kind="thread")


def test_gather_of_single_values_gives_a_vector() -> None:
    def main() -> None:
        with hocket.init() as comm:
            found = comm.gather(np.float32(comm.rank).reshape(()), 2)
            assert found is None if comm.rank != 2 else (found == [0, 1, 2]).all()

    run_ranks(main, 3, kind="thread")


@pytest.mark.parametrize("size", SIZES)
def test_gather_in_place(size: int) -> None:
    def main() -> None:
        with hocket.init() as comm:
            root = size - 1
            whole = np.full((2 * size, 3), -1, "int64")
            x = whole[2 * root :] if comm.rank == root else rows(comm.rank)
            x[:] = rows(comm.rank)
            found = comm.gather(x, root, out=whole if comm.rank == root else None)
            if comm.rank == root:
                assert found is whole
                assert (whole == np.concatenate([rows(rank) for rank in range(size)])).all()

    run_ranks(main, size, kind="thread")


@pytest.mark.parametrize("size", SIZES)
def test_scatter_gives_each_rank_its_block(size: int) -> None:
    def main() -> None:
        with hocket.init() as comm:
            for root in range(size):
                whole = np.concatenate([rows(rank) for rank in range(size)])
                given, out = whole.copy(), np.zeros((2, 3), "int64")
                found = comm.scatter(given if comm.rank == root else None, root, out=out)
                assert found is out and (out == rows(comm.rank)).all() and (given == whole).all()
                for _ in range(4):  # also when the call is known
                    mine = comm.scatter(given if comm.rank == root else None, root)
                    assert mine.dtype == "int64" and mine.shape == (2, 3) and (mine == rows(comm.rank)).all()

    run_ranks(main, size, kind="thread")


@pytest.mark.parametrize("size", SIZES)
def test_scatter_in_place(size: int) -> None:
    def main() -> None:
        with hocket.init() as comm:
            root = size // 2
            whole = np.concatenate([rows(rank) for rank in range(size)])
            out = whole[2 * root : 2 * root + 2] if comm.rank == root else np.zeros((2, 3), "int64")
            assert (comm.scatter(whole if comm.rank == root else None, root, out=out) == rows(comm.rank)).all()

    run_ranks(main, size, kind="thread")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [0, 1, 40_000])
@pytest.mark.parametrize("algorithm", [None, "direct", "pairwise"])
def test_all_to_all_transposes_blocks(size: int, count: int, algorithm: str | None) -> None:
    def block(source: int, destination: int) -> Any:
        return np.arange(count, dtype="int32") + 1000 * source + destination

    def main() -> None:
        with hocket.init() as comm:
            x = np.concatenate([block(comm.rank, other) for other in range(size)])
            expected = np.concatenate([block(other, comm.rank) for other in range(size)])
            before = x.copy()
            assert (comm.all_to_all(x, algorithm=algorithm) == expected).all()
            assert (x == before).all()
            assert comm.all_to_all(x, out=x, algorithm=algorithm) is x
            assert (x == expected).all()

    run_ranks(main, size, kind="thread")


def test_an_asynchronous_gather_returns_what_a_blocking_one_does() -> None:
    def main() -> None:
        with hocket.init() as comm:
            work = comm.gather(rows(comm.rank), 1, async_op=True)
            other = comm.all_to_all(np.arange(3) + 3 * comm.rank, async_op=True)
            found = work.wait()
            assert found is None if comm.rank != 1 else found.shape == (6, 3)
            assert (other.wait() == comm.rank + 3 * np.arange(3)).all()

    run_ranks(main, 3, kind="thread")


REFUSED = [
    (lambda comm: comm.scatter(np.zeros(3), async_op=True), "expected out= with async_op=True, on all ranks"),
    (lambda comm: comm.all_to_all(np.zeros(4)), "3 ranks can split evenly.*all_to_all_v"),
    (lambda comm: comm.all_to_all(np.zeros(3), out=np.zeros(4)), "out with 3 elements"),
    (lambda comm: comm.gather(np.zeros(3), 3), "a root from 0 to 2"),
    (lambda comm: comm.all_gather_v(np.zeros(2), [2, 2]), "counts as 3 numbers of rows"),
    (lambda comm: comm.all_gather_v(np.zeros(2), [5, 5, 5]), r"counts\[\d\] = 5 rows"),
    (lambda comm: comm.reduce_scatter_v(np.zeros(5), [2, 2, 2]), "the sum of counts = 6 rows"),
    (lambda comm: comm.all_to_all_v(np.zeros(3), [1, 1, 1], [1, -1, 1]), "recv_counts as 3 numbers"),
    (lambda comm: comm.all_to_all_v(np.zeros(3), [1, 1, 1], [2, 2, 2]), "the rows that this rank keeps"),
    (lambda comm: comm.all_gather_v(np.float64(1).reshape(()), [1, 1, 1]), "at least 1 dim"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_cannot_be_done_is_refused_before_anything_is_sent(call: Any, words: str) -> None:
    def main() -> None:
        with hocket.init() as comm:
            with pytest.raises((ValueError, TypeError), match=words):
                call(comm)
            assert comm.all_reduce(np.ones(1))[0] == 3

    run_ranks(main, 3, kind="thread")


def broadcast_more_than_one_message(count: int) -> None:
    with hocket.init() as comm:
        x, given = hocket.empty(count, np.uint32), np.arange(count, dtype=np.uint32)
        if comm.rank == 0:
            x[:] = given
        comm.broadcast(x)
        assert np.array_equal(x, given)


def test_what_is_longer_than_one_message_goes_in_several() -> None:
    """Ranks that share cores lend up to 256 MiB at once."""
    run_ranks(broadcast_more_than_one_message, 3, args=((256 << 18) + 12345,), kind="process")


@pytest.mark.parametrize("size", SIZES)
def test_scatter_without_out_follows_the_shape_and_the_type_of_the_root(size: int) -> None:
    cases = [((2, 3), "float32"), ((1,), "int8"), ((0, 4), "float64"), ((2, 3), "float32"), ((3, 1, 2), "complex64")]

    def main() -> None:
        with hocket.init() as comm:
            for number, ((rows_each, *rest), dtype) in enumerate(cases):
                root = number % size
                whole = np.arange(size * rows_each * math.prod(rest)).reshape(size * rows_each, *rest).astype(dtype)
                mine = comm.scatter(whole if comm.rank == root else None, root)
                assert mine.dtype == dtype
                assert np.array_equal(mine, whole[comm.rank * rows_each : (comm.rank + 1) * rows_each])
                counts = list(range(size))
                whole = np.arange(sum(counts) * math.prod(rest)).reshape(sum(counts), *rest).astype(dtype)
                mine = comm.scatter_v(*((whole, counts) if comm.rank == root else (None, None)), root)
                first = sum(counts[: comm.rank])
                assert mine.dtype == dtype and np.array_equal(mine, whole[first : first + comm.rank])

    run_ranks(main, size, kind="thread")


def test_scatter_with_out_on_some_ranks_only_says_what_to_do() -> None:
    def main() -> str:
        comm = hocket.init()
        try:
            with pytest.raises(CollectiveMismatch) as caught:
                comm.scatter(np.zeros(6) if comm.rank == 0 else None, out=np.zeros(3) if comm.rank else None)
                comm.barrier()
            return str(caught.value)
        finally:
            comm.close()

    told = run_ranks(main, 2, kind="thread")
    assert all("differ in" in text and "pass out= on all ranks or on none" in text for text in told), told
