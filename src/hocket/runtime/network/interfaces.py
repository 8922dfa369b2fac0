"""The interfaces of this host with their addresses, and which of them the ranks use.

The kernel is asked over netlink: neither the name of the host nor a name server takes part, as both often know an
address that no other host can reach.
"""

import ipaddress
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hocket.errors import RendezvousError, ResourceError
from hocket.runtime.network.addresses import resolve
from hocket.runtime.variables import SOCKET_IFNAME

LOOKUP_SECONDS = 10.0

_IPInterface = ipaddress.IPv4Interface | ipaddress.IPv6Interface
_IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Interface:
    """One interface. addresses: each with its network.

    is_up: it is switched on and has a carrier. is_inner: it leads to nothing but this host, as Docker's bridge does.
    """

    name: str
    addresses: tuple[_IPInterface, ...]
    is_up: bool = True
    is_loopback: bool = False
    is_inner: bool = False

    def __str__(self) -> str:
        text = " ".join([self.name, *map(str, self.addresses)])
        marks = ["down"] if not self.is_up else [] if self.addresses else ["no address"]
        marks += ["within this host"] if self.is_inner and not self.is_loopback else []
        return text + (f" ({', '.join(marks)})" if marks else "")


class LocalAddress(NamedTuple):
    """An IP address of this host, and its interface. A link-local host names the interface too: fe80::1%eth0."""

    host: str
    interface: str

    def __str__(self) -> str:
        return f"{self.interface} ({self.host.partition('%')[0]})"


def named_interfaces(variables: Mapping[str, str] | None = None) -> str | None:
    """Returns HOCKET_SOCKET_IFNAME, or None if it is not set or empty. variables replaces os.environ."""
    return (os.environ if variables is None else variables).get(SOCKET_IFNAME) or None


def choose(
    pattern: str | None, towards: tuple[str, int] | None, *, seconds: float = LOOKUP_SECONDS
) -> list[LocalAddress]:
    """Returns the addresses of this host that the ranks use, in the order in which other hosts should try them.

    pattern is as in HOCKET_SOCKET_IFNAME. Without it, the interface that routes `towards` this address is chosen, or,
    for rank 0, which has nobody to route to (None), all that lead out of this host, and then the others. seconds
    limits the search for a name in `towards`; if it is not found, nothing is preferred.
    Raises ValueError for a malformed pattern, and RendezvousError if it chooses nothing on this host.
    """
    source = None
    if towards is not None:
        try:
            hosts = resolve(towards[0], time.monotonic() + seconds)
        except OSError:
            hosts = []
        source = next(filter(None, (source_towards(host) for host in hosts)), None)
    return choose_among(list_interfaces(), pattern, source)


def excludes(pattern: str) -> bool:
    """Returns whether the pattern names those that are not used. Raises ValueError if it is malformed."""
    return _Pattern(pattern).excludes


def source_towards(host: str) -> str | None:
    """Returns the address of this host from which the kernel would send to an IP address; None without a route."""
    try:
        family, _, _, _, sockaddr = numeric(host, 9)  # any port: nothing is sent
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(sockaddr)
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return None


def numeric(host: str, port: int) -> tuple[int, int, int, str, tuple[object, ...]]:
    """Returns the row of getaddrinfo for an IP address: family, type, protocol, "", and what sockets take.

    Raises socket.gaierror if it is none, or names an interface that this host does not have.
    """
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    except UnicodeError as error:  # an interface whose name cannot be one
        raise socket.gaierror(socket.EAI_NONAME, "this is no IP address") from error


# What a pattern chooses: decisions without a socket


