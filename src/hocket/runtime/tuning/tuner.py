"""The tuner: algorithms are timed on this machine, costs fitted to the times, and rules made of what wins.

`tune` does all of it for some collectives and rank counts; `Tuning` is what it found, kept as JSON beside the proofs,
where `hocket explain` reads it.
"""

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from hocket import __version__
from hocket.algorithms import ALGORITHMS
from hocket.runtime.cache import cache_folder
from hocket.runtime.choice.select import Policy, choose
from hocket.runtime.choice.spelling import algorithm_names
from hocket.runtime.choice.tuner_file import Rule
from hocket.runtime.launch.launcher import run_ranks
from hocket.runtime.ranks.cores import shared_by
from hocket.runtime.tuning.fit import Costs, Traits, fit, traits_of
from hocket.runtime.tuning.rules import as_good, clear_winners, loses_clearly, merged, ratios, wins_again
from hocket.runtime.tuning.timed_ranks import Job, Rounds, exact_bytes, measure

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "barrier",
    "gather",
    "scatter",
    "all_to_all",
)
"""What can be tuned: every collective whose blocks are equally long."""

SIZES = tuple(8 << shift for shift in (0, 3, 6, 9, 11, 13, 15, 17, 19, 21, 23))
"""8 B to 64 MiB."""

SECONDS = 100.0
"""How long it takes by default; the ends may take some seconds more."""

_CHECK_SHARE = 0.2  # of the time

Names = dict[str, dict[int, list[str]]]
"""Algorithms, by collective and size."""


@dataclass(frozen=True)
class Sample:
    """Of the rounds of an algorithm at one size: their number, the median, and the quartiles, in seconds per call."""

    num_bytes: int
    seconds: float
    low: float
    high: float
    num_rounds: int


@dataclass(frozen=True)
class Measured:
    """One algorithm: what its schedule does, its times, and the costs that fit them. twins have the same schedule."""

    algorithm: str
    traits: Traits
    costs: Costs
    samples: tuple[Sample, ...]
    twins: tuple[str, ...] = ()

    def at(self, num_bytes: int) -> Sample | None:
        """What was measured at this very size."""
        return next((sample for sample in self.samples if sample.num_bytes == num_bytes), None)


@dataclass(frozen=True)
class Entry:
    """One collective among so many ranks."""

    collective: str
    num_ranks: int
    date: str
    algorithms: tuple[Measured, ...]


@dataclass(frozen=True)
class Tuning:
    """What was measured on one machine, under one version; cores are those that this program may use."""

    host: str = field(default_factory=platform.node)
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    version: str = __version__
    entries: tuple[Entry, ...] = ()

    def find(self, collective: str, num_ranks: int) -> Entry | None:
        """What is known of a collective among so many ranks."""
        wanted = (collective, num_ranks)
        return next((one for one in self.entries if (one.collective, one.num_ranks) == wanted), None)

    def updated(self, entries: Sequence[Entry]) -> "Tuning":
        """With these in the place of older ones."""
        new = {(one.collective, one.num_ranks): one for one in (*self.entries, *entries)}
        return replace(self, entries=tuple(new.values()))


