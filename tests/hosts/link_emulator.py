"""A link with delay and loss between two hosts, for kernels without netem: it carries the frames of two interfaces.

    python -m tests.hosts.link_emulator FIRST SECOND DELAY_SECONDS LOSS SEED

FIRST and SECOND are processes: each gets an interface eth0 (a TAP) in its network namespace. A frame leaves the other
end of the link DELAY_SECONDS later, or never, with the probability LOSS. "ready" on standard output says that the
interfaces exist. A line "cut" or "mend" on standard input is done, then said; "end" or its end ends the link.
The rate is the business of a queue on the interfaces.

Without loss, a frame has up to 64 KiB, which spares much work, as network cards do (segmentation offload). With loss,
the kernel cuts frames before they come here, so that each is lost by itself.
"""

import contextlib
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

from tests.hosts.namespaces import network_of

TUNSETIFF, TUNSETOFFLOAD, TUNSETCARRIER = 0x400454CA, 0x400454D0, 0x400454E2
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04
LONGEST_FRAME = 80 << 10  # 64 KiB, the headers, and that of IFF_VNET_HDR, which says where the frame may be cut
FRAMES_AT_ONCE = 64  # then the other direction has its turn


def opened(process: int, offload: bool) -> int:
    """Return the descriptor of a new interface eth0 in the network of the process."""
    with network_of(process):
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
        if offload:
            fcntl.ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return tap


class Direction:
    """Frames under way from one interface to the other."""

    def __init__(self, source: int, target: int, delay_seconds: float, loss: float, chance: random.Random) -> None:
        self.source, self.target = source, target
        self._delay_seconds, self._loss, self._chance = delay_seconds, loss, chance
        self._under_way: deque[tuple[float, bytes]] = deque()  # with the time at which each arrives
        self._is_cut = False

    def plug(self, is_in: bool) -> None:
        """Cut or mend the cable; what is under way is lost."""
        self._is_cut = not is_in
        self._under_way.clear()
        fcntl.ioctl(self.source, TUNSETCARRIER, struct.pack("i", is_in))

    def take(self) -> None:
        """Take frames from the source."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(FRAMES_AT_ONCE):
                frame = os.read(self.source, LONGEST_FRAME)
                if self._chance.random() >= self._loss and not self._is_cut:
                    self._under_way.append((time.monotonic() + self._delay_seconds, frame))

    def give(self) -> None:
        """Give to the target what has arrived."""
        while self._under_way and self._under_way[0][0] <= time.monotonic():
            _, frame = self._under_way.popleft()
            with contextlib.suppress(OSError):  # an interface that is down: the frame is lost, as in a cable
                os.write(self.target, frame)

    def next_arrival(self) -> float:
        return self._under_way[0][0] if self._under_way else float("inf")


def carry(directions: list[Direction]) -> None:
    """Carry frames until standard input ends."""
    sources = {direction.source: direction for direction in directions}
    while True:
        until = min(direction.next_arrival() for direction in directions)
        patience = None if until == float("inf") else max(0.0, until - time.monotonic())
        # select and not poll, whose time-outs are milliseconds.
        readable, _, _ = select.select([sys.stdin, *sources], [], [], patience)
        if sys.stdin in readable:
            readable.remove(sys.stdin)
            word = sys.stdin.readline().strip()  # the next one comes after the answer, so none is left in the buffer
            if word not in ("cut", "mend"):
                return
            for direction in directions:
                direction.plug(word == "mend")
            print(word, flush=True)
        for source in readable:
            sources[source].take()
        for direction in directions:
            direction.give()


def main() -> None:
    first, second, delay_seconds, loss, seed = sys.argv[1:]
    offload = float(loss) == 0.0
    taps = [opened(int(process), offload) for process in (first, second)]
    chance = random.Random(int(seed))
    with contextlib.suppress(PermissionError):  # a link does not wait for cores, on which the hosts may spin
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print("ready", flush=True)
    carry([Direction(*ends, float(delay_seconds), float(loss), chance) for ends in (taps, reversed(taps))])


if __name__ == "__main__":
    main()
