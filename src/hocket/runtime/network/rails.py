"""Rails: where HOCKET_SOCKET_IFNAME names several interfaces of a host, a channel has a connection through each.

The sending rank decides how many there are. A rail by which no connection can be opened takes the way that the kernel
routes instead; each rank waits once for that to show.
"""

from collections.abc import Sequence

from hocket.errors import RendezvousError
from hocket.runtime.network.addresses import Address
from hocket.runtime.network.interfaces import LocalAddress, choose, excludes, list_interfaces, source_towards

MAX_RAILS = 16

Approach = tuple[Address, LocalAddress | None]
"""To where, and from where; None: as the kernel routes."""


def rails_of_this_host(pattern: str | None, host: str) -> list[LocalAddress]:
    """Returns an address of each interface that the pattern names, if it names several that lead to other hosts.

    The addresses are IPv4 or IPv6, as `host` is, by which other hosts have found this one.
    """
    if not pattern or excludes(pattern):
        return []
    inner = {one.name for one in list_interfaces() if one.is_inner}
    found: dict[str, LocalAddress] = {}
    try:
        chosen = choose(pattern, None)
    except RendezvousError:  # it chooses nothing, and this is rank 0, which listens where it was told
        return []
    for one in chosen:
        if one.interface not in inner and (":" in one.host) == (":" in host):
            found.setdefault(one.interface, one)
    return list(found.values())[:MAX_RAILS] if len(found) > 1 else []


def approaches(addresses: Sequence[Address], rails: Sequence[LocalAddress], number: int) -> list[Approach]:
    """Returns the approaches to a rank that listens at these addresses, in the order in which rail `number` tries them.

    First from its interface to an address in the same network. If all interfaces are in one network, each rail has
    another address of the target.
    """
    routed: list[Approach] = [(address, None) for address in addresses]
    if not rails:
        return routed
    rail = rails[number]
    fitting = [address for address in addresses if (":" in address[0]) == (":" in rail.host)]
    turned = [fitting[(number + place) % len(fitting)] for place in range(len(fitting))]
    turned.sort(key=lambda address: source_towards(address[0]) != rail.host.partition("%")[0])
    return [*((address, rail) for address in turned[:1]), *routed]
