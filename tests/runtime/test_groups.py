"""Communicators made from communicators: their members, their independence, and their low cost."""

import contextlib
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import _core
from hocket.algorithms import ALGORITHMS
from hocket.errors import CollectiveMismatch, CollectiveTimeout, CommunicationError, PeerAborted
from hocket.runtime import memory, run_ranks

PATIENCE_SECONDS = 60.0
KINDS = pytest.mark.parametrize("kind", ["thread", "process"])


def total(comm: hocket.Communicator, value: int) -> int:
    return int(comm.all_reduce(np.array([value]))[0])


def split_by_parity() -> tuple[int, int, tuple[int, ...], int]:
    with hocket.init() as comm:
        part = comm.split(comm.rank % 2, key=-comm.rank)
        assert part is not None
        return part.rank, part.size, part.group, total(part, comm.rank)


@KINDS
def test_split_orders_by_key_and_each_color_is_on_its_own(kind: Any) -> None:
    assert run_ranks(split_by_parity, 5, kind=kind) == [
        (2, 3, (4, 2, 0), 6),
        (1, 2, (3, 1), 4),
        (1, 3, (4, 2, 0), 6),
        (0, 2, (3, 1), 4),
        (0, 3, (4, 2, 0), 6),
    ]


def test_equal_keys_keep_the_order_of_ranks_and_no_color_is_no_part() -> None:
    def main() -> Any:
        with hocket.init() as comm:
            part = comm.split(None if comm.rank == 1 else 7)
            return None if part is None else (part.rank, part.group)

    assert run_ranks(main, 3, kind="thread") == [(0, (0, 2)), None, (1, (0, 2))]


def test_only_members_of_a_subgroup_take_part() -> None:
    """Rank 1 never calls it; ranks are numbered in the given order."""

    def main() -> Any:
        with hocket.init() as comm:
            if comm.rank == 1:
                return comm.all_reduce(np.array([1]))[0]
            part = comm.subgroup([2, 0])
            assert part is not None
            sum_of_part = total(part, 10 * comm.rank)
            everybody = comm.all_reduce(np.array([1]))[0]
            return part.rank, part.group, sum_of_part, everybody

    assert run_ranks(main, 3, kind="thread") == [(1, (2, 0), 20, 3), 3, (0, (2, 0), 20, 3)]


def test_others_get_none_at_once() -> None:
    def main() -> None:
        with hocket.init() as comm:
            assert (comm.subgroup([1]) is None) == (comm.rank == 0)

    run_ranks(main, 2, kind="thread")


def test_groups_of_groups_know_their_ranks_in_the_job() -> None:
    def main() -> Any:
        with hocket.init() as comm:
            half = comm.split(comm.rank // 2)
            assert half is not None
            single = half.subgroup([half.rank])
            assert single is not None
            whole = half.dup()
            assert whole.group == half.group
            assert half.context is comm.context and comm.context.size == 4
            return single.group, total(whole, comm.rank)

    assert run_ranks(main, 4, kind="thread") == [((0,), 1), ((1,), 1), ((2,), 5), ((3,), 5)]


@pytest.mark.parametrize("ranks", [[], [0, 0], [3], [-1], ["a"], [0.5]])
def test_a_subgroup_of_what_are_no_ranks_is_refused(ranks: Any) -> None:
    def main() -> None:
        with hocket.init() as comm:
            with pytest.raises(ValueError, match="different ranks from 0 to 2"):
                comm.subgroup(ranks)
            assert total(comm, 1) == 3

    run_ranks(main, 3, kind="thread")


def test_a_color_that_is_no_number_is_refused() -> None:
    def main() -> None:
        with hocket.init() as comm, pytest.raises(ValueError, match="whole numbers"):
            comm.split("red")  # type: ignore[arg-type]

    run_ranks(main, 2, kind="thread")


def opposite_order() -> None:
    with hocket.init() as comm:
        one, other = comm.dup(), comm.dup()
        x = np.ones(100_000, "float32")

        def use(part: hocket.Communicator) -> None:
            for _ in range(20):
                assert part.all_reduce(x.copy())[0] == comm.size

        parts = (one, other) if comm.rank % 2 else (other, one)
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(use, parts))


@KINDS
def test_two_communicators_in_opposite_order_from_two_threads(kind: Any) -> None:
    run_ranks(opposite_order, 3, kind=kind)


def test_many_threads_with_a_communicator_each_do_not_interfere() -> None:
    def main() -> None:
        with hocket.init() as comm:
            parts = [comm.dup() for _ in range(6)]

            def use(number: int) -> None:
                for turn in range(30):
                    found = parts[number].all_gather(np.array([comm.rank, number, turn]))
                    assert (found.reshape(3, 3) == [[rank, number, turn] for rank in range(3)]).all()

            with ThreadPoolExecutor(len(parts)) as pool:
                list(pool.map(use, range(len(parts))))

    run_ranks(main, 3, kind="thread")


