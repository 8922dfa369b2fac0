"""The output of `hocket bench`: the table of NCCL's tests with bounds added, that of the OSU benchmarks, JSON or CSV.

The first 13 columns are those of NCCL's tests, so that programs that read their tables can read Hocket's too.
"""

import itertools
import json
import platform
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hocket import __version__
from hocket.cli.bench.bench_settings import BenchSettings, as_config, op_in_nccl, type_in_nccl
from hocket.cli.writable import say_written
from hocket.runtime import MachineCosts
from hocket.runtime.tuning import host_bound, machine_costs
from hocket.schedule import COLLECTIVES
from hocket.view import name_count, name_layout, num_fitting, saving, terminal_width

UNMEASURED = "this machine has not been measured: run `hocket tune --measure`"

PLACE_TITLES, PLACE_UNITS = ("size", "count", "type", "redop", "root"), ("(B)", "(elements)", "", "", "")
PLACE_WIDTHS = (12, 12, 8, 6, 6)
GAP = "  "  # between two columns

_LEAST_BOUND = 2e-8  # seconds; reading the clock takes as long, so a share of a smaller bound means nothing
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
    """The measured times of one operation in seconds: the one that -a selects, and those over ranks.

    fastest_round and slowest_round are None if there was only one round. percentiles are p50 and p99.
    """

    seconds: float
    average: float
    minimum: float
    maximum: float
    iterations: int
    fastest_round: float | None
    slowest_round: float | None
    percentiles: tuple[float, float] | None
    num_wrong: int | None


@dataclass(frozen=True)
class Row:
    """One size. num_bytes and count are asked_bytes rounded down to whole blocks. root is -1 without a root.

    A mode is None if the collective does not have it, or if algorithms are compared. algorithm is None if the size
    decides.
    """

    asked_bytes: int
    num_bytes: int
    count: int
    dtype: str
    op: str
    root: int
    out_of_place: Timing | None
    in_place: Timing | None
    algorithm: str | None = None


