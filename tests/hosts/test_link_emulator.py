"""The emulator of a link, between pairs of sockets instead of hosts: what it carries, when, and what it loses."""

import random
import socket
from collections.abc import Iterator

import pytest

from tests.hosts import link_emulator
from tests.hosts.link_emulator import FRAMES_AT_ONCE, Direction


class Cable:
    """A direction of a link, with a clock that the test moves."""

    def __init__(self, delay_seconds: float, loss: float, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends = [*socket.socketpair(type=socket.SOCK_DGRAM), *socket.socketpair(type=socket.SOCK_DGRAM)]
        for end in self.ends:
            end.setblocking(False)
        self.now = 0.0
        monkeypatch.setattr(link_emulator.time, "monotonic", lambda: self.now)
        source, target = self.ends[1].fileno(), self.ends[2].fileno()
        self.direction = Direction(source, target, delay_seconds, loss, random.Random(seed))

    def send(self, *frames: bytes) -> None:
        for frame in frames:
            self.ends[0].send(frame)
        self.direction.take()

    def received(self) -> Iterator[bytes]:
        self.direction.give()
        while True:
            try:
                yield self.ends[3].recv(1024)
            except BlockingIOError:
                return

    def carried(self, num_frames: int) -> list[bytes]:
        found = []
        for number in range(num_frames):
            self.send(number.to_bytes(2))
            found += self.received()
        return found

    def close(self) -> None:
        for end in self.ends:
            end.close()


def test_frames_come_in_order_after_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    cable = Cable(0.5, 0.0, 0, monkeypatch)
    cable.send(b"a", b"b")
    cable.now = 0.25
    cable.send(b"c")
    assert cable.direction.next_arrival() == 0.5
    assert list(cable.received()) == []
    cable.now = 0.5
    assert list(cable.received()) == [b"a", b"b"]
    assert cable.direction.next_arrival() == 0.75
    cable.now = 0.75
    assert list(cable.received()) == [b"c"]
    assert cable.direction.next_arrival() == float("inf")
    cable.close()


def test_the_share_of_frames_is_lost_and_the_seed_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for seed in (1, 1, 2):
        cable = Cable(0.0, 0.3, seed, monkeypatch)
        found.append(cable.carried(1000))
        cable.close()
    assert all(600 < len(one) < 800 for one in found)
    assert found[0] == found[1] != found[2]


def test_a_frame_for_an_end_that_is_gone_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    cable = Cable(0.0, 0.0, 0, monkeypatch)
    cable.send(b"a")
    cable.ends[3].close()
    cable.direction.give()
    assert cable.direction.next_arrival() == float("inf")
    cable.close()


def test_the_other_direction_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    cable = Cable(0.0, 0.0, 0, monkeypatch)
    taken = 0

    def read(_: int, __: int) -> bytes:
        nonlocal taken
        taken += 1
        return b"a"

    monkeypatch.setattr(link_emulator.os, "read", read)  # a source that never runs dry
    cable.direction.take()
    assert taken == FRAMES_AT_ONCE
    cable.close()
