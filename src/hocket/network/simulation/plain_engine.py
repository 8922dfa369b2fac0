"""The event engine without compiled code: the same events in the same order as csrc/simulator, but far slower.

csrc/simulator documents the parts: problem.h the arrays, network.h the two kinds of networks. This engine simulates
every repetition of a step, so it is the reference for the compiled one, which skips some.
"""

import heapq
import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.network.simulation.max_min import filled

_SAME_TIME = 1 + 1e-12

Event = Callable[[float], None]


@dataclass(eq=False)
class _Travel:
    """One piece of a message on its way."""

    message: int
    step: int
    piece: int
    num_bytes: float
    started: float = 0.0
    sent: float = 0.0

    def order(self) -> tuple[int, int, int]:
        """Returns the sort key of travels that wait for one channel: see problem.h."""
        return self.step + self.piece, self.step, self.message


class _Queue:
    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Event]] = []
        self.numbers = count()

    def push(self, seconds: float, event: Event) -> None:
        heapq.heappush(self.heap, (seconds, next(self.numbers), event))


class _Fluid:
    """Flows that use all links of their path at the same time, at max-min fair rates; one flow per channel."""

    def __init__(self, problem: dict[str, Any], queue: _Queue, ranks: "_Ranks") -> None:
        self.problem, self.queue, self.ranks = problem, queue, ranks
        self.waiting: dict[int, list[_Travel]] = {}
        self.flows: dict[int, list[Any]] = {}  # by channel: travel, bytes left, rate, since when
        self.coming: list[_Travel] = []  # at this instant
        self.freed: dict[int, float] = {}  # channels whose flow has ended at this instant, and when
        self.changed = False

    def send(self, travel: _Travel, seconds: float) -> None:
        travel.started = seconds
        self.coming.append(travel)

    def start_flows(self) -> None:
        """Starts the next flow of each free channel, after all arrivals of this instant are known."""
        channels = list(self.freed)
        for travel in sorted(self.coming, key=_Travel.order):
            channel = int(self.problem["channel"][travel.message])
            insort(self.waiting.setdefault(channel, []), travel, key=_Travel.order)
            channels.append(channel)
        for channel in channels:
            if channel not in self.flows and self.waiting.get(channel):
                travel = self.waiting[channel].pop(0)
                travel.started = max(travel.started, self.freed.get(channel, 0.0))
                self.flows[channel] = [travel, travel.num_bytes, 0.0, travel.started]
                self.changed = True
        self.coming.clear()
        self.freed.clear()

    def settle(self, seconds: float) -> None:
        self.start_flows()
        if not self.changed:
            return
        self.changed = False
        problem, flows = self.problem, list(self.flows.values())
        messages = np.array([flow[0].message for flow in flows], np.int64)
        begins, ends = problem["offsets"][messages], problem["offsets"][messages + 1]
        lengths = ends - begins
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        entries = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
        weights = problem["weights"][entries] if len(problem["weights"]) else np.zeros(0)
        rates = filled(problem["bytes_per_second"], offsets, problem["links"][entries], weights)
        for flow, rate in zip(flows, rates.tolist(), strict=True):
            travel, left, before, since = flow
            if rate == before:
                continue
            left = max(0.0, left - before * (seconds - since))
            flow[1:] = left, rate, seconds if before else since
            channel = int(problem["channel"][travel.message])
            self.queue.push(flow[3] + left / rate, self.ended(channel, travel, rate))

    def ended(self, channel: int, travel: _Travel, rate: float) -> Event:
        def event(seconds: float) -> None:
            flow = self.flows.get(channel)
            if flow is None or flow[0] is not travel or flow[2] != rate or flow[3] + flow[1] / rate != seconds:
                return  # the rate has changed since
            del self.flows[channel]
            self.freed[channel] = seconds
            self.changed = True
            self.ranks.has_left(travel, seconds)
            latency = float(self.problem["seconds"][travel.message])
            self.queue.push(seconds + latency, partial(self.ranks.has_arrived, travel))

        return event


