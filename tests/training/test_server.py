"""A parameter server: rounds are data parallelism to the bit, workers come and go, and a death is told to all."""

import itertools
import signal
import threading
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.training.datasets import load
from hocket.training.loop import TrainingSettings, train
from hocket.training.strategies.momentum import Momentum
from hocket.training.strategies.server import ParameterServer
from tests.runtime.test_faults import Ranks
from tests.training.test_data import network_of, on_ranks

SHAPES = ((5,), (2, 3), (), (1, 4, 1))  # 16 elements
LARGE = ((100, 70), (3001,))  # a gradient that is announced before it travels


def some_arrays(shapes: Any, dtype: type, *seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [np.asarray(random.normal(size=shape), dtype) for shape in shapes]


def flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays])


# --- rounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [(0,), (4, 1), (3, 0, 2)])
@pytest.mark.parametrize(("shapes", "dtype"), [(SHAPES, np.float32), (SHAPES, np.float64), (LARGE, np.float32)])
def test_rounds_are_data_parallelism_in_rank_order_to_the_bit(
    servers: tuple[int, ...], shapes: Any, dtype: Any
) -> None:
    """20 steps of 3 workers, with 1, 2 and 3 servers; 2 and 3 do not divide the number of elements."""
    num_steps = 20

    def program(communicator: Any) -> list[Any]:
        server = ParameterServer(communicator, servers)
        parameters = some_arrays(shapes, dtype, communicator.rank)  # equal only after begin
        server.begin(parameters)
        if server.serves:
            server.serve(Momentum(0.1, 0.9, nesterov=True))
            assert server.versions == (num_steps,)
            return parameters
        seen = []
        alone, optimizer = flat(parameters), Momentum(0.1, 0.9, nesterov=True)
        workers = communicator.subgroup(server.workers)
        for step in range(num_steps):
            gradients = some_arrays(shapes, dtype, communicator.rank, step)
            optimizer.step(alone, workers.all_reduce(flat(gradients), order="rank"))
            server.push(gradients)
            assert flat(parameters).tobytes() == alone.tobytes(), f"step {step}"
            seen.append(server.versions)
        server.close()
        assert seen == [(step,) * len(servers) for step in range(1, num_steps + 1)]
        return parameters

    ends = on_ranks(program, 3 + len(servers))
    assert len({flat(parameters).tobytes() for parameters in ends}) == 1, "servers end with the same weights"


def test_one_array_is_received_in_place_and_tensors_share_their_memory() -> None:
    import torch

    def program(communicator: Any) -> list[Any]:
        server = ParameterServer(communicator)
        tensors = [torch.full((3,), 1.0), torch.nn.Parameter(torch.full((2, 2), 2.0))]
        server.begin(tensors)
        if server.serves:
            server.serve(Momentum(0.5))
        else:
            server.push([torch.ones(3), None])  # as .grad of a parameter that was not used
            server.close()
        return [tensor.detach().tolist() for tensor in tensors]

    assert on_ranks(program, 3) == [[[0.0] * 3, [[2.0] * 2] * 2]] * 3


@pytest.mark.parametrize("servers", [(0,), (1, 3)])
def test_a_worker_that_leaves_and_enters_again_is_in_whole_rounds_only(servers: tuple[int, ...]) -> None:
    """Every round has the sum of exactly the workers that were in it, on all shards."""
    has_closed = threading.Event()

    def program(communicator: Any) -> Any:
        server = ParameterServer(communicator, servers)
        parameters = np.zeros(7)
        server.begin(parameters)
        if server.serves:
            server.serve(Momentum(1.0))
            return parameters
        told, left = {}, []  # by round, how many workers are in it

        def push() -> None:
            number = server.versions[0]
            told[number] = server.num_present
            server.push(np.full(7, float((number + 1) * (communicator.rank + 1))))
            assert server.versions == (number + 1,) * len(servers), "all shards have seen the same rounds"

        if communicator.rank != server.workers[-1]:
            while not has_closed.is_set():
                push()
        else:
            for stay in (2, 1, 3):
                for _ in range(stay):
                    push()
                left.append(server.versions[0])
                server.leave()
                server.pull()
                server.enter()
                assert server.versions[0] > left[-1], "the other two have made at least the round that it left"
            push()
        left.append(server.versions[0])
        server.close()
        has_closed.set()
        return communicator.rank, told, left

    ends = on_ranks(program, 3 + len(servers))
    workers = [end for end in ends if isinstance(end, tuple)]
    leaving = [number for _, _, left in workers for number in left]
    total, rounds = 0, 1 + max(max(told) for _, told, _ in workers)
    for number in range(rounds):
        present = {rank: told[number] for rank, told, _ in workers if number in told}
        assert set(present.values()) == {len(present) + leaving.count(number)}, f"round {number}"
        total += sum((number + 1) * (rank + 1) for rank in present)
    for end in ends:
        if not isinstance(end, tuple):
            np.testing.assert_array_equal(end, np.full(7, -float(total)))


