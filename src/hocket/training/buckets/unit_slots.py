"""Units as tensors of a coordinator: ranks agree on the order in which the gradients of units are summed."""

from collections import deque
from collections.abc import Collection, Sequence

import numpy as np

from hocket.runtime import Communicator, Work
from hocket.training.buckets.slots import Order, Slot, Slots, kind_of
from hocket.training.buckets.units import Unit
from hocket.training.coordinator.messages import Ids


class UnitSlots(Slots):
    """What a coordinator does with units: it combines the gradient of each unit by itself."""

    def __init__(self, comm: Communicator, order: Order) -> None:
        super().__init__(comm, order)
        self._under_way: deque[tuple[Unit, Work]] = deque()

    def num_bytes(self, slot: Slot) -> int:
        """Returns the bytes of the unit's values."""
        return slot.size * int(slot.values.dtype.itemsize)

    def place(self, slots: Sequence[Slot], order: Sequence[int] | None = None) -> None:
        """Notes the slots; each unit has memory of its own."""
        self.slots = list(slots)
        self.present = np.zeros(len(slots), np.int64)

    def cut(self, batches: Sequence[Ids]) -> None:
        """Leaves the units where they are."""

    def launch(self, ids: Ids, present: Collection[int]) -> list[Work]:
        """Begins to combine these units; a rank that has none of a unit's gradients gives zeros."""
        works = []
        for id in ids:
            slot = self.slots[id]
            unit: Unit = slot.values
            works.append(unit.reduce(self.comm, self._order, kind_of(slot)[1]))
            self.num_bytes_sent += self.num_bytes(slot)
            self._under_way.append((unit, works[-1]))
        return works

    def finish(self, ids: Ids) -> None:
        """Gives the shards their gradients."""
        self._under_way.clear()
        for id in ids:
            slot = self.slots[id]
            self.present[id] = slot.values.end(kind_of(slot)[1])

    def drop_done(self) -> None:
        """Frees the whole gradients whose sums are done, as the backward pass goes on."""
        while self._under_way and self._under_way[0][1].is_completed():
            self._under_way.popleft()[0].drop()
