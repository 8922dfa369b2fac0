"""hocket.verify: proves algorithms for rank counts, every root, and both alias modes."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hocket.answers.answer import Answer
from hocket.answers.limits import check_proved_ranks
from hocket.answers.networks import Network
from hocket.answers.quantities import ranks_of_layout, read_layout, read_rank_counts
from hocket.answers.synthesis.optima import synthesised_named
from hocket.errors import ResourceError, ScheduleError

if TYPE_CHECKING:
    from hocket.algorithms import Algorithm
    from hocket.network import Topology
    from hocket.schedule import Certificate
    from hocket.view import Terminal

_MIN_POOL_WORK = 2000  # below this (ranks squared times roots), starting processes costs more than it saves
_MOST_JOB_WORK = 1 << 18  # above this, roots are split into several jobs, so that all cores finish together


@dataclass(frozen=True)
class Breach:
    """Why an algorithm does not hold: the law and where it is broken, what was expected and what was found.

    law, step, rank and chunk are None where they do not apply: law if no law was broken, because there is no schedule
    or memory is too small; name, collective and num_ranks if its file cannot run.
    """

    name: str | None
    collective: str | None
    source: str | None
    num_ranks: int | None
    root: int | None
    law: int | None
    step: int | None
    rank: int | None
    chunk: int | None
    expected: int | str | None
    found: int | str | None
    message: str


@dataclass(frozen=True)
class ProvedAlgorithm:
    """An algorithm that was asked about: the rank counts, and what holds for all of them.

    ranks: those that it supports. labels: statements on the order of reduction. num_schedules: one for each rank count
    and root.
    """

    name: str
    collective: str
    ranks: tuple[int, ...]
    labels: tuple[str, ...]
    num_schedules: int
    source: str
    failures: tuple[Breach, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether no law is broken."""
        return not self.failures


@dataclass(frozen=True, repr=False)
class Proof(Answer):
    """The result of hocket.verify; true if all that was asked holds.

    algorithms: those that were asked about, also those that support none of the rank counts. failures: of all of them,
    the smallest rank count first.
    """

    algorithms: tuple[ProvedAlgorithm, ...]
    failures: tuple[Breach, ...]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether everything that was asked is proved."""
        return not self.failures

    def __bool__(self) -> bool:
        return self.holds

    def line(self) -> str:
        """Returns how many algorithms hold."""
        return str(self).rpartition("\n")[2]

    def _print(self, console: "Terminal") -> None:
        """Prints a line for each algorithm that holds, and each failure."""
        from hocket.view import print_proof

        print_proof(console, self.as_json(), [asdict(one) for one in self.algorithms])

    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as `hocket verify --json` does."""
        algorithms = [asdict(one) for one in self.algorithms if one.holds]
        for one in algorithms:
            del one["failures"]
            one |= {"ranks": list(one["ranks"]), "labels": list(one["labels"])}
        return {
            "algorithms": algorithms,
            "failures": [asdict(one) for one in self.failures],
            "seconds": round(self.seconds, 3),
        }


