"""The order in which ranks gather units (ZeRO stage 3): one for all ranks, whatever each of them uses."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hocket.training.buckets.gathers import Gathers
from hocket.training.buckets.unit_slots import UnitSlots

NUM_UNITS = 5
PASSES = st.lists(st.lists(st.integers(0, NUM_UNITS - 1), unique=True), min_size=4, max_size=4)


class PretendedUnit:
    """Notes what is gathered, and whether it is whole."""

    def __init__(self, number: int, gathered: list[int]) -> None:
        self.number, self.name, self.gathered = number, f"unit {number}", gathered
        self.is_whole = self.is_shown = self.is_awaited = False

    def gather(self, comm: Any) -> Any:
        self.gathered.append(self.number)
        assert not self.is_whole
        self.is_whole, self.is_awaited = True, False
        return self

    def wait(self) -> None:
        self.is_awaited = True

    def show(self) -> None:
        assert self.is_whole and self.is_awaited
        self.is_shown = True

    def hide(self) -> None:
        self.is_shown = False

    def free(self) -> None:
        self.is_whole = self.is_shown = False


class PretendedComm:
    """Broadcasts the order of rank 0, which runs first."""

    orders: Any = None

    def broadcast(self, order: Any, root: int) -> None:
        if self.orders is None:
            self.orders = order.copy()
        order[:] = self.orders


@given(st.lists(PASSES, min_size=3, max_size=3))
def test_ranks_gather_in_one_order_whatever_they_use(ranks: list[list[list[int]]]) -> None:
    comm, logs = PretendedComm(), []
    for passes in ranks:
        log: list[int] = []
        units: Any = [PretendedUnit(number, log) for number in range(NUM_UNITS)]
        gathers = Gathers(units, comm)  # type: ignore[arg-type]
        for at, used in enumerate(passes):
            gathers.begin("forward" if at % 2 == 0 else "backward")
            for number in used:
                gathers.need(number)
                assert units[number].is_shown
                gathers.release(number)
                assert not units[number].is_shown
            gathers.end()
            assert not any(unit.is_whole for unit in units)
        logs.append(log)
    assert logs[1] == logs[0] and logs[2] == logs[0]
    first = ranks[0][0]
    order = first + [number for number in range(NUM_UNITS) if number not in first]
    assert logs[0] == [*range(NUM_UNITS), *reversed(order), *order, *reversed(order)]


def test_a_layer_is_freed_after_its_use_and_only_the_next_is_fetched_ahead() -> None:
    log: list[int] = []
    units: Any = [PretendedUnit(number, log) for number in range(NUM_UNITS)]
    gathers = Gathers(units, PretendedComm())  # type: ignore[arg-type]
    for direction in ("forward", "backward", "forward"):
        gathers.begin(direction)  # type: ignore[arg-type]
        is_first = not log
        order = range(NUM_UNITS) if direction == "forward" else range(NUM_UNITS - 1, -1, -1)
        for place, number in enumerate(order):
            gathers.need(number)
            ahead = [other for other in order[: place + 2] if is_first or other in order[place:]]
            assert [unit.number for unit in units if unit.is_whole] == sorted(ahead)
            gathers.release(number)
        gathers.end()


class PretendedGradient:
    """A unit whose sum is done when the test says so. It is its own work."""

    is_done, is_whole, dtype = False, True, np.dtype("float32")

    def reduce(self, comm: Any, order: str, op: str) -> Any:
        return self

    def is_completed(self) -> bool:
        return self.is_done

    def drop(self) -> None:
        self.is_whole = False


def test_a_whole_gradient_is_freed_when_its_sum_is_done() -> None:
    units = [PretendedGradient() for _ in range(3)]
    slots = UnitSlots(None, "invariant")  # type: ignore[arg-type]
    slots.place(
        [SimpleNamespace(values=unit, size=1, tensor=SimpleNamespace(op="sum", dtype="float32")) for unit in units]
    )  # type: ignore[misc]
    slots.launch((2, 0), {0, 2})
    slots.drop_done()
    assert all(unit.is_whole for unit in units)
    units[2].is_done = True
    slots.drop_done()
    slots.launch((1,), {1})
    units[0].is_done = True
    slots.drop_done()
    assert [unit.is_whole for unit in units] == [False, True, False]
