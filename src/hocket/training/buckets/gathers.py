"""Weights that are whole only while they are used (ZeRO stage 3), gathered in one order on all ranks.

A *pass* is one forward or one backward pass through the whole model. In each pass every rank gathers every unit once,
in the agreed order: that in which rank 0 used the units in its first forward pass, and backwards the reverse. A rank
that needs a unit first gathers those before it in this order, used or not, and begins with the one after it; at the end
of a pass it gathers what is left. So ranks may skip units, or use them in other orders, and no rank waits in vain.
"""

import contextlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import Literal

import numpy as np

from hocket.runtime import Communicator, Work, stream
from hocket.training.buckets.units import Unit


class Gathers:
    """Makes units whole before they are used, and frees them afterwards. Units have numbers, equal on all ranks."""

    def __init__(self, units: Sequence[Unit], comm: Communicator) -> None:
        self._units, self._comm = units, comm
        self._order = list(range(len(units)))  # in a forward pass
        self._is_agreed = False
        self._repeated: set[int] = set()  # used twice in a forward pass: they stay until its end
        self.holds = False
        self.seconds_waited = 0.0  # for weights
        self.direction: Literal["forward", "backward"] | None = None
        self._clear()

    def _clear(self) -> None:
        self._pending: deque[int] = deque()  # to be gathered in this pass
        self._works: dict[int, Work] = {}  # begun in this pass
        self._last = -1
        self._used: list[int] = []  # in the order of first use
        self._users: Counter[int] = Counter()  # modules in whose call the unit is used just now
        self._freed: set[int] = set()

    def begin(self, direction: Literal["forward", "backward"]) -> None:
        """Begins a pass; ends the one before it, if an error has cut that short."""
        self.end()
        if not self.holds:
            self.direction = direction
            self._pending.extend(self._order if direction == "forward" else reversed(self._order))

    def need(self, number: int) -> None:
        """Waits until the unit is whole, and begins to gather the next one.

        Raises RuntimeError outside a pass, and in a forward pass that has freed the unit.
        """
        if self.holds:
            return
        unit, is_forward = self._units[number], self.direction == "forward"
        if self.direction is None:
            raise RuntimeError(
                f"sharded, stage 3: the layer of {unit.name} was called by itself, and its weights are not there; "
                "call the whole model, or call it inside gathered()"
            )
        if number in self._freed:
            if is_forward:
                raise RuntimeError(
                    f"sharded, stage 3: the layer of {unit.name} is used again in a forward pass that has freed it; "
                    "a rank that uses a layer several times in a pass must do so from its first forward pass on"
                )
            return  # all gradients of the unit are complete, so this pass does not read its weights any more
        if number not in self._used:
            self._used.append(number)
        elif is_forward:
            self._repeated.add(number)
        self._users[number] += 1
        while number not in self._works:
            self._gather_next()
        if self._last == number and self._pending:
            self._gather_next()
        self._await(number)
        unit.show()

    def release(self, number: int) -> None:
        """Says that a use of the unit is over; of a backward pass, the last one."""
        if self.holds or number not in self._works:
            return
        is_forward = self.direction == "forward"
        self._users[number] -= 1
        if is_forward and self._users[number] > 0:
            return
        # The first forward pass cannot know what will be used again.
        if is_forward and (not self._is_agreed or number in self._repeated):
            self._units[number].hide()
        else:
            self._units[number].free()
            self._freed.add(number)

    def end(self) -> None:
        """Ends the pass: gathers what is left, and frees all. After the first forward pass, ranks agree on an order."""
        if self.direction is None:
            return
        while self._pending:
            self._gather_next()
        for number in self._works:
            self._await(number)
            self._units[number].free()
        if self.direction == "forward" and not self._is_agreed:
            order = np.array(sorted(self._order, key=self._place), np.int64)
            self._comm.broadcast(order, root=0)
            self._order, self._is_agreed = order.tolist(), True
        self.direction = None
        self._clear()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, all units are whole; what the program writes into them is kept. All ranks enter."""
        if self.holds:
            yield
            return
        self.end()
        works = [unit.gather(self._comm) for unit in self._units]
        self.seconds_waited += seconds_until(works)
        for unit in self._units:
            unit.show()
        self.holds = True
        try:
            yield
        finally:
            self.holds = False
            for unit in self._units:
                unit.leave()

    def _place(self, number: int) -> int:
        return self._used.index(number) if number in self._used else len(self._used)

    def _gather_next(self) -> None:
        self._last = self._pending.popleft()
        self._works[self._last] = self._units[self._last].gather(self._comm)

    def _await(self, number: int) -> None:
        self.seconds_waited += seconds_until([self._works[number]])


def seconds_until(works: Iterable[Work]) -> float:
    """Waits until the works are done; returns the wall seconds that this took."""
    started = perf_counter()
    with stream(None):  # the host waits, whatever the current stream
        for work in works:
            work.wait()
    return perf_counter() - started
