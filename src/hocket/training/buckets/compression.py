"""Carriers that send fewer bytes than Slots: each value in 16 bits, or only the largest values of each tensor.

    Coordinator(comm, carrier=half("bfloat16"))
    DataParallel(model, comm, carrier=top_k(0.01))

Both change values of type float32 and float64; tensors of other types travel as they are. Presence is exact, and all
ranks get the same bits. What lies in memory keeps its type. Left out: compression by low rank.

Reference: Stich et al. 2018, "Sparsified SGD with memory".
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from hocket.runtime import Communicator, Work, empty
from hocket.schedule import DTYPE_TABLE
from hocket.training.buckets.slots import Array, Kind, Moved, Order, Slot, Slots, Stretch, kind_of
from hocket.training.coordinator.messages import Ids

Carrier = Callable[[Communicator, Order], Slots]

_COMPRESSED = ("float32", "float64")
_DIGITS = {row.name: row.digits for row in DTYPE_TABLE}


def half(dtype: Literal["float16", "bfloat16"]) -> Carrier:
    """Returns a carrier whose values travel in 16 bits.

    Each rank rounds its values once, and the collective rounds where it stores a sum; with order="rank" that is once.
    An average is divided before that rounding. float16 has 11 binary digits, and values above
    65504 become infinite, also in the sum; bfloat16 has 8 digits and the range of float32. Ranks are counted in the
    same type, so float16 takes up to 2048 ranks and bfloat16 up to 256. Raises ValueError.
    """
    if dtype not in ("float16", "bfloat16"):
        raise ValueError(f"half: expected 'float16' or 'bfloat16', found {dtype!r}")

    def carrier(comm: Communicator, order: Order) -> Slots:
        return HalfSlots(comm, order, dtype)

    return carrier


def top_k(share: float = 0.01) -> Carrier:
    """Returns a carrier that sends the largest values of each tensor, at least one; the rest waits for the next round.

    share: of a tensor's values, above 0 and at most 1. What a rank does not send, it adds to its own values of the next
    round in which it has the tensor (error feedback), so nothing is lost. The result is the sum of what ranks have
    sent, folded in rank order; `order` has no effect. Largest: by absolute value. Raises ValueError.
    """
    if not (isinstance(share, (int, float)) and 0 < share <= 1):
        raise ValueError(f"top_k: expected the share of values to send, above 0 and at most 1, found {share!r}")

    def carrier(comm: Communicator, order: Order) -> Slots:
        return LargestSlots(comm, order, share)

    return carrier


class HalfSlots(Slots):
    """Slots whose values travel as float16 or bfloat16, in a second array with the same places."""

    def __init__(self, comm: Communicator, order: Order, dtype: str) -> None:
        super().__init__(comm, order)
        self._dtype = dtype
        self._short: dict[Kind, Array] = {}

    @property
    def settings(self) -> str:
        """As of Slots, and the type of the values on their way."""
        return f"{super().settings}, values as {self._dtype}"

    def new(self, name: str, x: Any, op: str, moved: Moved | None) -> Slot:
        """Returns the slot of a new tensor, as Slots does. Raises ValueError for more ranks than the type can count."""
        slot = super().new(name, x, op, moved)
        limit = 2 ** _DIGITS[self._dtype]
        if slot.tensor.dtype in _COMPRESSED and limit < self.comm.size:
            raise ValueError(f"register: {name!r} travels as {self._dtype}, which counts to {limit}; use a wider type")
        return slot

    def place(self, slots: Sequence[Slot], order: Sequence[int] | None = None) -> None:
        """Gives slots their memory, and as many 16-bit values to those that are compressed."""
        super().place(slots, order)
        compressed = {kind: flat.size for kind, flat in self.flats.items() if kind[0] in _COMPRESSED}
        self._short = {kind: empty(size, self._dtype) for kind, size in compressed.items()}

    def begin(self, stretch: Stretch) -> Work:
        """Rounds the stretch to 16 bits and begins to sum it."""
        short = self._short_of(stretch)
        if short is None:
            return super().begin(stretch)
        with np.errstate(over="ignore"):  # infinite is what the docstring says
            short[:] = stretch.array
        return self.combine(short, stretch.op)

    def ended(self, stretch: Stretch) -> None:
        """Widens the sum."""
        short = self._short_of(stretch)
        if short is not None:
            stretch.array[:] = short

    def _short_of(self, stretch: Stretch) -> Array | None:
        slot = self.slots[stretch.ids[0]]
        short = self._short.get(kind_of(slot))
        return None if short is None else short[slot.begin : slot.begin + stretch.array.size]


class LargestSlots(Slots):
    """Slots of which each rank sends the largest values of each tensor, with their places."""

    def __init__(self, comm: Communicator, order: Order, share: float) -> None:
        super().__init__(comm, order)
        self._share = share
        self._held: dict[int, Array] = {}  # by number of the tensor: what this rank has not sent yet
        self._gathered: dict[Ids, Array] = {}  # by tensors of a stretch under way: a record of each rank

    @property
    def settings(self) -> str:
        """As of Slots, and the share of the values that are sent."""
        return f"{super().settings}, the largest {self._share:g} of the values"

    def begin(self, stretch: Stretch) -> Work:
        """Sends this rank's largest values of each tensor that it has, and holds the others back."""
        dtype = stretch.array.dtype
        if dtype.name not in _COMPRESSED:
            return super().begin(stretch)
        num_sent = [math.ceil(self._share * self.slots[id].size) for id in stretch.ids]
        record = np.dtype(
            [
                ("counts", dtype, (len(stretch.ids),)),
                ("values", dtype, (sum(num_sent),)),
                ("places", np.min_scalar_type(stretch.array.size), (sum(num_sent),)),
            ]
        )
        message, gathered = np.zeros(1, record), np.empty(self.comm.size, record)
        message["counts"] = stretch.array[stretch.counts]
        values, places = message["values"][0], message["places"][0]
        end = 0
        for id, count, sent in zip(stretch.ids, stretch.counts.tolist(), num_sent, strict=True):
            begin, end, size = end, end + sent, self.slots[id].size
            chosen = np.arange(sent)
            if stretch.array[count] and sent:  # if the tensor is absent here, what is held back waits
                held = self._held.setdefault(id, np.zeros(size, dtype))
                held += stretch.array[count - size : count]
                chosen = np.argpartition(np.abs(held), size - sent)[size - sent :]
                values[begin:end] = held[chosen]
                held[chosen] = 0
            places[begin:end] = chosen + (count - size)
        self._gathered[stretch.ids] = gathered
        self.num_bytes_sent += message.nbytes
        work: Work = self.comm.all_gather(message.view(np.uint8), out=gathered.view(np.uint8), async_op=True)
        return work

    def ended(self, stretch: Stretch) -> None:
        """Adds up what the ranks have sent, in rank order."""
        if stretch.ids not in self._gathered:
            return
        stretch.array.fill(0)
        for one in self._gathered.pop(stretch.ids):
            stretch.array[one["places"]] += one["values"]  # the places of one rank are all different
            stretch.array[stretch.counts] += one["counts"]
        if stretch.op == "avg":
            np.divide(stretch.array, self.comm.size, out=stretch.array)
