"""Reduces a symmetric job to a few ranks and links that represent all.

Two kinds of moves are tried: turns map rank r to rank r + g, swaps map it to rank r ^ 2^i. Traffic on a network is
symmetric under a move if the move maps every message to one of equal size, the work of ranks to equal work, and every
path to a path, link by link, with equal bandwidth and latency. Then a rank and its image always do the same at the
same time, at the same rates. So one rank of each orbit is simulated, and one link of each orbit of links; this link
carries, of each kind of message, as many as the real links do on average. The result is exact.

All paths are compared, so a network with routing that is not symmetric is never treated as symmetric.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hocket.network.simulation.jobs import Job
from hocket.network.simulation.traffic import Traffic, TrafficPattern, pair_numbers
from hocket.network.topology import Paths

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
RankWork = tuple[Floats, ...]
"""Seconds of each rank in each pattern, for each byte of a chunk."""

_MOST_SWAPPED = 1 << 22
"""Links of all paths, times swaps; comparing more takes longer than it can save."""

_AT_ONCE = 1 << 15
"""Messages moved at a time: allocating more new memory costs more than the arithmetic."""

_PROBED = 64
"""Messages of each pattern that are tested before all are."""


def collapsed(job: Job, link_seconds: Floats, work: RankWork, *, ordered: bool) -> tuple[Job, RankWork, Ints]:
    """Returns the job among a few representative ranks, their work, and the number of each rank's representative.

    ordered: whether the order of a rank's messages within a step matters; swaps do not keep it.
    """
    num_ranks = job.traffic.num_ranks
    ranks = np.arange(num_ranks)
    if any(paths.weights is not None for paths in job.paths):
        return job, work, ranks  # shares of flows are not compared
    best: tuple[Ints, list[Ints]] = (ranks, [])
    for period in (one for one in range(1, num_ranks // 2 + 1) if num_ranks % one == 0):
        image = _image(job, link_seconds, work, (ranks + period) % num_ranks)
        if image is not None:
            best = (ranks % period, [image])
            break
    bits = range(num_ranks.bit_length() - 1)
    crossings = sum(len(paths.links) for paths in job.paths) * len(bits)
    if best[0].any() and num_ranks.bit_count() == 1 and not ordered and crossings <= _MOST_SWAPPED:
        images = {bit: _image(job, link_seconds, work, ranks ^ (1 << bit)) for bit in bits}
        good = {bit: image for bit, image in images.items() if image is not None}
        stand = ranks & ~sum(1 << bit for bit in good)
        if num_ranks >> len(good) < best[0].max() + 1:
            best = (stand, list(good.values()))
    stand, found = best
    return _quotient(job, work, stand, found) if found else (job, work, ranks)


def _image(job: Job, link_seconds: Floats, work: RankWork, moved: Ints) -> Ints | None:
    """Returns the image of each link under a move, -1 for an unused link; None if the job is not symmetric under it."""
    if not all(_may_move(*one, moved) for one in zip(job.traffic.patterns, job.channels, job.paths, strict=True)):
        return None
    if (job.switches[moved] != job.switches).any():
        return None
    image = np.full(len(link_seconds), -1)
    seen: set[int] = set()
    for pattern, pairs, paths, seconds in zip(job.traffic.patterns, job.channels, job.paths, work, strict=True):
        if (seconds[moved] != seconds).any():
            return None
        for begin in range(0, len(pairs), _AT_ONCE):
            some = slice(begin, begin + _AT_ONCE)
            there = _places(pattern, pairs, some, moved)
            if (there < 0).any() or (pattern.chunks[there] != pattern.chunks[some]).any():
                return None
            if id(paths) not in seen and not _add_images(image, paths, begin, there):
                return None
        seen.add(id(paths))
    used = np.flatnonzero(image >= 0)
    if np.bincount(image[used], minlength=1).max() > 1:  # two links have the same image
        return None
    rates = job.bytes_per_second
    alike = (rates[used] == rates[image[used]]) & (link_seconds[used] == link_seconds[image[used]])
    return image if alike.all() else None


def _may_move(pattern: TrafficPattern, pairs: Ints, paths: Paths, moved: Ints) -> bool:
    """Returns whether a few messages have images with equally long paths: a quick test that rejects most jobs."""
    if not len(pairs):
        return True
    few = np.linspace(0, len(pairs) - 1, _PROBED).astype(np.int64)
    found = _places(pattern, pairs, few, moved)
    begins = paths.offsets
    return bool((found >= 0).all() and (begins[found + 1] - begins[found] == begins[few + 1] - begins[few]).all())


def _places(pattern: TrafficPattern, pairs: Ints, messages: Ints | slice, moved: Ints) -> Ints:
    """Returns the number of the image of each of these messages, or -1 if there is none."""
    there = pair_numbers(moved[pattern.source[messages]], moved[pattern.target[messages]], len(moved))
    found = np.minimum(np.searchsorted(pairs, there), len(pairs) - 1)
    return np.where(pairs[found] == there, found, -1)


def _add_images(image: Ints, paths: Paths, begin: int, there: Ints) -> bool:
    """Adds the images of links on the paths of messages from `begin` on. Returns whether each link has one image."""
    offsets = paths.offsets[begin : begin + len(there) + 1]
    lengths = np.diff(offsets)
    if (paths.offsets[there + 1] - paths.offsets[there] != lengths).any():
        return False
    links = paths.links[offsets[0] : offsets[-1]]
    images = paths.links[np.repeat(paths.offsets[there] - offsets[:-1], lengths) + np.arange(offsets[0], offsets[-1])]
    before = image[links]
    image[links] = images
    return bool(((before < 0) | (before == images)).all() and (image[links] == images).all())


def _orbits(images: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Returns the representative of each link's orbit, and the size of the orbit."""
    stands = np.where(images[0] >= 0, np.arange(len(images[0])), -1)
    changed = True
    while changed:
        changed = False
        for image in images:
            ahead = np.where(image >= 0, image, np.arange(len(image)))
            while True:  # each round looks twice as far ahead
                least = np.minimum(stands, stands[ahead])
                if (least == stands).all():
                    break
                stands, ahead, changed = least, ahead[ahead], len(images) > 1
    return stands, np.bincount(stands[stands >= 0], minlength=len(stands))


