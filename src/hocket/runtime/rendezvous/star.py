"""The ranks of a job that may be on several hosts meet.

All ranks meet at rank 0, over connections that prove the key of the job. Rank 0 hears from each rank on which host it
is, and tells all. The ranks of one host then meet as in `join`, and share memory; so nobody has to be told which ranks
are together. The lowest rank of each host is its leader: it keeps its connection to rank 0, and makes the mirrors in
which the ranks of its host see the others.
"""

import contextlib
import os
import secrets
import select
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hocket import _core
from hocket.errors import RendezvousError
from hocket.runtime.network import handshake
from hocket.runtime.network.addresses import Address, write_address
from hocket.runtime.network.connecting import UnreachedError, connect
from hocket.runtime.network.gate import LACK_SECONDS, Admitted, in_turn
from hocket.runtime.network.handshake import KEY_BYTES, Credentials, Purpose
from hocket.runtime.network.interfaces import choose, named_interfaces
from hocket.runtime.network.job_key import no_key
from hocket.runtime.network.sealed import LinkEndedError, SealedLink
from hocket.runtime.ranks.environment import Environment
from hocket.runtime.rendezvous import host as host
from hocket.runtime.rendezvous import protocol as protocol
from hocket.runtime.rendezvous.boards.board import Board
from hocket.runtime.rendezvous.first_place import gate_of_rank_0, read_place, write_place
from hocket.runtime.rendezvous.join import Membership, join
from hocket.runtime.rendezvous.protocol import Encoded, Gathering
from hocket.runtime.variables import KEY_FILE

_MEETING = (1 << 64) - 1  # what such a connection is for, where others name a communicator
_ATTEMPT_SECONDS = 5.0  # for one attempt to reach rank 0
_HANDSHAKE_SECONDS, _LEAST_SECONDS = 5.0, 0.1  # for one handshake; near the end of the time
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 0.5
_PENDING_SECONDS = 1.0
_ONE_KEY = f"give all ranks of a job one key ({KEY_FILE}), and each job its own address"


class Gathered(NamedTuple):
    """What a rank has once all have met.

    membership: by rank; of a rank on another host, the descriptor of its mirror. hosts: by rank, the number of its
    host. On a leader, mirrors: the core's; links: by rank, to the other leaders. bell: the leader's; it is one of the
    membership's descriptors, behind those of the ranks, and -1 if all ranks are on one host. key: of the job.
    """

    membership: Membership
    hosts: list[int]
    mirrors: Any
    links: dict[int, SealedLink]
    bell: int
    key: bytes


@dataclass(frozen=True)
class Offer:
    """What a rank brings: its arena, how large that is, what it says of itself, and, on rank 0, of the job.

    door: lets connections come in at these addresses of this host, and returns where.
    """

    descriptor: int
    capacity: int
    hello: Encoded
    config: Callable[[], Encoded]
    door: Callable[[Sequence[str]], Sequence[Address]]


def meet(environment: Environment, key: bytes | None, offer: Offer) -> Gathered:
    """Meets all ranks of the job; blocks until all are there, at most environment.timeout_seconds.

    key: the job's; None if it comes by the board, which has to be able to carry it. Raises RendezvousError, with the
    same reason on all ranks that came, or ResourceError.
    """
    deadline = time.monotonic() + environment.timeout_seconds
    assert environment.board is not None
    side = _Root if environment.rank == 0 else _Caller
    with contextlib.closing(side(environment, environment.board, key, offer, deadline)) as here:
        here.gather()
        try:
            gathered = _meet_on_host(environment, here.hellos, here.config, offer, deadline)
        except BaseException as error:
            here.fail(error)
            raise
        try:
            leaders = {gathered.hosts.index(number) for number in gathered.hosts}
            links = here.finish(leaders if len(leaders) > 1 else set())
        except BaseException:
            for descriptor in gathered.membership.descriptors:
                os.close(descriptor)
            raise
        return gathered._replace(links=links, key=here.key)


