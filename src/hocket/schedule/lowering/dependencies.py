"""The one dependency analysis: which instructions of a plan touch the same memory, and in which order they must.

A *location* is a chunk of a rank's memory, coded as ``index * 4 + space``. Two accesses of a location conflict when one
of them writes. `lower` turns conflicts into the dependencies of a plan; law 3 (races.py) asks of given plans that every
conflict is ordered. What is left out: how instructions of different ranks wait for each other (races.py).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

INPUT, OUTPUT, SCRATCH, REMOTE = range(4)
"""Spaces of a plan's sources and destinations; the first three are local memory, REMOTE is a channel."""

SPACE_NAMES = {INPUT: "input", OUTPUT: "output", SCRATCH: "scratch", REMOTE: "remote"}

READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE = range(3)
"""Kinds of a conflict: what the later access is to the earlier one."""

Ints = NDArray[np.int64]
AnyInts = NDArray[np.signedinteger[Any]]


class Conflicts(NamedTuple):
    """Pairs of instructions that must run in order; equal-length columns, sorted by (later, earlier)."""

    earlier: Ints
    later: Ints
    kind: NDArray[np.int8]
    location: Ints


class Accesses(NamedTuple):
    """Every touch of local memory by a list of instructions; equal-length columns."""

    instruction: Ints
    location: Ints
    write: NDArray[np.bool_]


def accesses(sources_end: AnyInts, destinations_end: AnyInts, sources: AnyInts, destinations: AnyInts) -> Accesses:
    """List what instructions touch.

    sources_end and destinations_end are the exclusive ends of each instruction's part of sources and destinations, both
    of (peer, space, index), as in `Plan`; what follows is not read. Channels are no memory and are left out.
    """
    reader = owners(sources_end)
    writer = owners(destinations_end)
    local_source = sources[:, 1] != REMOTE
    local_destination = destinations[:, 1] != REMOTE
    read = sources[local_source]
    written = destinations[local_destination]
    instruction = np.concatenate((reader[local_source], writer[local_destination]))
    location = np.concatenate((read[:, 2] * 4 + read[:, 1], written[:, 2] * 4 + written[:, 1]))
    write = np.zeros(len(instruction), bool)
    write[len(read) :] = True
    return Accesses(instruction, location.astype(np.int64), write)


def owners(ends: AnyInts) -> Ints:
    """For each entry of a list cut by exclusive ends, the number of the part that it lies in."""
    return np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))


def conflicts(touched: Accesses) -> Conflicts:
    """Find the pairs of instructions that must be ordered; every other conflicting pair follows by transitivity.

    Instructions are numbered in program order, and an instruction reads before it writes. A write that follows reads is
    ordered after those reads alone, because they are ordered after the write before them.
    """
    instruction, location, write = touched
    span = int(instruction.max(initial=0)) + 1
    order = np.argsort((location * span + instruction) * 2 + write, kind="stable")
    instruction, location, write = instruction[order], location[order], write[order]
    size = len(order)
    position = np.arange(size)
    opens = np.ones(size, bool)
    opens[1:] = location[1:] != location[:-1]
    start = np.maximum.accumulate(np.where(opens, position, 0))
    previous = np.empty(size, np.int64)  # the write before this access of the same location, or something before start
    previous[:1] = -1
    previous[1:] = np.maximum.accumulate(np.where(write, position, -1))[:-1]
    follows = previous >= start
    after = np.flatnonzero(follows & ~write)
    rewrite = np.flatnonzero(follows & write & (previous == position - 1))
    following = np.minimum.accumulate(np.where(write, position, size)[::-1])[::-1]
    read = np.flatnonzero(~write & (following < size))
    target = following[read]
    real = (location[target] == location[read]) & (instruction[target] != instruction[read])
    read, target = read[real], target[real]
    earlier = np.concatenate((previous[after], read, previous[rewrite]))
    later = np.concatenate((after, target, rewrite))
    kind = np.repeat(np.arange(3, dtype=np.int8), (len(after), len(read), len(rewrite)))
    pair = instruction[later] * span + instruction[earlier]
    kept = np.unique(pair, return_index=True)[1]  # several locations, or several reads of one: one dependency
    earlier, later = earlier[kept], later[kept]
    return Conflicts(instruction[earlier], instruction[later], kind[kept], location[later])
