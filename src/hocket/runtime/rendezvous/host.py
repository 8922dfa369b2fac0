"""The first rank's side of the rendezvous on a host: one loop over a listening socket and one connection per rank.

`protocol` decides; this module moves the bytes. Connections of unknown processes ("strangers") are limited in number,
bytes and time.
"""

import errno
import os
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from hocket.errors import RendezvousError
from hocket.runtime.ranks.environment import Environment
from hocket.runtime.ranks.rank_names import name_ranks
from hocket.runtime.rendezvous import protocol as protocol
from hocket.runtime.rendezvous import sockets
from hocket.runtime.rendezvous.protocol import Encoded, Gathering

NOTICE_SECONDS = 5.0  # after this wait, one line names the missing ranks
LINGER_SECONDS = 2.0  # for this long after a failure, late ranks are still told about it
STRANGER_SECONDS = 2.0  # a connection must send its hello within this time, or it is dropped
MAX_STRANGERS = 64
CANCEL_SECONDS = 0.1
_PENDING_SECONDS = 1.0


def notice(environment: Environment, waited_for: Sequence[int], why: str = "") -> None:
    """Prints one line on standard error: this rank, the ranks for which it waits, and perhaps why."""
    print(
        f"hocket: rank {environment.rank} of {environment.size} has waited {NOTICE_SECONDS:g} s at the rendezvous for "
        f"{name_ranks(waited_for)} (it gives up after {environment.timeout_seconds:g} s)"
        f"{f': {why}' if why else ''}",
        file=sys.stderr,
        flush=True,
    )


def cancelled(environment: Environment) -> bool:
    """Returns whether another thread rank has failed, so that the group can never be complete."""
    return environment.cancel is not None and environment.cancel.is_set()


@dataclass(eq=False)
class _Peer:
    socket: socket.socket
    process: int
    since: float
    rank: int | None = None  # None: it has sent no hello, and may be a stranger
    told: bool = False  # whether it knows of the failure
    outgoing: deque[tuple[bytes, Sequence[int]]] = field(default_factory=deque)


