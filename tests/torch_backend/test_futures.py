"""Callbacks of futures may wait: for operations that they start, and for futures of later operations."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.torch_backend.ranks import run

NUM_OPERATIONS = 20


def begin(value: float) -> Any:
    return dist.all_reduce(torch.full((2,), value), async_op=True).get_future()


def answered(values: list[float], launch: Callable[[], Any]) -> Any:
    """Returns what `launch` returns on rank 0, for all_reduces of these values; none is done before it returns."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        futures = launch()
        store.set("launched", "")
        return futures
    store.wait(["launched"])
    for value in values:
        dist.all_reduce(torch.full((2,), value))
    return []


def later() -> None:
    begun: list[Any] = []

    def wait_for(number: int) -> Callable[[Any], Any]:
        return lambda _: begun[number].wait()[0].tolist()

    def launch() -> list[Any]:
        begun.extend(begin(value) for value in values)
        return [future.then(wait_for(number)) for future, number in zip(begun, awaited, strict=True)]

    values = [float(number) for number in range(NUM_OPERATIONS)]
    awaited = [min(number + 2, NUM_OPERATIONS - 1) for number in range(NUM_OPERATIONS)]
    for chain, number in zip(answered(values, launch), awaited, strict=False):
        assert chain.wait() == [2.0 * number] * 2


def test_a_callback_may_wait_for_a_later_future() -> None:
    run(later, 2)


def in_turn() -> None:
    """A callback that waits delays the callbacks of later futures, so their collectives start in one order."""
    order: list[str] = []

    def launch() -> list[Any]:
        def first(_: Any) -> None:
            begun[1].wait()
            order.append("first, after the second operation")
            begin(2.0).then(lambda done: order.append("what it has started")).wait()

        begun = [begin(0.0), begin(1.0)]
        return [begun[0].then(first), begun[1].then(lambda _: order.append("second"))]

    for chain in answered([0.0, 1.0, 2.0], launch):
        chain.wait()
    expected = ["first, after the second operation", "what it has started", "second"]
    assert order == (expected if dist.get_rank() == 0 else [])


def test_callbacks_run_one_after_the_other() -> None:
    run(in_turn, 2)
