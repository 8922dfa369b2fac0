"""The options that torch.distributed hands to every collective: where they lie in memory.

They are objects of C++ that PyTorch's bindings show as attributes. Asking for one takes up to a third of a microsecond,
as long as a collective, so the core reads them where they are. No header says where: it is tried out here. What does
not lie as expected is not read; then these calls go through Python.
"""

import ctypes
from datetime import timedelta
from typing import Any

from torch.distributed import ReduceOp, distributed_c10d

from hocket.runtime import read_options

_MAX_BYTES = 64  # of the part that is looked at
_VALUES: dict[str, tuple[int, dict[int, Any]]] = {
    "reduceOp": (1, {hash(ReduceOp(op)): op for op in (ReduceOp.SUM, ReduceOp.MAX)}),
    "rootRank": (8, {1: 1, 2: 2}),
    "timeout": (8, {1: timedelta(milliseconds=1), 2: timedelta(milliseconds=2)}),
    "asyncOp": (1, {0: False, 1: True}),
}
"""Of all that a call may depend on: how many bytes it has, and two values, by what is read where they are."""


def place_of(kind: type, name: str) -> tuple[int, int] | None:
    """Where options of this type have an attribute: offset and bytes; None where it does not lie as expected."""
    if type(kind).__name__ != "pybind11_type":
        return None
    num_bytes, values = _VALUES[name]
    options, seen = kind(), []
    for value in values.values():
        setattr(options, name, value)
        seen.append(_memory(options))
    offset = next((at for at in range(_MAX_BYTES) if seen[0][at] != seen[1][at]), _MAX_BYTES)
    found = [int.from_bytes(memory[offset : offset + num_bytes], "little") for memory in seen]
    return (offset, num_bytes) if found == list(values) else None


def _memory(options: Any) -> bytes:
    """The first bytes of the C++ object that an object of pybind11 holds, a pointer behind its head."""
    address = ctypes.c_void_p.from_address(id(options) + object.__basicsize__).value
    assert address is not None
    return ctypes.string_at(address, _MAX_BYTES)


def learn_options() -> None:
    """Lets the core read the options of the collectives that it may be asked to repeat."""
    for name in ("Allreduce", "Broadcast", "Reduce", "Allgather", "ReduceScatter", "AllToAll", "Barrier"):
        kind = getattr(distributed_c10d, f"{name}Options")
        places = {name: place_of(kind, name) for name in _VALUES if hasattr(kind, name)}
        asynchronous = places.pop("asyncOp", None)
        fields = [place for place in places.values() if place is not None]
        if asynchronous is not None and len(fields) == len(places):
            read_options(kind, asynchronous, fields)
