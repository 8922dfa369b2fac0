"""Reads the tables that nccl-tests, rccl-tests and `hocket bench` print, and checks each line against the others.

Other lines between the rows (of NCCL_DEBUG, of mpirun) are passed over, and so are columns behind those of a mode. A
time counts in us; of both modes, and of several passes over the sizes (for each type, or with -N), the smallest one is
taken, because whatever disturbs a measurement adds to it.
"""

import math
import re
from dataclasses import dataclass, field
from decimal import Decimal

from hocket.errors import did_you_mean
from hocket.network.calibration.measured_calls import (
    MeasuredCall,
    MeasuredTable,
    check_factor,
    fastest_of_each,
    hosts_in_order,
    named_collective,
    ranks_of_bandwidths,
    wrong,
)
from hocket.schedule import DTYPE_TABLE

_MODE = ["time", "algbw", "busbw", "#wrong"]
_PLACE = ("size", "count", "type", "redop", "root")
_MORE = ("bound(us)", "%bound", "p50", "p99")  # columns of `hocket bench` behind those of NCCL's tests
_OLD = {"error": "#wrong"}
_UNITS = {"size": "(B)", "count": "(elements)", "time": "(us)", "algbw": "(GB/s)", "busbw": "(GB/s)"}
_TYPES = {row.nccl: row.bytes for row in DTYPE_TABLE}
_FP8 = {"fp8_e4m3": 1, "fp8_e5m2": 1}

_PROGRAM = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|broadcast|reduce|alltoallv?|sendrecv|gather|scatter|hypercube)_perf(_mpi)?\b"
)
_BENCH = re.compile(r"hocket \S+ bench (\w+): (\d+) ranks?\b")
_RANK = re.compile(r"#?\s*Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device")
_SIZES = re.compile(r"minBytes (\d+) maxBytes (\d+) step: (\d+)\((factor|bytes)\)")
_REDUCED = re.compile(r"Reducing maxBytes to (\d+)")
_MEAN = re.compile(r"#?\s*Avg bus bandwidth\s*:\s*(\S+)")
_TITLES = re.compile(r"#?\s*size\s")
_UNIT_LINE = re.compile(r"#?\s*\(")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s")
_MEAN_TOLERANCE, _MEAN_ROUNDING = 2e-3, 0.006


@dataclass
class _Run:
    """What was read of one run so far."""

    collective: str = ""
    num_ranks: int = 0
    hosts: list[str] = field(default_factory=list)
    sizes: tuple[int, int, int, str] | None = None  # least, most, step, and its kind
    columns: list[str] | None = None
    has_others: bool = False  # columns that are passed over
    expects_units: bool = False
    calls: list[MeasuredCall] = field(default_factory=list)
    asked: int = 0  # rows, also those of size 0
    first: int = 0  # the size with which a pass begins, above 0
    busbw: list[float] = field(default_factory=list)
    best: tuple[float, float] = (0.0, 0.0)  # algbw and busbw of the fastest row


def read_nccl(text: str, source: str) -> tuple[MeasuredTable, ...]:
    """Returns a table for each run of a collective that is predicted on machines.

    Raises ValueError with the line for what is no such log, cut or damaged, and if there is no such table.
    """
    return _LogReader(source).read(text)