def verify(
    algorithm: "str | Algorithm | None" = None,
    ranks: int | str | Iterable[int] | None = None,
    *,
    collective: str | None = None,
    groups: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
    topology: "str | Network | Topology | None" = None,
    progress: "Callable[[Iterator[Any], int], Iterator[Any]] | None" = None,
) -> Proof:
    """Proves an algorithm for rank counts, every root, and both alias modes. A broken law is in the result's failures.

    algorithm: what @hocket.algorithm returns, a name, FILE.py, FILE.py:NAME, FILE.xml or FILE.json; None means all
    built-in ones, or those of `collective`. ranks: 4, "1-16" (the default), "2,4,8", or numbers. groups, dims: for
    algorithms that take them; they also set the number of ranks. topology: the network for which "synthesised" is made,
    of all_reduce if no collective is given. progress wraps the iterator of finished jobs, whose number it is given.
    Raises ValueError for a bad argument. A file that cannot run is a failure, too.
    """
    layout = read_layout(groups, dims)
    given, there = dict(zip(("groups", "dims"), layout, strict=True)), ranks_of_layout(*layout)
    if topology is not None:
        only = [None] if ranks is None else read_rank_counts(ranks)
        if len(only) > 1:
            raise ValueError(f"topology: expected one rank count, or none for all ranks; found {len(only)}")
        algorithm, ranks = synthesised_named(algorithm, collective, only[0], topology=topology)
    counts = read_rank_counts(there or "1-16" if ranks is None else ranks)
    if there is not None and len(counts) > 1:
        name = "dims" if groups is None else "groups"
        asked = f"{len(counts)} rank counts from {counts[0]} to {counts[-1]}"
        raise ValueError(f"expected {name} without ranks (--ranks), as they describe {there} ranks; found {asked}")
    check_proved_ranks(counts, "a proof")
    started = time.perf_counter()
    try:
        algorithms = _select(algorithm, collective)
        if algorithm is None:  # groups and dims then mean the algorithms that take them
            taken = [name for name, value in given.items() if value is not None]
            algorithms = [one for one in algorithms if all(getattr(one, name) for name in taken)]
            if not algorithms:
                of = f" of {collective}" if collective else ""
                raise ValueError(f"expected an algorithm{of} that takes {' and '.join(taken)}; found none")
        jobs = [
            job
            for one in algorithms
            for num_ranks in counts
            if one.allows(num_ranks)
            for job in _jobs(algorithm, given, one, num_ranks)
        ]
    except ScheduleError as error:
        return Proof((), (_failure(error),), 0.0)
    if not jobs:
        algorithms[0].layout(counts[0])  # raises a ValueError that suggests what to do
    jobs.sort(key=lambda job: job.work, reverse=True)  # long jobs first, so that all cores finish together
    results = _results(jobs, algorithms)
    found = list(results if progress is None else progress(results, len(jobs)))
    proved = tuple(_summary(one, found) for one in algorithms)
    failures = tuple(failure for one in proved for failure in one.failures)
    return Proof(proved, failures, time.perf_counter() - started)


def _summary(one: "Algorithm", results: "Sequence[_Result]") -> ProvedAlgorithm:
    mine = [result for result in results if (result.job.collective, result.job.name) == (one.collective, one.name)]
    labels = [result.labels for result in mine if result.labels is not None]
    failures = sorted(
        (failure for result in mine for failure in result.failures), key=lambda one: (one.num_ranks or 0, one.root or 0)
    )
    return ProvedAlgorithm(
        one.name,
        one.collective,
        tuple(sorted({result.job.num_ranks for result in mine})),
        tuple(sorted(frozenset.intersection(*labels))) if labels else (),
        sum(result.num_schedules for result in mine),
        one.source,
        tuple(failures),
    )


@dataclass(frozen=True)
class _Job:
    reference: "str | Algorithm | None"
    collective: str
    name: str
    num_ranks: int
    roots: range
    groups: tuple[int, ...] | None = None
    dims: tuple[int, ...] | None = None
    is_only_here: bool = False  # whether other processes do not know the algorithm

    @property
    def layout(self) -> dict[str, tuple[int, ...] | None]:
        """The arguments of Algorithm.build other than the number of ranks and the root."""
        return {"groups": self.groups, "dims": self.dims}

    @property
    def work(self) -> int:
        """Estimated duration, in a unit that is the same for all jobs."""
        return self.num_ranks**2 * len(self.roots)


@dataclass(frozen=True)
class _Result:
    job: _Job
    num_schedules: int
    labels: frozenset[str] | None
    failures: list[Breach]


def _select(reference: "str | Algorithm | None", collective: str | None) -> "list[Algorithm]":
    from hocket.algorithms import ALGORITHMS, find
    from hocket.schedule import find_collective

    if reference is not None:
        return find(reference, collective)
    if collective is not None:
        find_collective(collective)
    return [one for one in ALGORITHMS.values() if collective in (None, one.collective)]


