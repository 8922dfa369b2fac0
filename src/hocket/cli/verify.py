"""`hocket verify`: proves algorithms, for every rank count asked for, every root and both alias modes."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hocket.errors import ResourceError, ScheduleError

if TYPE_CHECKING:
    from hocket.algorithms import Algorithm
    from hocket.schedule import Certificate

_MIN_POOL_WORK = 2000  # below this, in ranks squared times roots, starting processes costs more than it saves
_MOST_JOB_WORK = 1 << 18  # above this, roots are shared out, so that all cores end together


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket verify`."""
    from hocket.cli.argument_types import add_layout, collective_name, rank_counts

    parser.add_argument(
        "algorithm", nargs="?", metavar="NAME", help="a built-in algorithm, or FILE.py, FILE.py:NAME, FILE.xml"
    )
    parser.add_argument("--all", action="store_true", help="all built-in algorithms (as without NAME)")
    parser.add_argument("--collective", type=collective_name, help="only algorithms for this collective")
    parser.add_argument(
        "--ranks", type=rank_counts, metavar="1-16", help="rank counts (default 1-16, or that of --groups or --dims)"
    )
    add_layout(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Proves and reports. Returns 0 if all hold, 1 if one does not, 2 if its file cannot even be run."""
    from hocket.cli.argument_types import rank_counts, ranks_of_layout

    if arguments.algorithm and arguments.all:
        raise ValueError(f"--all and {arguments.algorithm!r} exclude each other")
    if arguments.ranks is None:
        ranks = ranks_of_layout(arguments)
        arguments.ranks = rank_counts("1-16") if ranks is None else [ranks]
    started = time.perf_counter()
    try:
        algorithms = _select(arguments.algorithm, arguments.collective)
        jobs = [
            job
            for one in algorithms
            for num_ranks in arguments.ranks
            if one.allows(num_ranks)
            for job in _jobs(arguments, one, num_ranks)
        ]
        jobs.sort(key=lambda job: job.work, reverse=True)  # the long ones first: with short ones all cores end together
    except ScheduleError as error:
        if not arguments.json:
            raise
        print(f"hocket verify: {error}", file=sys.stderr)
        print(json.dumps({"algorithms": [], "failures": [_failure(error)], "seconds": 0.0}))
        return 2
    proofs = {(one.collective, one.name): _Proof(one) for one in algorithms}
    if not jobs:
        algorithms[0].layout(arguments.ranks[0])  # ValueError, which says what would do instead
    for result in _with_progress(_results(jobs), len(jobs)):
        proofs[result.job.collective, result.job.name].add(result)
    seconds = time.perf_counter() - started
    failures = [failure for proof in proofs.values() for failure in proof.failures]
    if arguments.json:
        algorithms_json = [proof.as_json() for proof in proofs.values() if not proof.failures]
        print(json.dumps({"algorithms": algorithms_json, "failures": failures, "seconds": round(seconds, 3)}))
    else:
        _print(list(proofs.values()), failures, seconds)
    return 1 if failures else 0


@dataclass(frozen=True)
class _Job:
    reference: str | None
    collective: str
    name: str
    num_ranks: int
    roots: range
    groups: tuple[int, ...] | None = None
    dims: tuple[int, ...] | None = None

    @property
    def layout(self) -> dict[str, tuple[int, ...] | None]:
        """The arguments of Algorithm.build that are no number of ranks, and no root."""
        return {"groups": self.groups, "dims": self.dims}

    @property
    def work(self) -> int:
        """How long it takes, about, in a unit that is the same for all jobs."""
        return self.num_ranks**2 * len(self.roots)


@dataclass(frozen=True)
class _Result:
    job: _Job
    num_schedules: int
    labels: frozenset[str] | None
    failures: list[dict[str, Any]]


@dataclass
class _Proof:
    algorithm: "Algorithm"
    ranks: set[int] = field(default_factory=set)
    num_schedules: int = 0
    labels: frozenset[str] | None = None
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, result: _Result) -> None:
        self.ranks.add(result.job.num_ranks)
        self.num_schedules += result.num_schedules
        self.failures += result.failures
        if result.labels is not None:
            self.labels = result.labels if self.labels is None else self.labels & result.labels

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.algorithm.name,
            "collective": self.algorithm.collective,
            "ranks": sorted(self.ranks),
            "labels": sorted(self.labels or ()),
            "num_schedules": self.num_schedules,
            "source": self.algorithm.source,
        }


def _select(reference: str | None, collective: str | None) -> "list[Algorithm]":
    from hocket.algorithms import ALGORITHMS, find
    from hocket.schedule import find_collective

    if reference is not None:
        return find(reference, collective, prove=False)
    if collective is not None:
        find_collective(collective)
    return [one for one in ALGORITHMS.values() if collective in (None, one.collective)]


def _jobs(arguments: argparse.Namespace, one: "Algorithm", num_ranks: int) -> Iterator[_Job]:
    """The jobs that prove one algorithm for one rank count and all roots."""
    from hocket.schedule import find_collective

    layout = {"groups": arguments.groups, "dims": arguments.dims}
    if any(layout.values()):
        one.layout(num_ranks, **layout)  # A bad one is a bad argument, and no breach of a law.
    num_roots = num_ranks if find_collective(one.collective).rooted else 1
    roots_each = max(1, _MOST_JOB_WORK // num_ranks**2)
    for first in range(0, num_roots, roots_each):
        roots = range(first, min(first + roots_each, num_roots))
        yield _Job(arguments.algorithm, one.collective, one.name, num_ranks, roots, **layout)


def _prove(job: _Job) -> _Result:
    """Does one job: here or in a process of the pool."""
    from hocket.schedule import verify_together

    (one,) = [one for one in _select(job.reference, job.collective) if one.name == job.name]
    failures: list[dict[str, Any]] = []
    try:
        built = [
            (one.build(job.num_ranks, root, **job.layout), one.declared(job.num_ranks, root, **job.layout))
            for root in job.roots
        ]
        certificates = verify_together(*zip(*built, strict=True))
    except (ScheduleError, ResourceError, MemoryError):
        # Some of it holds perhaps, and the rest is to be blamed root by root.
        certificates, failures = _prove_apart(one, job)
    labels = [certificate.labels for certificate in certificates]
    return _Result(job, len(certificates), frozenset.intersection(*labels) if labels else None, failures)


def _prove_apart(one: "Algorithm", job: _Job) -> "tuple[list[Certificate], list[dict[str, Any]]]":
    """What holds, and what does not."""
    certificates, failures = [], []
    for root in job.roots:
        try:
            certificates.append(one.verify(job.num_ranks, root, **job.layout))
        except (ScheduleError, ResourceError, MemoryError) as error:
            failures.append(_failure(error, one, job.num_ranks, root))
    return certificates, failures


def _failure(
    error: Exception, one: "Algorithm | None" = None, num_ranks: int | None = None, root: int | None = None
) -> dict[str, Any]:
    """What went wrong, as plain values; law is None where no law was broken: there was no schedule, or no memory."""
    message = str(error)
    if one and not isinstance(error, ScheduleError):  # Which knows no line.
        message = f"{one.source}: {message or type(error).__name__}"
    place = {name: getattr(error, name, None) for name in ("law", "step", "rank", "chunk")}
    sides = {name: getattr(error, name, None) for name in ("expected", "found")}
    return {
        "name": one and one.name,
        "collective": one and one.collective,
        "source": one and one.source,
        "num_ranks": num_ranks,
        "root": root,
        **place,
        **{name: side if isinstance(side, int | str | None) else str(side) for name, side in sides.items()},
        "message": message,
    }


def _results(jobs: list[_Job]) -> Iterator[_Result]:
    num_cores = min(len(os.sched_getaffinity(0)), len(jobs))
    if num_cores == 1 or sum(job.work for job in jobs) < _MIN_POOL_WORK:
        yield from map(_prove, jobs)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    # Fresh processes: a fork would copy the threads of linear algebra in an unknown state.
    with ProcessPoolExecutor(num_cores, multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(_prove, job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _with_progress(results: Iterator[_Result], count: int) -> Iterator[_Result]:
    if not sys.stderr.isatty():
        yield from results
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("proving", total=count)
        for result in results:
            progress.advance(task)
            yield result


def _print(proofs: list[_Proof], failures: list[dict[str, Any]], seconds: float) -> None:
    from rich.markup import escape
    from rich.table import Table

    from hocket.view import Terminal, name_counts

    console = Terminal()
    table = Table("collective", "algorithm", "ranks", "schedules", "order of reduction", box=None)
    asked = [proof for proof in proofs if proof.num_schedules or proof.failures]
    for proof in asked:
        if not proof.failures:
            ranks = name_counts(sorted(proof.ranks))
            labels = ", ".join(sorted(proof.labels or ()))
            table.add_row(
                proof.algorithm.collective, escape(proof.algorithm.name), ranks, str(proof.num_schedules), labels
            )
    if table.row_count:
        console.print(table)
    for failure in failures:
        root = f", root {failure['root']}" if failure["root"] else ""
        where = f"{failure['collective']} {failure['name']}, {failure['num_ranks']} ranks{root}"
        console.print(f"{where}: {failure['message']}", style="red", markup=False, soft_wrap=True)
    held = sum(not proof.failures for proof in asked)
    num_schedules = sum(proof.num_schedules for proof in proofs)
    others = f"; {len(proofs) - len(asked)} more take other rank counts" if len(asked) < len(proofs) else ""
    console.print(
        f"{held} of {len(asked)} algorithms hold: {num_schedules} schedules proved, each in both alias modes, "
        f"in {seconds:.1f} s{others}",
        soft_wrap=True,
    )