def test_a_failure_ends_its_own_communicator_only() -> None:
    def main() -> None:
        with hocket.init() as comm:
            part = comm.dup()
            if comm.rank == 0:
                part.abort("enough")
            with pytest.raises(PeerAborted, match="enough"):
                part.barrier()
            assert total(comm, 1) == 3
            part.close()
            assert total(comm, 1) == 3

    run_ranks(main, 3, kind="thread")


def many() -> tuple[int, int]:
    with hocket.init() as comm:
        parts = [comm.split(0, key=(comm.rank + number) % comm.size) for number in range(60)]
        sums = {total(part, comm.rank) for part in parts if part is not None}
        return len(sums), comm.context.num_communicators


@KINDS
def test_many_are_open_at_once(kind: Any) -> None:
    assert run_ranks(many, 4, kind=kind) == [(1, 61)] * 4


def test_closed_communicators_are_used_again() -> None:
    """One after the other, more communicators than a rank can have at once."""

    def main() -> None:
        with hocket.init() as comm:
            for number in range(1100):
                part = comm.dup()
                if number % 100 == 0:
                    assert total(part, 1) == 2
                part.close()
            gc.collect()
            assert comm.context.num_communicators == 1

    run_ranks(main, 2, kind="thread")


def test_what_only_some_could_make_ends_their_waits() -> None:
    made = threading.Event()

    def main() -> None:
        comm = hocket.init()
        if comm.rank == 0:
            part = comm.dup()
            made.set()
            with pytest.raises(PeerAborted, match="rank 1 closed the communicator before"):
                part.recv(np.zeros(1), 1, timeout=PATIENCE_SECONDS)
            with contextlib.suppress(PeerAborted):
                part.close()
        else:
            core, fails = comm._core, Failing(comm._core, made)
            comm._core = fails
            with pytest.raises(InterruptedError):
                comm.dup()
            comm._core = core
        comm.close()

    run_ranks(main, 2, kind="thread")


class Failing:
    """A communicator's core that fails when it should receive the endpoints of the others."""

    def __init__(self, core: Any, made: threading.Event) -> None:
        self.send_internal, self._receive, self._made = core.send_internal, core.receive_internal, made

    def receive_internal(self, *arguments: Any) -> bytes:
        self._receive(*arguments)
        assert self._made.wait(PATIENCE_SECONDS)
        raise InterruptedError


@pytest.mark.shared_memory("it counts the slots for staging")
def test_what_was_staged_and_read_late_goes_back_to_the_pool() -> None:
    """A rank closes while its message is unread in a slot, more times than it has slots."""

    def main() -> int:
        comm = hocket.init()
        x, num_staged = np.ones(1000, "uint8"), 0
        for _ in range(20):
            part = comm.dup()
            if comm.rank == 0:
                part.send(x, 1)
                part.close()
                comm.send(x[:1], 1)
            else:
                comm.recv(x[:1], 0)
                part.recv(x, 0)
                part.close()
        with contextlib.suppress(PeerAborted):  # rank 0's abort may reach rank 1 in the barrier
            comm.barrier()
            if comm.rank == 0:  # whole slots; from an empty pool there would be the reserved one alone
                piece = np.ones(128 << 10, "uint8")
                while comm._core.transport.post([1], piece, 1)[0]:
                    num_staged += 1
                comm.abort("with messages in its channels that belong to no call")
        with contextlib.suppress(PeerAborted):
            comm.close()
        return num_staged

    assert run_ranks(main, 2, kind="thread")[0] == 4


def test_a_closed_communicator_makes_no_others() -> None:
    def main() -> None:
        comm = hocket.init()
        part = comm.dup()
        comm.close()
        assert total(part, 1) == 2  # a communicator made before stays open
        with pytest.raises(CommunicationError, match="closed"):
            comm.dup()
        part.close()

    run_ranks(main, 2, kind="thread")


def test_a_grid_is_a_communicator_with_a_topology() -> None:
    def main() -> Any:
        with hocket.init() as comm:
            grid = comm.cartesian({"y": 2, "x": 2}, periodic=("x",))
            with pytest.raises(ValueError, match="multiply to the 4 ranks"):
                comm.cartesian({"x": 3})
            assert comm.topology.shape == (4,)
            return grid.topology.coords(grid.rank), grid.topology.shift("x", 1, grid.rank), total(grid, 1)

    assert run_ranks(main, 4, kind="thread") == [
        ({"y": 0, "x": 0}, (1, 1), 4),
        ({"y": 0, "x": 1}, (0, 0), 4),
        ({"y": 1, "x": 0}, (3, 3), 4),
        ({"y": 1, "x": 1}, (2, 2), 4),
    ]