class _Forwarding:
    """Packets that a node receives completely before it forwards them; links are first in, first out."""

    def __init__(
        self, problem: dict[str, Any], queue: _Queue, ranks: "_Ranks", packet_bytes: float, tick_seconds: float
    ) -> None:
        self.problem, self.queue, self.ranks = problem, queue, ranks
        self.packet_bytes, self.tick_seconds = packet_bytes, tick_seconds
        self.waiting: dict[int, deque[tuple[_Travel, int, float, bool]]] = {}  # an entry for each busy link

    def send(self, travel: _Travel, seconds: float) -> None:
        travel.started = seconds
        begin, end = self.problem["offsets"][travel.message : travel.message + 2].tolist()
        if begin == end:
            self.ranks.has_left(travel, seconds)
            self.ranks.has_arrived(travel, seconds)
            return
        left, last = travel.num_bytes, False
        while not last:
            num_bytes = min(left, self.packet_bytes)
            left -= num_bytes
            last = left <= 0
            self.enter(travel, begin, num_bytes, last, seconds)

    def settle(self, seconds: float) -> None:
        """Does nothing: packets do not share links."""

    def enter(self, travel: _Travel, entry: int, num_bytes: float, last: bool, seconds: float) -> None:
        link = int(self.problem["links"][entry])
        if link in self.waiting:
            self.waiting[link].append((travel, entry, num_bytes, last))
        else:
            self.waiting[link] = deque()
            self.serve(link, travel, entry, num_bytes, last, seconds)

    def serve(self, link: int, travel: _Travel, entry: int, num_bytes: float, last: bool, seconds: float) -> None:
        begin, end = self.problem["offsets"][travel.message : travel.message + 2].tolist()
        busy = num_bytes / self.problem["bytes_per_second"][link]

        def served(then: float) -> None:
            if self.waiting[link]:
                self.serve(link, *self.waiting[link].popleft(), then)
            else:
                del self.waiting[link]
            if last and entry == begin:
                self.ranks.has_left(travel, then)

        def reached(then: float) -> None:
            if entry + 1 < end:
                self.enter(travel, entry + 1, num_bytes, last, then)
            elif last:
                self.ranks.has_arrived(travel, then)

        self.queue.push(seconds + self.whole_ticks(busy), served)
        self.queue.push(seconds + self.whole_ticks(busy + self.problem["link_seconds"][link]), reached)

    def whole_ticks(self, seconds: float) -> float:
        tick = self.tick_seconds
        return math.floor(seconds / tick + 1e-6) * tick if tick else seconds


@dataclass(eq=False)
class _Lane:
    """A rank and a piece, and the position in the rank's program."""

    actor: int
    piece: int
    entry: int = 0
    repetition: int = 0
    step: int = -1
    done: int = 0
    until: float = 0.0


class _Ranks:
    """Continues the programs of ranks when messages leave and arrive."""

    def __init__(self, problem: dict[str, Any], queue: _Queue, record: bool) -> None:
        self.problem, self.queue = problem, queue
        self.network: _Fluid | _Forwarding | None = None
        self.send_seconds, self.receive_seconds = (problem[f"{each}_seconds"].tolist() for each in ("send", "receive"))
        self.gap_seconds, self.eager_bytes = problem["gap_seconds"].tolist(), problem["eager_bytes"].tolist()
        self.records: list[tuple[float, ...]] | None = [] if record else None
        num_actors = len(problem["actor_job"])
        self.finished, self.worked_until = np.zeros(num_actors), np.zeros(num_actors)
        self.next_send, self.next_receive = [0.0] * num_actors, [0.0] * num_actors
        self.ready: list[tuple[_Lane, float]] = []  # lanes that can start to work at this instant
        self.programs = _programs(problem)
        self.lanes = {
            (actor, piece): _Lane(actor, piece)
            for actor, job in enumerate(problem["actor_job"].tolist())
            for piece in range(int(problem["job_pieces"][job]))
        }
        self.early: dict[tuple[int, int, int], tuple[int, float]] = {}

    def begin(self, lane: _Lane, seconds: float) -> None:
        program = self.programs[lane.actor]
        if lane.entry == len(program):
            lane.step = -1
            self.finished[lane.actor] = max(self.finished[lane.actor], seconds)
            return
        first_step, _, sends, _, _ = program[lane.entry]
        lane.step = first_step + lane.repetition
        lane.done, lane.until = self.early.pop((lane.actor, lane.piece, lane.step), (0, 0.0))
        num_bytes = self.chunk_bytes(lane)
        assert self.network is not None
        send_seconds = self.send_seconds[lane.actor]
        for ahead, message in enumerate(sends, 1):
            size = num_bytes * float(self.problem["chunks"][message])
            travel = _Travel(message, lane.step, lane.piece, size)
            handed_over = seconds + ahead * send_seconds
            if self.is_eager(travel):
                lane.done += 1
                lane.until = max(lane.until, handed_over)
            leaves = self.in_turn(self.next_send, lane.actor, handed_over)
            if leaves > seconds:
                self.queue.push(leaves, partial(self.send, travel))
            else:
                self.send(travel, seconds)
        if self.is_gathered(lane):
            self.queue.push(max(seconds, lane.until), partial(self.work, lane))

    def send(self, travel: _Travel, seconds: float) -> None:
        assert self.network is not None
        self.network.send(travel, seconds)

    def has_left(self, travel: _Travel, seconds: float) -> None:
        travel.sent = seconds
        if self.is_eager(travel):
            return
        lane = self.lanes[int(self.problem["source"][travel.message]), travel.piece]
        lane.done += 1
        if self.is_gathered(lane):
            self.work(lane, seconds)

    def has_arrived(self, travel: _Travel, seconds: float) -> None:
        if self.records is not None:
            self.records.append((travel.message, travel.step, travel.piece, travel.started, travel.sent, seconds))
        lane = self.lanes[int(self.problem["target"][travel.message]), travel.piece]
        receive_seconds = self.receive_seconds[lane.actor]
        received = self.in_turn(self.next_receive, lane.actor, seconds)
        if lane.step == travel.step:
            lane.done += 1
            lane.until = max(lane.until, received) + receive_seconds
            if self.is_gathered(lane):
                self.work(lane, seconds)
        else:
            key = (lane.actor, lane.piece, travel.step)
            done, until = self.early.get(key, (0, 0.0))
            self.early[key] = done + 1, max(until, received) + receive_seconds

    def is_eager(self, travel: _Travel) -> bool:
        """Returns whether its sender goes on as soon as the message is handed over."""
        most: float = self.eager_bytes[travel.message]
        return most > 0 and travel.num_bytes <= most

    def in_turn(self, after: list[float], actor: int, seconds: float) -> float:
        """Returns when an actor may send or receive what it could now: a gap after what came before."""
        gap: float = self.gap_seconds[actor]
        if not gap:
            return seconds
        begin = max(seconds, after[actor])
        after[actor] = begin + gap
        return begin

    def is_gathered(self, lane: _Lane) -> bool:
        _, _, sends, num_receives, _ = self.programs[lane.actor][lane.entry]
        return lane.done == len(sends) + num_receives

    def work(self, lane: _Lane, seconds: float) -> None:
        work = self.programs[lane.actor][lane.entry][4]
        if lane.until > seconds:
            self.queue.push(lane.until, partial(self.work, lane))
        elif work > 0:
            self.ready.append((lane, seconds))
        else:
            self.advance(lane, seconds)

    def start_work(self) -> None:
        """Starts work: an actor works on one piece at a time, ordered by step and then by piece."""
        for lane, seconds in sorted(self.ready, key=lambda one: (one[0].step, one[0].piece)):
            work = self.programs[lane.actor][lane.entry][4]
            until = max(float(self.worked_until[lane.actor]), seconds) + work * self.chunk_bytes(lane)
            self.worked_until[lane.actor] = until
            self.queue.push(until, partial(self.advance, lane))
        self.ready.clear()

    def advance(self, lane: _Lane, seconds: float) -> None:
        lane.repetition += 1
        if lane.repetition == self.programs[lane.actor][lane.entry][1]:
            lane.repetition = 0
            lane.entry += 1
        self.begin(lane, seconds)

    def chunk_bytes(self, lane: _Lane) -> float:
        job = self.problem["actor_job"][lane.actor]
        last = lane.piece + 1 == self.problem["job_pieces"][job]
        return float(self.problem["last_piece_bytes" if last else "piece_bytes"][job])


