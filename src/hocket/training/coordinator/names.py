"""The tensors of a coordinator: registered by name, then numbered alike on all ranks.

Ranks may register in different orders. The number of a tensor is its place in rank 0's order, so that tensors which
rank 0 registers one after the other lie side by side in memory. Ranks compare a digest of all names, shapes, types and
operations; only if that differs do names travel.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.errors import CollectiveMismatch
from hocket.runtime import Communicator, name_ranks


class Tensor(NamedTuple):
    """What ranks must have alike of a tensor. op: "sum" or "avg"."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    op: str


def numbers_of(comm: Communicator, tensors: Sequence[Tensor], settings: str) -> list[int]:
    """Returns the number of each tensor. All ranks call it with the tensors in the order of their registration.

    Raises CollectiveMismatch, on all ranks, if settings, or names, shapes, types or operations of tensors differ; it
    names the first difference.
    """
    alphabetic = sorted(range(len(tensors)), key=lambda place: tensors[place].name)
    digest = hashlib.sha256(repr([settings, *(tensors[place] for place in alphabetic)]).encode()).digest()
    digests = comm.all_gather(np.frombuffer(digest, np.uint8)).reshape(comm.size, -1)
    if (digests != digests[0]).any():
        raise _mismatch(comm.all_gather_object((settings, [tuple(tensor) for tensor in sorted(tensors)])), comm.group)
    order = np.array(alphabetic, np.int64)  # the names in alphabetic order, by their places on rank 0
    comm.broadcast(order, root=0)
    numbers = [0] * len(tensors)
    for place, number in zip(alphabetic, order.tolist(), strict=True):
        numbers[place] = number
    return numbers


def _mismatch(said: list[tuple[str, list[tuple[Any, ...]]]], group: Sequence[int]) -> CollectiveMismatch:
    """Returns the error for settings that differ, or for the first name, in alphabetic order, that some ranks lack.

    group: the ranks in the job of those that said it.
    """
    chosen = dict(zip(group, (settings for settings, _ in said), strict=True))
    if len(set(chosen.values())) > 1:
        told = ", ".join(f"{settings} on rank {rank}" for rank, settings in chosen.items())
        return _refused(f"the settings differ: {told}", "settings", chosen, "give the same arguments on all ranks")
    tables = {
        rank: {tensor[0]: Tensor(*tensor) for tensor in tensors} for rank, (_, tensors) in zip(group, said, strict=True)
    }
    for name in sorted(set().union(*tables.values())):
        found = {rank: table.get(name) for rank, table in tables.items()}
        missing = [rank for rank, tensor in found.items() if tensor is None]
        if missing:
            values: dict[int, Any] = {rank: None if tensor is None else name for rank, tensor in found.items()}
            others = name_ranks(rank for rank in tables if rank not in missing)
            what = f"tensor {name!r} is registered on {others} and not on {name_ranks(missing)}"
            return _refused(what, "name", values)
        for field in ("shape", "dtype", "op"):
            values = {rank: getattr(tensor, field) for rank, tensor in found.items()}
            if len(set(values.values())) > 1:
                said_by = ", ".join(f"{value} on rank {rank}" for rank, value in values.items())
                return _refused(f"tensor {name!r} differs in {field}: {said_by}", field, values)
    raise AssertionError("the digests differ, and the tables do not")


def _refused(
    what: str,
    field: str,
    values: dict[int, Any],
    advice: str = "build the same model, and register the same tensors, on all ranks",
) -> CollectiveMismatch:
    return CollectiveMismatch(f"coordinator: {what}; {advice}", field=field, values=values, sequence=0)
