"""Many ranks in one thread: the third driver of the executor, besides the blocking call and the stream.

A seeded choice decides which rank moves next, so a failing run can be repeated. It needs no other thread, process or
clock; memory, transports and executors are the real ones.
"""

import itertools
import random
import socket
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket import _core
from hocket.errors import InternalError
from hocket.runtime import DTYPES, OPS
from hocket.runtime.communicator.reductions import extra_of, parameters_of
from hocket.runtime.plans import in_core
from hocket.schedule import Plan, Reduction, Schedule, as_reduction, in_place_offset, lower_all

Arrays = Sequence[npt.NDArray[Any] | None]
Lengths = npt.NDArray[np.int64]


def byte_streams(num_ranks: int) -> list[Any]:
    """Makes transports for all ranks of one process that carry one byte at a time."""
    streams = _core.ByteStreams(num_ranks)
    return [streams.endpoint(rank) for rank in range(num_ranks)]


def shared_memory(num_ranks: int, arena_bytes: int = 1 << 28) -> list[Any]:
    """Makes the cores of all ranks' communicators in this process, over shared memory, each with its `.transport`."""
    arenas = [_core.Arena(arena_bytes) for _ in range(num_ranks)]
    contexts = [_core.Context(arena, _core.Recorder()) for arena in arenas]
    endpoints = [context.add_endpoint(num_ranks) for context in contexts]
    descriptors = [arena.descriptor for arena in arenas]
    presences = [context.presence_offset for context in contexts]
    members = list(range(num_ranks))
    for rank, context in enumerate(contexts):
        context.join(rank, descriptors, presences, _core.profile_of("generic", True), [], [], [])
    return [_core.Communicator(context, members, rank, endpoints, False) for rank, context in enumerate(contexts)]


def tcp(num_ranks: int) -> list[Any]:
    """Makes transports for all ranks of one process, each channel a connection through the loopback interface."""
    sent: dict[tuple[int, int], int] = {}
    read: dict[tuple[int, int], int] = {}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for channel in itertools.permutations(range(num_ranks), 2):
            opened = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
            for end in (opened, accepted):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sent[channel], read[channel] = opened.detach(), accepted.detach()
    connections = _core.Connections(0)
    ends = [_core.TcpTransport(connections, num_ranks) for _ in range(num_ranks)]
    for (rank, peer), descriptor in sent.items():
        ends[rank].connect_to(peer, descriptor)
        ends[peer].connect_from(rank, read[rank, peer])
    return ends


def mixed(cores: Sequence[Any], seed: int) -> list[Any]:
    """Joins pairs of ranks by shared memory, by connections or by single bytes, as a seeded choice decides.

    Each rank has one transport for all of that.
    """
    size, choose = len(cores), random.Random(seed)
    kinds = {frozenset(pair): choose.randrange(3) for pair in itertools.combinations(range(size), 2)}
    return [
        _core.Carrier((core.transport, *others), [kinds.get(frozenset((rank, peer)), 0) for peer in range(size)])
        for rank, (core, *others) in enumerate(zip(cores, tcp(size), byte_streams(size), strict=True))
    ]


def run_world(
    schedule: Schedule,
    inputs: Arrays,
    reduction: str | Reduction = "sum",
    *,
    transports: Sequence[Any],
    in_place: bool = False,
    seed: int = 0,
    block_lengths: Lengths | None = None,
    patience: float = 0.0,
) -> list[npt.NDArray[Any] | None]:
    """Runs a schedule natively, all ranks in this thread, and returns the outputs by rank; arrays are 1-d, one dtype.

    inputs and block_lengths: as for schedule.reference.run. InternalError if no rank has moved for `patience` seconds,
    which only what comes through the system needs: a deadlock.
    """
    kind, size, root = schedule.kind, schedule.num_ranks, schedule.root
    meant = as_reduction(reduction)
    given = next(array for array in inputs if array is not None)
    block, lengths = 0, block_lengths
    if lengths is None:
        block = given.size // max(len(kind.input_blocks(rank, size, root)) for rank in range(size))
        lengths = np.full(kind.num_blocks(size), block)
    machines, memories = [], []
    for plan, array, transport in zip(lower_all(schedule, in_place), inputs, transports, strict=True):
        source, target = _memory(plan, lengths, given.dtype)
        if array is not None and source is not None:
            source[:] = array
        machine = _core.Executor(in_core(plan, schedule.collective, schedule.collective), transport)
        addresses = [0 if memory is None else memory.ctypes.data for memory in (source, target)]
        dtype = DTYPES.index(given.dtype.name)
        held = (lengths[plan.input_blocks].tolist(), lengths[plan.output_blocks].tolist())
        extra = extra_of(parameters_of(meant, dtype), None if block_lengths is None else held)
        machine.start(dtype, OPS.index(meant.name), block, addresses[0], addresses[1], 1, extra)
        machines.append(machine)
        memories.append((source, target))
    _drive(machines, random.Random(seed), patience)
    return [target for _, target in memories]


def _memory(plan: Plan, lengths: Lengths, dtype: np.dtype[Any]) -> list[npt.NDArray[Any] | None]:
    """Returns input and output of one rank, or None; in place, the smaller one is a part of the larger one."""
    held = [lengths[plan.input_blocks], lengths[plan.output_blocks]]
    apart = [np.zeros(int(blocks.sum()), dtype) if len(blocks) else None for blocks in held]
    smaller, larger = sorted((0, 1), key=lambda one: len(held[one]))
    memory = apart[larger]
    if plan.in_place and memory is not None and len(held[smaller]):
        offset = in_place_offset(plan.input_blocks.tolist(), plan.output_blocks.tolist())
        begin = int(held[larger][:offset].sum())
        apart[smaller] = memory[begin : begin + int(held[smaller].sum())]
    return apart


def _drive(machines: list[Any], choose: random.Random, patience: float) -> None:
    unfinished = list(range(len(machines)))
    stuck: set[int] = set()
    moved = time.monotonic()
    while unfinished:
        rank = choose.choice([one for one in unfinished if one not in stuck])
        before = machines[rank].num_moves()
        is_done = machines[rank].advance()
        if is_done:
            unfinished.remove(rank)
        if is_done or machines[rank].num_moves() > before:
            stuck.clear()
            moved = time.monotonic() if patience else moved
        else:
            stuck.add(rank)
            if len(stuck) == len(unfinished) and patience and time.monotonic() - moved < patience:
                stuck.clear()
            elif len(stuck) == len(unfinished):
                waits = {one: machines[one].waiting_for() for one in unfinished}
                raise InternalError(f"no rank can move: each waits for others, {waits}")