def run(
    problem: dict[str, npt.NDArray[Any]],
    packet_bytes: float,
    tick_seconds: float,
    record: bool,
) -> tuple[npt.NDArray[np.float64], tuple[npt.NDArray[Any], ...]]:
    """Returns the same as _simulator.run: when each actor finishes, and the columns of the records."""
    queue = _Queue()
    ranks = _Ranks(problem, queue, record)
    forwarding = _Forwarding(problem, queue, ranks, packet_bytes, tick_seconds)
    ranks.network = forwarding if packet_bytes else _Fluid(problem, queue, ranks)
    for lane in ranks.lanes.values():
        start = float(problem["job_start"][problem["actor_job"][lane.actor]])
        queue.push(start, partial(ranks.begin, lane))
    while queue.heap:
        until, seconds = queue.heap[0][0] * _SAME_TIME, 0.0
        while queue.heap and queue.heap[0][0] <= until:
            seconds, _, event = heapq.heappop(queue.heap)
            event(seconds)
        ranks.network.settle(seconds)
        ranks.start_work()
    columns = np.array(ranks.records or np.zeros((0, 6))).reshape(-1, 6).T
    return ranks.finished, (*columns[:3].astype(np.int64), *columns[3:])


def _programs(problem: dict[str, Any]) -> list[list[tuple[int, int, list[int], int, float]]]:
    """Returns each actor's program: first step, times, messages to send, number to receive, work per byte."""
    programs: list[list[tuple[int, int, list[int], int, float]]] = [[] for _ in problem["actor_job"]]
    messages_of, work_of = (list(pairwise(problem[name].tolist())) for name in ("pattern_begins", "work_begins"))
    next_step: dict[int, int] = {}
    repeats = (problem[name].tolist() for name in ("repeat_pattern", "repeat_times", "repeat_job"))
    for pattern, times, job in zip(*repeats, strict=True):
        sends: dict[int, list[int]] = {}
        receives: dict[int, int] = {}
        for message in range(*messages_of[pattern]):
            sends.setdefault(int(problem["source"][message]), []).append(message)
            target = int(problem["target"][message])
            receives[target] = receives.get(target, 0) + 1
        works = range(*work_of[pattern])
        work = {int(problem["work_actor"][i]): float(problem["work"][i]) for i in works}
        first_step = next_step.get(job, 0)
        next_step[job] = first_step + times
        for actor in {*sends, *receives, *work}:
            entry = (first_step, times, sends.get(actor, []), receives.get(actor, 0), work.get(actor, 0.0))
            programs[actor].append(entry)
    return programs
