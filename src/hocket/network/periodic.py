"""Schedules of repeated steps without contention: when each rank is ready follows from when all were a step before.

Where no link can ever be short, every message has the rate that it would have alone, so a repetition takes all ranks
from the times at which they were ready to those at which they are again, and the order of events does not matter.
These times are periodic before long: once c repetitions have done nothing but move ranks that have to do with each
other on by one time, each c later ones do the same, and need not be gone through.

A rank is in one step at a time, so the load of a link is at most the sum, over all ranks, of what each sends through it
in the step in which that is most. (With pieces a rank is in several steps at a time: then this does not apply.)
"""

import numpy as np
import numpy.typing as npt

from hocket.network.jobs import Job, loads
from hocket.network.options import Options
from hocket.network.traffic import Pattern

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MOST_CROSSINGS = 1 << 23
"""Of messages and links, beyond which asking costs more than it may save."""

_SAME = 1e-13  # of the time so far: rounding
_PROBED = 64  # messages, before all are asked


def never_contends(job: Job, options: Options) -> bool:
    """Whether no link can be short, whatever ranks are early or late; False also where that is not known."""
    if job.pieces(options.piece_bytes) > 1 or options.store_and_forward_bytes is not None:
        return False
    if sum(len(paths.links) for paths in job.paths) > _MOST_CROSSINGS:
        return False
    num_ranks = job.traffic.num_ranks
    keys, shares = [], []
    for pattern, paths, weights, alone in job.patterns():
        lengths = np.diff(paths.offsets)
        rank = np.repeat(pattern.source, lengths)
        share = np.repeat(alone, lengths) * weights / job.bytes_per_second[paths.links]
        pairs, number = np.unique(paths.links * num_ranks + rank, return_inverse=True)
        keys.append(pairs)
        shares.append(np.bincount(number, share, len(pairs)))
    pairs, number = np.unique(np.concatenate(keys), return_inverse=True)
    most = np.zeros(len(pairs))
    np.maximum.at(most, number, np.concatenate(shares))
    _, load = loads(pairs // num_ranks, most)
    return bool((load <= 1 + 1e-9).all())


def ready_times(job: Job, options: Options, work_seconds: tuple[Floats, ...]) -> Floats:
    """When each rank has finished, of a job that never contends: float64[num_ranks]."""
    steps = [
        _Step(job, pattern, paths.seconds, alone, options, work)
        for (pattern, paths, _, alone), work in zip(job.patterns(), work_seconds, strict=True)
    ]
    ready = np.full(job.traffic.num_ranks, job.start_seconds)
    for pattern, repeat in job.traffic.blocks:
        ready = _repeated(steps[pattern], ready, repeat)
    return ready


class _Step:
    """One step of all ranks, as a function from the times at which they are ready to those at which they are next."""

    def __init__(
        self, job: Job, pattern: Pattern, seconds: Floats, alone: Floats, options: Options, work: Floats
    ) -> None:
        self.source, self.target, self.work = pattern.source, pattern.target, work * job.chunk_bytes
        self.receive_seconds = options.receive_seconds
        first = np.searchsorted(self.source, self.source)
        overhead = (np.arange(len(first)) - first + 1) * options.send_seconds
        self.leaves = overhead + pattern.chunks * job.chunk_bytes / alone
        self.arrives = self.leaves + seconds
        self.by_target = np.argsort(self.target, kind="stable")
        self.senders, self.send_begins = np.unique(self.source, return_index=True)
        self.receivers, self.receive_begins, self.num_received = np.unique(
            self.target[self.by_target], return_index=True, return_counts=True
        )

    def __call__(self, ready: Floats) -> Floats:
        done = ready.copy()
        if len(self.source):
            begins = ready[self.source]
            left = _latest(begins + self.leaves, self.send_begins)
            done[self.senders] = np.maximum(done[self.senders], left)
            received = self._received((begins + self.arrives)[self.by_target])
            done[self.receivers] = np.maximum(done[self.receivers], received)
        return done + self.work

    def _received(self, arrived: Floats) -> Floats:
        """When each receiver has received all, of the times at which messages arrive, by target."""
        if self.receive_seconds:  # The i-th last to arrive has i - 1 others to be received behind it.
            target = self.target[self.by_target]
            arrived = arrived[np.lexsort((arrived, target))]
            behind = np.repeat(self.receive_begins + self.num_received, self.num_received) - np.arange(len(arrived))
            arrived = arrived + behind * self.receive_seconds
        return _latest(arrived, self.receive_begins)

    def is_moved(self, before: Floats, after: Floats) -> bool:
        """Whether ranks that have to do with each other were moved on by one time, so that all goes on like this."""
        moved, limit = after - before, _SAME * after.max()
        for source, target in ((self.source[:_PROBED], self.target[:_PROBED]), (self.source, self.target)):
            if np.abs(moved[source] - moved[target]).max(initial=0) > limit:
                return False
        return True


def _latest(times: Floats, begins: Ints) -> Floats:
    """The greatest of each part."""
    latest: Floats = np.maximum.reduceat(times, begins) if len(begins) < len(times) else times
    return latest


def _repeated(step: _Step, ready: Floats, repeat: int) -> Floats:
    """Brent's search for a period: compared with the last repetition whose number is a power of two."""
    marked, number, done = ready, 0, 0
    while done < repeat:
        ready = step(ready)
        done += 1
        if step.is_moved(marked, ready):
            period = done - number
            ready = ready + (repeat - done) // period * (ready - marked)
            for _ in range((repeat - done) % period):
                ready = step(ready)
            return ready
        if done & (done - 1) == 0:
            marked, number = ready, done
    return ready
