"""What every rank of `hocket bench` does: batches of calls back to back, timed, and then the check of the results.

Between the clock's two readings of a batch there is nothing but the calls. What ranks tell each other about times goes
over a communicator of its own, so that what is measured runs as if alone.
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
from hocket.cli.bench.bench_cases import Buffers, Case, make_case
from hocket.cli.bench.bench_report import Report, Row, Timing
from hocket.cli.bench.bench_settings import Settings
from hocket.runtime import Communicator, discover
from hocket.runtime.tuning import host_bound

_FEWEST = 20  # iterations, as NCCL's tests
_MOST = 100_000
_LEAST_SECONDS = 0.05  # where the number of iterations is ours to choose
_NUM_BATCHES = 5  # of at least _FEWEST calls each; the median counts
_MOST_PERCENTILE_CALLS = 10_000

_RANK0, _AVERAGE, _MIN = range(3)  # of -a; 3 is the maximum


def run_as_rank(settings: Settings) -> int:
    """Measures all that the settings ask for; rank 0 prints. Returns, on every rank, how many elements were wrong.

    Raises ValueError where the ranks that are there are not as many as the settings say.
    """
    environment = discover()
    size = environment.size
    report = Report(settings) if environment.rank == 0 else None
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
    """Seconds of one operation, by rank."""

    by_rank: npt.NDArray[np.float64]
    num_calls: int


class Bench:
    """One rank's measurements. `num_wrong` counts elements over all ranks, and grows with the rows."""

    def __init__(self, settings: Settings, comm: Communicator) -> None:
        self._settings, self._comm = settings, comm
        self._book = comm.dup()  # before anything is configured
        self.num_wrong = 0
        if settings.timeout > 0:
            comm.configure(timeout=settings.timeout)
            self._book.configure(timeout=settings.timeout)
        if settings.collective != host_bound.MESSAGE:
            comm.configure(settings.collective, algorithm=settings.algorithm, order=settings.order)

    def rows(self) -> Iterator[Row]:
        """Measures row after row, in the order in which they are printed."""
        settings = self._settings
        buffers = Buffers(settings.max_bytes if settings.moves_data else 0, registered=settings.registered)
        return itertools.chain.from_iterable(
            (self._row(buffers, size, *run) for size in settings.sizes()) for run in settings.runs()
        )

    def _row(self, buffers: Buffers, size: int, dtype: str, op: str, root: int) -> Row:
        settings, modes = self._settings, list[Timing | None]()
        count = settings.num_elements(size, dtype)
        num_bytes = param_count = 0
        for in_place in (False, True):
            case = make_case(self._comm, buffers, settings.collective, count, dtype, op, root, in_place=in_place)
            if case is None:
                modes.append(None)
                continue
            num_bytes, param_count = case.num_bytes, case.count
            modes.append(self._timing(case))
        return Row(size, num_bytes, param_count, dtype, op, root, modes[0], modes[1])

    def _timing(self, case: Case) -> Timing:
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
            percentiles=percentiles,
            num_wrong=self._wrong(case),
        )

    def _call(self, case: Case) -> Callable[..., Any]:
        """One iteration: -m operations launched together, and with -z a barrier behind."""
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
        num_batches = _NUM_BATCHES if num_calls >= _NUM_BATCHES * _FEWEST else 1
        each = -(-num_calls // num_batches)
        batches = [self._together(self._batch(call, each) / (each * num_operations)) for _ in range(num_batches)]
        batches.sort(key=self._reported)
        return _Times(batches[len(batches) // 2], each * num_batches)

    def _chosen(self, call: Callable[[], Any]) -> int:
        """How many iterations take long enough for the clock; equal on all ranks."""
        slowest = float(np.max(self._together(self._batch(call, _FEWEST)))) / _FEWEST
        return min(_MOST, max(_FEWEST, math.ceil(_LEAST_SECONDS / slowest)))

    def _batch(self, call: Callable[[], Any], num_calls: int) -> float:
        """Seconds of this rank for so many calls back to back; all ranks begin together."""
        self._book.barrier()
        started = perf_counter()
        for _ in itertools.repeat(None, num_calls):
            call()
        return perf_counter() - started

    def _percentiles(self, call: Callable[[], Any], num_operations: int, num_calls: int) -> tuple[float, float] | None:
        """Seconds of one operation in half of all iterations and in 99 of 100, each that of its slowest rank.

        These are calls of their own: a clock read between calls would slow down those of the batches.
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

    def _wrong(self, case: Case) -> int | None:
        """Of -c checks the first that finds something, over all ranks; None if there was none to make."""
        total: int | None = None
        for seed in range(1, self._settings.num_checks + 1):
            case.fill(seed)
            self._book.barrier()  # a peer may read inputs that lie in its memory, or write outputs there
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
        """This rank's seconds and those of the others, in rank order."""
        found: npt.NDArray[np.float64] = self._book.all_gather(np.array([seconds]))
        return found

    def _reported(self, by_rank: npt.NDArray[np.float64]) -> float:
        """What -a says: of rank 0, or the average, least or most of all."""
        average = self._settings.average
        if average == _RANK0:
            return float(by_rank[0])
        if average == _AVERAGE:
            return float(np.mean(by_rank))
        return float(np.min(by_rank) if average == _MIN else np.max(by_rank))
