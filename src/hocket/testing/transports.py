"""The contract of transports (csrc/transport/transport.h), as checks that every implementation passes."""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

# Sizes around those at which transports change their method: elements, a cache line, a page, a piece.
_SIZES = (1, 2, 3, 7, 8, 47, 48, 49, 63, 64, 65, 4095, 4096, 4097, (128 << 10) - 1, 128 << 10, (128 << 10) + 1)
_PATIENCE_SECONDS = 60.0
_PIECE = 128 << 10
_MORE_THAN_A_CHANNEL_HOLDS = 1 << 26  # bytes
_MORE_THAN_A_CHANNEL_TAKES = 1 << 16  # messages


def check_transport(
    transport: Any, rank: int, size: int, barrier: Callable[[], object], empty: Callable[[int], Any] | None = None
) -> None:
    """Check one rank's end of a transport against the contract. All `size` ranks call this at once, each with its own
    end.

    They may be processes or threads; nothing else may use the transport meanwhile. `barrier` blocks until all ranks
    have called it, by other means than this transport. `empty` makes an array of so many uint8 that peers can reach,
    for windows; the default is private memory. AssertionError names the broken clause. A transport that stops moving
    fails after a minute.
    """
    others = [peer for peer in range(size) if peer != rank]
    if not others:
        return
    _check_looks(transport, others)
    barrier()  # nobody has sent anything until all have looked
    _check_streams(transport, rank, others)
    _check_heads(transport, rank, others)
    _check_shared_message(transport, rank, others)
    barrier()  # no message is under way when the next check fills channels
    _check_independence(transport, rank, others, barrier)
    _check_copies(transport, rank, others)
    for peer in others:
        _until(lambda peer=peer: transport.released(peer) == transport.posted(peer), "all that was posted is released")
    barrier()
    _check_windows(transport, rank, others, barrier, empty or (lambda num_bytes: np.empty(num_bytes, np.uint8)))


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

    def __init__(
        self, transport: Any, peers: list[int], data: Any, tag: int, way: str = "stage", may_wait: bool = False
    ) -> None:
        self.transport, self.peers, self.data, self.tag, self.way = transport, peers, data, tag, way
        self.may_wait = may_wait
        self.sent = 0
        self.was_lent = False

    def push(self) -> bool:
        if self.sent < len(self.data):
            before = [self.transport.posted(peer) for peer in self.peers]
            rest = self.data[self.sent :]
            taken, lent = self.transport.post(self.peers, rest, self.tag, self.way, None, self.may_wait)
            assert 0 <= taken <= len(rest), "post takes a prefix of what it is offered"
            is_whole = len(rest) <= _PIECE and self.transport.reach(self.peers).whole_pieces
            assert taken in (0, len(rest)) or not is_whole, "a piece is taken as a whole where reach says so"
            assert self.way in ("lend", "fetch", "stream") or not lent, "what is not to be lent is copied"
            grown = [self.transport.posted(peer) > number for peer, number in zip(self.peers, before, strict=True)]
            assert all(grown) if taken else not any(grown), "posted grows with what is taken, for each peer"
            self.sent += taken
            self.was_lent |= lent
            self.transport.flush()
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
            assert self.transport.copy(self.peer, part) == view[:part], "copy gives what the view shows"
            self.transport.release(self.peer, part)
            self.transport.flush()
            self.read += part
        return self.read == len(self.data)


def _check_looks(transport: Any, others: list[int]) -> None:
    """Before anything is sent nothing is shown or under way, and each peer is reached in one way."""
    for peer in others:
        assert transport.view(peer) == (b"", 0), f"from rank {peer}: bytes that nobody sent"
        may_hide = transport.reach([peer]).is_stream  # nobody knows what is still inside
        assert may_hide or not transport.is_coming(peer), f"from rank {peer}: nothing is on its way"
        assert transport.told(peer) == transport.posted(peer) == transport.released(peer) == 0
        assert transport.windows is not None or not transport.reach([peer]).may_put, "what is put goes through windows"
    assert transport.until_arrival() is None, "nothing is on its way"
    transport.memory_of(np.zeros(8, np.uint8), others, False)  # any kind will do, as it only chooses a way


