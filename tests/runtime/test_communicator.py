"""Ranks compute the reference's result to the bit, in any kind of memory; no other memory changes."""

import functools
import itertools
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import hocket
from hocket.algorithms import ALGORITHMS
from hocket.runtime import choose, discover, run_ranks
from hocket.schedule import COLLECTIVES, reference

SIZES = (1, 2, 3, 4, 5, 7, 8)
LARGE = -1  # stands for a block whose every chunk is cut into several pieces of 128 KiB
DTYPES = ("float32", "float64", "int32", "int64", "uint8")
OPS = ("sum", "prod", "min", "max", "avg")
GUARD = 16  # elements on both sides of an output, which must not change
# In these, x and out are equally long, or one is a block of the other. The rest and other types have their own tests.
DATA = [
    (collective, name)
    for collective, name in ALGORITHMS
    if collective not in ("barrier", "scatter", "gather", "all_to_all") and not COLLECTIVES[collective].uneven
]


class Case(NamedTuple):
    block: int
    dtype: str
    op: str
    aliased: bool
    memory: str  # "private", "registered", or "mixed" over the ranks
    root: int


class Call(NamedTuple):
    """One call of one rank, and its expected result."""

    collective: str
    name: str
    case: Case
    input: Any
    expected: Any


# --- which cases ---------------------------------------------------------------------------------------------------


