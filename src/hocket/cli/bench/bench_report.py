"""What `hocket bench` prints: the table of NCCL's tests with bounds behind it, that of the OSU benchmarks, JSON, CSV.

The first 13 columns are NCCL's, so that programs which read its tables can read ours.
"""

import json
import platform
import time
from dataclasses import dataclass
from typing import Any

from hocket import __version__
from hocket.cli.bench.bench_settings import Settings, as_config, op_in_nccl, type_in_nccl
from hocket.runtime import MachineCosts
from hocket.runtime.tuning import host_bound, machine_costs
from hocket.schedule import COLLECTIVES
from hocket.view import name_count, saving

UNMEASURED = "this machine has not been measured: run `hocket tune --measure`"

_LEAST_BOUND = 2e-8  # seconds: reading the clock takes as long, so a share of less says nothing
_MODES = ("out_of_place", "in_place")
_REPORTED_TIME = ("rank 0's", "average over ranks", "minimum over ranks", "maximum over ranks")
_NAMES_OF_OSU = {
    "all_reduce": "Allreduce",
    "all_gather": "Allgather",
    "reduce_scatter": "Reduce_scatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "all_to_all": "All-to-All Personalized Exchange",
    "barrier": "Barrier",
    "gather": "Gather",
    "scatter": "Scatter",
    "all_gather_v": "Allgatherv",
    "gather_v": "Gatherv",
    "scatter_v": "Scatterv",
    "all_to_all_v": "All-to-Allv Personalized Exchange",
    host_bound.MESSAGE: "Multi",
}


@dataclass(frozen=True)
class Timing:
    """What was measured of one operation: seconds as -a says, and over ranks; percentiles are p50 and p99."""

    seconds: float
    average: float
    minimum: float
    maximum: float
    iterations: int
    percentiles: tuple[float, float] | None
    num_wrong: int | None


@dataclass(frozen=True)
class Row:
    """One size. asked_bytes was asked for; num_bytes and count are what it was rounded down to. root -1: there is none.

    A mode is None where the collective has no such form.
    """

    asked_bytes: int
    num_bytes: int
    count: int
    dtype: str
    op: str
    root: int
    out_of_place: Timing | None
    in_place: Timing | None


