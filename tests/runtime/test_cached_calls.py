"""Repeated calls skip Python: they must do, return and refuse exactly what the Python methods do."""

import gc
import inspect
import pydoc
import random
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CommunicationError, PeerAborted
from hocket.runtime import run_ranks
from tests.runtime.repeating import SIZE, Arguments, Comm, by_python, count_misses, frozen, in_threads, outcome, values

TURNS, NUM_THREADS = 100, 3
SYMMETRIC = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
METHODS = [*SYMMETRIC, "broadcast", "reduce", "gather", "scatter"]


def whole(rank: int, size: int, count: int = 6) -> tuple[Any, Any]:
    """Returns an array, and this rank's block of it."""
    x = values(rank, size * count)
    return x, x[rank * count : (rank + 1) * count]


class Subclass(np.ndarray[Any, Any]):
    """An array that NumPy may treat differently."""


def alike(rank: int, size: int, method: str) -> list[Callable[[], Arguments]]:
    """Returns right and wrong calls, each with one difference from a plain call.

    In rooted collectives, some are wrong on some ranks only.
    """
    long = 6 * size
    n = {"all_gather": (6, long), "gather": (6, long), "reduce_scatter": (long, 6), "scatter": (long, 6)}.get(
        method, (6, 6)
    )

    def call(x: Any = None, out: Any = None, *more: Any, **keywords: Any) -> Arguments:
        x = values(rank, n[0]) if x is None else x
        return (x, *more), {"out": np.zeros(n[1], getattr(x, "dtype", "float32")) if out is None else out, **keywords}

    def overlapping() -> Arguments:
        memory = values(rank, sum(n))
        return (memory[: n[0]],), {"out": memory[1 : n[1] + 1]}

    def in_place() -> Arguments:
        x, block = whole(rank, size)
        return ((x,), {"out": block}) if n[0] > n[1] else ((block,), {"out": x}) if n[0] < n[1] else ((x,), {"out": x})

    return [
        call,
        lambda: call(timeout=20.0),
        lambda: call(timeout=float("20.0")),  # equal, and another object
        lambda: call(timeout=20),
        lambda: ((), {"x": values(rank, n[0]), "out": np.zeros(n[1], "float32")}),
        lambda: call(values(rank, n[0], "int64")),
        lambda: call(values(rank, n[0], "float64").reshape(2, -1), np.zeros(n[1]).reshape(2, -1)),
        lambda: call(values(rank, n[0], "complex128")),
        lambda: call(frozen(values(rank, n[0]))),
        lambda: call(values(rank, n[0]).view(Subclass)),
        lambda: call(values(rank, n[0]).tobytes(), bytearray(n[1])),
        lambda: call(values(rank, 0), values(rank, 0)),
        lambda: call(algorithm="".join(["di", "rect"])),
        lambda: call(algorithm=None),
        in_place,
        # Refused, each beside a call that is not.
        lambda: call(out=np.zeros(n[1] + 1, "float32")),
        lambda: call(out=np.zeros(n[1], "int32")),
        lambda: call(out=frozen(np.zeros(n[1], "float32"))),
        lambda: call(out=np.zeros(2 * n[1], "float32")[::2]),
        lambda: call(values(rank, 2 * n[0])[::2]),
        lambda: call(np.frombuffer(bytearray(4 * n[0] + 1), "float32", n[0], 1)),
        lambda: call(out=np.frombuffer(bytearray(4 * n[1] + 1), "float32", n[1], 1)),
        lambda: call(values(rank, n[0], ">f4"), np.zeros(n[1], ">f4")),
        lambda: call(out=[0.0] * n[1]),
        lambda: call(timeout=0),
        lambda: call(timeout=True),
        lambda: call(timeout="1"),
        lambda: call(algorithm="magic"),
        lambda: call(algorithm=["direct"]),
        lambda: call(x="x"),
        lambda: call(unknown=1),
        lambda: ((), {}),
        lambda: call(None, None, 0, 0, 0),
        overlapping,
    ]


