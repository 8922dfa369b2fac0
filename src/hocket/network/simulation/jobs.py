"""A collective to simulate: its traffic, its paths through a network, and the size of its chunks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.network.simulation.simulation_options import SimulationOptions
from hocket.network.simulation.traffic import Traffic, TrafficPattern, pair_numbers
from hocket.network.topology import Paths, Topology

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Job:
    """Traffic on a network. In a collapsed job, a few ranks and links represent all.

    paths: for the messages of each pattern. channels: int64, a number for each pair of ranks. weights: float64, for
    each link of each path, the share of the message that crosses it, or the number of equal messages that cross an
    equal link. switches: bool[num_ranks], the ranks that represent a switch, for which messages and work take no time
    because it works while data passes.
    """

    traffic: Traffic
    paths: tuple[Paths, ...]
    channels: tuple[Ints, ...]
    weights: tuple[Floats, ...]
    bytes_per_second: Floats
    chunk_bytes: float
    switches: Bools
    start_seconds: float = 0.0

    @cached_property
    def alone(self) -> tuple[Floats, ...]:
        """The bytes per second of each message of each pattern if it is alone on the network."""
        return tuple(
            least_of_each(self.bytes_per_second[paths.links] / weights, paths.offsets)
            for paths, weights in zip(self.paths, self.weights, strict=True)
        )

    def patterns(self) -> Iterator[tuple[TrafficPattern, Paths, Floats, Floats]]:
        """Returns each pattern with its paths, their weights, and the rates of `alone`."""
        return zip(self.traffic.patterns, self.paths, self.weights, self.alone, strict=True)

    def pattern_link_chunks(self) -> Iterator[tuple[Ints, Floats]]:
        """Yields, for each pattern, the links in use and the number of chunks on each."""
        for pattern, paths, weights, _ in self.patterns():
            yield loads(paths.links, np.repeat(pattern.chunks, np.diff(paths.offsets)) * weights)

    def link_bytes(self) -> Floats:
        """Returns the total bytes on each link: float64[num_links]."""
        total = np.zeros(len(self.bytes_per_second))
        for times, (links, chunks) in zip(self.traffic.occurrences().tolist(), self.pattern_link_chunks(), strict=True):
            total[links] += times * chunks * self.chunk_bytes
        return total

    def pieces(self, piece_bytes: float) -> int:
        """Returns the number of pieces, of at most piece_bytes, in which each chunk moves."""
        return max(1, math.ceil(self.chunk_bytes / piece_bytes * (1 - 1e-12)))


def make_job(traffic: Traffic, topology: Topology, num_bytes: float, start_seconds: float = 0.0) -> Job:
    """Returns the job of a call of num_bytes with this traffic, routed by the network."""
    channels = tuple(pair_numbers(one.source, one.target, traffic.num_ranks) for one in traffic.patterns)
    paths = _ways(traffic, topology, channels)
    weights = tuple(
        np.broadcast_to(np.float64(1), len(one.links)) if one.weights is None else one.weights for one in paths
    )
    chunk_bytes = traffic.chunk_bytes(num_bytes)
    switches = topology.reducing[topology.ranks]
    return Job(traffic, paths, channels, weights, topology.bytes_per_second, chunk_bytes, switches, start_seconds)


def _ways(traffic: Traffic, topology: Topology, channels: Sequence[Ints]) -> tuple[Paths, ...]:
    """Returns the paths of each pattern, routed together; equal patterns share their paths."""
    keys = [sha256(pairs.tobytes()).digest() for pairs in channels]
    different = dict(zip(keys, traffic.patterns, strict=True))
    source, target = (
        _joined([getattr(one, ends) for one in different.values()], empty=np.zeros(0, np.int64))
        for ends in ("source", "target")
    )
    all_paths = topology.paths(source, target)
    begins = _begins(list(different.values()), lambda pattern: len(pattern.source)).tolist()
    parts = {key: part_of(all_paths, *ends) for key, ends in zip(different, pairwise(begins), strict=True)}
    return tuple(parts[key] for key in keys)


def part_of(paths: Paths, begin: int, end: int) -> Paths:
    """Returns the paths of the flows from begin to end."""
    offsets = paths.offsets[begin : end + 1]
    links = slice(offsets[0], offsets[-1])
    weights = None if paths.weights is None else paths.weights[links]
    rate_weights = None if paths.rate_weights is None else paths.rate_weights[begin:end]
    return Paths(offsets - offsets[0], paths.links[links], paths.seconds[begin:end], weights, rate_weights)


def loads(links: Ints, amounts: Floats) -> tuple[Ints, Floats]:
    """Returns the distinct links and the sum of the amounts of each."""
    if not len(links):
        return links, amounts
    total = np.bincount(links, amounts).astype(np.float64)
    used = np.flatnonzero(np.bincount(links)).astype(np.int64)
    return used, total[used]


_MOST_PIECES = 1 << 25
"""Pieces of all ranks, or of the messages of a step; with that many, a simulation takes about 4 GB and a minute."""


def check_pieces(jobs: Sequence[Job], piece_bytes: float) -> None:
    """Raises ValueError for calls with more pieces than memory can hold. Call it before pieces are made."""
    for job in jobs:
        pieces, num_ranks = job.pieces(piece_bytes), job.traffic.num_ranks
        most = pieces * max([num_ranks, *(len(pattern.source) for pattern in job.traffic.patterns)])
        if pieces > 1 and most > _MOST_PIECES:
            raise ValueError(
                f"num_bytes: {job.chunk_bytes * job.traffic.chunks_per_vector:g} bytes move in {pieces} pieces per "
                f"chunk, {most} at a time among {num_ranks} ranks; expected at most {_MOST_PIECES}: use fewer bytes, "
                'larger pieces, or the level "steps", which has no pieces'
            )


def engine_arrays(
    jobs: Sequence[Job], link_seconds: Floats, options: SimulationOptions, work_seconds: Sequence[tuple[Floats, ...]]
) -> dict[str, npt.NDArray[Any]]:
    """Returns all jobs as the arrays of csrc/simulator/problem.h. work_seconds: per job, pattern and rank, per byte.

    Raises ValueError for too many pieces.
    """
    check_pieces(jobs, options.piece_bytes)
    patterns = [one for job in jobs for one in job.traffic.patterns]
    all_paths = [one for job in jobs for one in job.paths]
    first_actor = [0, *accumulate(job.traffic.num_ranks for job in jobs)]
    first_pattern = [0, *accumulate(len(job.traffic.patterns) for job in jobs)]
    actor_of_pattern = np.repeat(first_actor[:-1], np.diff(first_pattern))
    ends = [
        np.stack((pattern.source, pattern.target)) + first
        for pattern, first in zip(patterns, actor_of_pattern.tolist(), strict=True)
    ]
    source, target = _joined(ends, axis=1, empty=np.zeros((2, 0), np.int64))
    work = [seconds for of_job in work_seconds for seconds in of_job]
    busy = [np.flatnonzero(seconds) for seconds in work]
    repeats = [
        (first + pattern, times, number)
        for number, (job, first) in enumerate(zip(jobs, first_pattern, strict=False))
        for pattern, times in job.traffic.repeats
    ]
    repeat_pattern, repeat_times, repeat_job = np.array(repeats, np.int64).reshape(-1, 3).T.copy()
    pieces = np.array([job.pieces(options.piece_bytes) for job in jobs], np.int64)
    chunk_bytes = np.array([job.chunk_bytes for job in jobs])
    every_piece = np.where(pieces > 1, options.piece_bytes, chunk_bytes)
    rate_weights = [_rate_weights(*each) for each in zip(patterns, all_paths, strict=True)]
    weights = [
        one if paths.rate_weights is None else one * np.repeat(paths.rate_weights, np.diff(paths.offsets))
        for one, paths in zip((one for job in jobs for one in job.weights), all_paths, strict=True)
    ]
    switches = np.concatenate([job.switches for job in jobs])
    most_channels = 1 + max((int(one.max(initial=0)) for job in jobs for one in job.channels), default=0)
    channels = [one + number * most_channels for number, job in enumerate(jobs) for one in job.channels]
    return {
        "pattern_begins": _begins(patterns, lambda pattern: len(pattern.source)),
        "source": source,
        "target": target,
        "channel": np.unique(_joined(channels), return_inverse=True)[1].astype(np.int64),
        "chunks": _joined([one.chunks / rates for one, rates in zip(patterns, rate_weights, strict=True)]),
        "eager_bytes": _joined([options.eager_bytes / rates for rates in rate_weights]),
        "seconds": _joined([paths.seconds for paths in all_paths]),
        "offsets": _begins_of(_joined([np.diff(paths.offsets) for paths in all_paths])),
        "links": _joined([paths.links for paths in all_paths], empty=np.zeros(0, np.int64)),
        "weights": np.zeros(0) if all((one == 1).all() for one in weights) else _joined(weights),
        "work_begins": _begins(busy, len),
        "work_actor": _joined(
            [ranks + first for ranks, first in zip(busy, actor_of_pattern.tolist(), strict=True)],
            empty=np.zeros(0, np.int64),
        ),
        "work": _joined([seconds[ranks] for seconds, ranks in zip(work, busy, strict=True)]),
        "repeat_pattern": repeat_pattern,
        "repeat_times": repeat_times,
        "repeat_job": repeat_job,
        "job_pieces": pieces,
        "job_start": np.array([job.start_seconds for job in jobs]),
        "piece_bytes": every_piece,
        "last_piece_bytes": chunk_bytes - (pieces - 1) * every_piece,
        "actor_job": np.repeat(np.arange(len(jobs)), [job.traffic.num_ranks for job in jobs]),
        "send_seconds": np.where(switches, 0.0, options.send_seconds),
        "receive_seconds": np.where(switches, 0.0, options.receive_seconds),
        "gap_seconds": np.where(switches, 0.0, options.gap_seconds),
        "bytes_per_second": jobs[0].bytes_per_second,
        "link_seconds": link_seconds,
    }


def _rate_weights(pattern: TrafficPattern, paths: Paths) -> Floats:
    """Returns the rate weight of each message.

    The engine lets flows share a full link equally. So a flow of rate weight w is told to it as one that moves 1/w of
    the bytes and takes w times as much of each link.
    """
    one = np.broadcast_to(np.float64(1), len(pattern.source))
    return one if paths.rate_weights is None else paths.rate_weights


def least_of_each(values: Floats, offsets: Ints) -> Floats:
    """Returns the least value of each part; infinity for an empty part."""
    least = np.full(len(offsets) - 1, np.inf)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        least[filled] = np.minimum.reduceat(values, offsets[filled])
    return least


def _joined(parts: Sequence[npt.NDArray[Any]], axis: int = 0, empty: npt.NDArray[Any] | None = None) -> Any:
    return np.concatenate(parts, axis=axis) if parts else np.zeros(0) if empty is None else empty


def _begins(parts: Sequence[Any], length: Any) -> Ints:
    return _begins_of(np.array([length(part) for part in parts], np.int64))


def _begins_of(lengths: npt.NDArray[Any]) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