class Report:
    """Prints each row as it arrives, or all at the end if the format needs that. Only rank 0 uses it."""

    _secondary: Sequence[int] = ()  # columns that go last if not all fit into the terminal

    def __init__(self, settings: BenchSettings) -> None:
        self._settings = settings
        self._costs: MachineCosts | None = None
        self._num_cores = 0
        self._width = terminal_width()
        self._rows: list[Row] = []
        self._lines: list[list[str]] = []  # the cells of each line that was printed
        self._started = time.strftime("%Y-%m-%d %H:%M:%S")
        self._factor = bus_factor(settings.collective, settings.num_ranks)

    def begin(self, num_cores: int) -> None:
        """Prints the header. num_cores counts the cores of all ranks together."""
        self._num_cores, self._costs = num_cores, machine_costs.load(num_cores)
        if self._settings.format == "nccl":
            _print(*self._wrapped(self._head()), *self._columns(self._blocks[0]))
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
        """Adds a row and prints it, if the format allows."""
        self._rows.append(row)
        if self._settings.format == "nccl":
            if (cells := self._cells(row)) is not None:
                self._lines.append(cells)
                _print(self._joined(cells, self._blocks[0]))
        elif self._settings.format == "osu":
            _print(self._line_of_osu(row))
        elif self._settings.format == "csv":
            modes = [mode for mode in _MODES if getattr(row, mode) is not None]
            _print(*(",".join(map(_plain, self._flat(row, mode).values())) for mode in modes))

    def end(self) -> None:
        """Prints the footer and writes the file of -J. Raises ValueError if that cannot be written."""
        if self._settings.format == "nccl":
            for block in self._blocks[1:]:
                _print("#", *self._columns(block), *(self._joined(cells, block) for cells in self._lines))
            _print(*self._wrapped(self._foot()))
        self._finish(self.as_json())

    def fail(self, error: BaseException) -> None:
        """Writes, as JSON, the rows measured before the error, and the error."""
        self._finish(self.as_json() | {"error": _why(error)})

    def _finish(self, found: dict[str, Any]) -> None:
        if self._settings.format == "json":
            _print(json.dumps(found))
        if self._settings.json_file is not None:
            saving.write(self._settings.json_file, json.dumps(found, indent=1) + "\n")
            say_written(self._settings.json_file)

    # NCCL ------------------------------------------------------------------------------------------------------------

    def _head(self) -> list[str]:
        settings = self._settings
        step = f"{settings.step_factor}(factor)" if settings.step_factor > 1 else f"{settings.step_bytes}(bytes)"
        iterations = settings.iterations or "20 or more"
        memory = "registered" if settings.registered else "private"
        layout = name_layout(settings.groups, settings.dims)
        lines = [
            f"# hocket {__version__} bench {settings.collective}: {name_count(settings.num_ranks, 'rank')} on "
            f"{name_count(self._num_cores, 'core')} of {platform.node()}, {memory} memory, "
            f"algorithm {', '.join(filter(None, settings.algorithms)) or 'by size'}{layout and f' in {layout}'}",
            f"# minBytes {settings.min_bytes} maxBytes {settings.max_bytes} step: {step} "
            f"warmup iters: {settings.warm_up} iters: {iterations} agg iters: {settings.aggregated} "
            f"validation: {settings.num_checks} time: {_REPORTED_TIME[settings.average]}",
        ]
        if settings.blocking:
            lines.append("# Blocking Enabled: a barrier after each operation, included in its time")
        if settings.collective == host_bound.MESSAGE:
            lines.append("# Messages between ranks 0 and 1, 2 and 3 ... at the same time; the time is that of one way")
        if settings.moves_data and settings.rounds():
            blocks = f"blocks: multiples of {settings.divisor} elements" if settings.divisor > 1 else "elements"
            lines.append(f"# Sizes are rounded down to whole {blocks}")
        return [*lines, "#"]

    def _wrapped(self, lines: list[str]) -> list[str]:
        if self._width is None:
            return lines
        return [part for line in lines for part in textwrap.wrap(line, self._width, subsequent_indent="#   ")]

    def _columns(self, block: Sequence[int]) -> list[str]:
        """Returns the lines of titles of these columns: modes, names, units."""
        more, units = ["bound(us)", "%bound"], ["", ""]
        if self._settings.percentiles:
            more, units = [*more, "p50", "p99"], [*units, "(us)", "(us)"]
        names = [*PLACE_TITLES, *["time", "algbw", "busbw", "#wrong"] * 2, *more * 2]
        below = [*PLACE_UNITS, *["(us)", "(GB/s)", "(GB/s)", ""] * 2, *units * 2]
        of_columns = ["" for _ in PLACE_TITLES]
        for title, size in zip(["out-of-place", "in-place"] * 2, [4, 4, len(more), len(more)], strict=True):
            of_columns += [title] * size
        groups = []
        for title, alike in itertools.groupby(block, of_columns.__getitem__):
            widths = [self._widths[column] for column in alike]
            width = sum(widths) + len(GAP) * (len(widths) - 1)
            groups.append(f"{title if len(title) <= width else title.partition('-')[0]:^{width}}")
        lines = (GAP.join(groups), self._joined(names, block), self._joined(below, block))
        return ["#" + line[1:].rstrip() for line in lines]

    @property
    def _blocks(self) -> list[list[int]]:
        """Returns the columns of each block that fits into the terminal; the size begins every block.

        The first block is printed while the rows arrive, the others after the last row.
        """
        columns, widths = list(range(len(self._widths))), self._widths
        if num_fitting(widths, len(GAP), self._width) < len(columns):
            columns.sort(key=lambda column: column in self._secondary)
        blocks: list[list[int]] = []
        while columns:
            block = [0] if blocks else []
            each = [widths[column] for column in (*block, *columns)]
            num_new = max(1, num_fitting(each, len(GAP), self._width) - len(block))
            blocks.append([*block, *columns[:num_new]])
            columns = columns[num_new:]
        return blocks

    def _joined(self, cells: Sequence[str], block: Sequence[int]) -> str:
        """Returns these columns of a line."""
        return GAP.join(f"{cells[column]:>{self._widths[column]}}" for column in block)

    @property
    def _widths(self) -> list[int]:
        more = [9, 6, 7, 7] if self._settings.percentiles else [9, 6]
        return [*PLACE_WIDTHS, *[7, 6, 6, 6] * 2, *more * 2]

    def _cells(self, row: Row) -> list[str] | None:
        """Returns the cells of the line that a row completes; None if it completes none."""
        cells, more = place_cells(self._settings, row), list[str]()
        for mode in _MODES:
            timing: Timing | None = getattr(row, mode)
            if timing is None:
                cells += ["-"] * 4
                more += ["-"] * (4 if self._settings.percentiles else 2)
                continue
            algbw, busbw = self._bandwidths(row, timing)
            wrong = "N/A" if timing.num_wrong is None else str(timing.num_wrong)
            cells += [fixed(timing.seconds * 1e6, 7), fixed(algbw, 6), fixed(busbw, 6), wrong]
            bound, printed = self._bound(row, mode), self._printed_bound(row, mode)
            found = [printed, "-" if bound is None or printed == "-" else fixed(bound / timing.seconds * 100, 6)]
            if timing.percentiles is not None:
                found += [fixed(seconds * 1e6, 7) for seconds in timing.percentiles]
            more += found
        return [*cells, *more]

    def _printed_bound(self, row: Row, mode: str) -> str:
        bound = self._bound(row, mode)
        return "-" if bound is None or bound < _LEAST_BOUND else fixed(bound * 1e6, 9)

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
        assert timing is not None  # a call without data, or without an in-place mode, has this mode alone
        numbers = [timing.average, timing.minimum, timing.maximum]
        size = row.num_bytes // self._settings.num_ranks if self._per_rank else row.num_bytes
        line = f"{size:<10}" + "".join(f"{seconds * 1e6:18.2f}" for seconds in numbers)
        line += f"{timing.iterations:18}"
        line += "".join(f"{seconds * 1e6:18.2f}" for seconds in timing.percentiles or ())
        return line + (f"{self._validation(row):>18}" if self._settings.num_checks else "")

    @property
    def _per_rank(self) -> bool:
        """Whether the OSU benchmarks count the bytes of each rank, not those of the whole vector."""
        kind = COLLECTIVES.get(self._settings.collective)  # None for messages
        return kind is not None and kind.blocks != "one" and not kind.reduces

    @staticmethod
    def _validation(row: Row) -> str:
        """Returns the verdict on both modes, in the words of the OSU benchmarks, which print the times of one mode."""
        found = [timing.num_wrong for timing in (row.out_of_place, row.in_place) if timing is not None]
        checked = [num for num in found if num is not None]
        return "N/A" if not checked else "Fail" if any(checked) else "Pass"

    def as_json(self) -> dict[str, Any]:
        """Returns the whole report, under the names of NCCL's tests if they exist: times in us, bandwidths in GB/s."""
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
            "algorithm": row.algorithm,
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
        """Returns one line of CSV. For a row without this mode only the names matter."""
        names = "time alg_bw bus_bw nwrong bound percent_of_bound p50 p99 average minimum maximum actual_iterations"
        measured = self._timing_as_json(row, mode) or dict.fromkeys(names.split())
        first = {"collective": self._settings.collective, "ranks": self._settings.num_ranks}
        place = {name: value for name, value in self._as_json(row).items() if name not in _MODES}
        return first | place | {"mode": mode} | measured

    # Numbers ---------------------------------------------------------------------------------------------------------

    def _bandwidths(self, row: Row, timing: Timing) -> tuple[float, float]:
        """Returns algbw and busbw in GB/s."""
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
        """Returns the number of #wrong cells that are not 0, as NCCL's tests count them."""
        return sum(1 for _, timing in self._timings() if timing.num_wrong)

    def _average_bandwidth(self) -> float:
        """Returns the plain average in GB/s over all rows, out of place and in place."""
        found = [self._bandwidths(row, timing)[1] for row, timing in self._timings()]
        return sum(found) / len(found) if found else 0.0


def bus_factor(collective: str, num_ranks: int) -> float:
    """Returns busbw / algbw; 1 for messages, which NCCL's tests count once."""
    return 1.0 if collective == host_bound.MESSAGE else COLLECTIVES[collective].bus_factor(num_ranks)


def fixed(value: float, width: int) -> str:
    """Returns a number as text, with as many decimals (at most two) as fit into the width."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.0e}"


def place_cells(settings: BenchSettings, row: Row) -> list[str]:
    """Returns what a line begins with: size, count, type, reduction and root."""
    redop = op_in_nccl(row.op) if settings.reduces else "none"
    dtype = type_in_nccl(row.dtype) if settings.moves_data else "none"
    return [str(row.num_bytes), str(row.count), dtype, redop, str(row.root)]


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def _plain(value: object) -> str:
    return "" if value is None else str(value)


def _print(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


def _why(error: BaseException) -> str:
    return "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
