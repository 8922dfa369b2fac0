"""Settings of a communicator or a collective: algorithm, order of reduction, timeout. Rank 0 decides for all."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveMismatch, CollectiveTimeout
from hocket.runtime import run_ranks
from hocket.schedule import DTYPES, numpy_dtype
from hocket.schedule.reduction import accumulator_dtype

Comm = hocket.Communicator


def contribution(rank: int, count: int, dtype: str) -> Any:
    values = np.random.default_rng([rank, count]).normal(size=count) * 4
    return np.abs(values).astype(numpy_dtype(dtype)) if dtype.startswith("u") else values.astype(numpy_dtype(dtype))


def left_fold(inputs: list[Any]) -> Any:
    """Sums in plain NumPy: from rank 0 upwards in the accumulator type, rounded once."""
    kind = accumulator_dtype(inputs[0].dtype)
    total = inputs[0].astype(kind)
    for array in inputs[1:]:
        total = total + array.astype(kind)
    return total.astype(inputs[0].dtype)


def balanced(inputs: list[Any]) -> Any:
    """Sums in plain NumPy: a binary tree split at the largest power of two below the count, each node rounded."""
    if len(inputs) == 1:
        return inputs[0]
    half = 1 << (len(inputs) - 1).bit_length() - 1
    kind = accumulator_dtype(inputs[0].dtype)
    return (balanced(inputs[:half]).astype(kind) + balanced(inputs[half:]).astype(kind)).astype(inputs[0].dtype)


def same_bits(found: Any, expected: Any) -> bool:
    return bool((np.atleast_1d(found).view(np.uint8) == np.atleast_1d(expected).view(np.uint8)).all())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 8])
def test_orders_are_plain_folds_whatever_the_size_and_the_collective(size: int) -> None:
    summed = [dtype for dtype in DTYPES if dtype != "bool" and not dtype.startswith(("uint", "int"))]

    def main() -> None:
        with hocket.init() as comm, np.errstate(all="ignore"):
            for dtype in summed:
                for count in (0, 1, 7, 20_000):
                    inputs = [contribution(rank, count * size, dtype) for rank in range(size)]
                    for order, define in (("rank", left_fold), ("invariant", balanced)):
                        expected, mine = define(inputs), slice(comm.rank * count, (comm.rank + 1) * count)
                        x = inputs[comm.rank]
                        assert same_bits(comm.all_reduce(x, out=np.empty_like(x), order=order), expected)
                        assert same_bits(comm.reduce_scatter(x, order=order), expected[mine])
                        assert same_bits(comm.reduce_scatter_v(x, [count] * size, order=order), expected[mine])
                        found = comm.reduce(x.copy(), size - 1, order=order)
                        assert found is None or same_bits(found, expected)

    run_ranks(main, size, kind="thread")


def test_an_algorithm_without_the_label_is_refused_before_anything_is_sent() -> None:
    def main() -> None:
        with hocket.init() as comm:
            for order, fold, fitting in (
                ("rank", "in rank order", "direct"),
                ("invariant", "as a balanced tree", "tree"),
            ):
                with pytest.raises(
                    ValueError, match=rf"order='{order}'.* {fold}, and 'ring' .* one of .*\b{fitting}\b"
                ):
                    comm.all_reduce(np.ones(5), algorithm="ring", order=order)
            with pytest.raises(ValueError, match="order to be one of fast, rank, invariant"):
                comm.all_reduce(np.ones(5), order="fastest")
            assert comm.all_reduce(np.ones(1), algorithm="direct", order="rank")[0] == 5

    run_ranks(main, 5, kind="thread")


def algorithms_of(comm: Comm) -> set[str]:
    return set(comm.statistics["algorithms"])


def test_configure_fixes_algorithm_order_and_timeout() -> None:
    def main() -> None:
        with hocket.init() as comm:
            comm.configure("all_reduce", algorithm="ring")
            comm.all_reduce(np.ones(3))
            comm.all_gather(np.ones(3))
            assert algorithms_of(comm) == {"all_reduce:ring", "all_gather:direct"}
            comm.all_reduce(np.ones(3), algorithm="direct")  # the call's own choice counts
            assert "all_reduce:direct" in algorithms_of(comm)
            for _ in range(2):
                comm.all_reduce(np.ones(3), algorithm="")  # the call can also choose the table
            assert comm.statistics["algorithms"]["all_reduce:direct"] == 3
            words = (
                r"order='rank' needs .* reduces in rank order, and 'ring' does not.* or take one of direct, .*server$"
            )
            with pytest.raises(ValueError, match=words):
                comm.all_reduce(np.ones(3), order="rank")
            part = comm.dup()
            part.all_reduce(np.ones(3))
            assert algorithms_of(part) == {"all_reduce:ring"}  # like the communicator that it was made from

    run_ranks(main, 3, kind="thread")


def test_configure_for_all_collectives() -> None:
    def main() -> None:
        with hocket.init() as comm:
            comm.configure(algorithm="ring", order="fast", timeout=7.5)
            comm.all_reduce(np.ones(3))
            comm.all_gather(np.ones(3))
            comm.broadcast(np.ones(3))  # has no ring: no change
            assert {"all_reduce:ring", "all_gather:ring", "broadcast:direct"} <= algorithms_of(comm)
            with pytest.raises(ValueError, match="a balanced tree"):
                comm.configure("reduce_scatter", order="invariant")  # with a ring, as before
            comm.configure("reduce_scatter", algorithm="", order="invariant")
            comm.reduce_scatter(np.ones(3))
            assert "reduce_scatter:tree" in algorithms_of(comm)

    run_ranks(main, 3, kind="thread")


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"collective": "all_reduc"}, "expected a collective.*all_reduce"),
        ({"algorithm": "rings"}, "found 'rings'; did you mean 'ring'\\? Expected an algorithm, one of "),
        ({"algorithm": "missing.py"}, "found no file 'missing.py'"),
        ({"collective": "barrier", "algorithm": "ring"}, "for barrier"),
        ({"order": "any"}, "order to be one of"),
        ({"timeout": 0}, "seconds above 0"),
        ({"collective": "send", "order": "rank"}, "only timeout= for send"),
        ({"collective": "broadcast", "order": "rank"}, "no order= for broadcast"),
    ],
)
def test_configure_refuses_what_there_is_not(keywords: Any, words: str) -> None:
    with hocket.init(0, 1, address=f"configure-{words}") as comm, pytest.raises(ValueError, match=words):
        comm.configure(**keywords)


def test_configure_for_all_says_what_a_file_lacks(tmp_path: Path) -> None:
    """Two for one collective are ambiguous."""
    file = tmp_path / "own.py"
    file.write_text(
        "import hocket\n"
        "for name in ('one', 'two'):\n"
        "    direct = hocket.algorithms('barrier')['direct'].write\n"
        "    hocket.algorithm('barrier', name=name, chunks=lambda p: 1)(direct)\n"
    )
    with hocket.init(0, 1) as comm:
        with pytest.raises(ValueError, match=r"own\.py:NAME, one of one, two for barrier"):
            comm.configure(algorithm=str(file))
        comm.configure(algorithm=f"{file}:two")
        comm.barrier()
        assert algorithms_of(comm) == {f"barrier:{file}:two"}


def test_a_configured_timeout_holds() -> None:
    def main() -> None:
        with hocket.init() as comm:
            comm.configure("all_reduce", timeout=0.2)
            with pytest.raises(CollectiveTimeout):
                if comm.rank == 0:
                    comm.all_reduce(np.ones(1))
                else:
                    comm.recv(np.ones(1), 0, tag=5, timeout=60)

    run_ranks(main, 2, kind="thread")


def different_algorithms() -> None:
    with hocket.init() as comm:
        if comm.rank == 1:
            comm.configure("all_reduce", algorithm="ring")
        with pytest.raises(CollectiveMismatch, match="the ranks differ in algorithm"):
            comm.all_reduce(np.ones(3))


def test_ranks_that_are_configured_differently_are_told() -> None:
    run_ranks(different_algorithms, 3, kind="thread")


def what_runs(of_others: dict[str, str] | None = None) -> set[str]:
    """of_others: the environment of all ranks except 0."""
    if of_others and os.environ["HOCKET_RANK"] != "0":
        os.environ.update(of_others)
    with hocket.init() as comm:
        comm.all_reduce(np.ones(3))
        comm.all_gather(np.ones(3))
        return algorithms_of(comm)


def test_rank_0_reads_the_environment_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_ALGO", "allreduce:ring")
    others = {"HOCKET_ALGO": "allreduce:direct"}
    assert run_ranks(what_runs, 3, args=(others,), kind="process") == [{"all_reduce:ring", "all_gather:direct"}] * 3


def test_a_tuner_file_chooses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "tuner.csv"
    file.write_text("# collective,min_bytes,max_bytes,algorithm,...\nallreduce,0,65536,ring,simple,-1,-1,-1\n")
    monkeypatch.setenv("HOCKET_TUNER_CONFIG_FILE", str(file))
    others = {"HOCKET_TUNER_CONFIG_FILE": str(tmp_path / "missing.csv")}  # rank 0's copy is what the group uses
    assert run_ranks(what_runs, 2, args=(others,), kind="process") == [{"all_reduce:ring", "all_gather:direct"}] * 2


def start_with_a_bad_configuration() -> str:
    with pytest.raises(ValueError, match="rank 0 cannot use its configuration") as caught:
        hocket.init()
    return str(caught.value)


def test_a_bad_configuration_is_told_to_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_ALGO", "allreduce:rung")
    assert all("rung" in text for text in run_ranks(start_with_a_bad_configuration, 3, kind="process"))


def test_a_configured_timeout_holds_for_messages() -> None:
    def main() -> None:
        with hocket.init() as comm:
            comm.configure("recv", timeout=0.2)
            if comm.rank == 0:
                with pytest.raises(CollectiveTimeout):
                    comm.irecv(np.ones(1), 1).wait()
            else:
                with pytest.raises(CollectiveTimeout):
                    comm.recv(np.ones(1), 0, timeout=60)

    run_ranks(main, 2, kind="thread")
