"""The ranks of one host meet over an abstract Unix socket, and every rank gets a descriptor of every other rank.

No port, file or name remains afterwards. Only processes of the same user are accepted; data that is no hello of Hocket
is dropped and does no harm. `protocol` has the messages, `host` the first rank's side; this module has the entry point
and the side of the other ranks. It does not know what the descriptors are for.
"""

import errno
import os
import random
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from hocket.errors import RendezvousError, ResourceError
from hocket.runtime.ranks.environment import Environment
from hocket.runtime.ranks.rank_names import name_ranks
from hocket.runtime.rendezvous import host as host
from hocket.runtime.rendezvous import protocol as protocol
from hocket.runtime.rendezvous import sockets
from hocket.runtime.rendezvous.protocol import Encoded

_MAX_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Membership:
    """A complete group: all ranks came.

    descriptors: one open descriptor per rank (this rank's is a duplicate); the caller closes them. hellos: what each
    rank said about itself. config: what the first rank said for all ranks. If some ranks are on other hosts, the
    descriptors and hellos of those are what the first rank gave to `join`.
    """

    rank: int
    size: int
    descriptors: list[int]
    hellos: list[Encoded]
    config: Encoded


def join(
    environment: Environment,
    descriptor: int,
    hello: Encoded,
    config: Encoded | None = None,
    others: Mapping[int, int] | None = None,
) -> Membership:
    """Meets all ranks on this host; blocks until all are there, at most environment.timeout_seconds.

    All ranks get a duplicate of descriptor; the caller still owns it. hello and config (only the first rank's counts)
    are small dictionaries of types that msgpack supports; a larger one is a ValueError. others: more descriptors that
    the first rank gives to all here, numbered so that no number is left out; all know how many there are. Raises
    RendezvousError, with the same reason on all ranks that came, or ResourceError.
    """
    config = config or {}
    for name, value, limit in (
        ("hello", hello, protocol.MAX_HELLO_BYTES - protocol.HELLO_OVERHEAD_BYTES),
        ("config", config, protocol.MAX_CONFIG_BYTES),
    ):
        length = len(protocol.encode(value))
        if length > limit:
            raise ValueError(f"{name} takes {length} bytes as msgpack; expected at most {limit}")
    others = others or {}
    if len(environment.here) == 1:
        given = {**others, environment.rank: descriptor}
        hellos: list[Encoded] = [hello if number == environment.rank else {} for number in sorted(given)]
        descriptors = [os.dup(given[number]) for number in sorted(given)]
        return Membership(environment.rank, environment.size, descriptors, hellos, config)
    deadline = time.monotonic() + environment.timeout_seconds
    try:
        if environment.rank != environment.here[0]:
            return _Guest(environment, descriptor, hello, deadline).meet()
        return _host(environment, descriptor, hello, config, deadline, others)
    except OSError as error:
        raise ResourceError(
            f"rank {environment.rank} of {environment.size} cannot meet the others: {error.strerror}; "
            "see `hocket doctor`",
            errno=error.errno or 0,
            call="rendezvous",
        ) from error


def _host(
    environment: Environment,
    descriptor: int,
    hello: Encoded,
    config: Encoded,
    deadline: float,
    others: Mapping[int, int],
) -> Membership:
    guest = _Guest(environment, descriptor, hello, deadline)
    while True:
        listener = _listen(environment)
        if listener is not None:
            break
        # If another first rank listens there, it answers both groups that there are two of them.
        guest.meet_once()
        guest.pause()
        if time.monotonic() > deadline:
            raise RendezvousError(
                f"rank {environment.rank} of {environment.size} found its address {environment.address!r} in use for "
                f"{environment.timeout_seconds:g} s; give each job its own address"
            )
    meeting = host.Meeting(environment, listener, descriptor, hello, config, others)
    meeting.run(deadline)
    numbers, hellos = sorted(meeting.descriptors), meeting.gathering.hellos
    descriptors, said = [meeting.descriptors[number] for number in numbers], [hellos[number] for number in numbers]
    return Membership(environment.rank, environment.size, descriptors, said, config)


def _listen(environment: Environment) -> socket.socket | None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)
        listener.bind("\0" + environment.address)
        listener.listen(environment.size + host.MAX_STRANGERS)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return listener


class _NoAnswerError(Exception):
    """Rank 0 is not there yet, or has finished its meeting and closes: try again."""


