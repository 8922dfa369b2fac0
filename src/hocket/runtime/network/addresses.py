"""Addresses of the network as text, and names of hosts, which are looked up within a bounded time.

An address is a host and a port: HOST:PORT, of IPv6 [HOST]:PORT. The host is a name, or an IP address; a link-local one
may say its interface, as in fe80::1%eth0.
"""

import ipaddress
import os
import socket
import threading
import time
from contextlib import suppress

Address = tuple[str, int]

_MAX_PORT = 65535


def read_address(text: str) -> Address:
    """Returns host and port of "HOST:PORT" or "[HOST]:PORT"; ValueError if it is neither."""
    host, colon, port = text.strip().rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if is_bracketed:
        host = host[1:-1]
    if ":" in host and not is_bracketed:
        raise ValueError(f"found {text!r}; expected IPv6 addresses in brackets, for example [fd77::1]:5000")
    if not colon or not host or not (port.isdecimal() and port.isascii() and 0 < int(port) <= _MAX_PORT):
        raise ValueError(f"found {text!r}; expected HOST:PORT with a port from 1 to {_MAX_PORT}")
    if is_bracketed and not is_numeric(host):
        raise ValueError(f"found {text!r}; expected an IPv6 address between the brackets")
    return host, int(port)


def write_address(host: str, port: int) -> str:
    """Returns HOST:PORT or [HOST]:PORT. A link-local address loses its interface, which other hosts do not know."""
    host = host.partition("%")[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_numeric(host: str) -> bool:
    """Returns whether this is an IP address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def resolve(host: str, deadline: float) -> list[str]:
    """Returns all IP addresses of a host, in the order in which the system would try them.

    deadline is on the monotonic clock. Raises socket.gaierror, or TimeoutError if no answer has come by then. The
    search goes on: a later call waits for the same answer, so that a slow name server answers in the end.
    """
    if is_numeric(host):
        return [host]
    search = (os.getpid(), host)
    with _lock:
        lookup = _lookups.get(search)
        if lookup is None:
            lookup = _lookups[search] = _Lookup(host)
            lookup.start()
    lookup.join(max(deadline - time.monotonic(), 0.0))
    if lookup.is_alive():
        raise TimeoutError(f"no name server has answered for {host!r}")
    with _lock:
        _lookups.pop(search, None)
    if lookup.failure is not None:
        raise lookup.failure
    return lookup.found


class _Lookup(threading.Thread):
    """getaddrinfo has no time limit: it may wait for every server that the system knows, several times."""

    def __init__(self, host: str) -> None:
        super().__init__(name=f"hocket looks up {host}", daemon=True)
        self.host = host
        self.found: list[str] = []
        self.failure: OSError | None = None

    def run(self) -> None:
        try:
            answers = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            self.failure = error
        except UnicodeError:
            self.failure = socket.gaierror(socket.EAI_NONAME, "this is no name of a host")
        else:
            self.found = list(dict.fromkeys(_numeric_host(answer[4]) for answer in answers))


def _numeric_host(sockaddr: tuple[object, ...]) -> str:
    host, scope = str(sockaddr[0]).partition("%")[0], sockaddr[3] if len(sockaddr) > 3 else 0
    if scope:
        with suppress(OSError):  # the interface has gone
            return f"{host}%{socket.if_indextoname(int(str(scope)))}"
    return host


_lock = threading.Lock()  # of _lookups
_lookups: dict[tuple[int, str], _Lookup] = {}  # under way, by process and host: a forked child has no such thread
