"""The memory of a coordinator's tensors, and what it does with a batch: it sums the slots over the ranks, in place.

Each tensor has a slot: its values, one element that counts the ranks which have it, and padding to 64 bytes. Slots of
one type and operation lie side by side in one array of hocket.empty(), so a batch of neighbours is one all_reduce
without a copy; the count travels with the values. A rank that leaves a tensor out gives zeros, and the count 0. An
average is that of all ranks, which the all_reduce computes; if only some ranks have the tensor, it is scaled to them.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hocket.runtime import Communicator, Work, check_order, empty
from hocket.schedule import DTYPE_TABLE
from hocket.training.coordinator.messages import Ids
from hocket.training.coordinator.names import Tensor

Array = NDArray[Any]
Moved = Callable[[Any], None]
Order = Literal["fast", "rank", "invariant"]
Operation = Literal["sum", "avg"]
Kind = tuple[str, Operation]

_ALIGNMENT = 64
_DIGITS = {row.name: row.digits for row in DTYPE_TABLE}
_ITEM_BYTES = {row.name: row.bytes for row in DTYPE_TABLE}


@dataclass
class Slot:
    """Where a tensor lies. source: the program's own array, which the slot copies; moved: who is told of the slot."""

    tensor: Tensor
    source: Any
    moved: Moved | None
    size: int
    begin: int = 0
    end: int = 0
    values: Any = None  # of the shape and the kind (NumPy or PyTorch) of the program's tensor
    whole: Any = None  # the values, the count and the padding, as a vector


class Stretch(NamedTuple):
    """Slots of one type and operation, side by side: one collective. counts: where in `array` the counts are."""

    ids: Ids
    array: Array
    counts: NDArray[np.int64]
    op: Operation