def _meet_on_host(
    environment: Environment, hellos: Sequence[Encoded], config: Encoded, offer: Offer, deadline: float
) -> Gathered:
    """Meets the ranks of this host, which then have everything that `Gathered` says but the links."""
    numbers: dict[str, int] = {}
    hosts = [numbers.setdefault(hello["host"], len(numbers)) for hello in hellos]
    mine = hosts[environment.rank]
    here = tuple(rank for rank, number in enumerate(hosts) if number == mine)
    local = replace(
        environment,
        address=f"hocket-{os.getuid()}-{config['job']}-{mine}",
        timeout_seconds=max(deadline - time.monotonic(), 0.001),
        here=here,
    )
    mirrors, others = None, dict[int, int]()
    if environment.rank == here[0] and len(numbers) > 1:
        mirrors = _core.Mirrors([0 if rank in here else hello["arena"] for rank, hello in enumerate(hellos)])
        others = {rank: mirrors.descriptor(rank) for rank in range(environment.size) if rank not in here}
        others[environment.size] = mirrors.bell
    try:
        met = join(local, offer.descriptor, {}, {}, others)
    except RendezvousError as error:
        where = hellos[environment.rank]["name"]
        raise RendezvousError(f"{error} [on {where}]", missing=error.missing, follows=error.follows) from error
    bell = met.descriptors[environment.size] if len(numbers) > 1 else -1
    membership = Membership(environment.rank, environment.size, met.descriptors, list(hellos), config)
    return Gathered(membership, hosts, mirrors, {}, bell, b"")


