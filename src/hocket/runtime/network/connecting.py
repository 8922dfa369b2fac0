"""Opens a connection to another host, or listens for others, and says in words why it fails.

All addresses that the other end offers are tried, with little time between them: a firewall that drops, or an address
that only the other host knows, holds up none of the others. When to try again is for the caller to say.
"""

import contextlib
import errno
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hocket.errors import RendezvousError, ResourceError, name_count
from hocket.runtime.network.addresses import Address, resolve, write_address
from hocket.runtime.network.interfaces import (
    Interface,
    LocalAddress,
    describe,
    list_interfaces,
    numeric,
    source_towards,
)
from hocket.runtime.variables import SOCKET_IFNAME

STAGGER_SECONDS = 0.25  # the next address is tried so long after the last one
GRACE_SECONDS = 0.5  # once an address has refused, the host is up: the others need no longer than that
_WHERE_ANOTHER_INTERFACE_MAY_HELP = (
    errno.ETIMEDOUT,
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.EADDRNOTAVAIL,
    errno.EAFNOSUPPORT,
)
_LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


class Reached(NamedTuple):
    """A connection that blocks, and the address that answered."""

    connection: socket.socket
    address: Address


@dataclass(frozen=True)
class Unanswered:
    """An address that did not answer. source: where this host tried from, if that was chosen."""

    address: Address
    error: OSError
    source: LocalAddress | None = None


class UnreachedError(RendezvousError):
    """No address of the other end answered. Attributes: unanswered, one for each address."""

    def __init__(self, message: str, unanswered: Sequence[Unanswered]) -> None:
        self.unanswered = tuple(unanswered)
        super().__init__(message)


# Words


def reason_in_words(error: OSError, end: str) -> str:
    """Returns why a connection to `end`, for example "rank 0", failed."""
    if isinstance(error, socket.gaierror):
        if error.errno == socket.EAI_AGAIN:
            return "name not found: the name server does not answer"
        return "name not found: no name server and no /etc/hosts of this host knows it"
    if isinstance(error, TimeoutError) and error.errno is None:
        return "name not found in time: the name server does not answer"
    words = {
        errno.ECONNREFUSED: f"refused: nobody listens there (wrong port, or {end} has not started or has ended)",
        errno.ETIMEDOUT: "timed out: a firewall drops it, or the host is down",
        errno.ENETUNREACH: "no route: this host knows no way to that network",
        errno.EHOSTUNREACH: "no route: the host is down or not on this network, or a firewall rejects it",
        errno.ECONNRESET: "reset: a firewall or a proxy ended it",
        errno.EACCES: "forbidden: a firewall or a sandbox of this host does not let it out",
        errno.EADDRNOTAVAIL: "no source: this host has no such address from which to try, or no port of it is free",
        errno.EAFNOSUPPORT: "other family: this host, or its chosen interface, has IPv4 or IPv6 alone",
        errno.EINVAL: f"no interface: a link-local address needs one; set {SOCKET_IFNAME}",
        errno.ECANCELED: "not tried: no time was left",
    }
    words[errno.EPERM] = words[errno.EACCES]
    return words.get(error.errno or 0) or (error.strerror or str(error)).lower()


def explain(unanswered: Sequence[Unanswered], end: str, interfaces: Sequence[Interface] = ()) -> str:
    """Returns each address that was tried with its reason, and what to do next. interfaces: those of this host."""
    if not unanswered:
        return f"{end} offers no address; see `hocket doctor` on its host"
    tried = "; ".join(
        f"{_write(one.address)}{f' from {one.source}' if one.source else ''} {reason_in_words(one.error, end)}"
        for one in unanswered
    )
    text = f"host {os.uname().nodename} cannot reach {end} at {name_count(len(unanswered), 'address')}: {tried}"
    if interfaces and any(one.error.errno in _WHERE_ANOTHER_INTERFACE_MAY_HELP for one in unanswered):
        text += f"; {SOCKET_IFNAME} can choose another interface of this host: {describe(interfaces)}"
    return f"{text}; run `hocket doctor --address {_write(unanswered[0].address)}` on this host"


