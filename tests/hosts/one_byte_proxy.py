"""A proxy before the doors of a rank that hands on what comes byte by byte, as the worst network does."""

import contextlib
import socket
import threading
from typing import Any

from hocket.runtime.network.doorkeeper import Doorkeeper


def put_before_doors() -> None:
    """From now on, the doors of this process tell others the addresses of proxies instead of their own."""
    make = Doorkeeper.__init__

    def make_with_proxies(self: Doorkeeper, *arguments: Any) -> None:
        make(self, *arguments)
        self.addresses = [_proxy(address) for address in self.addresses]

    Doorkeeper.__init__ = make_with_proxies  # type: ignore[method-assign]


def _proxy(address: tuple[str, int]) -> tuple[str, int]:
    listener = socket.create_server((address[0], 0))

    def serve() -> None:
        while True:
            opened, _ = listener.accept()
            behind = socket.create_connection(address)
            for pair in ((opened, behind), (behind, opened)):
                threading.Thread(target=_hand_on, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    host, port = listener.getsockname()[:2]
    return host, port


def _hand_on(source: socket.socket, to: socket.socket) -> None:
    to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):
        while data := source.recv(256):
            for number in range(len(data)):
                to.sendall(data[number : number + 1])
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_WR)
