"""Simulates channels: several rings, trees or chains of one call, side by side on a network, none waiting for another.

All channels have one description and an equal share of the vector; a channel is an order of ranks. In each step the
messages of all channels share links, each in proportion to what it carries; a rank goes on as soon as its own messages
of its channel are done. So a channel with a slow hop waits for it only there, and not in every step.

A vector may pass in pieces, one behind the other. Then its time is that of one piece, and of the bottleneck link for
the other pieces.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from hocket.network.simulation.jobs import least_of_each
from hocket.network.simulation.periodic import repeated
from hocket.network.simulation.traffic import Traffic, TrafficPattern, pair_numbers
from hocket.network.topology import Topology

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_SAME = 1e-13  # share of the time so far; smaller differences are rounding


@dataclass(frozen=True, eq=False)
class CallChannels:
    """The channels of a call. traffic: of one piece in one channel, among as many ranks as a channel has.

    orders: int64[channels, ranks of a channel], which rank of the topology each of them is. in_sequence: whether the
    messages of a pattern follow each other, as in a chain. pieces: the number of pieces of a vector of so many bytes.
    """

    traffic: Traffic
    orders: Ints
    in_sequence: bool = False
    pieces: Callable[[float], int] = lambda _: 1


@dataclass(frozen=True, eq=False)
class ChannelTimes:
    """The time of a call in channels, in seconds, and the bytes on each link: float64[num_links].

    latency: of the hops that one piece takes in sequence, in the slowest channel. num_steps: how many hops these are.
    """

    seconds: float
    latency: float
    num_steps: int
    link_bytes: Floats


def one_pattern(num_ranks: int, source: Ints, target: Ints) -> TrafficPattern:
    """Returns messages of one chunk each, without work of ranks."""
    order = np.argsort(pair_numbers(source, target, num_ranks))
    none = np.zeros(num_ranks, np.int64)
    return TrafficPattern(source[order], target[order], np.ones(len(source), np.int64), none, none)


class RoutedChannels:
    """Channels with their paths through a network, which cost more than times at several speeds of links."""

    def __init__(self, channels: CallChannels, topology: Topology) -> None:
        """Raises TopologyError without a route."""
        self.channels, self.topology = channels, topology
        number, patterns = topology.num_ranks, channels.traffic.patterns
        ends = [(channels.orders[:, one.source].ravel(), channels.orders[:, one.target].ravel()) for one in patterns]
        # Channels share most pairs of ranks, and routing costs most per target: so each pair is routed once, by target.
        keys = np.concatenate([np.zeros(0, np.int64), *(target * number + source for source, target in ends)])
        pairs, pair_of = np.unique(keys, return_inverse=True)
        target, source = np.divmod(pairs, number)
        self._paths = topology.paths(source, target)
        self._crosses: Bools = topology.hosts[source] != topology.hosts[target]
        begins = accumulate((len(one) for one, _ in ends), initial=0)
        self._pairs: list[Ints] = [pair_of[begin:end] for begin, end in pairwise(begins)]
        lengths = np.diff(self._paths.offsets)
        self._loads = list[Floats]()  # for each pattern, the chunks on each link
        for pattern, of_pattern in zip(patterns, self._pairs, strict=True):
            chunks = np.bincount(of_pattern, np.tile(pattern.chunks, len(channels.orders)), len(pairs))
            load = np.bincount(self._paths.links, np.repeat(chunks, lengths), topology.num_links)
            self._loads.append(load.astype(np.float64))
        self._meetings = [_Meetings(pattern) for pattern in patterns]

    def times(self, bytes_per_second: Floats, hop_seconds: tuple[float, float], num_bytes: float) -> ChannelTimes:
        """Returns the time of a call of num_bytes.

        bytes_per_second: float64[num_links]. hop_seconds: the latency of a message within a host, and between hosts.
        """
        channels, paths, (inside, between) = self.channels, self._paths, hop_seconds
        pieces = channels.pieces(num_bytes)
        chunk_bytes = channels.traffic.chunk_bytes(num_bytes) / len(channels.orders) / pieces
        # A message takes as long as its busiest link needs for all messages that cross it in the step.
        busy = [chunk_bytes * load / bytes_per_second for load in self._loads]
        most = [-least_of_each(-one[paths.links], paths.offsets) for one in busy]
        latency_of_pair = np.where(self._crosses, between, inside)
        sent = [one[pairs] for one, pairs in zip(most, self._pairs, strict=True)]
        latencies = [latency_of_pair[pairs] for pairs in self._pairs]
        rows = [part.reshape(len(channels.orders), -1) for part in (*sent, *latencies)]
        different = _different(rows)
        sent, latencies = ([one[different] for one in part] for part in (rows[: len(sent)], rows[len(sent) :]))
        first = self._finished(sent, latencies)
        latency = self._finished([np.zeros_like(one) for one in sent], latencies)
        times = np.ones(len(busy)) if channels.in_sequence else channels.traffic.occurrences()
        piece_seconds = sum(
            (number * one for number, one in zip(times, busy, strict=True)), np.zeros(len(bytes_per_second))
        )
        rest = (pieces - 1) * float(piece_seconds.max(initial=0.0))
        steps = len(channels.traffic.patterns[0].source) if channels.in_sequence else channels.traffic.num_steps
        return ChannelTimes(first + rest, latency, steps, pieces * piece_seconds * bytes_per_second)

    def _finished(self, sent: list[Floats], latencies: list[Floats]) -> float:
        """Returns when the last rank of all channels has finished one piece, from the times of messages."""
        if self.channels.in_sequence:
            return sum(float((one + more).sum(axis=1).max()) for one, more in zip(sent, latencies, strict=True))
        traffic = self.channels.traffic
        steps = [_ChannelStep(*one) for one in zip(self._meetings, sent, latencies, strict=True)]
        ready = np.zeros((max((len(one) for one in sent), default=1), traffic.num_ranks))
        for number, times in traffic.repeats:
            ready = repeated(steps[number], ready, times)
        return float(ready.max())


def _different(rows: list[Floats]) -> Ints:
    """Returns one channel of those whose messages take equally long, in whatever order of ranks."""
    if not rows:
        return np.zeros(1, np.int64)
    alike = np.concatenate([np.sort(one, axis=1) for one in rows], axis=1)
    scale = alike.max(initial=0.0) or 1.0
    return np.unique(np.round(alike / scale, 9), axis=0, return_index=True)[1].astype(np.int64)


class _Meetings:
    """Which messages of a pattern meet at a rank: those that it sends, and those that it receives."""

    def __init__(self, pattern: TrafficPattern) -> None:
        self.source = pattern.source
        self.senders, self.send_begins = np.unique(pattern.source, return_index=True)
        self.by_target = np.argsort(pattern.target, kind="stable")
        self.receivers, self.receive_begins = np.unique(pattern.target[self.by_target], return_index=True)


class _ChannelStep:
    """One step of all channels, as a function from the ready times of ranks, float64[channels, ranks], to the next."""

    def __init__(self, meetings: _Meetings, sent: Floats, latencies: Floats) -> None:
        self.meetings, self.sent = meetings, sent
        self.latencies = latencies[:, meetings.by_target]

    def __call__(self, state: Floats) -> Floats:
        ready, meetings = state.copy(), self.meetings
        left = ready[:, meetings.source] + self.sent
        come = left[:, meetings.by_target] + self.latencies
        for ranks, begins, times in (
            (meetings.senders, meetings.send_begins, left),
            (meetings.receivers, meetings.receive_begins, come),
        ):
            ready[:, ranks] = np.maximum(ready[:, ranks], np.maximum.reduceat(times, begins, axis=1))
        return ready

    def is_moved(self, before: Floats, after: Floats) -> bool:
        """Returns whether all times of each channel were shifted equally; then all later repetitions do the same."""
        moved = after - before
        return bool((moved.max(axis=1) - moved.min(axis=1) <= _SAME * after.max()).all())
