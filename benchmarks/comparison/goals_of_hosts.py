"""The goals of benchmarks/hosts.py as data, like those in goals.py, which checks both; and the link between hosts.

Times are medians over rounds of the touched protocol, and ratios are medians over rounds.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from comparison.goals import KIB, MIB, Cells, Faster, Goal, Over
from comparison.results import Row
from comparison.values import MOST_RANKS, OPERATIONS

OURS, OURS_ON_HOSTS, RAW, FLAT, PREDICTED = "tcp", "hocket", "raw exchange", "flat ring", "prediction"
OTHERS = ("all_gather", "broadcast", "send_recv", "all_to_all")
BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
GIGABIT = 1e9


@dataclass(frozen=True)
class Link:
    """What joins hosts. rate: of each, in bits a second, as tc says it, such as "1gbit"; delay_seconds: of one way."""

    rate: str
    delay_seconds: float = 0.0
    num_hosts: int = 2

    @property
    def bits_per_second(self) -> float:
        """The rate as a number."""
        digits, unit = re.fullmatch(r"(\d+)(\w+)", self.rate).groups()
        return int(digits) * BITS[unit]

    def bound_seconds(self, row: Row) -> float | None:
        """Returns what the cell takes at least; None of operations that may send fewer bytes between the hosts.

        In an all_reduce, each host has to send and to receive 2 (H - 1) / H of the bytes.
        """
        if row.operation != "all_reduce":
            return None
        num_bytes = 2 * (self.num_hosts - 1) / self.num_hosts * row.num_bytes
        return num_bytes * 8 / self.bits_per_second + self.delay_seconds


@dataclass(frozen=True)
class FasterThanBest:
    """How many times faster `ours` is than the quickest of the peers that were measured in the cell."""

    ours: str
    peers: tuple[str, ...]

    def __call__(self, row: Row) -> float | None:
        """Returns the measured value, or None."""
        best = row.best(self.peers)
        return row.ratio(self.ours, best) if best else None


@dataclass(frozen=True)
class OverBound:
    """The time of `ours` over what the link allows."""

    ours: str
    link: Link

    def __call__(self, row: Row) -> float | None:
        """Returns the measured value, or None."""
        times, bound = row.times(self.ours), self.link.bound_seconds(row)
        return statistics.median(times) / bound if times and bound else None


@dataclass(frozen=True)
class MedianSeconds:
    """The seconds of a call of `ours`."""

    ours: str

    def __call__(self, row: Row) -> float | None:
        """Returns the measured value, or None."""
        times = row.times(self.ours)
        return statistics.median(times) if times else None


@dataclass(frozen=True)
class PredictionError:
    """By which part of the time of `ours` the prediction is wrong."""

    ours: str

    def __call__(self, row: Row) -> float | None:
        """Returns the measured value, or None."""
        times, predicted = row.times(self.ours), row.times(PREDICTED)
        return abs(predicted[0] / statistics.median(times) - 1) if times and predicted else None


def on_this_host(peers: Sequence[str]) -> list[Goal]:
    """Returns the goals of two ranks that send through the loopback interface."""

    def of(size: int) -> Cells:
        return Cells((2,), ("all_reduce",), sizes=(size,))

    best = FasterThanBest(OURS, tuple(peers))
    return [
        Goal("all_reduce of 8 B, against Open MPI", Faster(OURS, "openmpi"), 1.4, of(8)),
        Goal("all_reduce of 8 B, against Gloo", Faster(OURS, "gloo"), 40.0, of(8)),
        Goal("all_reduce of 64 KiB, against the best peer", best, 1.5, of(64 * KIB)),
        Goal("all_reduce of 1 MiB, against the best peer", best, 1.3, of(MIB)),
        Goal("all_reduce of 64 MiB over the raw exchange", Over(OURS, RAW), 1.25, of(64 * MIB), at_most=True),
        Goal(f"{', '.join(OTHERS)}, against the best peer", best, 1.2, Cells((2,), OTHERS), "mean"),
    ]


def between_hosts(link: Link) -> list[Goal]:
    """Returns the goals of this link. But for the prediction, they are about two hosts, 1 Gbit/s, and 0 or 1 ms."""
    ours, goals = OURS_ON_HOSTS, list[Goal]()

    def of(size: int, per_host: int) -> Cells:
        return Cells((2 * per_host,), ("all_reduce",), sizes=(size,))

    def within(milliseconds: float, size: int, name: str) -> Goal:
        value = MedianSeconds(ours)
        return Goal(name, value, milliseconds * 1e-3, of(size, 2), "worst", at_most=True, unit="ms", scale=1e3)

    known = (link.num_hosts, link.bits_per_second, link.delay_seconds)
    if known == (2, GIGABIT, 0.0):
        large, ring, bound = 64 * MIB, Faster(ours, FLAT), OverBound(ours, link)
        goals += [
            Goal("2 x 1, all_reduce of 64 MiB, against the raw exchange", Faster(ours, RAW), 0.95, of(large, 1)),
            Goal("2 x 2, all_reduce of 64 MiB, over the bound", bound, 1.08, of(large, 2), at_most=True),
            Goal("2 x 2, all_reduce of 64 MiB, against the flat ring", ring, 1.4, of(large, 2)),
            Goal("2 x 4, all_reduce of 64 MiB, against the flat ring", ring, 1.6, of(large, 4)),
            within(0.2, 8, "2 x 2, all_reduce of 8 B"),
        ]
    if known == (2, GIGABIT, 0.001):
        goals += [
            within(1.4, 8, "2 x 2, all_reduce of 8 B"),
            within(3.0, 64 * KIB, "2 x 2, all_reduce of 64 KiB"),
        ]
    cells = Cells(tuple(range(2, MOST_RANKS + 1)), OPERATIONS, 64 * KIB)
    name = "the prediction is wrong by, from 64 KiB on"
    return [*goals, Goal(name, PredictionError(ours), 0.15, cells, at_most=True, unit="%", scale=100.0)]