def particular(rank: int) -> list[tuple[str, Callable[[], Arguments]]]:
    """Calls with arguments that only some collectives have."""
    x, y = (lambda n=6: values(rank, n)), (lambda n=6: np.zeros(n, "float32"))
    calls: list[tuple[str, Callable[[], Arguments]]] = [
        ("all_reduce", lambda: ((x(),), {})),
        ("all_reduce", lambda: ((x(12),), {})),
        ("all_reduce", lambda: ((np.float32(3),), {})),
        ("all_reduce", lambda: ((np.array(3.0),), {})),
        ("all_reduce", lambda: ((frozen(x()),), {})),  # refused
        ("all_gather", lambda: ((x(),), {})),  # a new array
        ("all_to_all", lambda: ((x(7),), {"out": y(7)})),  # refused
        ("all_to_all", lambda: ((x().reshape(2, 3),), {"out": y()})),
        ("all_to_all", lambda: ((x().reshape(3, 2),), {"out": y()})),  # refused: 3 rows for 2 ranks
        ("barrier", lambda: ((), {})),
        ("barrier", lambda: ((), {"timeout": 9.0})),
        ("barrier", lambda: ((), {"async_op": 0})),
        ("barrier", lambda: ((1,), {})),  # refused
    ]
    for op in ("sum", "max", "avg", "mean", "", np.add, hocket.premul_sum(2.0), None, ["sum"], 1):
        calls += [(name, lambda op=op: ((x(),), {"op": op})) for name in ("all_reduce", "reduce")]
        calls += [("all_reduce", lambda op=op: ((values(rank, 6, "int32"),), {"op": op}))]
        calls += [("reduce_scatter", lambda op=op: ((x(12),), {"op": op, "out": y()}))]
    for order in ("fast", "rank", "invariant", "slow", 1):
        calls += [(name, lambda order=order: ((x(),), {"order": order})) for name in ("all_reduce", "reduce")]
    for root in (0, 1, True, np.int64(1), 1.0, 2, -1, None, [0]):
        calls += [(name, lambda root=root: ((x(), root), {})) for name in ("broadcast", "reduce")]
        calls += [(name, lambda root=root: ((x(),), {"root": root})) for name in ("broadcast", "reduce")]
        calls += [("gather", lambda root=root: ((x(), root), {"out": y(12)}))]
        calls += [("scatter", lambda root=root: ((x(12), root), {"out": y()}))]
        calls += [("scatter", lambda root=root: ((None if rank != 1 else x(12), 1), {"out": y(), "timeout": 7.0}))]
    return calls


@pytest.mark.parametrize("size", [1, 2])
def test_a_cached_call_does_what_the_python_method_does(size: int) -> None:
    """Calls in random order, each with the same call through Python alone; results, arrays and errors are equal."""

    def main() -> tuple[int, int]:
        with hocket.init() as comm:
            names = SYMMETRIC if size > 1 else METHODS
            calls = [(name, one) for name in names for one in alike(comm.rank, size, name)]
            calls += particular(comm.rank) if size == 2 else []
            choose = random.Random(5)  # the same on all ranks
            missed, plain = count_misses(comm), 0
            order = [at for at in range(len(calls)) for _ in range(3)]
            choose.shuffle(order)
            for at in order:
                name, build = calls[at]
                before = len(missed)
                found = outcome(getattr(comm, name), build())
                plain += len(missed) == before
                expected = outcome(by_python(comm, name), build())
                assert found == expected, (name, build())
            return plain, len(order)

    for hits_and_refused, all_calls in run_ranks(main, size, kind="thread"):
        assert hits_and_refused > all_calls / 2