@pytest.mark.parametrize("staleness", [0, 1, None])
def test_all_workers_leave_and_enter_one_after_the_other(staleness: int | None) -> None:
    """Nobody waits for a worker that is absent, and nothing is lost: 2 + 1 + 1 gradients of 2 workers."""
    turns = [threading.Event(), threading.Event()]

    def program(communicator: Any) -> Any:
        server = ParameterServer(communicator, (2,), staleness)
        parameters = np.zeros(3)
        server.begin(parameters)
        if server.serves:
            server.serve(Momentum(1.0))
            return parameters.tolist()
        rank = communicator.rank
        server.push(np.ones(3))
        server.leave()
        if rank == 1:
            turns[0].wait()
        server.enter()
        server.push(np.ones(3))
        server.close()
        turns[rank].set()
        return server.versions

    first, second, served = on_ranks(program, 3)
    assert served == [-4.0] * 3
    assert (first, second) == (((2,), (3,)) if staleness == 0 else (first, (4,)))


# --- staleness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [1, 2, 5])
@pytest.mark.parametrize("servers", [(0,), (1, 0)])
def test_a_fast_worker_comes_just_so_far_ahead_of_a_slow_one(servers: tuple[int, ...], staleness: int) -> None:
    num_steps, slow = 12, 3
    ahead = [threading.Event() for _ in range(num_steps)]
    pushed = [0] * 5  # by rank; a push counts when it begins, so that the bound below is never too strict
    most = [0] * 5

    def program(communicator: Any) -> tuple[Any, ...]:
        server = ParameterServer(communicator, servers, staleness)
        parameters, rank = np.zeros(3), communicator.rank
        server.begin(parameters)
        if server.serves:
            server.serve(Momentum(0.1))
            return server.versions
        for step in range(num_steps):
            others = [pushed[worker] for worker in server.workers]
            most[rank] = max(most[rank], step - min(others))
            if rank != slow and step >= staleness:
                ahead[step - staleness].set()
            if rank == slow:
                ahead[min(step, num_steps - 1 - staleness)].wait()  # until another one has come as far as it may
            pushed[rank] += 1
            server.push(np.ones(3))
        server.close()
        return server.versions

    ends = on_ranks(program, len(servers) + 3 if servers == (1, 0) else 4)
    assert max(most) == staleness
    num_workers = len(ends) - len(servers)
    assert all(ends[server] == (num_workers * num_steps,) for server in servers)


@pytest.mark.parametrize("staleness", [3, None])
def test_versions_never_go_back(staleness: int | None) -> None:
    def program(communicator: Any) -> list[tuple[int, ...]]:
        server = ParameterServer(communicator, (0, 4), staleness)
        parameters = np.zeros(5)
        server.begin(parameters)
        if server.serves:
            server.serve(Momentum(1.0))
            np.testing.assert_array_equal(parameters, np.full(5, -60.0))
            return [server.versions]
        seen = [server.versions]
        for _ in range(20):
            server.push(np.ones(5))
            seen.append(server.versions)
            shards = [float(parameters[0]), float(parameters[-1])]
            assert shards == [-float(version) for version in server.versions], "the version is that of the shard"
        server.close()
        return seen

    ends = on_ranks(program, 5)
    assert ends[0] == ends[4] == [(60,)]
    for seen in ends[1:4]:
        assert all(now > before for one in zip(*seen, strict=True) for before, now in itertools.pairwise(one))


