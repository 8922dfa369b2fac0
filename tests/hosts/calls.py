"""One call of each kind of collective, with a result that every rank checks to the bit."""

from typing import Any

import numpy as np

import hocket
from hocket.schedule import COLLECTIVES

KINDS = tuple(COLLECTIVES)


def check(comm: hocket.Communicator, kind: str, count: int, turn: int, **options: Any) -> None:
    """Make a call of this kind with `count` elements of int64 in the largest block; raise AssertionError if wrong.

    What goes in differs from turn to turn, and so does the root.
    """
    size, rank, root = comm.size, comm.rank, turn % comm.size

    def of(one: int, length: int = count) -> Any:
        return np.arange(length) + 1000 * one + turn

    total = sum(of(one) for one in range(size))
    counts = [count * (one + 1) // size for one in range(size)]
    ends = np.cumsum(counts)
    uneven_total = sum(of(one, int(ends[-1])) for one in range(size))
    here = rank == root
    own = slice(int(ends[rank]) - counts[rank], int(ends[rank]))
    whole = np.concatenate([of(one) for one in range(size)])
    uneven = np.concatenate([of(one, counts[one]) for one in range(size)])
    call = getattr(comm, kind)
    found: Any
    expected: Any
    if kind == "barrier":
        found = expected = call(**options)
    elif kind in ("all_reduce", "reduce"):
        found = call(of(rank), **({"root": root} if kind == "reduce" else {}), **options)
        expected = total if kind == "all_reduce" or here else None
    elif kind == "broadcast":
        found, expected = call(of(rank), root, **options), of(root)
    elif kind in ("all_gather", "gather"):
        found = call(of(rank), **({"root": root} if kind == "gather" else {}), **options)
        expected = whole if kind == "all_gather" or here else None
    elif kind == "scatter":
        found, expected = call(whole if here else None, root, out=np.empty(count, np.int64), **options), of(rank)
    elif kind == "reduce_scatter":
        x = np.concatenate([of(one) + rank for one in range(size)])
        found, expected = call(x, **options), size * of(rank) + size * (size - 1) // 2
    elif kind == "all_to_all":
        x = np.concatenate([of(one) + rank for one in range(size)])
        found, expected = call(x, **options), np.concatenate([of(rank) + one for one in range(size)])
    elif kind == "all_gather_v":
        found, expected = call(of(rank, counts[rank]), counts, **options), uneven
    elif kind == "gather_v":
        found = call(of(rank, counts[rank]), counts if here else None, root, **options)
        expected = uneven if here else None
    elif kind == "scatter_v":
        out = np.empty(counts[rank], np.int64)
        x = uneven if here else None
        found, expected = call(x, counts if here else None, root, out=out, **options), of(rank, counts[rank])
    elif kind == "reduce_scatter_v":
        found, expected = call(of(rank, int(ends[-1])), counts, **options), uneven_total[own]
    elif kind == "all_to_all_v":
        x = np.concatenate([of(rank, counts[one]) for one in range(size)])
        received = [counts[rank]] * size
        found = call(x, counts, received, **options)
        expected = np.concatenate([of(one, counts[rank]) for one in range(size)])
    else:
        raise ValueError(f"{kind} is no kind of collective that is checked here")
    same = found is None if expected is None else found is not None and (np.asarray(found) == expected).all()
    assert same, f"wrong result of {kind} of {count} at turn {turn} on rank {rank}"