def plain_calls(rank: int) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    return [
        ("all_reduce", (values(rank, 6),), {}),
        ("all_reduce", (values(rank, 6),), {"op": "max", "out": np.zeros(6, "float32")}),
        ("all_gather", (values(rank, 6),), {"out": np.zeros(12, "float32")}),
        ("reduce_scatter", (values(rank, 12),), {"out": np.zeros(6, "float32")}),
        ("broadcast", (values(rank, 6),), {}),
        ("broadcast", (values(rank, 6), 1), {}),
        ("reduce", (values(rank, 6),), {"root": 1}),
        ("gather", (values(rank, 6),), {"out": np.zeros(12, "float32")}),
        ("scatter", (values(rank, 12),), {"out": np.zeros(6, "float32")}),
        ("all_to_all", (values(rank, 6),), {"out": np.zeros(6, "float32")}),
        ("barrier", (), {}),
    ]


def repeat_plain_calls() -> None:
    with hocket.init() as comm:
        missed = count_misses(comm)
        for turn in range(4):
            for number, (name, args, keywords) in enumerate(plain_calls(comm.rank)):
                getattr(comm, name)(*args, **keywords)
                assert len(missed) == (number + 1 if turn == 0 else len(plain_calls(comm.rank)))
            assert comm.statistics["calls"] == (turn + 1) * len(plain_calls(comm.rank))
        assert comm.statistics["seconds"] > 0


def test_only_the_first_of_equal_calls_goes_through_python_and_all_are_counted() -> None:
    run_ranks(repeat_plain_calls, SIZE, kind="process")


def test_names_defaults_and_positions_are_one_call() -> None:
    with hocket.init(0, 1) as comm:
        missed, x = count_misses(comm), np.ones(3)
        comm.broadcast(x)
        comm.broadcast(x, 0)
        comm.broadcast(root=0, x=x)
        comm.broadcast(x, **{"timeout": None, "out": None})
        comm.broadcast(np.zeros(3))
        Comm.broadcast(comm, x)
        assert missed == ["broadcast"]
        comm.broadcast(x.reshape(3, 1))
        comm.broadcast(x.astype("float32"))
        comm.broadcast(x, out=np.zeros(3))
        assert missed == ["broadcast"] * 4


def test_settings_closing_and_aborts_are_noticed() -> None:
    def main() -> None:
        x = np.ones(3)
        with hocket.init() as comm:
            other = comm.dup()
            for algorithm in ("ring", "tree", "direct"):
                comm.configure("all_reduce", algorithm=algorithm)
                comm.all_reduce(x)
                comm.all_reduce(x)
                assert comm.statistics["algorithms"][f"all_reduce:{algorithm}"] == 2
            comm.configure("all_reduce", order="invariant", algorithm="")
            with pytest.raises(ValueError, match="a balanced tree"):
                comm.all_reduce(x, algorithm="ring")
            for _ in range(2):
                other.all_reduce(x)
            comm.barrier()
            if comm.rank == 0:
                other.abort("enough")
            with pytest.raises(PeerAborted, match="enough"):
                other.all_reduce(x)
        for closed in (comm, other):
            closed.close()
            with pytest.raises(CommunicationError, match="the communicator is closed"):
                closed.all_reduce(x)

    run_ranks(main, SIZE, kind="thread")


def test_the_result_is_the_object_that_was_given_as_out() -> None:
    with hocket.init() as comm:
        x = values(0, 6)
        assert comm.all_reduce(x, out=x) is x
        same_memory = x[:]
        for _ in range(2):
            assert comm.all_reduce(x, out=same_memory) is same_memory
            assert comm.all_reduce(x) is x


def test_an_array_that_has_moved_is_found_where_it_is() -> None:
    with hocket.init(0, 1) as comm:
        x, y = np.arange(6.0), np.zeros(6)
        assert comm.all_reduce(x, out=y) is y
        for count in (6, 1000, 6):
            x.resize(count, refcheck=False)
            x[:] = np.arange(count)
            if count != y.size:
                with pytest.raises(ValueError, match=f"expected out with {count} elements"):
                    comm.all_reduce(x, out=y)
            else:
                y[:] = 0
                assert (comm.all_reduce(x, out=y) == np.arange(count)).all()


