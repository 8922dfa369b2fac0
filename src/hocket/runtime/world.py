"""Many ranks in one thread: the third driver of the executor, beside the blocking call and the stream.

A seeded choice decides which rank moves next, so a run that goes wrong can be repeated. It needs no second rank, no
process and no clock; memory, transports and executors are the real ones.
"""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket import _core
from hocket.errors import InternalError
from hocket.runtime.failures import DTYPES, OPS
from hocket.runtime.plans import in_core
from hocket.schedule.ir import Schedule
from hocket.schedule.lower import lower_all

Arrays = Sequence[npt.NDArray[Any] | None]


def byte_streams(num_ranks: int) -> list[Any]:
    """Transports of all ranks that carry one byte at a time, for ranks of one process."""
    streams = _core.ByteStreams(num_ranks)
    return [streams.endpoint(rank) for rank in range(num_ranks)]


def shared_memory(num_ranks: int, arena_bytes: int = 1 << 28) -> list[Any]:
    """Cores of communicators of all ranks in this process, over shared memory; `.transport` is each one's transport."""
    arenas = [_core.Arena(arena_bytes) for _ in range(num_ranks)]
    contexts = [_core.Context(arena) for arena in arenas]
    endpoints = [context.add_endpoint(num_ranks) for context in contexts]
    descriptors = [arena.descriptor for arena in arenas]
    presences = [context.presence_offset for context in contexts]
    members = list(range(num_ranks))
    for rank, context in enumerate(contexts):
        context.join(rank, descriptors, presences)
    return [_core.Communicator(context, members, rank, endpoints, False) for rank, context in enumerate(contexts)]


def run_world(
    schedule: Schedule,
    inputs: Arrays,
    reduction: str = "sum",
    *,
    transports: Sequence[Any],
    in_place: bool = False,
    seed: int = 0,
) -> list[npt.NDArray[Any] | None]:
    """Runs a schedule natively, all ranks in this thread, and returns the outputs by rank; arrays are 1-d, one dtype.

    inputs: as schedule.reference.run takes them. InternalError if no rank can move any more: that would be a deadlock.
    """
    kind, size, root = schedule.kind, schedule.num_ranks, schedule.root
    given = next(array for array in inputs if array is not None)
    num_given = max(len(kind.input_blocks(rank, size, root)) for rank in range(size))
    block, num_blocks = given.size // num_given, kind.num_blocks(size)
    machines, memories = [], []
    for plan, array, transport in zip(lower_all(schedule, in_place), inputs, transports, strict=True):
        vector = np.zeros(num_blocks * block, given.dtype)
        reads, writes = kind.input_blocks(plan.rank, size, root), kind.output_blocks(plan.rank, size, root)
        source = vector[reads.start * block : reads.stop * block]
        target = vector if in_place else np.zeros_like(vector)
        target = target[writes.start * block : writes.stop * block]
        if array is not None and reads:
            source[:] = array
        machine = _core.Executor(in_core(plan, schedule.collective), transport)
        dtype = DTYPES.index(given.dtype.name)
        machine.start(dtype, OPS.index(reduction), block, source.ctypes.data, target.ctypes.data, 1)
        machines.append(machine)
        memories.append((source, target))
    _drive(machines, random.Random(seed))
    has_output = [bool(kind.output_blocks(rank, size, root)) for rank in range(size)]
    return [target if has else None for (_, target), has in zip(memories, has_output, strict=True)]


def _drive(machines: list[Any], choose: random.Random) -> None:
    unfinished = list(range(len(machines)))
    stuck: set[int] = set()
    while unfinished:
        rank = choose.choice([one for one in unfinished if one not in stuck])
        before = machines[rank].num_moves()
        if machines[rank].advance():
            unfinished.remove(rank)
            stuck.clear()
        elif machines[rank].num_moves() > before:
            stuck.clear()
        else:
            stuck.add(rank)
            if len(stuck) == len(unfinished):
                waits = {one: machines[one].waiting_for() for one in unfinished}
                raise InternalError(f"no rank can move: each waits for others, {waits}")