def _write(address: Address) -> str:
    return write_address(*address)


# Connecting


def connect(
    addresses: Sequence[Address],
    deadline: float,
    *,
    sources: Sequence[LocalAddress] = (),
    without: Collection[Address] = (),
    end: str = "rank 0",
) -> Reached:
    """Opens a connection to the first of these addresses that answers; names may stand for several.

    deadline is on the monotonic clock. sources: the addresses of this host that HOCKET_SOCKET_IFNAME chose, whose
    interfaces are used and no others; without them the kernel decides. without: addresses at which a stranger has
    answered. end: what is there, for errors. Raises UnreachedError, at once if all refuse, or ResourceError.
    """
    with _Attempts(deadline, sources) as attempts:
        reached = attempts.run(addresses, without)
        if reached is not None:
            return reached
    interfaces: list[Interface] = []
    with contextlib.suppress(ResourceError):  # a sandbox may not let it ask
        interfaces = list_interfaces()
    raise UnreachedError(explain(attempts.unanswered, end, interfaces), attempts.unanswered)


@dataclass(frozen=True)
class _Attempt:
    address: Address
    source: LocalAddress | None


class _Attempts:
    """The connections under way. All but the one that is reached are closed at the end."""

    def __init__(self, deadline: float, sources: Sequence[LocalAddress]) -> None:
        self.deadline, self.sources = deadline, sources
        self.unanswered: list[Unanswered] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> "_Attempts":
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._selector.get_map().values()):
            self._end(key.fileobj)
        self._selector.close()

    def run(self, addresses: Sequence[Address], without: Collection[Address] = ()) -> Reached | None:
        """Returns the first connection that is open, or None: then the unanswered say why."""
        waiting = deque(one for one in self._resolved(addresses) if one not in without)
        next_at, end_at = time.monotonic(), self.deadline
        while waiting or self._selector.get_map():
            now = time.monotonic()
            if now >= end_at:
                break
            if waiting and (now >= next_at or not self._selector.get_map()):
                self._start(waiting.popleft())
                next_at = now + STAGGER_SECONDS
            if not waiting and any(one.error.errno == errno.ECONNREFUSED for one in self.unanswered):
                end_at = min(end_at, now + GRACE_SECONDS)
            if not self._selector.get_map():
                continue  # that one has failed at once
            wait = min(next_at, end_at) if waiting else end_at
            for key, _ in self._selector.select(max(wait - time.monotonic(), 0.0)):
                connection, attempt = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                error = _outcome(connection)
                if error == 0:
                    self._selector.unregister(connection)
                    connection.setblocking(True)
                    return Reached(connection, attempt.address)
                self._end(connection)
                self._fail(attempt, _error(error))
        for key in self._selector.get_map().values():
            self._fail(key.data, _error(errno.ETIMEDOUT))
        for address in waiting:
            self._fail(_Attempt(address, None), _error(errno.ECANCELED))
        return None

    def _resolved(self, addresses: Sequence[Address]) -> list[Address]:
        found: list[Address] = []
        for host, port in addresses:
            try:
                found += [(one, port) for one in resolve(host, self.deadline)]
            except OSError as error:
                self.unanswered.append(Unanswered((host, port), error))
        return list(dict.fromkeys(found))

    def _start(self, address: Address) -> None:
        attempt = _Attempt(address, _source_for(address[0], self.sources))
        try:
            if self.sources and attempt.source is None:
                raise _error(errno.EAFNOSUPPORT)
            connection = begin(address, attempt.source)
        except OSError as error:
            self._fail(attempt, error)
        else:
            self._selector.register(connection, selectors.EVENT_WRITE, attempt)

    def _fail(self, attempt: _Attempt, error: OSError) -> None:
        if error.errno in _LACKS:
            raise ResourceError(
                f"this process cannot open a connection: {error.strerror}; raise `ulimit -n`, or close communicators",
                errno=error.errno or 0,
                call="connect",
            ) from error
        self.unanswered.append(Unanswered(attempt.address, error, attempt.source))

    def _end(self, connection: object) -> None:
        assert isinstance(connection, socket.socket)
        self._selector.unregister(connection)
        connection.close()