def _check_streams(transport: Any, rank: int, others: list[int]) -> None:
    """Every channel carries its bytes in order and once, with their tags, whatever the sizes, in both directions."""
    ways = ("lend", "stage", "fetch", "stream")
    for number, num_bytes in enumerate(_sizes(transport)):
        tag = 1 + number
        outgoing = [
            _Outgoing(
                transport, [peer], _content(rank, peer, tag, num_bytes), tag, ways[number % 4], may_wait=number % 2 == 1
            )
            for peer in others
        ]
        incoming = [
            _Incoming(transport, peer, _content(peer, rank, tag, num_bytes), tag, seed=number) for peer in others
        ]
        for peer in others:
            transport.prepare(peer, num_bytes)  # a hint, which must not be seen
        _until(lambda all=(outgoing, incoming): _move(*all), f"{num_bytes} bytes have gone each way")
        _drain(transport, outgoing)


def _sizes(transport: Any) -> Iterator[int]:
    slow = type(transport).__name__ in ("ByteStreamTransport", "Carrier")  # by single bytes, so large sizes take long
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


def _check_heads(transport: Any, rank: int, others: list[int]) -> None:
    """A head goes before its bytes, once, whichever part of these is taken with it."""
    for peer in others:
        most = transport.reach([peer]).head_bytes
        for tag, num_bytes in ((81, 1), (82, 100), (83, min(10_000, max(_sizes(transport))))):
            head, data = _content(rank, peer, tag, min(most, 24)), _content(rank, peer, tag + 1, num_bytes)
            expected = np.concatenate(
                [_content(peer, rank, tag, min(most, 24)), _content(peer, rank, tag + 1, num_bytes)]
            )
            incoming = _Incoming(transport, peer, expected, tag, seed=tag)
            taken = 0

            def first(peer: int = peer, head: Any = head, data: Any = data, tag: int = tag) -> bool:
                nonlocal taken
                taken, _ = transport.post([peer], data, tag, "stage", head if len(head) else None)
                transport.flush()
                return bool(taken > 0)

            _until(first, "a head is taken with its bytes")
            rest = _Outgoing(transport, [peer], data[taken:], tag)
            _until(lambda both=([rest], [incoming]): _move(*both), "a head and its bytes have gone each way")


def _check_shared_message(transport: Any, rank: int, others: list[int]) -> None:
    """What is posted once for all peers arrives at each of them."""
    for tag, num_bytes in ((101, 33), (102, 1000), (103, max(_sizes(transport)))):
        groups: dict[int, list[int]] = {}  # peers that can share what is posted
        for peer in others:
            groups.setdefault(transport.reach([peer]).via, []).append(peer)
        outgoing = [
            _Outgoing(transport, peers, _content(rank, 0, tag, num_bytes), tag, "lend") for peers in groups.values()
        ]
        incoming = [_Incoming(transport, peer, _content(peer, 0, tag, num_bytes), tag, seed=tag) for peer in others]
        _until(lambda all=(outgoing, incoming): _move(*all), "a message for all has arrived everywhere")
        _drain(transport, outgoing)


