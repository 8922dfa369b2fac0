"""Simulates repeated steps without contention: the ready times of ranks follow from those of the step before.

If no link can ever be overloaded, every message has the rate that it has alone. Then a repetition maps the ready times
of all ranks to their next ready times, and the order of events does not matter. The times soon become periodic: once c
repetitions have only shifted interacting ranks by a common time, every c later repetitions do the same and are skipped.

A rank is in one step at a time, so the load of a link is at most the sum, over all ranks, of each rank's largest load
on it in any step. With several pieces a rank is in several steps at a time, but a channel, from one rank to another,
carries one message at a time, so the sum is over channels. The module assumes that channels and ranks serve step after
step, and within a step piece after piece, and checks it: the assumption fails if early pieces of a later step come
before the last pieces of an earlier one have begun.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hocket.network.simulation.jobs import Job, check_pieces, loads
from hocket.network.simulation.simulation_options import SimulationOptions

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MOST_CROSSINGS = 1 << 23
"""Links of all paths; with more, the check costs more than it can save."""

_NEVER = -1.0  # before all times
_SAME = 1e-13  # share of the time so far; smaller differences are rounding
_PROBED = 64  # messages that are tested before all are


def never_contends(job: Job, options: SimulationOptions) -> bool:
    """Returns whether no link can be overloaded, however early or late ranks are; False also if that is unknown."""
    if options.store_and_forward_bytes is not None or options.gap_seconds or options.eager_bytes:
        return False
    if sum(len(paths.links) for paths in job.paths) > _MOST_CROSSINGS:
        return False
    senders = [pattern.source for pattern in job.traffic.patterns]
    if job.pieces(options.piece_bytes) > 1:
        senders = _channels(job)
    num_senders = 1 + max((int(one.max(initial=0)) for one in senders), default=0)
    keys, shares = [], []
    for sender, (_, paths, weights, alone) in zip(senders, job.patterns(), strict=True):
        lengths = np.diff(paths.offsets)
        share = np.repeat(alone, lengths) * weights / job.bytes_per_second[paths.links]
        pairs, number = np.unique(paths.links * num_senders + np.repeat(sender, lengths), return_inverse=True)
        keys.append(pairs)
        shares.append(np.bincount(number, share, len(pairs)))
    pairs, number = np.unique(np.concatenate(keys), return_inverse=True)
    most = np.zeros(len(pairs))
    np.maximum.at(most, number, np.concatenate(shares))
    _, load = loads(pairs // num_senders, most)
    return bool((load <= 1 + 1e-9).all())


def ready_times(job: Job, options: SimulationOptions, work_seconds: tuple[Floats, ...]) -> Floats | None:
    """Returns when each rank finishes a job that never contends: float64[num_ranks].

    Returns None if the order is not that of steps and pieces. Raises ValueError for too many pieces.
    """
    check_pieces([job], options.piece_bytes)
    shape = (job.pieces(options.piece_bytes), job.traffic.num_ranks)
    channels = _channels(job)
    num_channels = 1 + max((int(one.max(initial=-1)) for one in channels), default=-1)
    views = _Views(shape, num_channels)
    steps = [_Step(job, number, options, channels[number], work, views) for number, work in enumerate(work_seconds)]
    state = np.full(views.begins[-1], _NEVER)
    views.ready(state)[:] = job.start_seconds
    try:
        for pattern, times in job.traffic.repeats:
            state = repeated(steps[pattern], state, times)
    except _OvertakenError:
        return None
    finished: Floats = views.ready(state).max(axis=0)
    return finished


def _channels(job: Job) -> list[Ints]:
    """Returns the channels of each pattern, numbered from 0."""
    number = np.unique(np.concatenate(job.channels), return_inverse=True)[1].astype(np.int64)
    return np.split(number, np.cumsum([len(one) for one in job.channels])[:-1])


class _OvertakenError(Exception):
    """Raised if a later step or piece comes before an earlier one."""


@dataclass(frozen=True)
class _Views:
    """The layout of the state, a float64 vector of times.

    ready: when each rank may begin a step, for each piece. Others, only with several pieces, about the last piece so
    far: when each rank could begin to work on it and when it had finished; when it began to leave each channel and when
    it had left. With one piece all of these lie in the past when a step begins.
    """

    shape: tuple[int, int]
    num_channels: int

    @cached_property
    def begins(self) -> list[int]:
        num_pieces, num_ranks = self.shape
        others = (num_ranks, num_ranks, self.num_channels, self.num_channels) if num_pieces > 1 else (0,) * 4
        return list(accumulate((0, num_pieces * num_ranks, *others)))

    def ready(self, state: Floats) -> Floats:
        return state[: self.begins[1]].reshape(self.shape)

    def others(self, state: Floats) -> Iterator[Floats]:
        return (state[begin:end] for begin, end in pairwise(self.begins[1:]))


class _Step:
    """One step of all ranks, as a function from their ready times to their next ready times."""

    def __init__(
        self, job: Job, number: int, options: SimulationOptions, channel: Ints, work: Floats, views: _Views
    ) -> None:
        pattern, seconds, alone = job.traffic.patterns[number], job.paths[number].seconds, job.alone[number]
        self.source, self.target, self.channel, self.views = pattern.source, pattern.target, channel, views
        self.seconds = seconds
        first = np.searchsorted(self.source, self.source)
        send_seconds = np.where(job.switches[self.source], 0.0, options.send_seconds)
        self.overhead = (np.arange(len(first)) - first + 1) * send_seconds
        num_pieces = views.shape[0]
        size = options.piece_bytes if num_pieces > 1 else job.chunk_bytes
        before = np.arange(num_pieces)[:, None] * size
        through = np.append(before[1:, 0], job.chunk_bytes)[:, None]
        self.sent = (before * (pattern.chunks / alone), through * (pattern.chunks / alone))
        self.workers = np.flatnonzero(work)
        self.done = (before * work[self.workers], through * work[self.workers])
        self.by_target = np.argsort(self.target, kind="stable")
        self.receive_seconds = np.where(job.switches[self.target[self.by_target]], 0.0, options.receive_seconds)
        self.senders, self.send_begins = np.unique(self.source, return_index=True)
        self.receivers, self.receive_begins, self.num_received = np.unique(
            self.target[self.by_target], return_index=True, return_counts=True
        )
        self.alike = self._alike()

    def __call__(self, state: Floats) -> Floats:
        state = state.copy()
        ready, (gathered, worked, began, left) = self.views.ready(state), self.views.others(state)
        if len(self.source):
            enters = _some(ready, self.source) + self.overhead
            leaves = _one_by_one(enters, began, left, self.channel, self.sent, in_turn=False)
            _raise(ready, self.senders, _latest(leaves, self.send_begins))
            _raise(ready, self.receivers, self._received(_some(leaves + self.seconds, self.by_target)))
        if len(self.workers):
            done = _one_by_one(_some(ready, self.workers), gathered, worked, self.workers, self.done)
            _raise(ready, self.workers, done)
        return state

    def _received(self, arrived: Floats) -> Floats:
        """Returns when each receiver has received all, from the arrival times of messages, sorted by target."""
        if self.receive_seconds.any():  # the i-th last message has i - 1 others after it
            target = np.broadcast_to(self.target[self.by_target], arrived.shape)
            arrived = np.take_along_axis(arrived, np.lexsort((arrived, target)), axis=1)
            last = np.repeat(self.receive_begins + self.num_received, self.num_received)
            arrived = arrived + (last - np.arange(len(last))) * self.receive_seconds
        return _latest(arrived, self.receive_begins)

    def _alike(self) -> tuple[Ints, Ints]:
        """Returns pairs of indices of times that affect each other."""
        num_pieces, num_ranks = self.views.shape
        busy = np.union1d(self.senders, np.union1d(self.receivers, self.workers))
        pairs = [(self.source, self.target)]
        pairs += [(busy, busy + piece * num_ranks) for piece in range(1, num_pieces)]
        if num_pieces > 1:
            pairs += [(self.workers, begin + self.workers) for begin in self.views.begins[1:3]]
            pairs += [(self.source, begin + self.channel) for begin in self.views.begins[3:5]]
        one, other = (np.concatenate(column) for column in zip(*pairs, strict=True))
        return one, other

    def is_moved(self, before: Floats, after: Floats) -> bool:
        """Returns whether times that affect each other were shifted equally; then all later repetitions do the same."""
        moved, limit = after - before, _SAME * after.max()
        one, other = self.alike
        for some in (slice(_PROBED), slice(None)):
            if np.abs(moved[one[some]] - moved[other[some]]).max(initial=0) > limit:
                return False
        return True


def _one_by_one(
    come: Floats, last: Floats, over: Floats, which: Ints, amounts: tuple[Floats, Floats], *, in_turn: bool = True
) -> Floats:
    """Returns when each piece is done by servers that handle one piece at a time: float64[num_pieces, n].

    come: when each piece arrives at the servers `which`. last, over: for all servers, when the previous last piece
    could be overtaken no more, and when it was done; updated to the new last piece. amounts: seconds for all pieces
    before each piece, and including it. in_turn: servers serve first come, first served; else an early piece of a later
    step goes before a late one of an earlier step. Raises _OvertakenError if the previous last piece is overtaken.
    """
    if len(come) == 1:
        return come + amounts[1]
    if (come[0] <= last[which]).any():
        raise _OvertakenError
    begins = come - amounts[0]
    begins[0] = np.maximum(begins[0], over[which])
    done: Floats = np.maximum.accumulate(begins, axis=0) + amounts[1]
    over[which] = done[-1]
    last[which] = come[-1] if in_turn else done[-1] - amounts[1][-1] + amounts[0][-1]
    return done


def _some(times: Floats, columns: Ints) -> Floats:
    """Returns some columns of a table. Indexing with brackets is slow along the last axis."""
    return np.take(times, columns, axis=1)


def _raise(times: Floats, columns: Ints, least: Floats) -> None:
    """Raises the values in some columns of a table (sorted by number) to at least `least`."""
    if len(columns) == times.shape[1]:
        np.maximum(times, least, out=times)
    else:
        times[:, columns] = np.maximum(_some(times, columns), least)


def _latest(times: Floats, begins: Ints) -> Floats:
    """Returns the largest value of each part of every row."""
    latest: Floats = np.maximum.reduceat(times, begins, axis=1) if len(begins) < times.shape[1] else times
    return latest


class RepeatedStep(Protocol):
    """A function from one state of a simulation to the next."""

    def __call__(self, state: Floats) -> Floats:
        """Returns the next state."""

    def is_moved(self, before: Floats, after: Floats) -> bool:
        """Returns whether times that affect each other were shifted equally; then all later repetitions do the same."""


def repeated(step: RepeatedStep, state: Floats, times: int) -> Floats:
    """Returns the state after all repetitions, by Brent's search: compares with the repetition of a power of two."""
    marked, number, done = state, 0, 0
    while done < times:
        state = step(state)
        done += 1
        if step.is_moved(marked, state):
            period = done - number
            state = state + (times - done) // period * (state - marked)
            for _ in range((times - done) % period):
                state = step(state)
            return state
        if done & (done - 1) == 0:
            marked, number = state, done
    return state