class Meeting:
    """Gathers the ranks of this host. After `run` the caller owns descriptors (by rank); if it raises, they are closed.

    others: more descriptors for all ranks here, by a number that no rank here has; they stay the caller's.
    """

    def __init__(
        self,
        environment: Environment,
        listener: socket.socket,
        descriptor: int,
        hello: Encoded,
        config: Encoded,
        others: Mapping[int, int],
    ) -> None:
        self.environment, self.config, self._others = environment, config, others
        self.gathering = Gathering(environment.size, hello, environment.here)
        self.descriptors: dict[int, int] = {environment.here[0]: os.dup(descriptor)}
        self._listener: socket.socket | None = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._peers: set[_Peer] = set()

    def run(self, deadline: float) -> None:
        """Returns when all ranks have all descriptors. Raises RendezvousError, the same on every rank that came."""
        try:
            self._gather(deadline)
        except BaseException:
            sockets.close(self.descriptors.values())
            raise
        finally:
            self._stop_listening()
            for peer in list(self._peers):
                self._drop(peer)
            self._selector.close()

    def _gather(self, deadline: float) -> None:
        gathering = self.gathering
        notice_at = time.monotonic() + NOTICE_SECONDS
        pending_at = time.monotonic() + _PENDING_SECONDS
        linger_until: float | None = None
        while not gathering.all_ready:
            now = time.monotonic()
            if gathering.failure is None and now >= deadline:
                gathering.expire(self.environment.timeout_seconds)
            self._heed_cancel()
            if gathering.failure is not None:
                self._tell_failure(gathering.failure)
                linger_until = linger_until or min(deadline, now + LINGER_SECONDS)
                all_told = self._listener is None or len(gathering.heard) == len(gathering.here)
                if all_told or now >= linger_until or cancelled(self.environment):
                    raise gathering.failure
                self._turn(linger_until)
            elif gathering.complete and self._listener is not None:
                # No other rank can join now, and the address is free for the next meeting of this group.
                self._stop_listening()
                for number, descriptor in self._others.items():
                    gathering.hellos[number], self.descriptors[number] = {}, os.dup(descriptor)
                self._introduce()
            elif now >= notice_at:
                notice_at = deadline
                if gathering.missing:
                    notice(self.environment, gathering.missing)
            elif now >= pending_at:
                pending_at = now + _PENDING_SECONDS
                self._tell(protocol.Pending(gathering.missing[: protocol.MAX_MISSING]))
            else:
                self._turn(min(notice_at, pending_at, deadline))
        self._tell(protocol.Go())

    def _heed_cancel(self) -> None:
        if self.gathering.failure is None and cancelled(self.environment):
            text = "another rank failed before it came to the rendezvous"
            self.gathering.fail(text, self.gathering.missing, follows=True)

    def _turn(self, until: float) -> None:
        """Waits at most until this time for input, then handles it."""
        now = time.monotonic()
        strangers = [peer for peer in self._peers if peer.rank is None]
        for peer in strangers:
            if now - peer.since > STRANGER_SECONDS:
                self._drop(peer)
        wait = min([until - now, *(peer.since + STRANGER_SECONDS - now for peer in strangers)])
        if self.environment.cancel is not None:
            wait = min(wait, CANCEL_SECONDS)
        for key, events in self._selector.select(max(wait, 0.001)):
            if key.fileobj is self._listener:
                self._accept()
            elif key.data in self._peers:
                if events & selectors.EVENT_READ:
                    self._read(key.data)
                if events & selectors.EVENT_WRITE and key.data in self._peers:
                    self._flush(key.data)

    def _accept(self) -> None:
        assert self._listener is not None
        strangers = sorted((peer for peer in self._peers if peer.rank is None), key=lambda peer: peer.since)
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if strangers:
                self._drop(strangers[0])
            else:
                first = self.environment.here[0]
                self.gathering.fail(f"rank {first} cannot accept another rank: {error.strerror}; raise `ulimit -n`")
                self._stop_listening()
            return
        process, user = sockets.credentials(connection)
        if user != os.geteuid():
            connection.close()
            return
        if len(strangers) >= MAX_STRANGERS:
            self._drop(strangers[0])
        connection.setblocking(False)
        peer = _Peer(connection, process, time.monotonic())
        self._peers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _read(self, peer: _Peer) -> None:
        try:
            data, descriptors = sockets.receive(peer.socket, protocol.MAX_HELLO_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = None, []
        self._heed_cancel()  # first: a thread rank that ends because of the cancel is not the cause
        if peer.rank is None and data is not None:
            peer.rank = self.gathering.arrive(data, f"process {peer.process}")
            if self.gathering.failure is None and peer.rank is not None:
                if len(descriptors) == 1:
                    self.descriptors[peer.rank] = descriptors.pop()
                    self._queue(peer, protocol.Pending(self.gathering.missing[: protocol.MAX_MISSING]))
                else:
                    self.gathering.fail(f"rank {peer.rank} sent {len(descriptors)} descriptors; expected 1")
        elif peer.rank is not None:
            self.gathering.receive(peer.rank, data)
        sockets.close(descriptors)
        if data is None or peer.rank is None:
            self._drop(peer)

    def _introduce(self) -> None:
        parts = self.gathering.roster(self.config)
        for peer in list(self._peers):
            if peer.rank is None:
                self._drop(peer)
            else:
                peer.outgoing.extend((data, [self.descriptors[rank] for rank in ranks]) for data, ranks in parts)
                self._flush(peer)

    def _tell(self, message: msgspec.Struct) -> None:
        for peer in self._peers:
            if peer.rank is not None:
                self._queue(peer, message)

    def _tell_failure(self, failure: RendezvousError) -> None:
        for peer in self._peers:
            if peer.rank is not None and not peer.told:
                peer.told = True
                peer.outgoing.clear()
                missing = list(failure.missing)[: protocol.MAX_MISSING]
                self._queue(peer, protocol.Failure(str(failure), missing, failure.follows))

    def _queue(self, peer: _Peer, message: msgspec.Struct) -> None:
        peer.outgoing.append((protocol.encode(message), ()))
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        while peer.outgoing:
            try:
                sockets.send(peer.socket, *peer.outgoing[0])
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:  # too many descriptors in flight; the peers are reading them
                    time.sleep(0.001)
                    break
                peer.outgoing.clear()  # the peer has ended; the next read reports it
            else:
                peer.outgoing.popleft()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.outgoing else 0)
        self._selector.modify(peer.socket, wanted, peer)

    def _drop(self, peer: _Peer) -> None:
        self._peers.discard(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
