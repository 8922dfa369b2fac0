"""Compression sends fewer bytes, keeps what it leaves out, and training still converges."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hocket.training import Coordinator
from hocket.training import DataParallel as DataParallelModel
from hocket.training.buckets.compression import half, top_k
from hocket.training.datasets import load
from tests.training.test_data import on_ranks

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # half a step between neighbours, relative to the value


def values_of(rank: int, size: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng([rank, size]).normal(size=size).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("kind", "order"), [("float16", "fast"), ("bfloat16", "fast"), ("bfloat16", "rank")])
def test_half_is_within_the_rounding_of_its_type_and_has_equal_bits(kind: Any, order: Any, dtype: str) -> None:
    sizes, num_ranks = (1, 100, 3001), 4

    def program(comm: Any) -> Any:
        arrays = [values_of(comm.rank, size, dtype) for size in sizes]
        with Coordinator(comm, order=order, carrier=half(kind), bucket_bytes=1000) as engine:
            for number, array in enumerate(arrays):
                engine.register(f"t{number}", array, "avg" if number == 1 else "sum")
            for number in range(len(arrays)):
                if (comm.rank, number) != (3, 1):
                    engine.submit(f"t{number}")
            engine.flush().wait()
            return arrays, [engine.present(f"t{number}") for number in range(3)], engine.report().num_bytes

    results = on_ranks(program, num_ranks)
    for number, size in enumerate(sizes):
        present = 3 if number == 1 else 4
        terms = np.array([values_of(rank, size, dtype) for rank in range(present)], np.float64)
        roundings = 2 if order == "rank" else num_ranks  # of each value, and of each sum that is stored
        bound = 1.01 * roundings * UNIT[kind] * np.abs(terms).sum(axis=0) / (present if number == 1 else 1) + 1e-7
        expected = terms.sum(axis=0) / (present if number == 1 else 1)
        for rank in range(num_ranks):  # the rank that had no values gets the result as well
            found = results[rank][0][number]
            assert found.dtype == dtype and (np.abs(found - expected) <= bound).all()
            assert found.tobytes() == results[0][0][number].tobytes()
        if size > 100:
            assert np.abs(results[0][0][number] - expected).max() > UNIT[kind] / 100, "it was not rounded at all"
    for _, present_ranks, num_bytes in results:
        assert present_ranks == [4, 3, 4]
        assert num_bytes < 1.1 * 2 * sum(sizes) + 3 * 64, "it sends 2 bytes per value"


def test_half_leaves_other_types_exact_and_carries_infinity() -> None:
    def program(comm: Any) -> Any:
        large = np.array([70000.0, 1.0], np.float32)
        number = np.array([2**40 + comm.rank], np.int64)
        with Coordinator(comm, carrier=half("float16")) as engine:
            engine.register("large", large)
            engine.register("number", number)
            engine.submit("number")
            engine.submit("large")
            engine.flush().wait()
        return large.tolist(), number.tolist()

    assert on_ranks(program, 2) == [([np.inf, 2.0], [2**41 + 1])] * 2


def test_half_refuses_more_ranks_than_it_can_count() -> None:
    class Many:
        """A communicator of 300 ranks, which no test starts."""

        size = 300

    carrier = half("bfloat16")(Many(), "fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'w' travels as bfloat16, which counts to 256; use a wider type"):
        carrier.new("w", np.zeros(1), "sum", None)
    assert carrier.new("number", np.zeros(1, np.int64), "sum", None).tensor.dtype == "int64"
    assert half("float16")(Many(), "fast").new("w", np.zeros(1), "sum", None).size == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["float32", "int8", None])
def test_half_refuses_other_types(value: Any) -> None:
    with pytest.raises(ValueError, match=f"half: expected 'float16' or 'bfloat16', found {value!r}"):
        half(value)


@pytest.mark.parametrize("value", [0, -0.1, 1.5, "all", float("nan")])
def test_top_k_refuses_other_shares(value: Any) -> None:
    with pytest.raises(ValueError, match="top_k: expected the share of values to send"):
        top_k(value)


def test_top_k_of_everything_is_the_sum_in_rank_order() -> None:
    sizes = (0, 1, 700)

    def program(comm: Any) -> Any:
        arrays = [values_of(comm.rank, size) for size in sizes]
        with Coordinator(comm, carrier=top_k(1)) as engine:
            for number, array in enumerate(arrays):
                engine.register(f"t{number}", array, op="avg")
            for number in range(len(arrays)):
                engine.submit(f"t{number}")
            engine.flush().wait()
        return arrays

    for arrays in on_ranks(program, 3):
        for size, found in zip(sizes, arrays, strict=True):
            expected = (values_of(0, size) + values_of(1, size) + values_of(2, size)) / 3
            np.testing.assert_array_equal(found, expected)


def test_top_k_sends_the_largest_values_of_each_tensor() -> None:
    """Each tensor sends its own share, so the result does not depend on which tensors travel together."""

    def program(comm: Any, bucket_bytes: int) -> Any:
        x = np.array([1.0, -9, 2, 8]) if comm.rank == 0 else np.array([1.0, 3, -7, 2])
        y = np.array([0.5, 0.25], np.float32)
        with Coordinator(comm, carrier=top_k(0.5), bucket_bytes=bucket_bytes) as engine:
            engine.register("x", x)
            engine.register("y", y)
            engine.submit("x")
            engine.submit("y")
            engine.flush().wait()
        return x.tolist(), y.tolist()

    for bucket_bytes in (1, 1 << 20):
        assert on_ranks(lambda comm: program(comm, bucket_bytes), 2) == [([0, -6, -7, 8], [1.0, 0])] * 2  # noqa: B023


def test_what_top_k_holds_back_is_not_lost() -> None:
    """What was applied in all rounds, and what is held back, are together the sum of all gradients."""
    num_ranks, num_rounds, sizes = 3, 12, (1, 40, 333)

    def is_absent(rank: int, round: int, number: int) -> bool:
        return number == 1 and (rank + round) % 3 == 0

    def program(comm: Any) -> Any:
        random = np.random.default_rng(comm.rank)
        arrays = [np.zeros(size) for size in sizes]
        given, applied = ([np.zeros(size) for size in sizes] for _ in range(2))
        with Coordinator(comm, carrier=top_k(0.05), bucket_bytes=500, first_bytes=100) as engine:
            for number, array in enumerate(arrays):
                engine.register(f"t{number}", array, moved=lambda view, number=number: arrays.__setitem__(number, view))
            engine.prepare()
            for round in range(num_rounds):
                for number in random.permutation(len(sizes)):
                    arrays[number][:] = random.normal(size=sizes[number])
                    if not is_absent(comm.rank, round, number):
                        given[number] += arrays[number]
                        engine.submit(f"t{number}")
                engine.flush().wait()
                for number in range(len(sizes)):
                    applied[number] += arrays[number]
                    assert engine.present(f"t{number}") == sum(
                        not is_absent(rank, round, number) for rank in range(num_ranks)
                    )
            held = [engine._carrier._held[number] for number in range(len(sizes))]  # type: ignore[attr-defined]
            return given, applied, held, engine.report().num_bytes

    results = on_ranks(program, num_ranks)
    for number in range(len(sizes)):
        given, held = (sum(result[part][number] for result in results) for part in (0, 2))
        for result in results:
            np.testing.assert_allclose(result[1][number] + held, given, atol=1e-12)
            assert result[1][number].tobytes() == results[0][1][number].tobytes()
        assert number == 0 or np.abs(held).max() > 0.1, "nothing was held back"
    assert all(result[3] < num_rounds * 8 * sum(sizes) / 3 for result in results), "it sends fewer bytes"


@pytest.mark.parametrize("carrier", [half("bfloat16"), half("float16"), top_k(0.05)])
def test_a_network_learns_the_digits_with_compressed_gradients(carrier: Callable[..., Any]) -> None:
    dataset = load()
    images, labels = torch.from_numpy(dataset.train_images), torch.from_numpy(dataset.train_labels)
    test_images, test_labels = torch.from_numpy(dataset.test_images), torch.from_numpy(dataset.test_labels)

    def program(comm: Any) -> Any:
        generator = torch.Generator().manual_seed(comm.rank)
        network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        with DataParallelModel(network, comm, carrier=carrier) as model:
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
            for _ in range(400):
                own = torch.randint(len(images) // 2, (32,), generator=generator) * 2 + comm.rank
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images[own]), labels[own]).backward()
                optimizer.step()
            accuracy = (network(test_images).argmax(dim=1) == test_labels).double().mean()
        weights = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
        return float(accuracy), weights.numpy().tobytes()

    (accuracy, weights), other = on_ranks(program, 2)
    assert accuracy > 0.93 and other == (accuracy, weights)
