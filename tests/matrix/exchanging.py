"""Point-to-point calls of the matrix: every rank sends to its right neighbour and receives from its left one."""

from typing import Any

import numpy as np

import hocket
from tests.matrix.cells import Exchange, elements, is_registered
from tests.matrix.collectives import TIMEOUT_SECONDS
from tests.matrix.definition import Array, difference
from tests.matrix.values import values

TAG = 7


def exchange(comm: Any, case: Exchange) -> str | None:
    """Makes the calls of this rank; returns None if data, source and tag are right."""
    count = elements(case.size, case.dtype)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    given = values(case.dtype, "", count, [comm.rank, case.size + 1])
    make = hocket.empty if is_registered(case, comm.rank) else np.empty
    x, out = (np.asarray(make(count, given.dtype)) for _ in range(2))
    x[:], out[:] = given, 0
    received, source, tag = _CALLS[case.call](comm, x, out, right, left)
    if (source, tag) != (left, TAG):
        return f"source {source}, tag {tag}; expected source {left}, tag {TAG}"
    if received is not out:
        return "recv returned another array than it was given"
    if wrong := difference(x, given):
        return f"the sent array changed: {wrong}"
    wrong = difference(out, values(case.dtype, "", count, [left, case.size + 1]))
    return f"not what rank {left} sent: {wrong}" if wrong else None


def _blocking(comm: Any, x: Array, out: Array, right: int, left: int) -> tuple[Any, int, int]:
    """Rank 0 sends first and the others receive first, so that no rank waits for itself."""
    if comm.size == 1:
        work = comm.isend(x, right, tag=TAG)
        result = comm.recv(out, left, tag=TAG, timeout=TIMEOUT_SECONDS)
        work.wait(TIMEOUT_SECONDS)
        return result
    if comm.rank == 0:
        comm.send(x, right, tag=TAG, timeout=TIMEOUT_SECONDS)
        return comm.recv(out, left, tag=TAG, timeout=TIMEOUT_SECONDS)
    result = comm.recv(out, left, tag=TAG, timeout=TIMEOUT_SECONDS)
    comm.send(x, right, tag=TAG, timeout=TIMEOUT_SECONDS)
    return result


def _at_once(comm: Any, x: Array, out: Array, right: int, left: int) -> tuple[Any, int, int]:
    receiving = comm.irecv(out, left, tag=TAG)
    sending = comm.isend(x, right, tag=TAG)
    sending.wait(TIMEOUT_SECONDS)
    receiving.wait(TIMEOUT_SECONDS)
    return out, receiving.source, receiving.tag


def _both_ways(comm: Any, x: Array, out: Array, right: int, left: int) -> tuple[Any, int, int]:
    return comm.sendrecv(x, right, out, left, tag=TAG, timeout=TIMEOUT_SECONDS)


def _batch(comm: Any, x: Array, out: Array, right: int, left: int) -> tuple[Any, int, int]:
    both = [hocket.Recv(out, left, TAG), hocket.Send(x, right, TAG)]
    received, _ = comm.batch(both, timeout=TIMEOUT_SECONDS)
    return received


def _from_anybody(comm: Any, x: Array, out: Array, right: int, left: int) -> tuple[Any, int, int]:
    sending = comm.isend(x, right, tag=TAG)
    result = comm.recv(out, hocket.ANY_SOURCE, tag=hocket.ANY_TAG, timeout=TIMEOUT_SECONDS)
    sending.wait(TIMEOUT_SECONDS)
    return result


_CALLS = {
    "send, recv": _blocking,
    "isend, irecv": _at_once,
    "sendrecv": _both_ways,
    "batch": _batch,
    "recv from ANY_SOURCE": _from_anybody,
}
