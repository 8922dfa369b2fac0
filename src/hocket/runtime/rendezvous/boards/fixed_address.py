"""A fixed address, HOST:PORT: all ranks are told at their start where rank 0 listens, so nothing is published."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

_PLACE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)):([1-9][0-9]{0,4})")
_MAX_HOST_CHARACTERS = 253  # of a name in DNS
_MAX_PORT = 65535


@dataclass(frozen=True)
class FixedAddress:
    """Rank 0 listens at this host and port. told_by: the variable or argument that says so."""

    host: str
    port: int
    told_by: str

    carries_key = False

    @property
    def where(self) -> str:
        """The address, and what told it."""
        return f"{self} (told by {self.told_by})"

    @property
    def ports(self) -> Sequence[int]:
        """The port."""
        return (self.port,)

    @property
    def listens_at(self) -> tuple[str, int] | None:
        """Host and port."""
        return self.host, self.port

    def publish(self, text: str) -> None:
        """Does nothing: the ranks know the address."""

    def find(self, seconds: float) -> str | None:
        """Returns HOST:PORT at once, [HOST]:PORT for an IPv6 address."""
        return str(self)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def fixed_address(text: str, told_by: str) -> FixedAddress | None:
    """Returns the board of a text that is HOST:PORT; None for any other text, which is a name on one host.

    HOST is a host name (letters, digits, and within it also . _ -), an IPv4 address, or an IPv6 address in brackets.
    PORT is a decimal number from 1 to 65535 without zeros in front. So "run:7" is a port of the host "run", and
    "a:b", "run:07", "run: 7" and "fd77::1:29500" are names.
    """
    match = _PLACE.fullmatch(text)
    if match is None:
        return None
    address, name, port = match[1], match[2], int(match[3])
    if port > _MAX_PORT or len(address or name) > _MAX_HOST_CHARACTERS:
        return None
    if address is not None:
        try:
            address = str(ipaddress.IPv6Address(address))
        except ValueError:
            return None
    return FixedAddress(address or name, port, told_by)