@functools.cache
def cases(reduces: bool, roots: tuple[int, ...], *, complete: bool = False) -> list[Case]:
    """Every two values of different axes are in some case together; if complete, every block, dtype and op."""
    allowed = [
        Case(*values)
        for values in itertools.product(
            (0, 1, 7, 1000, LARGE),
            DTYPES,
            OPS if reduces else ("sum",),
            (False, True),
            ("private", "registered", "mixed"),
            roots,
        )
        if values[2] != "avg" or values[1].startswith("float")
    ]
    chosen: list[Case] = []
    if complete:
        for number, (_, group) in enumerate(itertools.groupby(allowed, key=lambda case: case[:3])):
            choices = list(group)
            if choices[0].block != LARGE:
                chosen.append(choices[number * 5 % len(choices)])
    missing = {pair for case in allowed for pair in pairs(case)} - {pair for case in chosen for pair in pairs(case)}
    while missing:
        best = max(allowed, key=lambda case: len(pairs(case) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


@functools.cache
def pairs(case: Case) -> frozenset[Any]:
    return frozenset(itertools.combinations(enumerate(case), 2))


def input_of(rank: int, case: Case, block: int, num_blocks: int) -> Any:
    """Elements that show their rank and index, and whose sums and products are rounded."""
    index = np.arange(block * num_blocks)
    if case.dtype.startswith("float"):
        return (rank + 1 + index % 1009 / 1009).astype(case.dtype)
    return ((rank + 1) * 100_000 + index).astype(case.dtype)


def calls(
    collective: str, name: str, size: int, *, complete: bool = False, most_large: int | None = None
) -> list[list[Call]]:
    """Returns the calls of every rank, with at most so many large ones."""
    kind = COLLECTIVES[collective]
    roots = tuple(sorted({0, size // 2, size - 1})) if kind.rooted else (0,)
    by_rank: list[list[Call]] = [[] for _ in range(size)]
    chosen = cases(kind.reduces, roots, complete=complete)
    large = [case for case in chosen if case.block == LARGE]
    for case in (case for case in chosen if case not in large or case in large[:most_large]):
        schedule = ALGORITHMS[collective, name].build(size, case.root)
        block = case.block
        if block == LARGE:
            num_bytes = 400_000 if schedule.chunks_per_block == 1 else 140_000 * schedule.chunks_per_block
            block = num_bytes // np.dtype(case.dtype).itemsize + 1
        num_blocks = size if collective == "reduce_scatter" else 1
        inputs = [input_of(rank, case, block, num_blocks) for rank in range(size)]
        expected = reference.run(schedule, inputs, case.op)
        for rank in range(size):
            by_rank[rank].append(Call(collective, name, case, inputs[rank], expected[rank]))
    return by_rank


# --- making a call and judging it ----------------------------------------------------------------------------------


class Guarded:
    """An array with a margin that must not be written."""

    def __init__(self, count: int, dtype: str, registered: bool) -> None:
        make = hocket.empty if registered else np.empty
        self.all: Any = make(count + 2 * GUARD, dtype)
        self.all[:] = 77
        self.array = self.all[GUARD : GUARD + count]

    def check(self) -> None:
        before, after = self.all[:GUARD], self.all[GUARD + len(self.array) :]
        assert (before == 77).all() and (after == 77).all(), "the margin was written"


def make(comm: hocket.Communicator, call: Call) -> None:
    collective, name, case, input, expected = call
    keywords: dict[str, Any] = {"algorithm": name}
    kind = COLLECTIVES[collective]
    if kind.reduces:
        keywords["op"] = case.op
    if kind.rooted:
        keywords["root"] = case.root
    registered = case.memory == "registered" or (case.memory == "mixed" and comm.rank % 2 == 0)
    x = Guarded(len(input), case.dtype, registered)
    out = x
    if not case.aliased and expected is not None:
        out = Guarded(len(expected), case.dtype, registered)
        keywords["out"] = out.array
    elif case.aliased and collective == "all_gather":
        out = Guarded(len(expected), case.dtype, registered)
        keywords["out"] = out.array
        x.array = out.array[comm.rank * len(input) : (comm.rank + 1) * len(input)]
    elif case.aliased and collective == "reduce_scatter":
        begin = comm.rank * len(expected)
        keywords["out"] = x.array[begin : begin + len(expected)]
    x.array[:] = input
    result = getattr(comm, collective)(x.array, **keywords)
    if expected is None:
        assert result is None
    else:
        assert result is keywords.get("out", x.array), "a collective returns its output array"
        assert same_bits(result, expected), f"rank {comm.rank}: {collective} by {name}, {case}: {result} != {expected}"
    if not case.aliased or expected is None:
        assert np.array_equal(x.array, input), f"rank {comm.rank}: {collective} by {name}, {case}: the input changed"
    for one in (x, out):
        if len(one.all) == len(one.array) + 2 * GUARD:
            one.check()


def same_bits(found: Any, expected: Any) -> bool:
    return found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


def make_all(comm: hocket.Communicator, calls: Sequence[Call]) -> None:
    for call in calls:
        make(comm, call)


def sizes_of(number: int, *choices: tuple[int, ...]) -> list[int]:
    """Returns rank counts for this algorithm: from each choice one that it takes, if any; algorithms take turns."""
    taken = [list(filter(ALGORITHMS[DATA[number]].allows, sizes)) for sizes in choices]
    return sorted({sizes[number % len(sizes)] for sizes in taken if sizes})


# Every algorithm with a power of two and, unless it takes none, with another number.
WORLDS = [
    pytest.param(*key, size, id=f"{'-'.join(key)}-{size}")
    for number, key in enumerate(DATA)
    for size in sizes_of(number, *(((3, 5, 7), (1, 2)) if ALGORITHMS[key].allows(3) else ((6,), (2,))), (4, 8))
]


def test_every_algorithm_is_run_among_two_numbers_of_threads_and_one_that_is_no_power_of_two() -> None:
    for key in DATA:
        sizes = {world.values[2] for world in WORLDS if world.values[:2] == key} - {1}
        others = {size for size in (3, 5, 6, 7) if ALGORITHMS[key].allows(size)}
        assert len(sizes) >= 2 and (sizes & others or not others), key


@pytest.mark.parametrize(("collective", "name", "size"), WORLDS)
def test_threads_compute_the_reference(collective: str, name: str, size: int) -> None:
    by_rank = calls(collective, name, size, complete=size in (2, 3))

    def main() -> None:
        with hocket.init() as comm:
            make_all(comm, by_rank[comm.rank])

    run_ranks(main, size, kind="thread")


def make_all_of_file(folder: Path) -> None:
    with hocket.init() as comm:
        make_all(comm, pickle.loads((folder / str(comm.rank)).read_bytes()))


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_processes_compute_the_reference(size: int, tmp_path: Path) -> None:
    by_rank: list[list[Call]] = [[] for _ in range(size)]
    for number, key in enumerate(DATA):
        if size in sizes_of(number, (2, 3), (5, 8)):
            # Expected results of large calls must be sent to each process.
            for mine, new in zip(by_rank, calls(*key, size, most_large=2), strict=True):
                mine.extend(new)
    for rank, mine in enumerate(by_rank):
        (tmp_path / str(rank)).write_bytes(pickle.dumps(mine))
    run_ranks(make_all_of_file, size, args=(tmp_path,), kind="process")


# --- values that are not numbers like others -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [name for (collective, name), one in ALGORITHMS.items() if collective == "all_reduce" and one.allows(3)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_and_signed_zeros_are_folded_as_the_reference_does(name: str, dtype: str) -> None:
    size, special = 3, [np.nan, -0.0, 0.0, 1.0, -1.0, np.inf, -np.inf]
    rows = np.array(list(itertools.product(special, repeat=size)), dtype).T.copy()
    schedule = ALGORITHMS["all_reduce", name].build(size)
    for op in OPS:
        with np.errstate(invalid="ignore"):
            expected = reference.run(schedule, list(rows), op)

        def main(op: str = op) -> Any:
            with hocket.init() as comm:
                return comm.all_reduce(rows[comm.rank].copy(), op=op, algorithm=name)

        for found, wanted in zip(run_ranks(main, size, kind="thread"), expected, strict=True):
            assert wanted is not None
            nan = np.isnan(wanted)
            assert np.array_equal(np.isnan(found), nan), op
            assert same_bits(found[~nan], wanted[~nan]), op


# --- shapes and new arrays -----------------------------------------------------------------------------------------


def run(size: int, function: Any) -> list[Any]:
    """Runs function(comm) on threads."""

    def main() -> Any:
        with hocket.init() as comm:
            return function(comm)

    return run_ranks(main, size, kind="thread")


def test_shapes_stay_and_zero_dims_are_one_element() -> None:
    def main(comm: hocket.Communicator) -> None:
        x = np.full((2, 3, 4), comm.rank, "int64")
        assert comm.all_reduce(x) is x and x.shape == (2, 3, 4) and (x == 3).all()
        point = np.array(comm.rank + 1.0)
        assert comm.all_reduce(point) is point and point.shape == () and point == 6
        assert comm.broadcast(np.array(comm.rank, "int32"), root=2) == 2
        product = comm.reduce(np.array(comm.rank + 1, "int32"), root=1, op="prod")
        assert product == (6 if comm.rank == 1 else None)

    run(3, main)


def test_all_gather_makes_a_new_array_along_dim_0() -> None:
    def main(comm: hocket.Communicator) -> None:
        y = comm.all_gather(np.full((2, 5), comm.rank, "uint8"))
        assert y.shape == (6, 5) and y.dtype == np.uint8
        assert (y == np.repeat([0, 1, 2], 2)[:, None]).all()
        y = comm.all_gather(np.array(comm.rank, "int64"))
        assert y.shape == (3,) and (y == [0, 1, 2]).all()
        assert comm.all_gather(np.zeros((0, 4), "float32")).shape == (0, 4)

    run(3, main)


def test_reduce_scatter_makes_a_new_array_along_dim_0() -> None:
    def main(comm: hocket.Communicator) -> None:
        x = np.arange(12, dtype="float64").reshape(6, 2)
        y = comm.reduce_scatter(x)
        assert y.shape == (2, 2) and (y == 3 * x[2 * comm.rank : 2 * comm.rank + 2]).all()
        assert comm.reduce_scatter(np.zeros((0, 7), "int32")).shape == (0, 7)

    run(3, main)


def test_out_may_have_another_shape_of_as_many_elements() -> None:
    def main(comm: hocket.Communicator) -> None:
        out = np.empty((3, 4), "int32")
        assert comm.all_reduce(np.ones(12, "int32"), out=out) is out and (out == 2).all()

    run(2, main)


def test_a_slice_of_a_larger_array_is_an_array() -> None:
    def main(comm: hocket.Communicator) -> None:
        table = np.zeros((4, 10), "float32")
        comm.all_reduce(table[1:3].reshape(-1)[3:7])
        table[2] = 1
        comm.all_reduce(table[2])
        assert (table[2] == 2).all() and not table[[0, 1, 3]].any()

    run(2, main)


def test_reduce_does_not_look_at_out_off_the_root() -> None:
    def main(comm: hocket.Communicator) -> None:
        out = np.empty(4, "float32") if comm.rank == 1 else "never looked at"
        x = np.full(4, comm.rank, "float32")
        assert comm.reduce(x, root=1, out=out) is (out if comm.rank == 1 else None)
        assert (x == comm.rank).all()

    run(3, main)


def test_a_root_may_broadcast_memory_that_cannot_be_written() -> None:
    def main(comm: hocket.Communicator) -> None:
        x = np.full(5, comm.rank, "int32")
        x.flags.writeable = comm.rank != 1
        assert (comm.broadcast(x, root=1) == 1).all()

    run(3, main)


# --- what else a communicator does ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [name for collective, name in ALGORITHMS if collective == "barrier"])
def test_nobody_leaves_a_barrier_before_all_have_come(name: str, size: int) -> None:
    arrived, lock = [0] * 20, threading.Lock()

    def main(comm: hocket.Communicator) -> None:
        for turn in range(len(arrived)):
            with lock:
                arrived[turn] += 1
            assert comm.barrier(algorithm=name) is None
            assert arrived[turn] == size

    run(size, main)


def test_one_process_alone_is_a_communicator_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOCKET_RANK", "HOCKET_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with hocket.init() as comm:
        assert (comm.rank, comm.size) == (0, 1)
        x = np.arange(5.0)
        assert comm.all_reduce(x, op="avg") is x and (x == np.arange(5)).all()
        assert (comm.all_gather(x) == x).all()
        comm.barrier()
        assert repr(comm) == "<hocket.Communicator rank 0 of 1>"
    assert repr(comm) == "<hocket.Communicator rank 0 of 1 (closed)>"


def test_calls_of_all_kinds_and_sizes_follow_each_other_without_a_pause() -> None:
    def main(comm: hocket.Communicator) -> None:
        choose = np.random.default_rng(0)  # the same on all ranks
        for turn in range(300):
            count, root = int(choose.choice([0, 1, 12, 13, 500, 60_000])), int(choose.integers(comm.size))
            kind = choose.choice(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "barrier"])
            x = np.full(count, comm.rank + turn, "int64")
            total = comm.size * turn + 6
            if kind == "all_reduce":
                assert (comm.all_reduce(x) == total).all()
            elif kind == "all_gather":
                assert (comm.all_gather(x).reshape(4, count) == np.arange(turn, turn + 4)[:, None]).all()
            elif kind == "reduce_scatter":
                assert (comm.reduce_scatter(np.repeat(x, 4)) == total).all()
            elif kind == "broadcast":
                assert (comm.broadcast(x, root) == root + turn).all()
            elif kind == "reduce":
                y = comm.reduce(x, root)
                assert y is None if comm.rank != root else (y == total).all()
            else:
                comm.barrier()

    run(4, main)


@pytest.mark.parametrize("count", [2, 100, 100_000])
def test_a_root_runs_ahead_of_the_others_and_may_write_its_memory_again(count: int) -> None:
    def main(comm: hocket.Communicator) -> None:
        x = np.empty(count)
        for turn in range(100):
            x[:] = turn if comm.rank == 0 else -1
            comm.broadcast(x)
            assert (x == turn).all()
            x[:] = -2

    run(3, main)


def test_a_rank_may_be_in_two_communicators() -> None:
    def main() -> None:
        address = discover().address
        with hocket.init() as one, hocket.init(address=f"{address}-two") as two:
            x = np.full(50_000, one.rank + 1.0)
            work = one.all_reduce(x, async_op=True)
            assert (two.all_reduce(np.full(3, 1, "int32"), op="prod") == 1).all()
            two.barrier()
            assert (work.wait() == 6).all()
            one.barrier()

    run_ranks(main, 3, kind="thread")


def test_without_algorithm_the_size_decides_and_statistics_tell() -> None:
    def main(comm: hocket.Communicator) -> None:
        small, large = np.zeros(4), np.zeros(1 << 20)
        for x in (small, large, large):
            comm.all_reduce(x)
        comm.barrier()
        found = comm.statistics
        assert found["calls"] == 4 and found["seconds"] > 0
        assert found["algorithms"] == {
            f"all_reduce:{choose('all_reduce', 2, small.nbytes)}": 1,
            f"all_reduce:{choose('all_reduce', 2, large.nbytes)}": 2,
            f"barrier:{choose('barrier', 2, 1)}": 1,
        }

    run(2, main)


def test_an_algorithm_of_a_file_runs_once_it_is_proved(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import hocket\n"
        "one, several = lambda p: 1, lambda p: p > 1\n"
        "@hocket.algorithm('broadcast', name='relay', chunks=one, steps=lambda p: p - 1, sent=several)\n"
        "def relay(schedule):\n"
        "    for i in range(schedule.num_ranks - 1):\n"
        "        with schedule.step():\n"
        "            src = (schedule.root + i) % schedule.num_ranks\n"
        "            schedule.copy(src=src, dst=(src + 1) % schedule.num_ranks, chunk=0)\n"
    )

    def main(comm: hocket.Communicator) -> None:
        for root in range(comm.size):
            x = comm.broadcast(np.full(70_000, comm.rank, "int32"), root, algorithm=f"{file}:relay")
            assert (x == root).all()

    run(3, main)