def identity() -> str:
    """Returns an identity of the running system and its network namespace: equal if processes can share a socket."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}/{os.getuid()}"


def _credentials(key: bytes) -> Credentials:
    """Returns what proves that a rank belongs to the job; size and build are compared later, to be told by name."""
    return Credentials(key, "", 0, 0)


class _Side:
    """What both sides have: rank 0, and the others."""

    def __init__(
        self, environment: Environment, board: Board, key: bytes | None, offer: Offer, deadline: float
    ) -> None:
        self.environment, self.board, self.offer, self.deadline = environment, board, offer, deadline
        self.key = key or b""  # until it is known
        self.hellos: list[Encoded] = []
        self.config: Encoded = {}
        if key is None and not board.carries_key:
            raise no_key(f"rank {environment.rank} of {environment.size}", board.where)

    def _hello(self, addresses: Sequence[str]) -> Encoded:
        doors = [list(address) for address in self.offer.door(addresses)]
        name = f"host {os.uname().nodename} ({addresses[0]})"
        return self.offer.hello | {"doors": doors, "host": identity(), "name": name, "arena": self.offer.capacity}


class _Root(_Side):
    """The side of rank 0."""

    def __init__(
        self, environment: Environment, board: Board, key: bytes | None, offer: Offer, deadline: float
    ) -> None:
        super().__init__(environment, board, key, offer, deadline)
        self._publishes_key = not self.key
        self.key = self.key or secrets.token_bytes(KEY_BYTES)
        self._gate = gate_of_rank_0(board, deadline)
        self._selector = selectors.DefaultSelector()
        self._links: list[SealedLink] = []
        self._ranks: dict[SealedLink, int] = {}  # of those that have said hello
        self._kept: set[SealedLink] = set()

    def gather(self) -> None:
        """Waits until all ranks have come, and tells each what it has to know of the others."""
        hello = self._hello([address[0] for address in self._gate.addresses])
        self._gathering = Gathering(self.environment.size, hello)
        self._gate.open(_credentials(self.key), self._selector, self._admit)
        self.board.publish(write_place(self._gate.addresses, self.key if self._publishes_key else None))
        self._wait(lambda: self._gathering.complete)
        self._gate.close()
        self.config = self.offer.config()
        self.hellos = [self._gathering.hellos[rank] for rank in range(self.environment.size)]
        self._tell(protocol.Roster(0, self.hellos, self.config))

    def finish(self, leaders: set[int]) -> dict[int, SealedLink]:
        """Waits until all ranks have met on their hosts; returns the links to leaders."""
        self._wait(lambda: self._gathering.all_ready)
        self._tell(protocol.Go())
        while any(link.num_pending for link in self._ranks):
            self._turn(time.monotonic() + 0.1)
        found = {rank: link for link, rank in self._ranks.items() if rank in leaders}
        if lost := sorted(leaders - {0} - set(found)):
            named = ", ".join(f"rank {rank} ({self.hellos[rank]['name']})" for rank in lost)
            raise RendezvousError(f"{named} ended as the rendezvous did; see its output", follows=True)
        self._kept = set(found.values())
        return found

    def fail(self, error: BaseException) -> None:
        """Tells all ranks that there will be no group."""
        missing = error.missing if isinstance(error, RendezvousError) else ()
        self._gathering.fail(str(error) or type(error).__name__, missing)
        self._tell_failure()

    def close(self) -> None:
        """Ends all connections but those that are kept."""
        self._gate.close()
        self._selector.close()
        for link in self._links:
            if link not in self._kept:
                link.close()

    def _wait(self, is_done: Callable[[], bool]) -> None:
        gathering, notice_at = self._gathering, time.monotonic() + host.NOTICE_SECONDS
        pending_at = 0.0
        while not is_done():
            now = time.monotonic()
            if now >= self.deadline:
                gathering.expire(self.environment.timeout_seconds, self._advice())
            if gathering.failure is not None:
                self._tell_failure()
                self._linger()
                raise gathering.failure
            if now >= pending_at:
                pending_at = now + _PENDING_SECONDS
                self._tell(protocol.Pending(gathering.missing[: protocol.MAX_MISSING]))
            if now >= notice_at:
                notice_at = self.deadline
                if gathering.missing:
                    host.notice(self.environment, gathering.missing)
            self._turn(min(pending_at, notice_at, self.deadline))

    def _linger(self) -> None:
        """Tells ranks that come late why there will be no group."""
        until = time.monotonic() + host.LINGER_SECONDS
        while len(self._gathering.heard) < self.environment.size and time.monotonic() < until:
            self._turn(until)

    def _advice(self) -> str:
        """Returns what to look at if ranks are missing."""
        if self._gate.refused:
            return f"processes on {', '.join(self._gate.refused)} came with another key: give all ranks the same one"
        where = ", ".join(write_address(*address) for address in self._gate.addresses)
        return f"rank 0 listens at {where}; with HOCKET_DEBUG=INIT each rank says where it looks"

    def _turn(self, until: float) -> None:
        times = [until, *self._gate.expire(time.monotonic())]
        for key, _ in in_turn(self._selector.select(max(min(times) - time.monotonic(), 0.0))):
            if isinstance(key.data, SealedLink):
                self._hear(key.data)
                continue
            try:
                self._gate.handle(key.fileobj, key.data)
            except OSError as error:
                self._gate.complain(error, "let others in")
                time.sleep(LACK_SECONDS)

    def _admit(self, admitted: Admitted) -> None:
        try:
            if admitted.purpose.communicator != _MEETING:
                raise ConnectionAbortedError("this connection is for a communicator")
            admitted.connection.send(admitted.greeting)
        except OSError:  # it has gone, or belongs elsewhere
            admitted.connection.close()
            return
        link = SealedLink(admitted.connection, admitted.session, opened_here=False)
        self._links.append(link)
        self._selector.register(link.connection, selectors.EVENT_READ, link)

    def _hear(self, link: SealedLink) -> None:
        try:
            link.flush()
            messages: list[bytes | None] = list(link.receive())
        except LinkEndedError:
            messages = [None]
        for data in messages:
            rank = self._ranks.get(link)
            if rank is None and data is not None:
                rank = self._gathering.arrive(data, f"the process at {link.peer}")
                if rank is not None:
                    self._ranks[link] = rank
                    if self._gathering.failure is not None:
                        self._tell_failure()
            elif rank is not None:
                self._gathering.receive(rank, data)
            if data is None:
                self._ranks.pop(link, None)
                self._selector.unregister(link.connection)
                return
        self._watch(link)

    def _watch(self, link: SealedLink) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.num_pending else 0)
        self._selector.modify(link.connection, wanted, link)

    def _tell(self, message: msgspec.Struct) -> None:
        data = protocol.encode(message)
        for link in list(self._ranks):
            with contextlib.suppress(LinkEndedError):  # the next look finds it
                link.send(data)
                self._watch(link)

    def _tell_failure(self) -> None:
        failure = self._gathering.failure
        assert failure is not None
        self._tell(protocol.Failure(str(failure), list(failure.missing)[: protocol.MAX_MISSING], failure.follows))


class _Caller(_Side):
    """The side of the other ranks."""

    def __init__(
        self, environment: Environment, board: Board, key: bytes | None, offer: Offer, deadline: float
    ) -> None:
        super().__init__(environment, board, key, offer, deadline)
        self._link: SealedLink | None = None
        self._unread: deque[bytes] = deque()

    def gather(self) -> None:
        """Finds rank 0, and waits until it tells what this rank has to know of the others."""
        link = self._link = self._reach()
        environment, source = self.environment, self._link.connection.getsockname()[0]
        self._send(
            protocol.Hello(
                protocol.PROTOCOL, protocol.VERSION, environment.rank, environment.size, self._hello([source])
            )
        )
        roster = self._await(protocol.Roster)
        self.hellos, self.config = roster.hellos, roster.config
        # The first of rank 0's doors is now the one at the address where it was found.
        reached = link.connection.getpeername()[0]
        self.hellos[0]["doors"].sort(key=lambda door: door[0] != reached)

    def finish(self, leaders: set[int]) -> dict[int, SealedLink]:
        """Waits until all ranks have met on their hosts; returns the link to rank 0 if this rank is a leader."""
        self._send(protocol.Ready())
        self._await(protocol.Go)
        if self.environment.rank not in leaders:
            return {}
        link, self._link = self._link, None
        assert link is not None
        return {0: link}

    def fail(self, error: BaseException) -> None:
        """Tells rank 0, and so all, that there will be no group."""
        missing = list(error.missing) if isinstance(error, RendezvousError) else []
        follows = isinstance(error, RendezvousError) and error.follows
        with contextlib.suppress(RendezvousError):
            self._send(protocol.Failure(str(error) or type(error).__name__, missing[: protocol.MAX_MISSING], follows))

    def close(self) -> None:
        """Ends the connection, unless it is kept."""
        if self._link is not None:
            self._link.close()

    def _reach(self) -> SealedLink:
        """Returns the link to rank 0, once that is there."""
        environment, pause = self.environment, _FIRST_PAUSE_SECONDS
        notice_at, why = time.monotonic() + host.NOTICE_SECONDS, f"nothing is published at {self.board.where}"
        while (now := time.monotonic()) < self.deadline:
            if now >= notice_at:
                notice_at = self.deadline
                host.notice(environment, [0], why)
            try:
                if text := self.board.find(min(self.deadline - now, 1.0)):
                    return self._knock(*read_place(text, self.board.where))
            except (UnreachedError, _RefusedError) as error:
                why = str(error)
            time.sleep(min(pause, max(self.deadline - time.monotonic(), 0.0)))  # rank 0 may not have started yet
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        raise RendezvousError(
            f"rank {environment.rank} of {environment.size} did not reach rank 0 within "
            f"{environment.timeout_seconds:g} s: {why}",
            missing=[0],
        )

    def _knock(self, addresses: Sequence[Address], key: bytes | None) -> SealedLink:
        pattern = named_interfaces()
        sources = choose(pattern, addresses[0]) if pattern else ()
        found = self.key or key
        if not found:
            raise RendezvousError(
                f"rank 0 was given a key of the job, rank {self.environment.rank} of {self.environment.size} was not; "
                f"set {KEY_FILE} on all ranks, or on none"
            )
        refused: dict[Address, _RefusedError] = {}
        while True:
            until = min(self.deadline, time.monotonic() + _ATTEMPT_SECONDS)
            try:
                connection, address = connect(addresses, until, sources=sources, without=refused)
            except UnreachedError as error:
                raise next(iter(refused.values()), error) from error
            try:
                return self._prove(connection, address, found)
            except _RefusedError as error:  # a stranger; rank 0 may be at another address
                refused[address] = error

    def _prove(self, connection: socket.socket, address: Address, found: bytes) -> SealedLink:
        """Returns the link over a new connection, once both ends have proved that they have the key."""
        begun = time.monotonic()
        until = min(begun + _HANDSHAKE_SECONDS, max(self.deadline, begun + _LEAST_SECONDS))
        try:
            job = _credentials(found)
            challenged = _read(connection, handshake.CHALLENGE_BYTES, until)
            answered = handshake.answer(job, Purpose(_MEETING, self.environment.rank, 0), challenged)
            if answered is None:
                raise _RefusedError(
                    f"{write_address(*address)} answers, but is not Hocket's rank 0, or runs another version; "
                    f"{_next_step(address)}"
                )
            connection.sendall(answered[0])
            if not handshake.is_greeting(answered[1], _read(connection, handshake.GREETING_BYTES, until)):
                raise _RefusedError(f"{write_address(*address)} does not prove the key of this job; {_ONE_KEY}")
            self.key = found
            return SealedLink(connection, job.session(challenged, answered[0]), opened_here=True)
        except TimeoutError as error:
            connection.close()
            raise _RefusedError(
                f"{write_address(*address)} accepts connections, but says nothing in {until - begun:.1g} s: no rank "
                f"0 of Hocket, or a stopped one; {_next_step(address)}"
            ) from error
        except OSError as error:
            connection.close()
            raise _RefusedError(
                f"{write_address(*address)} ended the handshake ({error}): another job, or another key, is there; "
                f"{_ONE_KEY}"
            ) from error
        except BaseException:
            connection.close()
            raise

    def _send(self, message: msgspec.Struct) -> None:
        assert self._link is not None
        try:
            self._link.send(protocol.encode(message))
        except LinkEndedError as error:
            raise self._lost(error) from error

    def _await(self, kind: type[Any]) -> Any:
        """Returns the next message of this kind. Raises RendezvousError if the meeting fails."""
        environment, link = self.environment, self._link
        assert link is not None
        missing: list[int] | None = None
        while True:
            left = self.deadline + host.LINGER_SECONDS - time.monotonic()  # rank 0 says first why it has failed
            if left <= 0:
                raise RendezvousError(
                    f"rank {environment.rank} of {environment.size} was not answered by rank 0 within "
                    f"{environment.timeout_seconds:g} s",
                    missing=missing or (),
                )
            while self._unread:
                message = protocol.decode(self._unread.popleft())
                if isinstance(message, protocol.Failure):
                    raise RendezvousError(message.message, missing=message.missing, follows=message.follows)
                if isinstance(message, protocol.Pending):
                    missing = message.missing
                elif isinstance(message, kind):
                    return message
            poll = select.poll()
            poll.register(link.connection, select.POLLIN | (select.POLLOUT if link.num_pending else 0))
            poll.poll(1000 * min(left, host.CANCEL_SECONDS))
            try:
                link.flush()
                self._unread += link.receive()
            except LinkEndedError as error:
                raise self._lost(error) from error

    def _lost(self, error: LinkEndedError) -> RendezvousError:
        text = f"rank 0 of {self.environment.size} ended during the rendezvous ({error}); see its output"
        return RendezvousError(text, follows=True)


class _RefusedError(Exception):
    """What answers is not rank 0 of this job."""


def _next_step(address: Address) -> str:
    return f"run `hocket doctor --address {write_address(*address)}` on host {os.uname().nodename}"


def _read(connection: socket.socket, length: int, until: float) -> bytes:
    data = b""
    while len(data) < length:
        connection.settimeout(max(until - time.monotonic(), 0.001))
        more = connection.recv(length - len(data))
        if not more:
            raise ConnectionResetError("it closed the connection")
        data += more
    return data