def test_an_array_that_has_changed_makes_another_call() -> None:
    """The same objects are passed again and again, but they change in between."""

    def main() -> None:
        with hocket.init() as comm:
            x, y = values(comm.rank, 6), np.zeros(6, "float32")

            def sums(total: int) -> None:
                for _ in range(3):
                    x[:], y[:] = comm.rank + 1, 0
                    assert comm.all_reduce(x, out=y) is y
                    assert (y == total).all()

            sums(3)
            x.resize(12, refcheck=False)
            for _ in range(2):
                with pytest.raises(ValueError, match="expected out with 12 elements"):
                    comm.all_reduce(x, out=y)
            y.resize(12, refcheck=False)
            sums(3)
            y.flags.writeable = False
            for _ in range(2):
                with pytest.raises(ValueError, match="read-only"):
                    comm.all_reduce(x, out=y)
            y.flags.writeable = True
            sums(3)

    run_ranks(main, SIZE, kind="thread")


def test_an_array_that_has_taken_another_shape_makes_another_call() -> None:
    def main() -> None:
        with hocket.init() as comm:
            x, y = values(comm.rank, 6), np.zeros(6, "float32")
            right = [(6,), (2, 3), (2, 3, 1), (2, 1, 3)]
            split, few = "split evenly", "with 4 elements"
            wrong = {(3, 2): split, (3, 2, 1): split, (3, 1, 2): split, (2, 2): few, (4,): few}
            shapes = [one for shape in right for other in wrong for one in (shape, other)]
            for shape in [*right, *shapes, *reversed(shapes)]:
                x.resize(shape, refcheck=False)
                for _ in range(2):
                    if shape in wrong:
                        with pytest.raises(ValueError, match=wrong[shape]):
                            comm.all_to_all(x, out=y)
                    else:
                        assert comm.all_to_all(x, out=y) is y

    run_ranks(main, SIZE, kind="thread")


def test_what_lies_where_another_array_lay_is_not_taken_for_it() -> None:
    def main() -> None:
        with hocket.init() as comm:
            places, choose = [], random.Random(7)  # the same choices on all ranks
            for turn in range(300):
                dtype, count = choose.choice(["float32", "int32", "uint32"]), choose.choice([4, 8])
                array = np.full(count, turn + comm.rank, dtype)
                for _ in range(2):
                    array[:] = turn + comm.rank
                    assert comm.all_reduce(array).tolist() == [2 * turn + 1] * count
                places.append(id(array))
                del array
            assert len(set(places)) < len(places) / 2

    run_ranks(main, SIZE, kind="thread")


def test_the_same_objects_by_other_names_are_another_call() -> None:
    with hocket.init(0, 1) as comm:
        x, y, zero = np.ones(3), np.zeros(3), 0
        for _ in range(3):
            for _ in range(2):
                assert comm.broadcast(x, root=zero) is x
            with pytest.raises(ValueError, match="timeout"):
                comm.broadcast(x, timeout=zero)
            assert comm.broadcast(x, zero) is comm.broadcast(x, zero)
            with pytest.raises(ValueError, match="timeout"):
                comm.broadcast(x, timeout=zero)
            assert comm.broadcast(x, out=y) is comm.broadcast(x, out=y)
            with pytest.raises(TypeError, match="algorithm"):
                comm.broadcast(x, algorithm=y)  # type: ignore[arg-type]


