"""Simulates a schedule on a network: its time and its bottleneck links. The simulated schedule is the one that runs.

There are three levels. At each level, every rank goes through the steps in order:

- "closed": the sum over steps of latency, largest bytes over bandwidth, and reduced bytes over reduction speed, as if
  each message were alone on its links; at least the time that the busiest link needs for all its bytes.
- "steps": the sum over steps of the largest latency, the time of the busiest link, and the longest reduction: every
  step ends for all ranks at the same time.
- "events": a rank begins a step when its sends and receives of the previous step are complete. Chunks move in pieces,
  one behind the other, and messages share links max-min fairly (csrc/simulator, or plain_engine.py).

Symmetric traffic is simulated among a few representative ranks (collapse.py), and repeated steps without contention are
not simulated one by one (periodic.py). With contention, the compiled engine skips repetitions once the state repeats
apart from a shift in time, unless messages are recorded or sent in packets. All chunks count as equal in size, with
fractions of bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hocket.errors import did_you_mean, name_count
from hocket.network.bounds.network_bound import Bound, lower_bound
from hocket.network.simulation.collapse import collapsed
from hocket.network.simulation.engine import MessageTimes, run_events
from hocket.network.simulation.jobs import Job, make_job
from hocket.network.simulation.link_loads import LinkLoads, Parts
from hocket.network.simulation.periodic import never_contends, ready_times
from hocket.network.simulation.simulation_options import SimulationOptions
from hocket.network.simulation.traffic import traffic_of
from hocket.network.topology import Topology
from hocket.schedule import Schedule, name_call

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEVELS = ("closed", "steps", "events")


@dataclass(frozen=True, eq=False, repr=False)
class SimulationResult(LinkLoads):
    """The result of a simulation, in seconds and bytes per second; links by their number in the topology.

    num_bytes: the size of the call, that of the largest input or output of a rank. seconds: when the last rank
    finishes. rank_seconds: float64[num_ranks], when each rank finishes (at the levels "closed" and "steps" all equal).
    link_bytes: float64[num_links], the bytes on each link. messages: the records of messages, if requested.
    reduce_bytes_per_second: as in the options; used for the bound, which is computed on first access.
    """

    schedule: Schedule
    level: str
    rank_seconds: Floats
    reduce_bytes_per_second: float = math.inf
    messages: MessageTimes | None = None

    def __repr__(self) -> str:
        call = name_call(self.schedule.collective, self.schedule.num_ranks, self.schedule.root)
        size = name_count(round(self.num_bytes), "byte")
        return f"<SimulationResult: {call}, {size} on {self.topology.name}: {self.seconds:.4g} s, level {self.level!r}>"

    @cached_property
    def bound(self) -> Bound:
        """The lower bound of any algorithm on this network, with its parts."""
        return lower_bound(
            self.topology,
            self.schedule.collective,
            self.num_bytes,
            root=self.schedule.root,
            reduce_seconds_per_byte=1 / self.reduce_bytes_per_second,
        )

    @property
    def bound_seconds(self) -> float:
        """The lower bound of any algorithm on this network."""
        return self.bound.seconds

    @property
    def ratio(self) -> float:
        """The time divided by the lower bound: 1 is the best that any algorithm can reach on this network."""
        return self.seconds / self.bound_seconds if self.bound_seconds else math.inf if self.seconds else 1.0

    @property
    def bus_bytes_per_second(self) -> float:
        """busbw: algbw times a factor that makes it comparable with the bandwidth of links, as in NCCL's tests."""
        return self.algorithm_bytes_per_second * self.schedule.kind.bus_factor(self.schedule.num_ranks)


@dataclass(frozen=True, eq=False)
class Run:
    """One of several simultaneous collectives. ranks: the ranks of the topology that take part, in order; None: all."""

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
    options: SimulationOptions | None = None,
    record: bool = False,
) -> SimulationResult:
    """Simulates one collective alone on a network, among all its ranks.

    num_bytes: of the largest input or output of a rank (for a barrier: 1). record: keep records of the messages, at
    the level "events". Raises ValueError if the rank count is not the topology's, if the level is unknown, or if the
    size is negative or too large for the level "events"; TopologyError without a route; ResourceError if memory is too
    small.
    """
    if level not in LEVELS:
        raise ValueError(f"expected a level, one of {', '.join(LEVELS)}; found {level!r}{did_you_mean(level, LEVELS)}")
    options = options or SimulationOptions()
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
    if options.store_and_forward_bytes is None:  # collapsing does not keep the order of simultaneous packets
        few, work, stands = collapsed(
            job, topology.seconds, work, ordered=options.send_seconds + options.gap_seconds > 0
        )
    found = None
    if any(times > 1 for _, times in job.traffic.repeats) and never_contends(few, options):
        found = ready_times(few, options, work)
    if found is None:
        if _pieces_make_no_difference(job, work, options):
            options = replace(options, piece_bytes=math.inf)
        (found,), _ = run_events([few], topology.seconds, options, [work])
    return _result(Run(schedule, num_bytes), topology, job, level, found[stands], options)


