"""Links between leaders: what came before their end is read, and a leader that does not read is not taken for lost."""

import socket
import struct
from collections.abc import Iterator

import pytest

from hocket.runtime.network.sealed import LinkEndedError, SealedLink
from tests.waiting import wait_until

SESSION = bytes(range(32))
SHORT = 0.3  # seconds


@pytest.fixture
def links() -> Iterator[tuple[SealedLink, SealedLink]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        opened = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    both = (SealedLink(opened, SESSION, opened_here=True), SealedLink(accepted, SESSION, opened_here=False))
    yield both
    for one in both:
        one.close()


def test_what_was_sent_before_a_reset_is_read(links: tuple[SealedLink, SealedLink]) -> None:
    one, other = links
    one.send(b"why I end")
    other.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.send(b"first")
    other.send(b"second")
    other.close()
    assert one.receive() == [b"first", b"second"]
    with pytest.raises(LinkEndedError, match="reset") as ended:
        one.receive()
    assert not ended.value.is_silent


def test_a_peer_that_reads_nothing_is_not_silent(links: tuple[SealedLink, SealedLink]) -> None:
    one, other = links
    message = bytes(1 << 20)
    while not one.num_pending:
        one.send(message)
    probed = 0

    def is_probed() -> bool:
        nonlocal probed
        assert not one.is_silent(SHORT)
        info = one.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        probed += info[4] > 0  # its system probes less and less often whether the window is open: tcpi_backoff
        return probed > 20 and struct.unpack_from("=I", info, 44)[0] > 2000 * SHORT  # since it last sent anything

    wait_until(is_probed)
    found = []
    while one.num_pending or len(found) < 2:
        one.flush()
        found += other.receive()
    assert found[:2] == [message, message] and not one.is_silent(SHORT)


def test_who_answers_nothing_is_silent_only_after_some_tries(
    links: tuple[SealedLink, SealedLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Quiet:
        """A connection whose system knows of so many tries, and the last answer was so many milliseconds ago."""

        def __init__(self, repeats: int, probes: int, milliseconds: int) -> None:
            self.info = struct.pack("=BBBB52xI", 1, 0, repeats, probes, milliseconds)

        def getsockopt(self, level: int, option: int, length: int) -> bytes:
            assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
            return self.info[:length]

    link, _ = links
    for repeats, probes, milliseconds, expected in (
        (0, 0, 9000, False),  # nothing has been sent
        (1, 0, 4100, False),
        (3, 0, 3900, False),
        (3, 0, 4000, True),
        (0, 2, 4000, True),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(link, "connection", Quiet(repeats, probes, milliseconds))
            assert link.is_silent(4.0) == expected