def _jobs(
    reference: "str | Algorithm | None", layout: dict[str, tuple[int, ...] | None], one: "Algorithm", num_ranks: int
) -> Iterator[_Job]:
    """Yields the jobs that prove one algorithm for one rank count and all roots."""
    from hocket.algorithms import is_built_in
    from hocket.schedule import find_collective

    if reference is one and is_built_in(one.source):
        reference = one.name  # an algorithm cannot be sent to another process
    in_a_file = isinstance(reference, str) and reference != one.name
    is_only_here = not in_a_file and not is_built_in(one.source)
    if any(layout.values()):  # a bad layout is a bad argument, not a broken law
        one.layout(num_ranks, groups=layout["groups"], dims=layout["dims"])
    num_roots = num_ranks if find_collective(one.collective).rooted else 1
    roots_each = max(1, _MOST_JOB_WORK // num_ranks**2)
    for first in range(0, num_roots, roots_each):
        roots = range(first, min(first + roots_each, num_roots))
        yield _Job(reference, one.collective, one.name, num_ranks, roots, **layout, is_only_here=is_only_here)


def _prove(job: _Job) -> _Result:
    """Runs one job, in this process or in one of the pool."""
    from hocket.schedule import verify_together

    (one,) = [one for one in _select(job.reference, job.collective) if one.name == job.name]
    failures: list[Breach] = []
    try:
        built = [
            (one.build(job.num_ranks, root, **job.layout), one.declared(job.num_ranks, root, **job.layout))
            for root in job.roots
        ]
        certificates = verify_together(*zip(*built, strict=True))
    except (ScheduleError, ResourceError, MemoryError):
        # Some roots may hold: prove root by root, to report which ones fail.
        certificates, failures = _prove_apart(one, job)
    labels = [certificate.labels for certificate in certificates]
    return _Result(job, len(certificates), frozenset.intersection(*labels) if labels else None, failures)


def _prove_apart(one: "Algorithm", job: _Job) -> "tuple[list[Certificate], list[Breach]]":
    """Proves each root on its own. Returns the certificates and the failures."""
    certificates, failures = [], []
    for root in job.roots:
        try:
            certificates.append(one.verify(job.num_ranks, root, **job.layout))
        except (ScheduleError, ResourceError, MemoryError) as error:
            failures.append(_failure(error, one, job.num_ranks, root))
    return certificates, failures


def _failure(
    error: Exception, one: "Algorithm | None" = None, num_ranks: int | None = None, root: int | None = None
) -> Breach:
    message = str(error)
    if one and not isinstance(error, ScheduleError):  # such an error names no line of the file
        message = f"{one.source}: {message or type(error).__name__}"
    law, step, rank, chunk = (getattr(error, name, None) for name in ("law", "step", "rank", "chunk"))
    expected, found = (getattr(error, name, None) for name in ("expected", "found"))
    return Breach(
        name=None if one is None else one.name,
        collective=None if one is None else one.collective,
        source=None if one is None else one.source,
        num_ranks=num_ranks,
        root=root,
        law=law,
        step=step,
        rank=rank,
        chunk=chunk,
        expected=expected if isinstance(expected, int | str | None) else str(expected),
        found=found if isinstance(found, int | str | None) else str(found),
        message=message,
    )


def _results(jobs: list[_Job], algorithms: "Sequence[Algorithm]") -> Iterator[_Result]:
    apart = [job for job in jobs if not job.is_only_here]
    num_cores = min(len(os.sched_getaffinity(0)), len(apart))
    if num_cores < 2 or sum(job.work for job in apart) < _MIN_POOL_WORK:
        yield from map(_prove, jobs)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    # Fresh processes: a fork would copy the threads of linear algebra in an unknown state.
    with ProcessPoolExecutor(num_cores, multiprocessing.get_context("spawn")) as pool:
        with _without_main():
            futures = {pool.submit(_prove, job): job for job in apart}
        try:
            yield from (_prove(job) for job in jobs if job.is_only_here)
            for future in as_completed(futures):
                try:
                    result = future.result()
                except BrokenProcessPool:
                    result = _lost(futures[future], algorithms)
                yield result
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _without_main() -> Iterator[None]:
    """Inside, processes start without the main program: it may have no file, or act again when it is imported."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _lost(job: _Job, algorithms: "Sequence[Algorithm]") -> _Result:
    """The result of a job that was under way, or not begun, when a process of the pool was killed."""
    (one,) = [one for one in algorithms if (one.collective, one.name) == (job.collective, job.name)]
    error = MemoryError(
        "not proved, because a process that proves was killed, most often for want of memory; prove fewer rank counts "
        "at once, or smaller ones"
    )
    return _Result(job, 0, None, [_failure(error, one, job.num_ranks, job.roots[0])])