class Report:
    """Prints as the rows come, or at the end where that is what the format needs. Used by rank 0."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._costs: MachineCosts | None = None
        self._num_cores = 0
        self._rows: list[Row] = []
        self._started = time.strftime("%Y-%m-%d %H:%M:%S")
        self._factor = bus_factor(settings.collective, settings.num_ranks)

    def begin(self, num_cores: int) -> None:
        """What stands above the first row. num_cores: those of all ranks together."""
        self._num_cores, self._costs = num_cores, machine_costs.load(num_cores)
        if self._settings.format == "nccl":
            _print(*self._head(), *self._columns())
        elif self._settings.format == "osu":
            name = _NAMES_OF_OSU.get(self._settings.collective, self._settings.collective)
            titles = ["Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations"]
            if self._settings.percentiles:
                titles += ["P50 Tail Lat(us)", "P99 Tail Lat(us)"]
            if self._settings.num_checks:
                titles.append("Validation")
            _print(f"# Hocket {name} Latency Test", "# Size    " + "".join(f"{title:>18}" for title in titles))
        elif self._settings.format == "csv":
            _print(",".join(self._flat(Row(0, 0, 0, "", "", -1, None, None), "out_of_place")))

    def row(self, row: Row) -> None:
        """One more row."""
        self._rows.append(row)
        if self._settings.format == "nccl":
            _print(self._line(row))
        elif self._settings.format == "osu":
            _print(self._line_of_osu(row))
        elif self._settings.format == "csv":
            modes = [mode for mode in _MODES if getattr(row, mode) is not None]
            _print(*(",".join(map(_plain, self._flat(row, mode).values())) for mode in modes))

    def end(self) -> None:
        """What stands below the last row, and the file of -J. ValueError if that cannot be written."""
        if self._settings.format == "nccl":
            _print(*self._foot())
        self._finish(self.as_json())

    def fail(self, error: BaseException) -> None:
        """What there is as JSON of the rows before the error, and the error."""
        self._finish(self.as_json() | {"error": _why(error)})

    def _finish(self, found: dict[str, Any]) -> None:
        if self._settings.format == "json":
            _print(json.dumps(found))
        if self._settings.json_file is not None:
            saving.write(self._settings.json_file, json.dumps(found, indent=1) + "\n")

    # NCCL ------------------------------------------------------------------------------------------------------------

    def _head(self) -> list[str]:
        settings = self._settings
        step = f"{settings.step_factor}(factor)" if settings.step_factor > 1 else f"{settings.step_bytes}(bytes)"
        iterations = settings.iterations or "20 or more"
        memory = "registered" if settings.registered else "private"
        lines = [
            f"# hocket {__version__} bench {settings.collective}: {name_count(settings.num_ranks, 'rank')} on "
            f"{name_count(self._num_cores, 'core')} of {platform.node()}, {memory} memory, "
            f"algorithm {settings.algorithm or 'by size'}",
            f"# minBytes {settings.min_bytes} maxBytes {settings.max_bytes} step: {step} "
            f"warmup iters: {settings.warm_up} iters: {iterations} agg iters: {settings.aggregated} "
            f"validation: {settings.num_checks} time: {_REPORTED_TIME[settings.average]}",
        ]
        if settings.blocking:
            lines.append("# Blocking Enabled: a barrier after each operation, which its time contains")
        if settings.collective == host_bound.MESSAGE:
            lines.append("# Messages between ranks 0 and 1, 2 and 3 ... at once; the time is that of one way")
        if settings.moves_data and settings.rounds():
            blocks = f"blocks: multiples of {settings.divisor} elements" if settings.divisor > 1 else "elements"
            lines.append(f"# Sizes are rounded down to whole {blocks}")
        return [*lines, "#"]

    def _columns(self) -> list[str]:
        places = " " * 52
        modes = "".join(f"  {mode:^31}" for mode in ("out-of-place", "in-place"))
        width = 38 if self._settings.percentiles else 20
        behind = "".join(f"  {mode:^{width - 2}}" for mode in ("out-of-place", "in-place"))
        names = ["size", "count", "type", "redop", "root"]
        measured = _cells("time", "algbw", "busbw", "#wrong") * 2
        more, units = ["bound(us)", "%bound"], ["", ""]
        if self._settings.percentiles:
            more, units = [*more, "p50", "p99"], [*units, "(us)", "(us)"]
        return [
            f"#{places[1:]}{modes}{behind}".rstrip(),
            "#" + _place(*names)[1:] + measured + _more(*more) * 2,
            "#"
            + _place("(B)", "(elements)", "", "", "")[1:]
            + _cells("(us)", "(GB/s)", "(GB/s)", "") * 2
            + (_more(*units) * 2).rstrip(),
        ]

    def _line(self, row: Row) -> str:
        kind = self._settings
        redop = op_in_nccl(row.op) if kind.reduces else "none"
        dtype = type_in_nccl(row.dtype) if kind.moves_data else "none"
        place = _place(str(row.num_bytes), str(row.count), dtype, redop, str(row.root))
        cells, more = "", ""
        for mode in _MODES:
            timing: Timing | None = getattr(row, mode)
            if timing is None:
                cells += _cells("-", "-", "-", "-")
                more += _more(*["-"] * (4 if kind.percentiles else 2))
                continue
            algbw, busbw = self._bandwidths(row, timing)
            wrong = "N/A" if timing.num_wrong is None else str(timing.num_wrong)
            cells += _cells(fixed(timing.seconds * 1e6, 7), fixed(algbw, 6), fixed(busbw, 6), wrong)
            bound = self._bound(row, mode)
            found = ["-", "-"]
            if bound is not None and bound >= _LEAST_BOUND:
                found = [fixed(bound * 1e6, 9), fixed(bound / timing.seconds * 100, 6)]
            if timing.percentiles is not None:
                found += [fixed(seconds * 1e6, 7) for seconds in timing.percentiles]
            more += _more(*found)
        return place + cells + more

    def _foot(self) -> list[str]:
        wrong, bandwidth = self._num_out_of_bounds(), self._average_bandwidth()
        lines = [
            f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
            f"# Avg bus bandwidth    : {bandwidth:g}",
        ]
        if self._costs is None:
            lines.append(f"# bound(us)            : {UNMEASURED}")
        return [*lines, "#"]

    # Others ----------------------------------------------------------------------------------------------------------

    def _line_of_osu(self, row: Row) -> str:
        timing = row.out_of_place
        assert timing is not None  # what has no data, or no memory to be in place, has this form alone
        numbers = [timing.average, timing.minimum, timing.maximum]
        size = row.num_bytes // self._settings.num_ranks if self._per_rank else row.num_bytes
        line = f"{size:<10}" + "".join(f"{seconds * 1e6:18.2f}" for seconds in numbers)
        line += f"{timing.iterations:18}"
        line += "".join(f"{seconds * 1e6:18.2f}" for seconds in timing.percentiles or ())
        return line + (f"{self._validation(row):>18}" if self._settings.num_checks else "")

    @property
    def _per_rank(self) -> bool:
        """Whether the OSU benchmarks count the bytes of each rank, not those of the whole vector."""
        kind = COLLECTIVES.get(self._settings.collective)  # none of messages
        return kind is not None and kind.blocks != "one" and not kind.reduces

    @staticmethod
    def _validation(row: Row) -> str:
        """In the words of the OSU benchmarks, of both modes, though only one has its times printed."""
        found = [timing.num_wrong for timing in (row.out_of_place, row.in_place) if timing is not None]
        checked = [num for num in found if num is not None]
        return "N/A" if not checked else "Fail" if any(checked) else "Pass"

    def as_json(self) -> dict[str, Any]:
        """All of it, under the names of NCCL's tests where they have it: times in us, bandwidths in GB/s."""
        wrong = self._num_out_of_bounds()
        return {
            "version": 1,
            "hocket_version": __version__,
            "start_time": self._started,
            "args": ["hocket", "bench", *self._settings.arguments],
            "config": as_config(self._settings) | {"host": platform.node(), "cores": self._num_cores or None},
            "results": [self._as_json(row) for row in self._rows],
            "out_of_bounds": {"count": wrong, "okay": not wrong},
            "average_bus_bandwidth": {"bandwidth": self._average_bandwidth()},
            "bounds": "measured" if self._costs is not None else UNMEASURED,
            "end_time": time.strftime("%Y-%m-%d %H:%M:%S"),
        }

    def _as_json(self, row: Row) -> dict[str, Any]:
        place = {
            "size": row.num_bytes,
            "asked_size": row.asked_bytes,
            "count": row.count,
            "type": type_in_nccl(row.dtype) if self._settings.moves_data else "none",
            "redop": op_in_nccl(row.op) if self._settings.reduces else "none",
            "root": row.root,
        }
        return place | {mode: self._timing_as_json(row, mode) for mode in _MODES}

    def _timing_as_json(self, row: Row, mode: str) -> dict[str, Any] | None:
        timing: Timing | None = getattr(row, mode)
        if timing is None:
            return None
        algbw, busbw = self._bandwidths(row, timing)
        bound = self._bound(row, mode)
        p50, p99 = timing.percentiles or (None, None)
        return {
            "time": timing.seconds * 1e6,
            "alg_bw": algbw,
            "bus_bw": busbw,
            "nwrong": timing.num_wrong,
            "bound": _us(bound),
            "percent_of_bound": None if bound is None else bound / timing.seconds * 100,
            "p50": _us(p50),
            "p99": _us(p99),
            "average": timing.average * 1e6,
            "minimum": timing.minimum * 1e6,
            "maximum": timing.maximum * 1e6,
            "actual_iterations": timing.iterations,
        }

    def _flat(self, row: Row, mode: str) -> dict[str, Any]:
        """One line of CSV; of a row without this mode only the names matter."""
        names = "time alg_bw bus_bw nwrong bound percent_of_bound p50 p99 average minimum maximum actual_iterations"
        measured = self._timing_as_json(row, mode) or dict.fromkeys(names.split())
        first = {"collective": self._settings.collective, "ranks": self._settings.num_ranks}
        place = {name: value for name, value in self._as_json(row).items() if name not in _MODES}
        return first | place | {"mode": mode} | measured

    # Numbers ---------------------------------------------------------------------------------------------------------

    def _bandwidths(self, row: Row, timing: Timing) -> tuple[float, float]:
        """algbw and busbw in GB/s."""
        algbw = row.num_bytes / timing.seconds / 1e9
        return algbw, algbw * self._factor

    def _bound(self, row: Row, mode: str) -> float | None:
        if self._costs is None:
            return None
        settings, in_place = self._settings, mode == "in_place"
        return host_bound.lower_bound(
            settings.collective,
            settings.num_ranks,
            row.num_bytes,
            self._costs,
            registered=settings.registered,
            in_place=in_place,
        )

    def _timings(self) -> list[tuple[Row, Timing]]:
        return [(row, timing) for row in self._rows for timing in (row.out_of_place, row.in_place) if timing]

    def _num_out_of_bounds(self) -> int:
        """Cells of #wrong that are not 0, as NCCL's tests count."""
        return sum(1 for _, timing in self._timings() if timing.num_wrong)

    def _average_bandwidth(self) -> float:
        """GB/s: the plain average over all rows, out of place and in place."""
        found = [self._bandwidths(row, timing)[1] for row, timing in self._timings()]
        return sum(found) / len(found) if found else 0.0


def bus_factor(collective: str, num_ranks: int) -> float:
    """busbw / algbw; of messages, which NCCL's tests count once, 1."""
    return 1.0 if collective == host_bound.MESSAGE else COLLECTIVES[collective].bus_factor(num_ranks)


def fixed(value: float, width: int) -> str:
    """A number with as many decimals, two at most, as the width has room for."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.0e}"


def _place(size: str, count: str, dtype: str, redop: str, root: str) -> str:
    return f"{size:>12}  {count:>12}  {dtype:>8}  {redop:>6}  {root:>6}"


def _cells(seconds: str, algbw: str, busbw: str, wrong: str) -> str:
    return f"  {seconds:>7}  {algbw:>6}  {busbw:>6}  {wrong:>6}"


def _more(bound: str, percent: str, *percentiles: str) -> str:
    return f"  {bound:>9}  {percent:>6}" + "".join(f"  {one:>7}" for one in percentiles)


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def _plain(value: object) -> str:
    return "" if value is None else str(value)


def _print(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


def _why(error: BaseException) -> str:
    return "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