@dataclass(frozen=True)
class Comparison:
    """A second measurement: the ratio of the chosen algorithm's time to the default's, round by round."""

    collective: str
    num_ranks: int
    num_bytes: int
    algorithm: str
    default: str
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median."""
        return statistics.median(self.ratios)

    @property
    def holds(self) -> bool:
        """Whether the choice was quicker than the default once more; if not, it is given up."""
        return wins_again(self.ratios)


@dataclass(frozen=True)
class Result:
    """What `tune` found: the times, the rules, what the check said, and the sizes that time did not suffice for."""

    entries: tuple[Entry, ...]
    rules: tuple[Rule, ...]
    comparisons: tuple[Comparison, ...]
    missing: tuple[tuple[str, int, int], ...]
    seconds: float


def file() -> Path:
    """Where the times are kept."""
    return cache_folder() / "tuning.json"


def load() -> Tuning:
    """What was measured on this machine before, nothing if it was another one, or another version."""
    try:
        known = msgspec.json.decode(file().read_bytes(), type=Tuning)
    except (OSError, RuntimeError, msgspec.DecodeError, UnicodeDecodeError):
        return Tuning()
    here = Tuning()
    return known if (known.host, known.cores, known.version) == (here.host, here.cores, here.version) else here


def store(entries: Sequence[Entry]) -> Path:
    """Keeps them beside older ones about other collectives and rank counts; OSError."""
    path, tuning = file(), load().updated(entries)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(tuning), indent=1))
        unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return path


def candidates(collective: str, num_ranks: int, keep: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """The registered algorithms for so many ranks, each with others that have the same schedule.

    Those in `keep` stand for their twins.
    """
    names = [name for name in algorithm_names(collective) if ALGORITHMS[collective, name].allows(num_ranks)]
    by_digest: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: name not in keep):
        by_digest.setdefault(ALGORITHMS[collective, name].build(num_ranks).digest, []).append(name)
    return {same[0]: tuple(same[1:]) for same in by_digest.values()}


def sizes_of(collective: str, num_ranks: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The sizes that so many ranks can share out, in rising order."""
    return tuple(sorted({exact_bytes(collective, size, num_ranks) for size in sizes}))


def job_of(collective: str, num_ranks: int, sizes: Sequence[int]) -> Job:
    """The times that are wanted: of all candidates, beside the default table's choice for each size."""
    exact = sizes_of(collective, num_ranks, sizes)
    table = Policy(shares_cores=shared_by(num_ranks))
    chosen = [choose(collective, num_ranks, size, "fast", table) for size in exact]
    names = candidates(collective, num_ranks, chosen)
    stands_for = {twin: name for name, twins in names.items() for twin in (name, *twins)}
    return Job(collective, exact, tuple(names), tuple(stands_for[name] for name in chosen))


def time_algorithms(
    num_ranks: int, jobs: Sequence[Job], seconds: float, *, screen: bool = True
) -> dict[tuple[str, int], Rounds]:
    """Starts so many ranks and has them time the jobs: tuning_ranks.measure. HocketError if they fail."""
    arguments = (jobs, seconds, screen)
    found: dict[tuple[str, int], Rounds] = run_ranks(measure, num_ranks, args=arguments, kind="process")[0]
    return found


def sample_of(num_bytes: int, times: Sequence[float]) -> Sample:
    """The rounds of one algorithm at one size in short. Of two rounds the better counts: it was dropped after them."""
    low, high = map(float, np.percentile(times, (25, 75), method="nearest"))  # of few rounds, too, around the median
    return Sample(num_bytes, statistics.median_low(times), low, high, len(times))


def timed_to_the_end(samples: Mapping[str, Sample]) -> dict[str, Sample]:
    """Of algorithms at one size, those with the most rounds: the others were dropped as slower after a few."""
    most = max((one.num_rounds for one in samples.values()), default=0)
    return {name: one for name, one in samples.items() if one.num_rounds == most}


def entries_of(num_ranks: int, jobs: Sequence[Job], found: dict[tuple[str, int], Rounds]) -> list[Entry]:
    """Times and fitted costs, collective by collective."""
    date = time.strftime("%Y-%m-%d %H:%M:%S")
    samples: dict[tuple[str, str], list[Sample]] = {}
    for (collective, size), rounds in sorted(found.items()):
        for name, times in rounds.items():
            samples.setdefault((collective, name), []).append(sample_of(size, times))
    traits = {key: traits_of(ALGORITHMS[key].build(num_ranks)) for key in samples}
    costs = fit({key: (traits[key], [(one.num_bytes, one.seconds) for one in times]) for key, times in samples.items()})
    entries = []
    for job in jobs:
        twins = candidates(job.collective, num_ranks, job.names)
        keys = [(job.collective, name) for name in job.names if (job.collective, name) in samples]
        measured = (Measured(key[1], traits[key], costs[key], tuple(samples[key]), twins[key[1]]) for key in keys)
        if keys:  # else older times, if there are any, are better than none
            entries.append(Entry(job.collective, num_ranks, date, tuple(measured)))
    return entries


