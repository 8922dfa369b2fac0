"""The work of each rank of `hocket bench`: times batches of back-to-back calls, then checks the results.

Between the two clock readings of a batch there are only the calls. Ranks exchange their times on a separate
communicator, so that this traffic does not affect the measured one.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

import hocket
from hocket.cli.bench.bench_cases import BenchCase, Buffers, make_case
from hocket.cli.bench.bench_comparison import ComparisonReport
from hocket.cli.bench.bench_report import Report, Row, Timing
from hocket.cli.bench.bench_settings import BenchSettings, laid_out
from hocket.runtime import Communicator, discover
from hocket.runtime.tuning import host_bound

_FEWEST = 20  # iterations, the default of NCCL's tests
_MOST = 100_000
_LEAST_SECONDS = 0.05  # least time to measure, where the bench chooses the number of iterations
_NUM_BATCHES = 5  # rounds, each of at least _FEWEST calls unless algorithms are compared; the median is reported
_MOST_PERCENTILE_CALLS = 10_000

_RANK0, _AVERAGE, _MIN = range(3)  # values of -a; 3 is the maximum


def run_as_rank(settings: BenchSettings) -> int:
    """Runs all measurements of the settings; rank 0 prints. Returns the number of wrong elements, on every rank.

    Raises ValueError if the number of running ranks is not that of the settings.
    """
    environment = discover()
    size = environment.size
    kind = ComparisonReport if len(settings.algorithms) > 1 else Report
    report = kind(settings) if environment.rank == 0 else None
    try:
        if size != settings.num_ranks:
            raise ValueError(f"--ranks {settings.num_ranks}, but {size} ranks were started; leave --ranks out")
        with hocket.init() as comm:
            bench = Bench(settings, comm)
            if report:
                report.begin(comm.context.num_cores)
            for row in bench.rows():
                if report:
                    report.row(row)
    except BaseException as error:
        if report:
            report.fail(error)
        raise
    if report:
        report.end()
    return bench.num_wrong


@dataclass
class _Times:
    """Seconds of one operation on each rank, in the median of the rounds, and as reported for each round, sorted."""

    by_rank: npt.NDArray[np.float64]
    rounds: list[float]
    num_calls: int


class Bench:
    """The measurements of one rank. `num_wrong` counts wrong elements of all ranks and rows so far."""

    def __init__(self, settings: BenchSettings, comm: Communicator) -> None:
        self._settings, self._comm = settings, comm
        self._book = comm.dup()  # duplicated before `comm` is configured, so that the copy keeps the defaults
        self.num_wrong = 0
        if settings.timeout > 0:
            comm.configure(timeout=settings.timeout)
            self._book.configure(timeout=settings.timeout)
        if settings.collective != host_bound.MESSAGE:
            algorithm = laid_out(settings, settings.algorithms[0])
            comm.configure(settings.collective, algorithm=algorithm, order=settings.order)

    def rows(self) -> Iterator[Row]:
        """Measures row after row, in the order of printing; at each size, all algorithms in turn."""
        settings = self._settings
        buffers = Buffers(settings.max_bytes if settings.moves_data else 0, registered=settings.registered)
        return itertools.chain.from_iterable(
            (
                self._row(buffers, size, *run, algorithm)
                for size in settings.sizes()
                for algorithm in settings.algorithms
            )
            for run in settings.runs()
        )

    def _row(self, buffers: Buffers, size: int, dtype: str, op: str, root: int, algorithm: str | None) -> Row:
        settings, modes = self._settings, list[Timing | None]()
        compares = len(settings.algorithms) > 1
        if compares:
            self._comm.configure(settings.collective, algorithm=laid_out(settings, algorithm))
        count = settings.num_elements(size, dtype)
        num_bytes = param_count = 0
        for in_place in (False, True):
            case = make_case(self._comm, buffers, settings.collective, count, dtype, op, root, in_place=in_place)
            if case is None or (compares and in_place):
                modes.append(None)
                continue
            num_bytes, param_count = case.num_bytes, case.count
            modes.append(self._timing(case))
        return Row(size, num_bytes, param_count, dtype, op, root, modes[0], modes[1], algorithm)

    def _timing(self, case: BenchCase) -> Timing:
        case.fill(0)
        call = self._call(case)
        for _ in range(self._settings.warm_up):
            call()
        times = self._times(call, case.num_operations * self._settings.aggregated)
        percentiles = self._percentiles(call, case.num_operations * self._settings.aggregated, times.num_calls)
        return Timing(
            seconds=self._reported(times.by_rank),
            average=float(np.mean(times.by_rank)),
            minimum=float(np.min(times.by_rank)),
            maximum=float(np.max(times.by_rank)),
            iterations=times.num_calls,
            fastest_round=times.rounds[0] if len(times.rounds) > 1 else None,
            slowest_round=times.rounds[-1] if len(times.rounds) > 1 else None,
            percentiles=percentiles,
            num_wrong=self._wrong(case),
        )

    def _call(self, case: BenchCase) -> Callable[..., Any]:
        """Returns one iteration: -m operations launched together, followed by a barrier with -z."""
        call, barrier = case.call, self._book.barrier
        aggregated = self._settings.aggregated

        def launched() -> None:
            for work in [call(async_op=True) for _ in range(aggregated)]:
                work.wait()

        once = launched if aggregated > 1 else call
        if not self._settings.blocking:
            return once

        def blocking() -> None:
            once()
            barrier()

        return blocking

    def _times(self, call: Callable[[], Any], num_operations: int) -> _Times:
        num_calls = self._settings.iterations or self._chosen(call)
        fewest = 1 if len(self._settings.algorithms) > 1 else _FEWEST  # a comparison needs to know how times vary
        num_batches = _NUM_BATCHES if num_calls >= _NUM_BATCHES * fewest else 1
        each = -(-num_calls // num_batches)
        batches = [self._together(self._batch(call, each) / (each * num_operations)) for _ in range(num_batches)]
        batches.sort(key=self._reported)
        return _Times(batches[len(batches) // 2], [*map(self._reported, batches)], each * num_batches)

    def _chosen(self, call: Callable[[], Any]) -> int:
        """Returns a number of iterations that takes long enough for the clock; equal on all ranks."""
        slowest = float(np.max(self._together(self._batch(call, _FEWEST)))) / _FEWEST
        return min(_MOST, max(_FEWEST, math.ceil(_LEAST_SECONDS / slowest)))

    def _batch(self, call: Callable[[], Any], num_calls: int) -> float:
        """Returns this rank's seconds for num_calls back-to-back calls; all ranks begin together."""
        self._book.barrier()
        started = perf_counter()
        for _ in itertools.repeat(None, num_calls):
            call()
        return perf_counter() - started

    def _percentiles(self, call: Callable[[], Any], num_operations: int, num_calls: int) -> tuple[float, float] | None:
        """Returns p50 and p99 of the seconds of one operation; an iteration counts with its slowest rank.

        These calls are separate, because reading the clock between calls would slow down the batches.
        """
        if not self._settings.percentiles:
            return None
        self._book.barrier()
        stamps = [perf_counter()]
        for _ in itertools.repeat(None, min(num_calls, _MOST_PERCENTILE_CALLS)):
            call()
            stamps.append(perf_counter())
        slowest = np.sort(self._book.all_reduce(np.diff(stamps), op="max")) / num_operations
        return tuple(float(slowest[math.ceil(share * len(slowest)) - 1]) for share in (0.5, 0.99))  # type: ignore[return-value]

    def _wrong(self, case: BenchCase) -> int | None:
        """Returns the wrong elements of all ranks in the first of -c checks that finds any; None without a check."""
        total: int | None = None
        for seed in range(1, self._settings.num_checks + 1):
            case.fill(seed)
            self._book.barrier()  # peers read this rank's input and write its output directly
            case.call()
            found = case.num_wrong(seed)
            if found is None:
                return None
            total = int(self._book.all_reduce(np.array([found]))[0])
            if total:
                break
        self.num_wrong += total or 0
        return total

    def _together(self, seconds: float) -> npt.NDArray[np.float64]:
        """Returns the seconds of all ranks, in rank order."""
        found: npt.NDArray[np.float64] = self._book.all_gather(np.array([seconds]))
        return found

    def _reported(self, by_rank: npt.NDArray[np.float64]) -> float:
        """Returns the time that -a selects: rank 0's, or the average, minimum or maximum over ranks."""
        average = self._settings.average
        if average == _RANK0:
            return float(by_rank[0])
        if average == _AVERAGE:
            return float(np.mean(by_rank))
        return float(np.min(by_rank) if average == _MIN else np.max(by_rank))