class Slots:
    """Holds the tensors of one rank's coordinator and communicates batches of them; without a lock or a thread."""

    def __init__(self, comm: Communicator, order: Order) -> None:
        check_order("Coordinator", order)
        self.comm, self._order = comm, order
        self.slots: list[Slot] = []
        self.present = np.zeros(0, np.int64)  # by number: how many ranks had the tensor in the last round
        self.num_bytes_sent = 0
        self._stretches: dict[Ids, list[Stretch]] = {}

    @property
    def settings(self) -> str:
        """What all ranks must have alike, in words."""
        return f"order {self._order}"

    def new(self, name: str, x: Any, op: str, moved: Moved | None) -> Slot:
        """Returns the slot of a new tensor, not yet in memory. ValueError or TypeError for what cannot be summed."""
        shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
        if shape is None or dtype is None:
            raise TypeError(f"register: expected {name!r} as a NumPy array or a tensor, found {x!r}")
        kind = str(dtype).removeprefix("torch.")
        if kind not in _DIGITS or kind == "bool" or kind.startswith("float8"):
            raise TypeError(f"register: expected {name!r} in a type that ranks can sum and count in, found {kind}")
        most = 2 ** _DIGITS[kind] - ("int" in kind)
        if most < self.comm.size:
            raise ValueError(f"register: {name!r} is {kind}, which counts to {most}; use a wider type")
        if op not in ("sum", "avg"):
            raise ValueError(f"register: expected op 'sum' or 'avg' for {name!r}, found {op!r}")
        if op == "avg" and "int" in kind:
            raise TypeError(f"register: {name!r} is {kind}, which has no average; use op='sum', or a float type")
        flags = getattr(x, "flags", None)
        if moved is None and flags is not None and not flags.writeable:
            raise ValueError(f"register: expected {name!r} as an array that can be written, found a read-only one")
        tensor = Tensor(name, tuple(int(size) for size in shape), kind, op)
        return Slot(tensor, None if moved else x, moved, int(np.prod(shape, dtype=np.int64)), values=x)

    def num_bytes(self, slot: Slot) -> int:
        """Returns the bytes that the slot takes in memory, and on the way."""
        return self._length(slot) * _item_bytes(slot)

    def place(self, slots: Sequence[Slot], order: Sequence[int] | None = None) -> None:
        """Gives slots their memory: slot i is number i, and they lie in `order`, by default that of the numbers.

        Values are kept. Whoever gave `moved` is told where the values are now.
        """
        before = [slot.values for slot in slots]
        self.slots = list(slots)
        ends: dict[Kind, int] = {}
        for id in range(len(slots)) if order is None else order:
            slot, kind = slots[id], kind_of(slots[id])
            slot.begin = ends.get(kind, 0)
            slot.end = ends[kind] = slot.begin + self._length(slot)
        self.flats = {kind: empty(end, kind[0]) for kind, end in ends.items()}
        for flat in self.flats.values():
            flat.fill(0)
        for slot, old in zip(slots, before, strict=True):
            slot.whole = self.flats[kind_of(slot)][slot.begin : slot.end]
            slot.values = like(old, slot.whole[: slot.size].reshape(slot.tensor.shape))
            slot.values[...] = _plain(old)
            if slot.moved is not None and isinstance(old, np.ndarray) and old is not slot.source:
                old.flags.writeable = False  # a program that kept it would write where nobody reads
            if slot.moved is not None:
                slot.moved(slot.values)
        self.present = np.concatenate([self.present, np.zeros(len(slots) - len(self.present), np.int64)])
        self._stretches.clear()

    def cut(self, batches: Sequence[Ids]) -> None:
        """Lays the slots side by side in the order of these batches, which have all of them."""
        order = [id for batch in batches for id in batch]
        places = [(kind_of(self.slots[id]), self.slots[id].begin) for id in order]
        if sorted(places, key=lambda place: place[0]) != sorted(places):  # within a kind they lie in another order
            self.place(self.slots, order)

    def hold(self, id: int, value: Any = None) -> None:
        """Copies the program's array into its slot, or `value` instead; nothing if the program writes into the slot."""
        slot = self.slots[id]
        source = slot.source if value is None else value
        if source is not None:
            slot.values[...] = _plain(source)

    def launch(self, ids: Ids, present: Collection[int]) -> list[Work]:
        """Begins to sum these tensors over all ranks; this rank has those that are `present`."""
        works = []
        for stretch in self.stretches(ids):
            stretch.array[stretch.counts] = 1
            for id in stretch.ids:
                if id not in present:
                    self.slots[id].whole.fill(0)
            works.append(self.begin(stretch))
        return works

    def finish(self, ids: Ids) -> None:
        """Does what is left once the works of `launch` are done: averages, and the copies back to the program."""
        for stretch in self.stretches(ids):
            self.ended(stretch)
            size = self.comm.size
            counted = stretch.array[stretch.counts].real.astype(np.float64)
            counts = np.rint(counted * size if stretch.op == "avg" else counted).astype(np.int64)
            self.present[list(stretch.ids)] = counts
            if stretch.op == "avg":
                for place in np.flatnonzero((counts > 0) & (counts < size)):
                    whole = self.slots[stretch.ids[place]].whole
                    whole *= np.asarray(size / counts[place], whole.dtype)
            for id in stretch.ids:
                slot = self.slots[id]
                if slot.source is not None and self.present[id]:  # what no rank has stays as it is
                    _plain(slot.source)[...] = _plain(slot.values)

    def begin(self, stretch: Stretch) -> Work:
        """Begins the collective of one stretch; a compression does it in another way."""
        return self.combine(stretch.array, stretch.op)

    def combine(self, array: Array, op: Operation) -> Work:
        """Begins to sum or average an array over the ranks, in place."""
        self.num_bytes_sent += array.nbytes
        work: Work = self.comm.all_reduce(array, op=op, order=self._order, async_op=True)
        return work

    def ended(self, stretch: Stretch) -> None:
        """Completes `stretch.array` after the collective is done."""

    def stretches(self, ids: Ids) -> list[Stretch]:
        """Returns the parts of a batch that lie side by side in memory, the same on all ranks."""
        found = self._stretches.get(ids)
        if found is None:
            found = self._stretches[ids] = self._new_stretches(ids)
        return found

    def _new_stretches(self, ids: Ids) -> list[Stretch]:
        groups: list[list[int]] = []
        for id in sorted(ids, key=lambda id: (kind_of(self.slots[id]), self.slots[id].begin)):
            last = self.slots[groups[-1][-1]] if groups else None
            slot = self.slots[id]
            if last is not None and kind_of(last) == kind_of(slot) and last.end == slot.begin:
                groups[-1].append(id)
            else:
                groups.append([id])
        stretches = []
        for group in groups:
            first = self.slots[group[0]]
            array = self.flats[kind_of(first)][first.begin : self.slots[group[-1]].end]
            counts = [self.slots[id].begin + self.slots[id].size - first.begin for id in group]
            stretches.append(Stretch(tuple(group), array, np.array(counts, np.int64), kind_of(first)[1]))
        return stretches

    def _length(self, slot: Slot) -> int:
        unit = _ALIGNMENT // _item_bytes(slot)
        return -(-(slot.size + 1) // unit) * unit


def kind_of(slot: Slot) -> Kind:
    """Returns what slots have in common that one collective communicates: their type, and sum or avg."""
    return slot.tensor.dtype, "avg" if slot.tensor.op == "avg" else "sum"


def _item_bytes(slot: Slot) -> int:
    return _ITEM_BYTES[slot.tensor.dtype]


def like(x: Any, array: Array) -> Any:
    """Returns the array as x has it: as a NumPy array, or as a PyTorch tensor on the same memory."""
    if isinstance(x, np.ndarray) or not hasattr(x, "detach"):
        return array
    import torch

    if x.dtype == torch.bfloat16:  # PyTorch does not know the type that NumPy gets from ml_dtypes
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _plain(x: Any) -> Any:
    return x.detach() if hasattr(x, "detach") else x