class _Guest:
    """The side of every rank but the first."""

    def __init__(self, environment: Environment, descriptor: int, hello: Encoded, deadline: float) -> None:
        self.environment, self.descriptor, self.deadline = environment, descriptor, deadline
        self._first = f"rank {environment.here[0]}"
        # One more descriptor than ranks: see star.py.
        self._num_descriptors = environment.size + (len(environment.here) < environment.size)
        self._notice_at = time.monotonic() + host.NOTICE_SECONDS
        self._pause_seconds = 0.001
        self._hello = protocol.encode(
            protocol.Hello(protocol.PROTOCOL, protocol.VERSION, environment.rank, environment.size, hello)
        )

    def meet(self) -> Membership:
        while True:
            membership = self.meet_once()
            if membership is not None:
                return membership
            if time.monotonic() > self.deadline:
                raise RendezvousError(
                    f"{self._first} of {self.environment.size} did not come to the rendezvous within "
                    f"{self.environment.timeout_seconds:g} s (reported by rank {self.environment.rank}); "
                    "check whether that process started, and whether it ended early",
                    missing=[self.environment.here[0]],
                )
            self.pause()

    def meet_once(self) -> Membership | None:
        """Makes one attempt; returns None if rank 0 does not answer."""
        received: list[int] = []
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                return self._converse(connection, received)
        except _NoAnswerError:
            sockets.close(received)
            return None
        except BaseException:
            sockets.close(received)
            raise

    def pause(self) -> None:
        """Sleeps between two attempts: longer each time, and for a random part, so that ranks do not retry together."""
        self._check_cancelled()
        time.sleep(self._pause_seconds * random.uniform(0.5, 1.0))
        self._pause_seconds = min(2 * self._pause_seconds, _MAX_PAUSE_SECONDS)
        if time.monotonic() > self._notice_at:
            self._notice_at = self.deadline + host.NOTICE_SECONDS
            host.notice(self.environment, [self.environment.here[0]])

    def _converse(self, connection: socket.socket, received: list[int]) -> Membership:
        environment = self.environment
        try:
            connection.settimeout(host.CANCEL_SECONDS)
            connection.connect("\0" + environment.address)
            process, user = sockets.credentials(connection)
            if user != os.geteuid():
                raise RendezvousError(
                    f"rank {environment.rank} of {environment.size} found a process of user {user} at the address "
                    f"{environment.address!r}; choose another address"
                )
            sockets.send(connection, self._hello, [self.descriptor])
        except (ConnectionError, TimeoutError, BlockingIOError) as error:
            raise _NoAnswerError from error
        hellos: list[Encoded] = []
        config: Encoded = {}
        missing: list[int] | None = None  # None until rank 0 has answered
        while True:
            message = self._next(connection, received, missing)
            if isinstance(message, protocol.Pending):
                missing = message.missing
            elif isinstance(message, protocol.Failure):
                follows = message.follows or host.cancelled(environment)
                raise RendezvousError(message.message, missing=message.missing, follows=follows)
            elif isinstance(message, protocol.Roster) and message.first == len(hellos):
                hellos += message.hellos
                config = config or message.config
                if len(hellos) != len(received):
                    raise RendezvousError(f"{self._first} sent {len(received)} descriptors for {len(hellos)} ranks")
                if len(hellos) == self._num_descriptors:
                    self._answer(connection, protocol.Ready())
            elif isinstance(message, protocol.Go) and len(hellos) == self._num_descriptors:
                return Membership(environment.rank, environment.size, received, hellos, config)
            else:
                raise RendezvousError(
                    f"{self._first} of {environment.size} (process {process}) broke the protocol of the rendezvous; "
                    "start all ranks with the same Hocket"
                )

    def _next(
        self, connection: socket.socket, received: list[int], missing: list[int] | None
    ) -> protocol.Message | None:
        environment = self.environment
        while True:
            try:
                data, descriptors = sockets.receive(connection, protocol.MAX_MESSAGE_BYTES, protocol.MAX_DESCRIPTORS)
                break
            except TimeoutError:
                self._check_cancelled()
                if time.monotonic() > self.deadline:
                    self._give_up(connection, missing)
            except ConnectionResetError:
                continue  # rank 0 closed without reading an answer; its last messages are still to be read
        received += descriptors
        if data is not None:
            return protocol.decode(data)
        if missing is None:
            raise _NoAnswerError
        text = f"{self._first} of {environment.size} ended during the rendezvous; see its output"
        raise RendezvousError(text, follows=True)

    def _give_up(self, connection: socket.socket, missing: list[int] | None) -> None:
        environment = self.environment
        if missing is None:
            raise _NoAnswerError
        message = (
            f"{name_ranks(missing)} of {environment.size} did not come to the rendezvous within "
            f"{environment.timeout_seconds:g} s (reported by rank {environment.rank})"
            if missing
            else f"rank {environment.rank} of {environment.size} was not answered by {self._first} within "
            f"{environment.timeout_seconds:g} s"
        )
        self._answer(connection, protocol.Failure(message, missing))
        raise RendezvousError(message, missing=missing)

    def _answer(self, connection: socket.socket, message: protocol.Message) -> None:
        try:
            sockets.send(connection, protocol.encode(message))
        except OSError:
            return  # rank 0 has ended; the next read reports it

    def _check_cancelled(self) -> None:
        if host.cancelled(self.environment):
            raise RendezvousError(
                f"another rank failed before rank {self.environment.rank} of {self.environment.size} had met it",
                follows=True,
            )