def _check_independence(transport: Any, rank: int, others: list[int], barrier: Callable[[], object]) -> None:
    """A full channel refuses instead of blocking, and a peer that does not release holds up its own channel only.
    Numbers are told past it."""
    tag, num_bytes = 201, min(4096, max(_sizes(transport)))
    lazy, busy = others[0], others[1:]  # each rank fills the channel to its lowest peer, which reads last
    filled = _Outgoing(transport, [lazy], np.zeros(_MORE_THAN_A_CHANNEL_HOLDS, np.uint8), tag)
    for _ in range(_MORE_THAN_A_CHANNEL_TAKES):
        before = filled.sent
        assert not filled.push(), f"a channel that nobody reads took {_MORE_THAN_A_CHANNEL_HOLDS} bytes"
        if filled.sent == before:
            break
    else:
        raise AssertionError(f"a channel that nobody reads took {_MORE_THAN_A_CHANNEL_TAKES} messages")
    barrier()
    for peer in others:
        transport.tell(peer, 1000 * rank + peer)
    transport.flush()
    for peer in others:
        _until(lambda peer=peer: transport.told(peer) == 1000 * peer + rank, "a number comes past a full channel")
    fillers = others if rank == 0 else [0] if rank == 1 else []
    outgoing = [_Outgoing(transport, [peer], _content(rank, peer, tag, num_bytes), tag) for peer in busy]
    incoming = [
        _Incoming(transport, peer, _content(peer, rank, tag, num_bytes), tag, seed=1)
        for peer in others
        if peer not in fillers
    ]
    _until(lambda: _move(outgoing, incoming), "every channel carries a piece while others are full")
    barrier()
    outgoing = [_Outgoing(transport, [lazy], np.ones(1, np.uint8), tag)]
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
        outgoing = _Outgoing(transport, [peer], data, tag)

        def step(outgoing: _Outgoing = outgoing, data: Any = data) -> bool:
            done = outgoing.push()
            data[: outgoing.sent] = 0
            for one in incoming:
                one.pull()
            return done

        _until(step, "a copy is taken")
    _until(lambda: _move([], incoming), "copies arrive")


def _check_windows(
    transport: Any, rank: int, others: list[int], barrier: Callable[[], object], empty: Callable[[int], Any]
) -> None:
    """A peer writes where it is let, its message shows that place, and after a withdrawal nobody begins to write."""
    windows, tag, num_bytes = transport.windows, 401, min(6000, max(_sizes(transport)))
    arrays = {peer: empty(num_bytes) for peer in others}
    for peer, array in arrays.items():
        array[:] = 0
        if windows is not None:
            windows.grant(peer, tag, [array])
    barrier()
    granted = {}
    for peer in others:
        number = transport.posted(peer)
        if windows is not None:
            assert not windows.granted(peer, tag + 1, number), "a window is of one call"
        if windows is not None and (found := windows.granted(peer, tag, number)):
            granted[peer] = found[0]
            assert found[0].num_bytes == num_bytes and len(found) == 1, "what is granted is what is seen"
    incoming = [_Incoming(transport, peer, _content(peer, rank, tag, num_bytes), tag, seed=tag) for peer in others]
    sent = {peer: _Outgoing(transport, [peer], _content(rank, peer, tag, num_bytes), tag) for peer in others}

    def put(peer: int) -> bool:
        one = sent[peer]
        if one.sent == 0 and peer in granted:
            if windows.put(peer, granted[peer], one.data, tag, past_caches=peer % 2 == 0):
                one.sent = num_bytes
            transport.flush()
            return one.sent > 0
        return one.push()

    _until(lambda: all([put(peer) for peer in others] + [one.pull() for one in incoming]), "all was put, or sent")
    barrier()
    for peer, array in arrays.items():
        content = _content(peer, rank, tag, num_bytes)
        assert not array.any() or bytes(array) == content.tobytes(), f"from rank {peer}: wrong bytes in a window"
    if windows is not None:
        for peer, array in arrays.items():
            assert windows.may_be_written_by(peer) or not array.any(), f"rank {peer} has written, so it was let"
        windows.revoke()
        assert not any(windows.may_be_written_by(peer) for peer in others), "after the call nobody writes any more"
        for peer in others:
            windows.grant(peer, tag + 1, [arrays[peer]])
    barrier()
    again = {peer: windows.granted(peer, tag + 1, transport.posted(peer)) for peer in granted}
    barrier()
    transport.withdraw()
    barrier()
    for peer, found in again.items():
        assert found, f"from rank {peer}: a window of the next call is seen"
        assert not windows.put(peer, found[0], np.ones(1, np.uint8), tag + 1), "nobody writes what was withdrawn"