def _source_for(host: str, sources: Sequence[LocalAddress]) -> LocalAddress | None:
    """Returns the chosen address from which to try this one: that of the route if it is chosen, else the first."""
    fitting = [one for one in sources if (":" in one.host) == (":" in host)]
    if not fitting:
        return None
    routing = source_towards(_scoped(host, sources[0]))
    return next((one for one in fitting if one.host.partition("%")[0] == routing), fitting[0])


def _scoped(host: str, source: LocalAddress | None) -> str:
    """Returns a link-local address with the interface by which this host tries it; the other end knows only its own."""
    if not host.lower().startswith("fe80:") or "%" in host or source is None:
        return host
    return f"{host}%{source.interface}"


def begin(address: Address, source: LocalAddress | None) -> socket.socket:
    """Returns a socket whose connection is under way, from this source if there is one. Raises OSError.

    Every attempt is a new socket, which has to be bound anew.
    """
    host = _scoped(address[0], source)
    family, kind, _, _, sockaddr = numeric(host, address[1])
    connection = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    try:
        if source is not None:
            connection.bind(numeric(source.host, 0)[4])
            # What goes to this host itself comes back by the loopback interface.
            if source_towards(host) != host.partition("%")[0]:
                _bind_to_device(connection, source.interface)
        connection.connect(sockaddr)
    except BlockingIOError:
        pass
    except BaseException:
        connection.close()
        raise
    return connection


def _bind_to_device(connection: socket.socket, interface: str) -> None:
    """Two interfaces on one network: the source alone does not say by which of them bytes leave."""
    with contextlib.suppress(PermissionError):  # before Linux 5.7 that was a privilege
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _outcome(connection: socket.socket) -> int:
    """Returns 0 if the connection is open, or an errno. A socket that met itself counts as refused."""
    error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    try:
        if error == 0 and connection.getsockname() == connection.getpeername():
            return errno.ECONNREFUSED  # nobody listened at a port of this host, which its own socket then got
    except OSError as gone:
        return gone.errno or errno.ECONNRESET
    return error


# Listening


def listen(host: str, port: int, backlog: int, *, listener: str = "rank 0") -> socket.socket:
    """Returns a socket that listens at an IP address of this host.

    port 0 lets the kernel choose. listener: what listens, for errors. Raises RendezvousError, or ResourceError.
    """
    try:
        family, _, _, _, sockaddr = numeric(host, port)
        return socket.create_server(sockaddr, family=family, backlog=backlog)
    except OSError as error:
        if error.errno in _LACKS:
            raise ResourceError(
                f"{listener} cannot listen: {error.strerror}; raise `ulimit -n`", errno=error.errno or 0, call="listen"
            ) from error
        where = write_address(host, port)
        raise RendezvousError(f"{listener} cannot listen at {where}: {why_not_listening(error)}") from error


def why_not_listening(error: OSError) -> str:
    """Returns why this host cannot listen at an address, and what to do."""
    words = {
        errno.EADDRINUSE: "in use: another process has this port; choose another, or end it (`ss -ltnp` lists them)",
        errno.EADDRNOTAVAIL: "not here: no interface of this host has this address; start rank 0 on the host that has",
        errno.EACCES: "forbidden: choose a port above 1023",
        errno.EAFNOSUPPORT: "no such family: this host has no IPv6",
    }
    return words.get(error.errno or 0) or (error.strerror or str(error)).lower()