# --- in the training loop --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("servers", "size"), [((0,), 2), ((0,), 4), ((2, 0), 5)])
def test_rounds_train_as_one_process_does(servers: tuple[int, ...], size: int) -> None:
    dataset, settings = load(), TrainingSettings(num_epochs=3)
    alone = network_of(dataset, seed=servers[0], dtype=np.float64)
    expected = train(alone, dataset, settings)

    def program(communicator: Any) -> Any:
        network = network_of(dataset, seed=communicator.rank, dtype=np.float64)
        return train(network, dataset, settings, ParameterServer(communicator, servers)), network.parameters

    ends = on_ranks(program, size)
    for history, parameters in ends:
        np.testing.assert_allclose(history.losses, expected.losses, rtol=1e-10)
        np.testing.assert_allclose(parameters, alone.parameters, rtol=1e-9, atol=1e-12)
        assert history.accuracies == expected.accuracies
        assert 0 < history.communication_seconds <= history.seconds
    assert len({parameters.tobytes() for _, parameters in ends}) == 1


@pytest.mark.parametrize("staleness", [2, None])
def test_stale_gradients_still_learn_the_digits(staleness: int | None) -> None:
    dataset, settings = load(), TrainingSettings(num_epochs=8)

    def program(communicator: Any) -> Any:
        network = network_of(dataset, seed=0)
        return train(network, dataset, settings, ParameterServer(communicator, (0,), staleness)), network.parameters

    ends = on_ranks(program, 4)
    assert all(history.accuracies[-1] >= 0.9 for history, _ in ends)
    assert all(len(history.losses) == 8 * 23 and history.losses == ends[0][0].losses for history, _ in ends)
    assert len({parameters.tobytes() for _, parameters in ends}) == 1, "all ranks end with the servers' weights"


# --- death -----------------------------------------------------------------------------------------------------------

SERVED = """
from hocket.training.strategies.momentum import Momentum
from hocket.training.strategies.server import ParameterServer

comm = hocket.init()
server = ParameterServer(comm, (0, 1), STALENESS)
weights = np.zeros(COUNT)
server.begin(weights)

def work():
    if server.serves:
        server.serve(Momentum(0.1))
    for step in range(1 << 30):
        server.push(np.ones(COUNT))
        if step == 5:
            tell(pushed=5)

if server.serves:
    tell(ready=1)
failing(work)
comm.close()
"""


@pytest.mark.parametrize(
    ("staleness", "victim", "count"),
    [(0, 0, 10), (0, 3, 200_000), (2, 1, 10), (2, 3, 10), (None, 0, 200_000), (None, 2, 10)],
)
def test_all_others_are_told_of_a_server_or_worker_that_dies(staleness: int | None, victim: int, count: int) -> None:
    program = SERVED.replace("STALENESS", repr(staleness)).replace("COUNT", str(count))
    with Ranks(program, 4) as ranks:
        for rank in range(4):
            ranks.told(rank)
        ranks.signal(victim, signal.SIGKILL)
        for rank in range(4):
            if rank != victim:
                found = ranks.told(rank)
                assert (found["error"], found["rank"]) == ("PeerDied", victim)
                assert ranks.end(rank) == (0, "")


def test_a_worker_that_ends_without_close_is_told_to_the_server() -> None:
    def program() -> None:
        with hocket.init() as communicator:
            server = ParameterServer(communicator)
            server.begin(np.zeros(3))
            if server.serves:
                with pytest.raises(hocket.errors.PeerAborted, match="closed the communicator"):
                    server.serve(Momentum(0.1))

    hocket.run_ranks(program, 2, kind="thread")


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "staleness", "told"),
    [
        ((), 0, "expected servers as a list of different ranks from 0 to 1, for example [0], found ()"),
        ((2,), 0, "expected servers as a list of different ranks from 0 to 1, for example [0], found (2,)"),
        ((-1,), 0, "list of different ranks from 0 to 1, for example [0], found (-1,)"),
        ((0, 0), 0, "list of different ranks from 0 to 1, for example [0], found (0, 0)"),
        (0, 0, "list of different ranks from 0 to 1, for example [0], found 0"),  # not a list
        ((0.5,), 0, "list of different ranks from 0 to 1, for example [0], found (0.5,)"),
        ((0, 1), 0, "expected at least one worker, found 2 servers among 2 ranks; name fewer servers"),
        ((0,), -1, "expected staleness, steps from 0 on or None, found -1"),
        ((0,), 1.5, "expected staleness, steps from 0 on or None, found 1.5"),
    ],
)
def test_bad_arguments(servers: Any, staleness: Any, told: str) -> None:
    def program(communicator: Any) -> None:
        with pytest.raises(ValueError) as caught:
            ParameterServer(communicator, servers, staleness)
        assert str(caught.value).startswith("ParameterServer: ") and told in str(caught.value)

    on_ranks(program, 2)