def _pieces_make_no_difference(job: Job, work: tuple[Floats, ...], options: SimulationOptions) -> bool:
    """Returns whether pieces do not affect the time: one step without work, where no rank waits for a first piece."""
    overheads = options.send_seconds or options.receive_seconds or options.gap_seconds or options.eager_bytes
    if overheads or options.store_and_forward_bytes is not None:
        return False
    return job.traffic.num_steps <= 1 and not any(seconds.any() for seconds in work)


def simulate_together(
    topology: Topology, runs: Sequence[Run], options: SimulationOptions | None = None
) -> list[SimulationResult]:
    """Simulates several simultaneous collectives at the level "events"; the seconds of each count from its own start.

    Raises the same errors as simulate.
    """
    if not runs:
        return []
    options = options or SimulationOptions()
    topologies = [topology if run.ranks is None else topology.place(run.ranks) for run in runs]
    jobs = [_job(run, network, options) for run, network in zip(runs, topologies, strict=True)]
    ends, _ = run_events(jobs, topology.seconds, options, [_work(job, options) for job in jobs])
    return [
        _result(run, network, job, "events", end - run.start_seconds, options)
        for run, network, job, end in zip(runs, topologies, jobs, ends, strict=True)
    ]


def _job(run: Run, topology: Topology, options: SimulationOptions) -> Job:
    schedule, num_bytes = run.schedule, run.num_bytes
    if schedule.num_ranks != topology.num_ranks:
        raise ValueError(
            f"{topology.name} has {topology.num_ranks} ranks, but the schedule of {schedule.collective} is for "
            f"{schedule.num_ranks}; expected equal numbers (Topology.place selects some of the ranks)"
        )
    if not 0 <= num_bytes < math.inf:
        raise ValueError(f"num_bytes: expected 0 or more, found {num_bytes}")
    if not 0 <= run.start_seconds < math.inf:
        raise ValueError(f"start_seconds: expected 0 or more, found {run.start_seconds}")
    start_seconds = run.start_seconds + options.launch_seconds
    return make_job(traffic_of(schedule), topology, num_bytes, start_seconds)


def _work(job: Job, options: SimulationOptions) -> tuple[Floats, ...]:
    """Returns each rank's seconds of work in each pattern, per byte of a chunk; switches work while data passes."""
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


def _closed_form(job: Job, options: SimulationOptions) -> _Closed:
    """Returns the closed form: each message is alone on its path, and a rank sends one message after the other."""
    latency = bandwidth = reduction = 0.0
    work = _work(job, options)
    for times, (pattern, paths, _, alone), seconds in zip(
        job.traffic.occurrences().tolist(), job.patterns(), work, strict=True
    ):
        reduction += times * seconds.max(initial=0.0) * job.chunk_bytes
        if len(pattern.source):
            latency += times * (paths.seconds.max() + _overheads(job, options, pattern.source, pattern.target))
            sent = np.bincount(pattern.source, pattern.chunks / alone)
            bandwidth += times * sent.max() * job.chunk_bytes
    return _Closed(options.launch_seconds + latency, bandwidth, reduction)


def _by_steps(job: Job, options: SimulationOptions) -> float:
    """Returns the time if all ranks wait for each other after each step."""
    total, work = options.launch_seconds, _work(job, options)
    for times, (pattern, paths, _, _), (links, chunks), seconds in zip(
        job.traffic.occurrences().tolist(), job.patterns(), job.pattern_link_chunks(), work, strict=True
    ):
        busy = (chunks / job.bytes_per_second[links]).max(initial=0.0) + seconds.max(initial=0.0)
        total += times * busy * job.chunk_bytes
        if len(pattern.source):
            total += times * (paths.seconds.max() + _overheads(job, options, pattern.source, pattern.target))
    return float(total)


def _overheads(job: Job, options: SimulationOptions, source: Ints, target: Ints) -> float:
    """Returns the overheads and gaps of the rank that sends most messages and of the one that receives most."""
    if not (options.send_seconds or options.receive_seconds or options.gap_seconds):
        return 0.0
    total = 0.0
    for ends, seconds in ((source, options.send_seconds), (target, options.receive_seconds)):
        most = float(np.bincount(ends[~job.switches[ends]]).max(initial=0))
        total += seconds + (most - 1) * max(seconds, options.gap_seconds) if most else 0.0
    return total


def _result(
    run: Run,
    topology: Topology,
    job: Job,
    level: str,
    rank_seconds: Floats,
    options: SimulationOptions,
    messages: MessageTimes | None = None,
) -> SimulationResult:
    seconds = float(rank_seconds.max())
    closed, link_bytes = _closed_form(job, options), job.link_bytes()
    busy = float((link_bytes / job.bytes_per_second).max(initial=0.0))
    return SimulationResult(
        schedule=run.schedule,
        topology=topology,
        num_bytes=run.num_bytes,
        level=level,
        seconds=seconds,
        rank_seconds=rank_seconds,
        link_bytes=link_bytes,
        parts=Parts.of(seconds, busy, closed.latency, closed.reduction),
        reduce_bytes_per_second=options.reduce_bytes_per_second,
        messages=messages,
    )