def tune(
    collectives: Sequence[str],
    rank_counts: Sequence[int],
    sizes: Sequence[int] = SIZES,
    *,
    seconds: float = SECONDS,
    check: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> Result:
    """Times everything within about so many seconds, which rank counts share in proportion to their ranks.

    Those with a core for each rank count as many ranks as there are cores: the fewer are no quicker.

    With `check`, what was chosen is timed once more beside the default, and given up where it does not win again, or
    where there is no time for that.
    `tell` hears what is going on. HocketError if ranks fail.
    """
    began = time.monotonic()
    entries: list[Entry] = []
    rules: list[Rule] = []
    comparisons: list[Comparison] = []
    missing: list[tuple[str, int, int]] = []
    weights = [max(num_ranks, Tuning().cores) for num_ranks in rank_counts]
    for number, num_ranks in enumerate(rank_counts):
        share = (seconds - (time.monotonic() - began)) * weights[number] / sum(weights[number:])
        jobs = [job_of(collective, num_ranks, sizes) for collective in collectives]
        tell(f"{num_ranks} ranks: timing {sum(len(job.names) for job in jobs)} algorithms")
        found = time_algorithms(num_ranks, jobs, share * (1 - _CHECK_SHARE if check else 1))
        entries += entries_of(num_ranks, jobs, found)
        missing += [
            (job.collective, num_ranks, size)
            for job in jobs
            for size in job.sizes
            if (job.collective, size) not in found
        ]
        winners = {job.collective: _by_size(clear_winners, job, found) for job in jobs}
        alike = {job.collective: _by_size(as_good, job, found) for job in jobs}
        if check:
            tell(f"{num_ranks} ranks: timing what was chosen beside the default")
            compared = _compare(num_ranks, jobs, _rules(num_ranks, winners, alike), share * _CHECK_SHARE)
            winners, alike = _confirmed(winners, alike, compared)
            comparisons += compared
        rules += _rules(num_ranks, winners, alike)
    return Result(tuple(entries), tuple(rules), tuple(comparisons), tuple(missing), time.monotonic() - began)


def _by_size(
    pick: Callable[[Rounds, str], list[str]], job: Job, found: dict[tuple[str, int], Rounds]
) -> dict[int, list[str]]:
    """What is picked of the rounds, beside the default, at each size that was timed."""
    return {
        size: pick(found[job.collective, size], default)
        for size, default in zip(job.sizes, job.defaults, strict=True)
        if (job.collective, size) in found
    }


def _confirmed(winners: Names, alike: Names, compared: Sequence[Comparison]) -> tuple[Names, Names]:
    """Both after the second measurement: who won again; who did not clearly lose in it."""
    held = {(one.collective, one.num_bytes) for one in compared if one.holds}
    lost = {(one.collective, one.num_bytes, one.algorithm) for one in compared if loses_clearly(one.ratios)}
    won = {
        collective: {size: names if (collective, size) in held else [] for size, names in by_size.items()}
        for collective, by_size in winners.items()
    }
    still = {
        collective: {
            size: [name for name in names if (collective, size, name) not in lost] for size, names in by_size.items()
        }
        for collective, by_size in alike.items()
    }
    return won, still


def _rules(num_ranks: int, winners: Names, alike: Names) -> list[Rule]:
    return [
        rule for collective in winners for rule in merged(collective, num_ranks, winners[collective], alike[collective])
    ]


def _compare(num_ranks: int, jobs: Sequence[Job], rules: Sequence[Rule], seconds: float) -> list[Comparison]:
    """Times what the rules choose against the default, at every size where they differ."""
    policy = Policy(tuple(rules), shares_cores=shared_by(num_ranks))
    pairs = {
        (job.collective, size): (choose(job.collective, num_ranks, size, "fast", policy), default)
        for job in jobs
        for size, default in zip(job.sizes, job.defaults, strict=True)
    }
    differing = {key: pair for key, pair in pairs.items() if len(set(pair)) == 2}
    again = [Job(key[0], (key[1],), pair, pair[1:]) for key, pair in differing.items()]
    if not again:
        return []
    found = time_algorithms(num_ranks, again, seconds, screen=False)
    return [
        Comparison(key[0], num_ranks, key[1], *differing[key], tuple(ratios(rounds, *differing[key])))
        for key, rounds in found.items()
    ]