def test_nothing_is_kept_but_what_the_cache_needs() -> None:
    """The cache never keeps arrays; a communicator and its cache end with its last reference."""
    timeout, x, y = float("12.5"), np.ones(5), np.zeros(5)

    def counts() -> list[int]:
        return [sys.getrefcount(one) for one in (timeout, x, y, None)]

    with hocket.init(0, 1) as comm:
        before = counts()
        for _ in range(50):
            comm.all_reduce(x, out=y, timeout=timeout)
            with pytest.raises(ValueError, match="out"):
                comm.all_reduce(x, out=y[:2], timeout=timeout)
        after = counts()
        assert after[0] == before[0] + 1 and after[1:3] == before[1:3]
        assert after[3] - before[3] < 20
        comm.close()
        assert counts()[0] == before[0]
    last = weakref.ref(comm)
    del comm
    gc.collect()
    assert last() is None


def test_more_calls_than_are_remembered() -> None:
    with hocket.init(0, 1) as comm:
        memory = np.ones(5000)
        for count in [*range(4200), *range(4190, 4200)]:
            assert comm.all_reduce(memory[:count]).size == count


def call_from_threads() -> None:
    with hocket.init() as comm:

        def call() -> None:
            for _ in range(TURNS):
                assert (comm.all_reduce(np.ones(4)) == SIZE).all()

        in_threads(*[call] * NUM_THREADS)
        assert comm.statistics["calls"] == TURNS * NUM_THREADS


def test_threads_share_a_communicator_and_its_calls() -> None:
    """One thread at a time uses a cached call; calls of other threads then go through Python."""
    for kind in ("thread", "process"):
        run_ranks(call_from_threads, SIZE, kind=kind)


def wait_beside_a_thread() -> None:
    with hocket.init() as comm:
        beside = comm.dup()
        comm.barrier()
        missed = count_misses(comm)
        if comm.rank == 1:
            beside.recv(np.zeros(1), 0)
            comm.barrier()
            return
        begun = threading.Event()

        def talk() -> None:
            begun.wait()
            beside.send(np.zeros(1), 1)

        thread = threading.Thread(target=talk)
        thread.start()
        begun.set()
        comm.barrier()
        thread.join()
        assert missed == []


def test_other_threads_run_while_a_cached_call_waits() -> None:
    """Rank 1 calls only after a message from a thread of rank 0, which starts while rank 0 waits."""

    for kind in ("thread", "process"):
        run_ranks(wait_beside_a_thread, SIZE, kind=kind)


def test_a_call_inside_another_is_refused_as_ever() -> None:
    """A user's op makes a call. The outer call goes through Python, like all calls with such ops."""

    def main() -> None:
        with hocket.init() as comm:
            comm.barrier()

            def calling(a: Any, b: Any) -> Any:
                if a.size > 3:  # not when Hocket tries it out
                    comm.barrier()
                return a + b

            with pytest.raises((RuntimeError, CommunicationError), match="inside another one"):
                comm.all_reduce(np.ones(4), op=hocket.op(calling))

    run_ranks(main, SIZE, kind="thread")


@pytest.mark.parametrize("name", [*METHODS, "barrier"])
def test_a_cached_method_reads_as_the_python_method(name: str) -> None:
    method = getattr(Comm, name)
    python = method.__wrapped__
    assert (method.__name__, method.__doc__, method.__qualname__) == (name, python.__doc__, f"Collectives.{name}")
    assert inspect.signature(method) == inspect.signature(python)
    shown = pydoc.plain(pydoc.render_doc(method))
    assert f"{name}{inspect.signature(python)}" in shown and python.__doc__.splitlines()[0] in shown
    assert inspect.isroutine(method) and name in pydoc.plain(pydoc.render_doc(Comm))
    with hocket.init(0, 1) as comm:
        assert list(inspect.signature(getattr(comm, name)).parameters) == list(inspect.signature(python).parameters)[1:]
        assert python.__doc__.splitlines()[0] in pydoc.plain(pydoc.render_doc(getattr(comm, name)))
        assert getattr(comm, name).__self__ is comm


def test_a_cached_method_takes_communicators_only() -> None:
    with pytest.raises(AttributeError, match=r"_launch|_token"):
        Comm.barrier(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="self"):
        Comm.barrier()  # type: ignore[call-arg]
