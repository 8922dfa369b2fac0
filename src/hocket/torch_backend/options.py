"""The options that torch.distributed passes to every collective: their offsets in memory.

They are C++ objects; PyTorch's bindings show their fields as attributes. Reading an attribute takes up to a third of a
microsecond, as long as a collective, so the core reads the memory itself. No header gives the offsets, so this module
finds them by trial. If a field is not where expected, the core does not read it, and such calls go through Python.
"""

import ctypes
from datetime import timedelta
from typing import Any

from torch.distributed import ReduceOp, distributed_c10d

from hocket.runtime import read_options

_MAX_BYTES = 64  # of an object that are searched
_VALUES: dict[str, tuple[int, dict[int, Any]]] = {
    "reduceOp": (1, {hash(ReduceOp(op)): op for op in (ReduceOp.SUM, ReduceOp.MAX)}),
    "rootRank": (8, {1: 1, 2: 2}),
    "timeout": (8, {1: timedelta(milliseconds=1), 2: timedelta(milliseconds=2)}),
    "asyncOp": (1, {0: False, 1: True}),
}
"""Each field that a call may depend on: its size in bytes, and two values; keys are what is read from memory."""


def offset_of(kind: type, name: str) -> tuple[int, int] | None:
    """Returns offset and size in bytes of an attribute in options of this type; None if it is not as expected."""
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
    """Returns the first bytes of the C++ object in a pybind11 object, which has a pointer to it after its header."""
    address = ctypes.c_void_p.from_address(id(options) + object.__basicsize__).value
    assert address is not None
    return ctypes.string_at(address, _MAX_BYTES)


def learn_options() -> None:
    """Tells the core how to read the options of the collectives that it may repeat."""
    for name in ("Allreduce", "Broadcast", "Reduce", "Allgather", "ReduceScatter", "AllToAll", "Barrier"):
        kind = getattr(distributed_c10d, f"{name}Options")
        offsets = {name: offset_of(kind, name) for name in _VALUES if hasattr(kind, name)}
        asynchronous = offsets.pop("asyncOp", None)
        fields = [offset for offset in offsets.values() if offset is not None]
        if asynchronous is not None and len(fields) == len(offsets):
            read_options(kind, asynchronous, fields)
