"""How long a schedule takes on a network, and which link binds: the schedules that run are those that are simulated.

Three levels, each for steps that all ranks go through in order:

- "closed": the sum over steps of latency, largest bytes over bandwidth, and reduced bytes over reduction speed, as if
  nobody else used a link; only that no link can be busy for longer than all bandwidth terms together.
- "steps": the sum over steps of the largest latency, the link that is loaded most, and the most reduced: every step
  ends for all ranks at once.
- "events": each rank begins a step when what it sent and received in the one before is through, and chunks move in
  pieces, one behind the other; messages share links max-min fairly while they meet (csrc/simulator, or events.py).

Symmetric traffic is simulated among few ranks that stand for all (collapse.py), and repeated steps without contention
are not gone through one by one (periodic.py). With contention the compiled engine leaves out repetitions once all is as
it was some of them before, but for the time; not where messages are recorded, or sent in packets. Sizes of chunks are
taken as equal, fractions of bytes included.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hocket.network.bounds.bounds import Bound, lower_bound
from hocket.network.simulation.collapse import collapsed
from hocket.network.simulation.engine import Messages, run_events
from hocket.network.simulation.jobs import Job, make_job
from hocket.network.simulation.options import Options
from hocket.network.simulation.periodic import never_contends, ready_times
from hocket.network.simulation.traffic import traffic_of
from hocket.network.topology import Topology
from hocket.schedule import Schedule

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEVELS = ("closed", "steps", "events")


@dataclass(frozen=True)
class Parts:
    """What the seconds are made of, summed over the steps of the slowest: with contention, the rest, they are all.

    Latency includes overheads. Contention is what sharing links costs beyond the closed form; below 0 where pieces, or
    ranks that do not wait for each other, overlap what the closed form adds up.
    """

    latency: float
    bandwidth: float
    reduction: float
    contention: float


@dataclass(frozen=True, eq=False)
class Result:
    """What a simulation says. Seconds; bytes per second; links by their number in the topology.

    num_bytes: the size of the call, that of the largest input or output of a rank. seconds: when the last rank has
    finished. rank_seconds: float64[num_ranks], when each has (at the levels "closed" and "steps", all at once).
    link_bytes: float64[num_links], what each link carries. messages: what was sent when, if that was recorded.
    reduce_bytes_per_second: that of the options, for the bound, which is not looked for until it is asked for.
    """

    schedule: Schedule
    topology: Topology
    num_bytes: float
    level: str
    seconds: float
    rank_seconds: Floats
    link_bytes: Floats
    parts: Parts
    reduce_bytes_per_second: float = math.inf
    messages: Messages | None = field(default=None, repr=False)

    @cached_property
    def bound(self) -> Bound:
        """What no algorithm can beat here, and why."""
        return lower_bound(
            self.topology,
            self.schedule.collective,
            self.num_bytes,
            root=self.schedule.root,
            reduce_seconds_per_byte=1 / self.reduce_bytes_per_second,
        )

    @property
    def bound_seconds(self) -> float:
        """What no algorithm can beat here."""
        return self.bound.seconds

    @property
    def ratio(self) -> float:
        """Seconds in units of the lower bound: 1 is the best that any algorithm could reach here."""
        return self.seconds / self.bound_seconds if self.bound_seconds else math.inf if self.seconds else 1.0

    @property
    def algorithm_bytes_per_second(self) -> float:
        """num_bytes / seconds: algbw."""
        return self.num_bytes / self.seconds if self.seconds else math.inf

    @property
    def bus_bytes_per_second(self) -> float:
        """busbw: algbw times what makes it comparable with the bandwidth of links, as in NCCL's tests."""
        return self.algorithm_bytes_per_second * self.schedule.kind.bus_factor(self.schedule.num_ranks)

    @property
    def link_seconds(self) -> Floats:
        """How long each link is busy, at its full speed: float64[num_links]."""
        return self.link_bytes / self.topology.bytes_per_second

    @property
    def binding_links(self) -> Ints:
        """The links that are busy longest, all of them, by number; none where nothing is sent."""
        busy = self.link_seconds
        most = busy.max(initial=0.0)
        return np.flatnonzero(busy >= most * (1 - 1e-9)) if most else np.zeros(0, np.int64)

    @property
    def binding_share(self) -> float:
        """The part of the time that the binding links are busy: near 1, they are what it waits for."""
        return float(self.link_seconds.max(initial=0.0) / self.seconds) if self.seconds else 0.0