class _Pattern:
    """NCCL's grammar: "eth" is the beginning of names, "=eth0" a name, "^docker" and "^=docker0" are all but those.

    The marks stand at the beginning and hold for the whole list, which commas separate. In place of a name there may
    be a network, such as 10.0.0.0/8, or an address.
    """

    def __init__(self, text: str) -> None:
        rest = text.strip()
        self.excludes = rest.startswith("^")
        rest = rest.removeprefix("^")
        self._is_exact = rest.startswith("=")
        self._items: list[str | _IPNetwork] = []
        for item in filter(None, (part.strip() for part in rest.removeprefix("=").split(","))):
            if item[0] in "^=":
                raise ValueError(
                    f"{SOCKET_IFNAME} is {text!r}; expected ^ and = at its beginning alone, where they hold for the "
                    "whole list"
                )
            try:
                self._items.append(ipaddress.ip_network(item, strict=False))
            except ValueError:
                if "/" in item:
                    raise ValueError(
                        f"{SOCKET_IFNAME} is {text!r}; expected networks such as 10.0.0.0/8, found {item!r}"
                    ) from None
                self._items.append(item)
        if not self._items:
            raise ValueError(f"{SOCKET_IFNAME} is {text!r}; expected names of interfaces or networks, for example eth0")

    def place(self, interface: Interface, address: _IPInterface) -> int | None:
        """Returns the place in the list of what matches first; None if nothing does."""
        for place, item in enumerate(self._items):
            if self._fits(item, interface.name) if isinstance(item, str) else address.ip in item:
                return place
        return None

    def matches(self, name: str) -> bool:
        """Returns whether the list has this interface by its name."""
        return any(self._fits(item, name) for item in self._items if isinstance(item, str))

    def _fits(self, item: str, name: str) -> bool:
        return name == item if self._is_exact else name.startswith(item)

    def names(self, address: _IPInterface) -> bool:
        """Returns whether a network of the list holds the address."""
        return any(address.ip in item for item in self._items if not isinstance(item, str))


def choose_among(interfaces: Sequence[Interface], pattern: str | None, source: str | None) -> list[LocalAddress]:
    """Returns what `choose` does; source is the address from which the kernel would send."""
    wanted = _Pattern(pattern) if pattern else None
    found = [(one, address) for one in interfaces if one.is_up for address in one.addresses]
    routing = next((one.name for one, address in found if str(address.ip) == source), None)

    def rank(entry: tuple[Interface, _IPInterface]) -> tuple[object, ...]:
        one, address = entry
        place = 0 if wanted is None or wanted.excludes else wanted.place(one, address)
        return place, one.is_inner, one.name != routing, str(address.ip) != source, address.is_link_local

    if wanted is not None and not wanted.excludes:
        found = _included(found, wanted)
    elif source is not None and routing is None:
        return [LocalAddress(source, "")]  # no interface has it, but the kernel sends from it
    else:
        found = _preferred([entry for entry in found if wanted is None or wanted.place(*entry) is None], routing)
    if not found:
        host = os.uname().nodename
        if wanted is None:
            raise RendezvousError(f"no interface of host {host} is up; run `ip link set lo up`, or attach a network")
        named = [one for one in interfaces if wanted.matches(one.name)]
        raise RendezvousError(
            f"{SOCKET_IFNAME}={pattern} chooses no address on host {host}, whose interfaces are: "
            f"{describe(interfaces, named)}; correct or unset {SOCKET_IFNAME}"
        )
    return [LocalAddress(_host(one, address), one.name) for one, address in sorted(found, key=rank)]


def describe(interfaces: Sequence[Interface], also: Sequence[Interface] = ()) -> str:
    """Returns the interfaces that have an address of more than their own link, and `also`, in words."""
    shown = [one for one in interfaces if one in also or not all(map(_is_scoped, one.addresses))]
    return "; ".join(map(str, shown)) or "none with an address"


_Found = list[tuple[Interface, _IPInterface]]


def _included(found: _Found, wanted: _Pattern) -> _Found:
    """Link-local addresses of IPv6 only if a network names them, or their interface has no other address."""
    matching = [(one, address) for one, address in found if wanted.place(one, address) is not None]
    others = {one.name for one, address in matching if not _is_scoped(address)}
    return [
        (one, address)
        for one, address in matching
        if not _is_scoped(address) or one.name not in others or wanted.names(address)
    ]


def _preferred(found: _Found, routing: str | None) -> _Found:
    """The addresses of the interface that routes; else those that lead out of this host; else what there is."""
    found = [(one, address) for one, address in found if not _is_scoped(address)]
    return (
        [(one, address) for one, address in found if one.name == routing]
        or [(one, address) for one, address in found if not one.is_loopback]
        or found
    )


def _is_scoped(address: _IPInterface) -> bool:
    """Returns whether the address means something on its interface alone."""
    return address.version == 6 and address.is_link_local