def _quotient(job: Job, work: RankWork, stand: Ints, images: Sequence[Ints]) -> tuple[Job, RankWork, Ints]:
    ranks, number = np.unique(stand, return_inverse=True)
    stands, sizes = _orbits(images)
    times = len(stand) // len(ranks)
    patterns, all_paths, channels, weights = [], [], [], []
    for pattern, pairs, paths in zip(job.traffic.patterns, job.channels, job.paths, strict=True):
        kept = np.flatnonzero(stand[pattern.source] == pattern.source)
        lengths = np.diff(paths.offsets)[kept]
        message = np.repeat(np.arange(len(kept)), lengths)
        entry = np.arange(len(message)) + np.repeat(paths.offsets[kept] - np.cumsum(lengths) + lengths, lengths)
        crossed = message * len(stands) + stands[paths.links[entry]]
        crossed, crossings = np.unique(crossed, return_counts=True)
        message, links = np.divmod(crossed, len(stands))
        few = TrafficPattern(
            number[pattern.source[kept]],
            number[pattern.target[kept]],
            pattern.chunks[kept],
            pattern.reduced[ranks],
            pattern.copied[ranks],
        )
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.bincount(message, minlength=len(kept)))))
        patterns.append(few)
        all_paths.append(Paths(offsets, links, paths.seconds[kept]))
        channels.append(pairs[kept])
        weights.append(times * crossings / sizes[links])
    traffic = Traffic(len(ranks), tuple(patterns), job.traffic.repeats, job.traffic.chunks_per_vector)
    few_job = replace(
        job,
        traffic=traffic,
        paths=tuple(all_paths),
        channels=tuple(channels),
        weights=tuple(weights),
        switches=job.switches[ranks],
    )
    return few_job, tuple(seconds[ranks] for seconds in work), number