def different(rank: int) -> list[Any]:
    """What rank 2 does otherwise than the others: servers, staleness, parameters."""
    return [
        ((0,), 0, np.zeros(4 if rank == 2 else 3)),
        ((0,), 0, np.zeros(3, np.float32 if rank == 2 else np.float64)),
        ((0,), 0, [np.zeros(3)] * (2 if rank == 2 else 1)),
        ((1 if rank == 2 else 0,), 0, np.zeros(3)),
        ((0,), 1 if rank == 2 else 0, np.zeros(3)),
    ]


@pytest.mark.parametrize("case", range(5))
def test_what_differs_between_ranks_is_refused_on_all_ranks_before_training(case: int) -> None:
    def program(communicator: Any) -> str:
        servers, staleness, parameters = different(communicator.rank)[case]
        server = ParameterServer(communicator, servers, staleness)
        with pytest.raises(
            ValueError, match=r"same parameters and settings on all ranks, found .* on rank 0 and .* on rank 2"
        ):
            server.begin(parameters)
        with pytest.raises(ValueError, match="before begin; call begin"):
            server.push(parameters)
        return str(communicator.all_reduce(np.ones(1))[0])  # it can still be used

    assert on_ranks(program, 3) == ["3.0"] * 3


@pytest.mark.parametrize(
    ("parameters", "error", "told"),
    [
        ([], TypeError, "all float32 or all float64, found none"),
        ([np.zeros(3), np.zeros(3, np.float32)], TypeError, "found ['float32', 'float64']"),
        (np.zeros(3, np.int64), TypeError, "found ['int64']"),
        ([1.5], TypeError, "parameter 0: expected a NumPy array or a CPU tensor of PyTorch, found a float"),
        (None, TypeError, "parameter 0: expected a NumPy array or a CPU tensor of PyTorch, found a NoneType"),
        (
            np.broadcast_to(np.zeros(1), 3),
            ValueError,
            "expected parameters that can be written, parameter 0 is read-only",
        ),
    ],
)
def test_bad_parameters(parameters: Any, error: type[Exception], told: str) -> None:
    def program(communicator: Any) -> None:
        with pytest.raises(error) as caught:
            ParameterServer(communicator).begin(parameters)
        assert told in str(caught.value)

    on_ranks(program, 2)


def test_calls_at_the_wrong_place_or_time() -> None:
    def program(communicator: Any) -> None:
        server = ParameterServer(communicator)
        with pytest.raises(ValueError, match=f"serve on rank {communicator.rank}: expected a server.*before begin"):
            server.serve(Momentum(0.1))
        server.begin([np.zeros(3), np.zeros(2)])
        if server.serves:
            with pytest.raises(
                ValueError, match=r"push on rank 0: .* one of ranks \(1,\), .* found a server; call serve"
            ):
                server.push(np.zeros(3))
            server.serve(Momentum(0.1))
            assert server.versions == (0,)
            return
        with pytest.raises(ValueError, match=r"serve on rank 1: .* one of ranks \(0,\), .* found a worker; call push"):
            server.serve(Momentum(0.1))
        for gradients, told in (
            (np.zeros(5), "expected 2 gradients, one for each parameter, found 1"),
            (
                [np.zeros(3), np.zeros(3)],
                r"expected gradient 1 like its parameter, float64 \(2,\), found float64 \(3,\)",
            ),
            ([np.zeros(3), np.zeros(2, np.float32)], "gradient 1 like its parameter, float64 .*, found float32"),
        ):
            with pytest.raises(ValueError, match=told):
                server.push(gradients)
        with pytest.raises(ValueError, match="enter: expected an absent worker, found it present; call leave before"):
            server.enter()
        server.leave()
        for call in (server.leave, lambda: server.push([None, None])):
            with pytest.raises(ValueError, match="expected a present worker, found it absent; call enter before"):
                call()
        server.close()
        server.close()
        with pytest.raises(ValueError, match="pull: expected a worker that has not closed; close is the last call"):
            server.pull()

    on_ranks(program, 2)