def _host(one: Interface, address: _IPInterface) -> str:
    return f"{address.ip}%{one.name}" if _is_scoped(address) else str(address.ip)


# Netlink (linux/netlink.h, linux/rtnetlink.h, linux/if_addr.h): two dumps, of links and of addresses

_HEADER, _LINK, _ADDRESS, _ATTRIBUTE = (struct.Struct(text) for text in ("=IHHII", "=BxHiII", "=BBBBI", "=HH"))
_GET_LINK, _GET_ADDRESS = 18, 22
_REQUEST_DUMP, _ERROR, _DONE = 0x301, 2, 3
_RECEIVE_BYTES = 1 << 16
_IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_INFO_KIND = 3, 10, 18, 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40
_UNUSABLE = 0x08 | 0x20 | 0x40  # another host has the address, it is deprecated, or not yet known to be free
_INNER_KINDS, _INNER_PORTS = ("bridge", "dummy"), ("veth", "tun", "dummy")


def list_interfaces() -> list[Interface]:
    """Returns all interfaces of this process's network namespace, in the kernel's order."""
    try:
        links = [(_LINK.unpack_from(data), _attributes(data[_LINK.size :])) for data in _dump(_GET_LINK)]
        addresses = [(_ADDRESS.unpack_from(data), _attributes(data[_ADDRESS.size :])) for data in _dump(_GET_ADDRESS)]
    except OSError as error:
        raise ResourceError(
            f"this process cannot list the interfaces of its host: {error.strerror}; in a sandbox, allow AF_NETLINK",
            errno=error.errno or 0,
            call="netlink",
        ) from error
    by_index: dict[int, list[_IPInterface]] = {}
    for (family, prefix, flags, _, index), found in addresses:
        if family == socket.AF_INET6:
            flags = _number(found, _IFA_FLAGS) or flags
        packed = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS)
        if packed and family in (socket.AF_INET, socket.AF_INET6) and not flags & _UNUSABLE:
            by_index.setdefault(index, []).append(ipaddress.ip_interface((packed, prefix)))
    kinds = {link[2]: _attributes(found.get(_IFLA_LINKINFO, b"")).get(_IFLA_INFO_KIND, b"") for link, found in links}
    ports: dict[int, list[bytes]] = {}
    for link, found in links:
        ports.setdefault(_number(found, _IFLA_MASTER), []).append(kinds[link[2]])
    return [
        Interface(
            found[_IFLA_IFNAME].rstrip(b"\0").decode(errors="surrogateescape"),
            tuple(by_index.get(index, ())),
            is_up=bool(flags & _IFF_UP and flags & _IFF_RUNNING),
            is_loopback=bool(flags & _IFF_LOOPBACK),
            is_inner=bool(flags & _IFF_LOOPBACK) or _is_inner(kinds[index], ports.get(index, [])),
        )
        for (_, _, index, flags, _), found in links
    ]


def _is_inner(kind: bytes, ports: Sequence[bytes]) -> bool:
    """A bridge leads out of this host if one of its ports does; that is, if it is more than a pipe or a tap."""
    names = [one.rstrip(b"\0").decode() for one in (kind, *ports)]
    return names[0] in _INNER_KINDS and all(port in _INNER_PORTS for port in names[1:])


def _number(found: Mapping[int, bytes], kind: int) -> int:
    return int.from_bytes(found.get(kind, b"")[:4], "little" if struct.pack("=H", 1)[0] else "big")


def _dump(request: int) -> Iterator[bytes]:
    """Yields what the kernel says of each link or address, without the headers of the messages."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.send(_HEADER.pack(_HEADER.size + 4, request, _REQUEST_DUMP, 1, 0) + bytes(4))
        while True:
            data = netlink.recv(_RECEIVE_BYTES)
            while len(data) >= _HEADER.size:
                length, kind, _, _, _ = _HEADER.unpack_from(data)
                message, data = data[_HEADER.size : length], data[_aligned(length) :]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    (number,) = struct.unpack_from("=i", message)
                    raise OSError(-number, os.strerror(-number))
                yield message


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        found[kind & 0x3FFF] = data[_ATTRIBUTE.size : length]  # without the two bits that are flags
        data = data[max(_aligned(length), _ATTRIBUTE.size) :]
    return found


def _aligned(length: int) -> int:
    return (length + 3) & ~3