@dataclass(frozen=True, eq=False)
class Run:
    """One of several collectives at once. ranks: which ranks of the topology take part, in order; None: all."""

    schedule: Schedule
    num_bytes: float
    ranks: Sequence[int | str] | None = None
    start_seconds: float = 0.0


def simulate(
    schedule: Schedule,
    topology: Topology,
    num_bytes: float,
    *,
    level: str = "events",
    options: Options | None = None,
    record: bool = False,
) -> Result:
    """One collective alone on a network, among all ranks placed there.

    num_bytes: of the largest input or output of a rank (for a barrier: 1). record: keep what was sent when, at the
    level "events". ValueError for another rank count than the topology's, an unknown level, or a size below 0, or too
    large for the level "events"; TopologyError where there is no route, ResourceError where memory is short.
    """
    if level not in LEVELS:
        raise ValueError(f"expected a level, one of {', '.join(LEVELS)}; found {level!r}")
    options = options or Options()
    job = _job(Run(schedule, num_bytes), topology, options)
    if level == "closed":
        closed = _closed_form(job, options)
        busiest = float((job.link_bytes() / job.bytes_per_second).max(initial=0.0))
        seconds = np.full(schedule.num_ranks, closed.total + max(0.0, busiest - closed.bandwidth))
    elif level == "steps":
        seconds = np.full(schedule.num_ranks, _by_steps(job, options))
    if level != "events":
        return _result(Run(schedule, num_bytes), topology, job, level, seconds, options)
    work = _work(job, options)
    if record:
        (seconds,), messages = run_events([job], topology.seconds, options, [work], record=True)
        return _result(Run(schedule, num_bytes), topology, job, level, seconds, options, messages)
    few, stands = job, np.arange(schedule.num_ranks)
    if options.store_and_forward_bytes is None:  # Moves do not keep which of the packets that come at once goes first.
        few, work, stands = collapsed(job, topology.seconds, work, ordered=options.send_seconds > 0)
    found = None
    if any(repeat > 1 for _, repeat in job.traffic.blocks) and never_contends(few, options):
        found = ready_times(few, options, work)
    if found is None:
        if _pieces_make_no_difference(job, work, options):
            options = replace(options, piece_bytes=math.inf)
        (found,), _ = run_events([few], topology.seconds, options, [work])
    return _result(Run(schedule, num_bytes), topology, job, level, found[stands], options)


def _pieces_make_no_difference(job: Job, work: tuple[Floats, ...], options: Options) -> bool:
    """In one step without work, pieces of a message are sent one behind the other, and nobody waits for the first."""
    overheads = options.send_seconds or options.receive_seconds or options.store_and_forward_bytes is not None
    return job.traffic.num_steps <= 1 and not overheads and not any(seconds.any() for seconds in work)


def simulate_together(topology: Topology, runs: Sequence[Run], options: Options | None = None) -> list[Result]:
    """Several collectives at once, at the level "events"; seconds of each count from its own start.

    Errors as simulate.
    """
    if not runs:
        return []
    options = options or Options()
    places = [topology if run.ranks is None else topology.place(run.ranks) for run in runs]
    jobs = [_job(run, place, options) for run, place in zip(runs, places, strict=True)]
    ends, _ = run_events(jobs, topology.seconds, options, [_work(job, options) for job in jobs])
    return [
        _result(run, place, job, "events", end - run.start_seconds, options)
        for run, place, job, end in zip(runs, places, jobs, ends, strict=True)
    ]


