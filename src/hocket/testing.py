"""The tools with which Hocket tests itself, for programs that use or extend it.

    check_schedule    a schedule or algorithm: the proof, and its plans run in random orders against the reference
    check_transport   one rank's side of the contract that every transport keeps (csrc/transport/transport.h)
    run_ranks         a function as several ranks, in processes or threads
    paced_link        a block in which ranks are joined by slow links: communication that leaves the CPU alone

Call these from your own tests.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hocket.algorithms import Algorithm
from hocket.runtime import paced_link, run_ranks
from hocket.schedule import (
    Certificate,
    Reduction,
    Schedule,
    interpreter,
    lower_all,
    numpy_dtype,
    premul_sum,
    reference,
    verify,
)

__all__ = ["check_schedule", "check_transport", "paced_link", "run_ranks"]

# Sizes around those at which transports change their method: elements, a cache line, a page, a piece.
_SIZES = (1, 2, 3, 7, 8, 47, 48, 49, 63, 64, 65, 4095, 4096, 4097, (128 << 10) - 1, 128 << 10, (128 << 10) + 1)
_PATIENCE_SECONDS = 60.0
_MORE_THAN_A_CHANNEL_HOLDS = 1 << 26  # bytes
_MORE_THAN_A_CHANNEL_TAKES = 1 << 16  # messages


def check_schedule(schedule: Schedule | Algorithm, num_ranks: int = 4, root: int = 0, *, seeds: int = 5) -> Certificate:
    """Prove a schedule, then run its plans in `seeds` random orders and compare every bit with the reference.

    An algorithm is first built for num_ranks and root, and its promises are part of the proof. VerifyError if the proof
    fails; AssertionError if plans and reference differ, which would be a bug in Hocket.
    """
    if isinstance(schedule, Algorithm):
        certificate = schedule.verify(num_ranks, root)
        schedule = schedule.build(num_ranks, root)
    else:
        certificate = verify(schedule)
    # A barrier may count a contribution twice, which max does not show. A factor shows contributions that are read too
    # often, or never.
    reductions: tuple[str | Reduction, ...] = ("sum", premul_sum(1.5)) if schedule.kind.exactly_once else ("max",)
    for in_place in (False, True):
        plans = lower_all(schedule, in_place)
        lengths = random_block_lengths(schedule, seed=0, in_place=in_place)
        inputs = random_inputs(schedule, seed=0, block_lengths=lengths)
        expected = [reference.run(schedule, inputs, reduction, block_lengths=lengths) for reduction in reductions]
        for seed in range(seeds):
            chosen, pieces = seed % len(reductions), 1 + seed % 3
            found = interpreter.run_plans(
                plans, inputs, reductions[chosen], seed=seed, num_pieces=pieces, block_lengths=lengths
            )
            assert_same_bits(found, expected[chosen])
    return certificate


def random_block_lengths(schedule: Schedule, *, seed: int, in_place: bool = False, most: int = 0) -> Any:
    """Elements of every block of an uneven collective, int64, some of them 0 and none above `most`; else None.

    With most=0 there are a few elements per chunk. In place, what two ranks exchange is equally long in both
    directions.
    """
    kind, p = schedule.kind, schedule.num_ranks
    if not kind.uneven:
        return None
    choose = np.random.default_rng(seed)
    lengths = choose.integers(1, (most or 4 * schedule.chunks_per_block) + 1, kind.num_blocks(p))
    lengths[choose.random(len(lengths)) < 0.25] = 0
    if in_place and kind.blocks == "pair":
        upper = np.triu(lengths.reshape(p, p))
        lengths = (upper + np.triu(upper, 1).T).ravel()
    return lengths


def random_inputs(
    schedule: Schedule, *, seed: int, dtype: str = "float32", block: int = 0, block_lengths: Any = None
) -> list[Any]:
    """Inputs for every rank of a schedule; None for a rank without input.

    Blocks have `block` elements (a few per chunk if 0), or as many as block_lengths says (see random_block_lengths).
    """
    kind, p = schedule.kind, schedule.num_ranks
    choose, stored = np.random.default_rng(seed), numpy_dtype(dtype)
    if block_lengths is None:
        block_lengths = np.full(kind.num_blocks(p), block or 3 * schedule.chunks_per_block + 1)
    inputs: list[Any] = []
    for rank in range(p):
        blocks = kind.input_blocks(rank, p, schedule.root)
        count = int(block_lengths[blocks].sum())
        if stored.kind == "c":
            values = choose.standard_normal(count) + 1j * choose.standard_normal(count)
        elif stored.kind in "iu":
            values = choose.integers(0, 100, count)
        else:
            values = choose.integers(0, 2, count) if stored.kind == "b" else choose.standard_normal(count)
        inputs.append(values.astype(stored) if blocks else None)
    return inputs


def assert_same_bits(found: list[Any], expected: list[Any]) -> None:
    """AssertionError unless both are the same outputs by rank; any NaN equals any NaN."""
    assert len(found) == len(expected)
    for rank, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one is None or other is None:
            assert one is None and other is None, f"rank {rank}: expected {other}, found {one}"
            continue
        assert one.dtype == other.dtype and one.shape == other.shape, (
            f"rank {rank}: {one.dtype}{list(one.shape)}, expected {other.dtype}{list(other.shape)}"
        )
        same = (one == other) & (_signs(one) == _signs(other)) | (one != one) & (other != other)
        wrong = np.flatnonzero(~same)
        assert not wrong.size, f"rank {rank}: element {wrong[:1]} is {one[wrong[:1]]}, expected {other[wrong[:1]]}"


def _signs(array: Any) -> Any:
    """Where the sign bit, which tells -0 from 0, is set in the real or the imaginary part."""
    if array.dtype.kind == "c":
        return np.signbit(array.real) * 2 + np.signbit(array.imag)
    return np.signbit(array) if array.dtype.kind in "fV" else array < 0


# --- transports ----------------------------------------------------------------------------------------------------


def check_transport(transport: Any, rank: int, size: int, barrier: Callable[[], object]) -> None:
    """Check one rank's end of a transport against the contract. All `size` ranks call this at once, each with its own
    end.

    They may be processes or threads; nothing else may use the transport meanwhile. `barrier` blocks until all ranks
    have called it, by other means than this transport. AssertionError names the broken clause. A transport that stops
    moving fails after a minute.
    """
    others = [peer for peer in range(size) if peer != rank]
    if not others:
        return
    _check_streams(transport, rank, others)
    _check_shared_message(transport, rank, others)
    barrier()  # no message is under way when the next check fills channels
    _check_independence(transport, rank, others, barrier)
    _check_copies(transport, rank, others)
    for peer in others:
        _until(lambda peer=peer: transport.released(peer) == transport.posted(peer), "all that was posted is released")


def _until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"the transport stopped moving; waited until {what}"
        time.sleep(0)  # lets the other ranks run


def _content(source: int, destination: int, clause: int, num_bytes: int) -> Any:
    """Bytes that encode where they come from, so that a misdirected byte is recognised."""
    return np.random.default_rng([source, destination, clause, num_bytes]).integers(0, 256, num_bytes, np.uint8)


class _Outgoing:
    """Bytes on their way to peers, offered again until all are taken."""

    def __init__(self, transport: Any, peers: list[int], data: Any, tag: int, may_lend: bool) -> None:
        self.transport, self.peers, self.data, self.tag, self.may_lend = transport, peers, data, tag, may_lend
        self.sent = 0
        self.was_lent = False

    def push(self) -> bool:
        if self.sent < len(self.data):
            taken, lent = self.transport.publish(self.peers, self.data[self.sent :], self.tag, self.may_lend)
            assert 0 <= taken <= len(self.data) - self.sent, "publish takes a prefix of what it is offered"
            assert self.may_lend or not lent, "what may not be lent is copied"
            self.sent += taken
            self.was_lent |= lent
        return self.sent == len(self.data)


class _Incoming:
    """Bytes expected from a peer, taken in parts of odd sizes."""

    def __init__(self, transport: Any, peer: int, data: Any, tag: int, seed: int) -> None:
        self.transport, self.peer, self.data, self.tag = transport, peer, data.tobytes(), tag
        self.read = 0
        self.choose = random.Random(seed)

    def pull(self) -> bool:
        if self.read == len(self.data):
            return True
        view, tag = self.transport.view(self.peer)
        if view:
            assert tag == self.tag, f"from rank {self.peer}: expected tag {self.tag}, found {tag}"
            limit = min(len(view), len(self.data) - self.read)
            expected = self.data[self.read : self.read + limit]
            assert view[:limit] == expected, f"from rank {self.peer}: wrong bytes after {self.read}"
            part = self.choose.choice([limit, max(1, limit // 3), 1 if limit < 64 else limit])
            again = self.transport.view(self.peer)[0]  # more may have come
            assert again[: len(view)] == view, "a view stays until its bytes are released"
            self.transport.release(self.peer, part)
            self.read += part
        return self.read == len(self.data)


def _check_streams(transport: Any, rank: int, others: list[int]) -> None:
    """Every channel carries its bytes in order and once, with their tags, whatever the sizes, in both directions."""
    for number, num_bytes in enumerate(_sizes(transport)):
        tag = 1 + number
        outgoing = [
            _Outgoing(transport, [peer], _content(rank, peer, tag, num_bytes), tag, may_lend=number % 2 == 0)
            for peer in others
        ]
        incoming = [
            _Incoming(transport, peer, _content(peer, rank, tag, num_bytes), tag, seed=number) for peer in others
        ]
        _until(lambda all=(outgoing, incoming): _move(*all), f"{num_bytes} bytes have gone each way")
        _drain(transport, outgoing)


def _sizes(transport: Any) -> Iterator[int]:
    slow = "ByteStream" in type(transport).__name__  # it moves a byte at a time, so large sizes take too long
    yield from (size for size in _SIZES if size < 4096 or not slow)


def _move(outgoing: list[_Outgoing], incoming: list[_Incoming]) -> bool:
    sent = [one.push() for one in outgoing]
    read = [one.pull() for one in incoming]
    return all(sent) and all(read)


def _drain(transport: Any, outgoing: list[_Outgoing]) -> None:
    """Wait until lent memory has been read, because the caller of this function frees it afterwards."""
    for one in outgoing:
        if one.was_lent:
            for peer in one.peers:
                _until(lambda peer=peer: transport.released(peer) == transport.posted(peer), "a loan is returned")


def _check_shared_message(transport: Any, rank: int, others: list[int]) -> None:
    """What is published once for all peers arrives at each of them."""
    for tag, num_bytes in ((101, 33), (102, 1000), (103, max(_sizes(transport)))):
        outgoing = [_Outgoing(transport, others, _content(rank, 0, tag, num_bytes), tag, may_lend=True)]
        incoming = [_Incoming(transport, peer, _content(peer, 0, tag, num_bytes), tag, seed=tag) for peer in others]
        _until(lambda all=(outgoing, incoming): _move(*all), "a message for all has arrived everywhere")
        _drain(transport, outgoing)


def _check_independence(transport: Any, rank: int, others: list[int], barrier: Callable[[], object]) -> None:
    """A full channel refuses instead of blocking, and a peer that does not release holds up its own channel only."""
    tag, num_bytes = 201, min(4096, max(_sizes(transport)))
    lazy, busy = others[0], others[1:]  # each rank fills the channel to its lowest peer, which reads last
    filled = _Outgoing(transport, [lazy], np.zeros(_MORE_THAN_A_CHANNEL_HOLDS, np.uint8), tag, may_lend=False)
    for _ in range(_MORE_THAN_A_CHANNEL_TAKES):
        before = filled.sent
        assert not filled.push(), f"a channel that nobody reads took {_MORE_THAN_A_CHANNEL_HOLDS} bytes"
        if filled.sent == before:
            break
    else:
        raise AssertionError(f"a channel that nobody reads took {_MORE_THAN_A_CHANNEL_TAKES} messages")
    barrier()
    fillers = others if rank == 0 else [0] if rank == 1 else []
    outgoing = [
        _Outgoing(transport, [peer], _content(rank, peer, tag, num_bytes), tag, may_lend=False) for peer in busy
    ]
    incoming = [
        _Incoming(transport, peer, _content(peer, rank, tag, num_bytes), tag, seed=1)
        for peer in others
        if peer not in fillers
    ]
    _until(lambda: _move(outgoing, incoming), "every channel carries a piece while others are full")
    barrier()
    outgoing = [_Outgoing(transport, [lazy], np.ones(1, np.uint8), tag, may_lend=False)]
    ended: set[int] = set()

    def empty_channels() -> bool:
        sent = outgoing[0].push()
        for peer in set(fillers) - ended:
            view, _ = transport.view(peer)
            if not view:
                continue  # without a message there is nothing that could be released
            assert set(view) <= {0, 1}, f"from rank {peer}: bytes that nobody sent"
            if 1 in view:
                ended.add(peer)
            transport.release(peer, len(view))
        return sent and len(ended) == len(fillers)

    _until(empty_channels, "a full channel is emptied and takes more")


def _check_copies(transport: Any, rank: int, others: list[int]) -> None:
    """What may not be lent can be overwritten as soon as it is taken."""
    tag, num_bytes = 301, min(5000, max(_sizes(transport)))
    incoming = [_Incoming(transport, peer, _content(peer, rank, tag, num_bytes), tag, seed=2) for peer in others]
    for peer in others:
        data = _content(rank, peer, tag, num_bytes)
        outgoing = _Outgoing(transport, [peer], data, tag, may_lend=False)

        def step(outgoing: _Outgoing = outgoing, data: Any = data) -> bool:
            done = outgoing.push()
            data[: outgoing.sent] = 0
            for one in incoming:
                one.pull()
            return done

        _until(step, "a copy is taken")
    _until(lambda: _move([], incoming), "copies arrive")
