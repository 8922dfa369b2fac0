"""The coordinator on real ranks: sums are right whatever ranks produce, in whatever order; locked rounds are silent."""

import random
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from hocket.training import Coordinator
from hocket.training.coordinator.leader import ROUNDS_BEFORE_LOCK
from hocket.training.coordinator.member import ROUNDS_BEFORE_UNLOCK
from tests.runtime.test_faults import Ranks
from tests.training.test_data import on_ranks
from tests.waiting import wait_until

NAMES = ("a", "b", "c", "d", "e")
EACH, TOGETHER = {"bucket_bytes": 1}, {"bucket_bytes": 1 << 20}


def arrays_of(comm: Any, names: tuple[str, ...] = NAMES, size: int = 30) -> dict[str, np.ndarray]:
    return {name: np.full(size, float(comm.rank), np.float32) for name in names}


def produce(engine: Coordinator, arrays: dict[str, Any], order: Any, value: float) -> None:
    """Makes one round: writes the value into each of these tensors, submits it, and waits for the results."""
    for name in order:
        arrays[name][...] = value
        engine.submit(name)
    engine.flush().wait()


def register(engine: Coordinator, arrays: dict[str, Any], op: str = "sum") -> None:
    for name, array in arrays.items():
        engine.register(name, array, op)


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hocket coordinator"]


# --- any order, any thread, any type ---------------------------------------------------------------------------------


def opposite(comm: Any, settings: dict[str, Any]) -> list[list[float]]:
    """Half of the ranks produce forwards, the others backwards; returns each round's first values."""
    arrays = arrays_of(comm)
    results = []
    with Coordinator(comm, **settings) as engine:
        register(engine, arrays)
        for round in range(8):
            for name in NAMES if comm.rank % 2 else reversed(NAMES):
                arrays[name][:] = (comm.rank + 1) * 10**round + NAMES.index(name)
                engine.submit(name)
            engine.flush().wait()
            assert all((array == array[0]).all() for array in arrays.values())
            results.append([float(array[0]) for array in arrays.values()])
        assert engine.report().num_replayed == 8 - ROUNDS_BEFORE_LOCK
    return results


@pytest.mark.parametrize("settings", [EACH, {"bucket_bytes": 300, "first_bytes": 100}, TOGETHER])
def test_four_ranks_that_produce_in_opposite_order_get_equal_sums(settings: dict[str, Any]) -> None:
    expected = [[10.0 * 10**round + 4 * number for number in range(len(NAMES))] for round in range(8)]
    for results in on_ranks(lambda comm: opposite(comm, settings), 4):
        np.testing.assert_allclose(results, expected, rtol=1e-6)


def test_processes_that_produce_in_opposite_order_get_equal_sums() -> None:
    program = """
from hocket.training import Coordinator
with hocket.init() as comm, Coordinator(comm, bucket_bytes=200) as engine:
    arrays = {name: np.full(30, comm.rank, np.float32) for name in "abcde"}
    for name, array in arrays.items():
        engine.register(name, array)
    for _ in range(6):
        for name in "abcde" if comm.rank else "edcba":
            engine.submit(name)
        engine.flush().wait()
    tell(sums=[float(array[0]) for array in arrays.values()], replayed=engine.report().num_replayed)
"""
    with Ranks(program, 3) as ranks:
        for rank in range(3):
            assert ranks.told(rank) == {"sums": [3.0**6] * 5, "replayed": 3}  # each round multiplies the sum by 3
            assert ranks.end(rank) == (0, "")


def test_a_single_rank_sums_alone() -> None:
    def program(comm: Any) -> list[float]:
        with Coordinator(comm) as engine:
            arrays = arrays_of(comm)
            register(engine, arrays, "avg")
            for round in range(6):
                produce(engine, arrays, NAMES, round)
                assert engine.present("a") == 1
            assert engine.report().num_messages == 0 and engine.report().num_replayed == 3
            engine.join()
        return [float(array[0]) for array in arrays.values()]

    assert on_ranks(program, 1) == [[5.0] * len(NAMES)]