def _job(run: Run, topology: Topology, options: Options) -> Job:
    schedule, num_bytes = run.schedule, run.num_bytes
    if schedule.num_ranks != topology.num_ranks:
        raise ValueError(
            f"{topology.name} has {topology.num_ranks} ranks, and the schedule of {schedule.collective} is for "
            f"{schedule.num_ranks}; expected as many (Topology.place takes some of the ranks)"
        )
    if not 0 <= num_bytes < math.inf:
        raise ValueError(f"num_bytes: expected 0 or more, found {num_bytes}")
    if not 0 <= run.start_seconds < math.inf:
        raise ValueError(f"start_seconds: expected 0 or more, found {run.start_seconds}")
    start_seconds = run.start_seconds + options.launch_seconds
    return make_job(traffic_of(schedule), topology, num_bytes, start_seconds)


def _work(job: Job, options: Options) -> tuple[Floats, ...]:
    """Seconds that each rank works in each pattern, for each byte of a chunk; switches add while data passes."""
    patterns, works = job.traffic.patterns, ~job.switches
    return tuple(
        works * (one.reduced / options.reduce_bytes_per_second + one.copied / options.copy_bytes_per_second)
        for one in patterns
    )


@dataclass(frozen=True)
class _Closed:
    latency: float = 0.0
    bandwidth: float = 0.0
    reduction: float = 0.0

    @property
    def total(self) -> float:
        return self.latency + self.bandwidth + self.reduction


def _closed_form(job: Job, options: Options) -> _Closed:
    """As if each message had its way for itself, and a rank sent one after the other."""
    latency = bandwidth = reduction = 0.0
    work = _work(job, options)
    for repeat, (pattern, paths, _, alone), seconds in zip(
        job.traffic.repeats().tolist(), job.patterns(), work, strict=True
    ):
        reduction += repeat * seconds.max(initial=0.0) * job.chunk_bytes
        if len(pattern.source):
            latency += repeat * (paths.seconds.max() + _overheads(job, options, pattern.source, pattern.target))
            sent = np.bincount(pattern.source, pattern.chunks / alone)
            bandwidth += repeat * sent.max() * job.chunk_bytes
    return _Closed(options.launch_seconds + latency, bandwidth, reduction)


def _by_steps(job: Job, options: Options) -> float:
    """As if all ranks waited for each other after each step."""
    total, work = options.launch_seconds, _work(job, options)
    for repeat, (pattern, paths, _, _), (links, chunks), seconds in zip(
        job.traffic.repeats().tolist(), job.patterns(), job.pattern_link_chunks(), work, strict=True
    ):
        busy = (chunks / job.bytes_per_second[links]).max(initial=0.0) + seconds.max(initial=0.0)
        total += repeat * busy * job.chunk_bytes
        if len(pattern.source):
            total += repeat * (paths.seconds.max() + _overheads(job, options, pattern.source, pattern.target))
    return float(total)


def _overheads(job: Job, options: Options, source: Ints, target: Ints) -> float:
    """Of the rank that sends most messages, and the one that receives most."""
    if not (options.send_seconds or options.receive_seconds):
        return 0.0
    sent, received = (float(np.bincount(ends[~job.switches[ends]]).max(initial=0)) for ends in (source, target))
    return sent * options.send_seconds + received * options.receive_seconds


def _result(
    run: Run,
    topology: Topology,
    job: Job,
    level: str,
    rank_seconds: Floats,
    options: Options,
    messages: Messages | None = None,
) -> Result:
    seconds = float(rank_seconds.max())
    closed = _closed_form(job, options)
    return Result(
        schedule=run.schedule,
        topology=topology,
        num_bytes=run.num_bytes,
        level=level,
        seconds=seconds,
        rank_seconds=rank_seconds,
        link_bytes=job.link_bytes(),
        parts=Parts(closed.latency, closed.bandwidth, closed.reduction, seconds - closed.total),
        reduce_bytes_per_second=options.reduce_bytes_per_second,
        messages=messages,
    )