def test_algorithms_on_a_grid_take_that_of_the_communicator() -> None:
    """Six ranks: 3 x 2 by default, here 2 x 3 and 1 x 6. Each has another schedule; different ranks get an error."""

    def main() -> Any:
        with hocket.init() as comm:
            grids = [comm, comm.cartesian({"y": 2, "x": 3}), comm.cartesian({"y": 1, "x": 6})]
            with hocket.Mesh(comm, {"dp": 2, "tp": 3}) as mesh:
                grids += [mesh.comm, mesh["tp"]]
                for one in grids:
                    x = np.arange(50) * comm.rank
                    assert np.array_equal(one.all_reduce(x, algorithm="torus"), np.arange(50) * sum(one.group))
                    assert np.array_equal(one.all_gather(np.array([comm.rank]), algorithm="torus"), one.group)
                torus = ALGORITHMS["all_reduce", "torus"]
                found = [one._plans[torus, "torus", 0, True].schedule for one in grids]
            grids[1].all_reduce(np.zeros(1), algorithm="ring")  # a ring takes no grid
            if comm.rank == 0:
                grids[2].topology = grids[1].topology
                grids[2]._plans.clear()
                _core.forget_calls(grids[2])
            with pytest.raises(CollectiveMismatch) as caught:
                grids[2].all_reduce(np.zeros(1), algorithm="torus")
            return found, caught.value.field

    for found, field in run_ranks(main, 6, kind="thread"):
        assert found[1] == found[3] and len(set(found)) == 4
        assert field == "schedule"


def test_who_does_not_come_to_make_a_communicator_is_named() -> None:
    def main() -> None:
        with hocket.init() as comm:
            comm.configure(timeout=0.2)
            if comm.rank == 2:
                with pytest.raises(CommunicationError):
                    comm.recv(np.zeros(1), 0, timeout=60)  # learns of the error
                return
            with pytest.raises(CollectiveTimeout, match=r"with rank \d.* group of ranks \[0, 1, 2\]") as caught:
                comm.dup()
            assert "tag" not in str(caught.value)

    run_ranks(main, 3, kind="thread")


@pytest.mark.parametrize(
    "lists",
    [
        pytest.param([[0, 1], [0, 1, 2], [0, 1, 2]], id="of other sizes"),
        pytest.param([[0, 1, 2], [0, 1], [0, 1, 2]], id="without a member"),
        pytest.param([[0, 1, 2], [0, 1, 2], [2, 1, 0]], id="in another order"),
    ],
)
def test_members_that_differ_in_the_members_are_all_told_both_lists(lists: list[list[int]]) -> None:
    def main() -> CommunicationError:
        with pytest.raises((CollectiveMismatch, PeerAborted)) as caught, hocket.init() as comm:
            comm.subgroup(lists[comm.rank])
        return caught.value

    first, *others = run_ranks(main, 3, kind="thread")
    assert first.field == "members" and first.values[0] == lists[0]
    [(other, found)] = [(rank, found) for rank, found in first.values.items() if rank != 0]
    assert found == lists[other] != lists[0]
    for error in (first, *others):
        assert f"rank 0 makes one of ranks {lists[0]}, rank {other} one of ranks {found}" in str(error)


def test_groups_that_are_made_of_ranks_apart_or_in_any_order_meet_their_own_members() -> None:
    def main() -> list[int]:
        with hocket.init() as comm:
            halves = [comm.subgroup(ranks) for ranks in ([2, 0], [1, 3])]
            part = comm.subgroup(next(ranks for ranks in ([3, 0], [2, 1]) if comm.rank in ranks))
            return [total(one, 10**comm.rank) for one in (*halves, part) if one is not None]

    assert run_ranks(main, 4, kind="thread") == [[101, 1001], [1010, 110], [101, 110], [1010, 1001]]


PIECE_BYTES = 128 << 10


def committed_bytes() -> int:
    """Returns the bytes of this rank's arena."""
    return os.fstat(memory.arena().descriptor).st_blocks * 512


@pytest.mark.shared_memory("its subject is the arena; connections of 256 communicators of eight are 28,000 descriptors")
def test_a_communicator_of_eight_takes_less_than_64_kib_of_each_rank() -> None:
    """benchmarks/communicators.py measures their time."""

    def main() -> float:
        with hocket.init() as comm:
            total(comm.dup(), 1)  # makes what is made only once
            before, parts = committed_bytes(), [comm.dup() for _ in range(256)]
            assert all(total(part, 1) == 8 for part in parts)
            return (committed_bytes() - before) / len(parts)

    assert max(run_ranks(main, 8, kind="thread")) < 64 << 10


def staging() -> tuple[int, int]:
    with hocket.init() as comm:
        comm.dup().close()
        before, x = committed_bytes(), np.ones(8 * 50_000)
        for _ in range(6):
            with comm.dup() as part:
                part.all_to_all(x)  # the pool is too small to send to seven peers at once
        return before, committed_bytes()


@pytest.mark.shared_memory("it measures the pool for staging")
def test_what_a_communicator_staged_goes_back_when_it_is_closed() -> None:
    for before, after in run_ranks(staging, 8, kind="process"):
        assert after - before <= 14 * PIECE_BYTES, "more than the pool has stayed"