def test_several_threads_submit_at_once() -> None:
    names = tuple(f"t{number}" for number in range(24))
    num_threads, num_rounds = 4, 6

    def program(comm: Any) -> list[float]:
        arrays = arrays_of(comm, names)
        results = []
        with Coordinator(comm, bucket_bytes=500, first_bytes=1) as engine:
            register(engine, arrays)
            for round in range(num_rounds):
                together = threading.Barrier(num_threads)

                def submit(part: int, round: int = round, together: threading.Barrier = together) -> None:
                    together.wait()
                    for name in names[part::num_threads]:
                        arrays[name][:] = comm.rank + round
                        engine.submit(name)

                threads = [threading.Thread(target=submit, args=(part,)) for part in range(num_threads)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                engine.flush().wait()
                results += [float(array[0]) for array in arrays.values()]
        return results

    expected = [3.0 + 3 * round for round in range(num_rounds) for _ in names]
    assert on_ranks(program, 3) == [expected] * 3


def test_types_and_kinds_of_arrays_are_mixed_in_one_round() -> None:
    """NumPy arrays and PyTorch tensors of every size of element, in one bucket and one by one; strided ones as well."""

    def program(comm: Any, settings: dict[str, Any]) -> list[Any]:
        values = np.arange(6).reshape(2, 3) + comm.rank
        tensors: dict[str, Any] = {
            kind: values.astype(kind)
            for kind in ("float16", "float32", "float64", "int64", "uint8", "complex64", ml_dtypes.bfloat16)
        }
        tensors |= {
            f"torch.{kind}": torch.from_numpy(values).to(getattr(torch, kind))
            for kind in ("float16", "bfloat16", "float32", "float64", "int64")
        }
        tensors["strided"] = np.repeat(values, 2, axis=1)[:, ::2].astype("float64").T
        tensors["none"], tensors["scalar"] = np.zeros((0, 4), np.float32), np.array(float(comm.rank))
        with Coordinator(comm, **settings) as engine:
            for name, tensor in tensors.items():
                engine.register(str(name), tensor)
            for name in reversed(tensors) if comm.rank else tensors:
                engine.submit(str(name))
            engine.flush().wait()
            assert all(engine.present(str(name)) == comm.size for name in tensors)
        return [tensors.pop("scalar").item(), tensors.pop("none").shape, tensors.pop("strided").T.tolist()] + [
            np.asarray(tensor.float() if isinstance(tensor, torch.Tensor) else tensor).astype(complex).real.tolist()
            for tensor in tensors.values()
        ]

    sums = [[3, 6, 9], [12, 15, 18]]
    for settings in (EACH, TOGETHER):
        results = on_ranks(lambda comm: program(comm, settings), 3)  # noqa: B023
        assert results == [[3.0, (0, 4), *[sums] * 13]] * 3


def test_bits_depend_neither_on_buckets_nor_on_the_order_of_submissions() -> None:
    """Of invariant order: they are those of the balanced tree over ranks. Of a ring they do depend on buckets."""
    names = tuple(f"t{number}" for number in range(9))

    def values(rank: int) -> dict[str, np.ndarray]:
        draws = np.random.default_rng(rank)
        return {name: draws.normal(size=60).astype(np.float32) for name in names}

    def program(comm: Any, order: Any, bucket_bytes: int, seed: int) -> bytes:
        arrays = values(comm.rank)
        if order == "fast":
            comm.configure("all_reduce", algorithm="ring")
        with Coordinator(comm, bucket_bytes=bucket_bytes, first_bytes=bucket_bytes, order=order) as engine:
            register(engine, arrays, "avg")
            for name in random.Random(f"{seed} {comm.rank}").sample(names, len(names)):
                engine.submit(name)
            engine.flush().wait()
        return b"".join(array.tobytes() for array in arrays.values())

    def bits(order: Any) -> set[bytes]:
        found = set()
        for seed, bucket_bytes in enumerate((1, 600, 1000, 1 << 20)):
            found |= set(on_ranks(lambda comm: program(comm, order, bucket_bytes, seed), 4))  # noqa: B023
        return found

    first, second, third, fourth = map(values, range(4))
    tree = [((first[name] + second[name]) + (third[name] + fourth[name])) / 4 for name in names]
    assert bits("invariant") == {b"".join(array.tobytes() for array in tree)}
    assert len(bits("fast")) > 1


# --- absence, rounds and join ----------------------------------------------------------------------------------------


def test_absent_tensors_are_counted_and_averages_are_over_present_ranks() -> None:
    """First as ranks negotiate, with other absences in every round; then locked, with ranks that leave out more."""
    num_rounds, num_ranks = 12, 3

    def present(round: int, name: str) -> list[int]:
        choice = random.Random(f"{round} {name}")
        if name == "e":
            return []  # a tensor that no rank ever has
        return [rank for rank in range(num_ranks) if 4 <= round < 8 or choice.random() < 0.6]

    def program(comm: Any) -> int:
        arrays = arrays_of(comm)
        before = {name: array.copy() for name, array in arrays.items()}
        with Coordinator(comm, bucket_bytes=200) as engine:
            for name, array in arrays.items():
                engine.register(name, array, "avg" if name in "ace" else "sum")
            for round in range(num_rounds):
                for name in random.Random(f"{round} {comm.rank}").sample(NAMES, len(NAMES)):
                    if comm.rank in present(round, name):
                        arrays[name][:] = 10 * round + comm.rank
                        before[name] = arrays[name].copy()
                        engine.submit(name)
                engine.flush().wait()
                for name, array in arrays.items():
                    ranks = present(round, name)
                    values = [10 * round + rank for rank in ranks]
                    if not ranks:
                        np.testing.assert_array_equal(array, before[name], err_msg="nobody has it: it stays as it is")
                    elif name in "ace":
                        np.testing.assert_allclose(array, np.mean(values), rtol=1e-6)
                    else:
                        np.testing.assert_array_equal(array, np.sum(values))
                    before[name] = array.copy()
                    assert engine.present(name) == len(ranks)
                assert engine.absent() == [name for name in NAMES if not present(round, name)]
            return engine.report().num_replayed

    assert on_ranks(program, num_ranks) == [num_rounds - 7] * num_ranks


def test_a_second_submit_is_for_the_next_round_with_the_values_of_that_moment() -> None:
    def program(comm: Any) -> list[float]:
        arrays = arrays_of(comm, ("a", "b"))
        with Coordinator(comm) as engine:
            register(engine, arrays)
            arrays["a"][:] = 1
            engine.submit("a")
            arrays["a"][:] = 10
            again = engine.submit("a")
            arrays["a"][:] = 100  # too late for both
            with pytest.raises(RuntimeError, match="'a' was submitted in this round; flush"):
                engine.submit("a")
            engine.flush().wait()
            first, others = float(arrays["a"][0]), engine.present("b")
            engine.submit("b")
            engine.flush()
            again.wait()
            return [first, others, float(arrays["a"][0])]

    assert on_ranks(program, 2) == [[2.0, 0, 20.0]] * 2


def test_a_tensor_is_done_before_the_round_is() -> None:
    def program(comm: Any) -> list[float]:
        arrays = arrays_of(comm, ("a", "b"))
        with Coordinator(comm, **EACH) as engine:
            register(engine, arrays)
            works = {name: engine.submit(name) for name in arrays}
            whole = engine.flush()
            works["a"].wait()
            first = float(arrays["a"][0])
            assert engine.present("a") == 2
            whole.wait()
            whole.wait()  # once more: nothing is left to do
            works["a"].wait()
            return [first, float(arrays["b"][0])]

    assert on_ranks(program, 2) == [[1.0, 1.0]] * 2


def test_the_first_submit_of_a_round_ends_the_one_before() -> None:
    def program(comm: Any) -> list[float]:
        arrays = arrays_of(comm, ("a", "b"))
        results = []
        with Coordinator(comm) as engine:
            register(engine, arrays)
            for _ in range(6):
                engine.submit("a")
                engine.submit("b")
                engine.flush()  # and no wait
                engine.submit("b")
                results.append(float(arrays["a"][0]))
                engine.flush().wait()
        return results

    assert on_ranks(program, 2) == [[2.0**round for round in range(6)]] * 2  # 0 + 1, then doubled by each sum


@pytest.mark.parametrize("rounds", [(0, 2, 5), (2, 0, 1), (5, 9, 7), (4, 4, 4)])
def test_ranks_with_uneven_rounds_join(rounds: tuple[int, ...]) -> None:
    """To three rounds ranks join while they negotiate; in the last two cases the order is locked by then."""

    def program(comm: Any) -> int:
        arrays = arrays_of(comm)
        with Coordinator(comm, bucket_bytes=200) as engine:
            register(engine, arrays, "avg")
            for round in range(rounds[comm.rank]):
                produce(engine, arrays, NAMES, 10 * round + comm.rank)
                ranks = [rank for rank in range(comm.size) if rounds[rank] > round]
                assert engine.present("a") == len(ranks)
                np.testing.assert_allclose(arrays["e"], 10 * round + np.mean(ranks), rtol=1e-6)
            engine.join()
            with pytest.raises(RuntimeError, match="all ranks have joined"):
                engine.submit("a")
            with pytest.raises(RuntimeError, match="all ranks have joined"):
                engine.flush()
            engine.join()  # there is nothing left to join
            report = engine.report()
            assert report.num_negotiated + report.num_replayed == max(rounds) + 1
            return report.num_replayed

    replayed = max(rounds) + 1 - ROUNDS_BEFORE_LOCK if min(rounds) >= ROUNDS_BEFORE_LOCK else 0
    assert on_ranks(program, len(rounds)) == [replayed] * len(rounds)


# --- lock and unlock -------------------------------------------------------------------------------------------------


def test_a_locked_round_has_no_message_and_no_thread() -> None:
    def program(comm: Any) -> None:
        arrays = arrays_of(comm)
        with Coordinator(comm, bucket_bytes=200) as engine:
            register(engine, arrays)
            sent, busy = [], []
            for _ in range(9):
                for name in NAMES if comm.rank else reversed(NAMES):
                    engine.submit(name)
                busy.append(comm.rank == 0 and bool(listeners()))
                comm.barrier()  # every rank is in the middle of the round
                if engine.report().num_negotiated == ROUNDS_BEFORE_LOCK:
                    wait_until(lambda: not listeners())  # those of the last negotiated round end about now
                    comm.barrier()
                    assert not listeners()
                engine.flush().wait()
                sent.append(engine.report().num_messages)
            assert sent[0] > 0 and sent[2] > sent[1] > sent[0], "ranks talk before they lock"
            assert sent[ROUNDS_BEFORE_LOCK - 1 :] == sent[-1:] * (10 - ROUNDS_BEFORE_LOCK), (
                "a locked round has a message"
            )
            assert busy[0] is (comm.rank == 0), "before, there is a thread"
            assert engine.report().num_replayed == 9 - ROUNDS_BEFORE_LOCK

    on_ranks(program, 3)


def test_a_rank_that_changes_its_order_for_good_unlocks_and_the_ranks_lock_again() -> None:
    num_same, num_after = 5, 7

    def program(comm: Any) -> Any:
        arrays = arrays_of(comm)
        states = []
        with Coordinator(comm, **EACH) as engine:
            register(engine, arrays)

            def rounds(number: int, order: Any) -> None:
                for _ in range(number):
                    before = engine.report()
                    produce(engine, arrays, order, comm.rank)
                    assert all(array[0] == 1 for array in arrays.values())
                    states.append(engine.report().num_replayed > before.num_replayed)

            rounds(ROUNDS_BEFORE_LOCK + num_same, NAMES)
            rounds(ROUNDS_BEFORE_UNLOCK + num_after, NAMES[::-1] if comm.rank else NAMES)
            # Once more: this time the ranks are more patient, so that a program which always changes stays locked.
            rounds(ROUNDS_BEFORE_UNLOCK + 1, NAMES[2:] + NAMES[:2] if comm.rank else NAMES)
        return states

    negotiated = [False] * ROUNDS_BEFORE_LOCK
    expected = [*negotiated, *[True] * (num_same + ROUNDS_BEFORE_UNLOCK), *negotiated]
    expected += [True] * (num_after - ROUNDS_BEFORE_LOCK + ROUNDS_BEFORE_UNLOCK + 1)
    assert on_ranks(program, 2) == [expected] * 2


@pytest.mark.parametrize("num_before", [1, 5])
def test_tensors_that_are_registered_later_take_part_and_ranks_negotiate_anew(num_before: int) -> None:
    def program(comm: Any) -> tuple[int, int]:
        arrays, late = arrays_of(comm), arrays_of(comm, ("late", "later"))
        views: list[np.ndarray] = []
        with Coordinator(comm, bucket_bytes=200) as engine:
            register(engine, arrays)
            engine.register("view", np.full(3, 7.0), moved=views.append)
            for _ in range(num_before):
                produce(engine, arrays, NAMES, 1)
            views[-1][:] = 8
            register(engine, dict(reversed(late.items())) if comm.rank else late)
            engine.prepare()
            assert views[-1].tolist() == [8.0] * 3 and len(views) >= 2 and views[-1] is not views[-2]
            for round in range(5):
                produce(
                    engine, arrays | late, (*NAMES, "later", "late") if comm.rank else ("late", *NAMES, "later"), round
                )
                assert {float(array[0]) for array in (arrays | late).values()} == {2.0 * round}
            return engine.report().num_negotiated, engine.report().num_replayed

    negotiated = min(num_before, ROUNDS_BEFORE_LOCK)
    expected = negotiated + ROUNDS_BEFORE_LOCK, num_before - negotiated + 5 - ROUNDS_BEFORE_LOCK
    assert on_ranks(program, 2) == [expected] * 2


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_views_move_when_buckets_are_cut_anew_and_keep_their_values(kind: str) -> None:
    """Ranks produce in the opposite order of registration, so after the lock the memory lies the other way round."""

    def address(view: Any) -> int:
        return int(view.data_ptr() if kind == "torch" else view.ctypes.data)

    def program(comm: Any) -> None:
        views: dict[str, list[Any]] = {name: [] for name in NAMES}
        with Coordinator(comm, bucket_bytes=300) as engine:
            for name in NAMES:
                start = np.full((2, 5), float(comm.rank))
                engine.register(name, torch.from_numpy(start) if kind == "torch" else start, moved=views[name].append)
            engine.prepare()
            assert all(len(moves) == 1 and (moves[0] == comm.rank).all() for moves in views.values())
            addresses = [address(views[name][0]) for name in NAMES]
            assert addresses == sorted(addresses), "neighbours in rank 0's order of registration"
            for round in range(6):
                for number, name in enumerate(reversed(NAMES)):
                    view = views[name][-1]
                    view[...] = comm.rank + 10 * number + round
                    engine.submit(name)
                engine.flush().wait()
                for number, name in enumerate(reversed(NAMES)):
                    assert type(views[name][-1]) is (torch.Tensor if kind == "torch" else np.ndarray)
                    assert tuple(views[name][-1].shape) == (2, 5)
                    assert (views[name][-1] == 1 + 2 * (10 * number + round)).all(), "the last view has the result"
                assert {len(moves) for moves in views.values()} == {1 if round < 2 else 2}
            addresses = [address(views[name][-1]) for name in NAMES]
            assert addresses == sorted(addresses, reverse=True), "neighbours in the order of production"

    on_ranks(program, 2)