class _LogReader:
    def __init__(self, source: str) -> None:
        self.source, self.run, self.where = source, _Run(), "line 1"
        self.tables: list[MeasuredTable] = []
        self.unpredicted: ValueError | None = None  # for the first table of another operation

    def read(self, text: str) -> tuple[MeasuredTable, ...]:
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            self.where = f"line {number}"
            self._line(line)
        self._finish(whole=False)
        if not self.tables:
            raise self.unpredicted or wrong(
                self.source,
                self.where,
                "expected output of nccl-tests or `hocket bench`, of the OSU benchmarks, or their JSON; found no table",
            )
        return tuple(self.tables)

    def _line(self, line: str) -> None:
        run = self.run
        expects_units, run.expects_units = run.expects_units, False
        if expects_units and _UNIT_LINE.match(line):
            self._units(line)
        elif mean := _MEAN.match(line):
            self._mean(mean[1])
        elif _TITLES.match(line):
            self._titles(line)
        elif _ROW.match(line):
            self._row(line)
        elif rank := _RANK.match(line):
            self._rank(int(rank[1]), rank[2])
        elif sizes := _SIZES.search(line):
            self._begin()
            self.run.sizes = (int(sizes[1]), int(sizes[2]), int(sizes[3]), sizes[4])
        elif (reduced := _REDUCED.search(line)) and run.sizes:
            run.sizes = (run.sizes[0], int(reduced[1]), *run.sizes[2:])
        elif bench := _BENCH.search(line):
            self._begin()
            self.run.collective, self.run.num_ranks = bench[1], int(bench[2])
        elif program := _PROGRAM.search(line):
            self._begin()
            self.run.collective = program[1]

    def _begin(self) -> None:
        """Ends the run before, if this line is of the next one."""
        if self.run.columns is not None:
            self._finish(whole=False)

    def _rank(self, number: int, host: str) -> None:
        if number == 0:
            self._begin()
            self.run.hosts = []
        if number != len(self.run.hosts):
            raise wrong(self.source, self.where, f"expected rank {len(self.run.hosts)}; found rank {number}")
        self.run.hosts.append(host)

    def _titles(self, line: str) -> None:
        found = [_OLD.get(one, one) for one in re.sub(r"^#?\s*", "", line).split()]
        if "time" not in found and set(found[1:]) <= {*_MORE, *_MODE}:
            self.run.columns = []  # more columns of the rows above, in a block of their own
            return
        if "cputime" in found:
            raise wrong(self.source, self.where, "expected the time of the operation; found cputime: run without -C")
        begin = found.index("time") if "time" in found else len(found)
        places, known = found[:begin], [one for one in found[begin:] if one in (*_PLACE, *_MODE)]
        modes = [found[at : at + len(_MODE)] for at, name in enumerate(found) if name == "time"]
        whole = modes in ([_MODE], [_MODE] * 2) and known == _MODE * len(modes)
        if places != [one for one in _PLACE if one in places] or not whole:
            other = next((one for one in found if one not in (*_PLACE, *_MODE)), None)
            text = ", ".join(found) if other is None else f"{other!r}{did_you_mean(other, (*_PLACE, *_MODE))}"
            raise wrong(
                self.source,
                self.where,
                f"expected columns of nccl-tests, {', '.join((*_PLACE, *_MODE))}, the last four once or twice; found "
                f"{text}",
            )
        if found[-1] == "timestamp":  # a date and a time
            found.append("time of day")
        self.run.columns, self.run.expects_units = found, True
        self.run.has_others = len(found) > len(places) + len(known)

    def _units(self, line: str) -> None:
        """Checks the line of units, which leaves out those of columns without one."""
        expected = [_UNITS[name] for name in self.run.columns or () if name in _UNITS]
        found = re.findall(r"\([^)]*\)", line)
        rest = iter(found)
        # Units of columns that are passed over stand between the others.
        if not all(unit in rest for unit in expected) if self.run.has_others else found != expected:
            raise wrong(self.source, self.where, f"expected the units {' '.join(expected)}; found {' '.join(found)}")

    def _row(self, line: str) -> None:
        run = self.run
        if run.columns is None:
            raise wrong(self.source, self.where, "expected a line with the names of the columns above the first row")
        if not run.columns:
            return
        cells = line.split()
        if len(cells) != len(run.columns):
            text = (
                f"expected {len(run.columns)} values, as many as columns; found {len(cells)}: the line is cut or mixed"
            )
            raise wrong(self.source, self.where, text)
        place = dict(zip(run.columns, cells, strict=True))
        size = self._size(place["size"], place.get("count"), place.get("type"))
        times = []
        for begin in (number for number, name in enumerate(run.columns) if name == "time"):
            values = cells[begin : begin + len(_MODE)]
            if values[0] not in ("-", "N/A"):
                times.append(self._mode(size, *values))
        if not times:
            raise wrong(self.source, self.where, "expected a time, out of place or in place; found none")
        if run.calls and run.first < size <= run.calls[-1].num_bytes:
            text = (
                f"expected a size above {run.calls[-1].num_bytes}; found {size}: lines are damaged, or mixed, as "
                "those of nccl-tests without MPI=1"
            )
            raise wrong(self.source, self.where, text)
        run.asked += 1
        if size:  # sizes below one element per rank are rounded down to 0
            run.first = run.first or size
            run.calls.append(MeasuredCall(self.where, size, min(times) * 1e-6))

    def _size(self, size: str, count: str | None, dtype: str | None) -> int:
        if not re.fullmatch(r"\d{1,18}", size):
            raise wrong(self.source, self.where, f"expected a size in bytes; found {size!r}")
        if dtype is not None and dtype not in _TYPES | _FP8:
            near = did_you_mean(dtype, _TYPES)
            raise wrong(self.source, self.where, f"expected a type of NCCL, {', '.join(_TYPES)}; found {dtype!r}{near}")
        number, item = int(size), (_TYPES | _FP8)[dtype] if dtype else 1
        if count is not None and dtype is not None and number:
            elements = int(count) if count.isdecimal() else 0
            if not elements or number % (elements * item):
                text = f"expected a size of whole {dtype} elements, with count {count}; found {size}: mixed units?"
                raise wrong(self.source, self.where, text)
        return number

    def _mode(self, size: int, time: str, algbw: str, busbw: str, num_wrong: str) -> float:
        """Returns a mode's time in us, after comparing it with its bandwidth."""
        us, bandwidth, bus = (self._number(one) for one in (time, algbw, busbw))
        if us <= 0:
            raise wrong(self.source, self.where, f"expected a time in us, above 0; found {time}")
        expected = size / us / 1e3
        if abs(bandwidth - expected) > _rounding(algbw) + expected * (_rounding(time) / us + 2e-3):
            text = f"expected algbw = size / time = {expected:.4g} GB/s, with time in us; found {algbw}: mixed units?"
            raise wrong(self.source, self.where, text)
        # Earlier versions print the largest relative error, later ones a number of wrong values or N/A.
        if num_wrong != "N/A" and self._number(num_wrong) >= 1:
            raise wrong(self.source, self.where, f"expected right results; found {num_wrong} wrong values")
        self.run.busbw.append(bus)
        self.run.best = max(self.run.best, (bandwidth, bus))
        return us

    def _number(self, text: str) -> float:
        if not re.fullmatch(r"\d+(\.\d+)?(e[+-]?\d+)?", text) or math.isinf(float(text)):
            raise wrong(self.source, self.where, f"expected a number; found {text!r}")
        return float(text)

    def _mean(self, text: str) -> None:
        """Compares the last line of a table with its rows, and ends the table."""
        run, mean = self.run, self._number(text)
        if run.columns is None or not run.busbw:
            raise wrong(self.source, self.where, "expected rows above this line; found none")
        if run.sizes is not None and run.asked % (least := _num_sizes(*run.sizes)):
            raise wrong(
                self.source,
                self.where,
                f"expected {least} rows, from {run.sizes[0]} to {run.sizes[1]} bytes; found {run.asked}: lines are "
                "missing or damaged",
            )
        found = sum(run.busbw) / len(run.busbw)
        if abs(found - mean) > _MEAN_TOLERANCE * mean + _MEAN_ROUNDING:
            raise wrong(
                self.source,
                self.where,
                f"expected {found:.4g}, the mean of busbw in the rows above; found {text}: a row is missing or damaged",
            )
        self._finish(whole=True)

    def _finish(self, *, whole: bool) -> None:
        run, self.run = self.run, _Run()
        if run.columns is None:
            return
        if not whole and run.sizes is not None:
            raise wrong(
                self.source,
                self.where,
                "expected the end of the table, '# Avg bus bandwidth'; found none: the log is cut, or the run ended "
                "early; to use its rows, remove the line with minBytes and maxBytes",
            )
        if not run.calls:
            raise wrong(self.source, self.where, "expected rows with sizes above 0; found none")
        if not run.collective:
            raise wrong(
                self.source,
                self.where,
                "expected the name of the benchmark, such as all_reduce_perf, above the table; found none; put the "
                "command line above it",
            )
        if whole:  # the next table may be of the same job
            self.run.collective, self.run.hosts, self.run.num_ranks = run.collective, run.hosts, run.num_ranks
        try:
            collective = named_collective(self.source, self.where, run.collective)
        except ValueError as error:
            self.unpredicted = self.unpredicted or error
            return
        algbw, busbw = run.best
        num_ranks = len(run.hosts) or run.num_ranks or ranks_of_bandwidths(collective, algbw, busbw)
        if num_ranks > 1 and algbw >= 1:
            check_factor(self.source, self.where, collective, num_ranks, busbw / algbw)
        hosts = hosts_in_order(run.hosts)
        self.tables.append(MeasuredTable(self.source, collective, num_ranks, hosts, fastest_of_each(run.calls)))


def _rounding(text: str) -> float:
    """Returns half a unit of the last digit that was printed."""
    exponent = Decimal(text).as_tuple().exponent
    return 0.5 * 10.0 ** int(exponent)


def _num_sizes(least: int, most: int, step: int, kind: str) -> int:
    if kind == "bytes":
        return (most - least) // step + 1 if step and most >= least else 1
    number, size = 0, max(least, 1)
    while size <= most:
        number, size = number + 1, size * max(step, 2)
    return max(number, 1)
