"""Reads the JSON of nccl-tests (-J) and of `hocket bench`, whose results have the same names."""

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from hocket.network.calibration.measured_calls import (
    MOST_RANKS,
    MeasuredCall,
    MeasuredTable,
    check_factor,
    fastest_of_each,
    hosts_in_order,
    named_collective,
    wrong,
)

_TOLERANCE = 0.01  # relative difference between alg_bw and size / time


_Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]


class JsonTiming(msgspec.Struct):
    """The times of one mode: time in us, or cpu_time with -C; bandwidths in GB/s; nwrong as number, or "nan"."""

    alg_bw: float
    bus_bw: float
    time: float | None = None
    cpu_time: float | None = None
    nwrong: float | str | None = None


class JsonRow(msgspec.Struct):
    """The results of one size in bytes."""

    size: int
    out_of_place: JsonTiming | None = None
    in_place: JsonTiming | None = None


class JsonDevice(msgspec.Struct):
    """The first device of a process."""

    hostname: str


class JsonConfig(msgspec.Struct):
    """What was run: `collective` and `num_ranks` are Hocket's, the others NCCL's."""

    collective: str | None = None
    num_ranks: _Count | None = None
    nthreads: _Count = 1
    ngpus: _Count = 1
    devices: tuple[JsonDevice, ...] = ()


class JsonReport(msgspec.Struct):
    """The file: its version, the command line, the settings, the results."""

    version: int
    args: tuple[str, ...]
    config: JsonConfig
    results: tuple[JsonRow, ...]


def read_json(text: str, source: str) -> MeasuredTable:
    """Returns the table of a report. Raises ValueError with the place for what is no such report, or damaged."""
    try:
        report = msgspec.json.decode(text, type=JsonReport)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at ")
        raise wrong(source, where.strip("`").removeprefix("$.") or "line 1", message) from None
    except (msgspec.DecodeError, RecursionError) as error:
        at = re.search(r"\(byte (\d+)\)", str(error))
        line = text.encode()[: int(at[1]) if at else None].count(b"\n") + 1
        message = f"expected one whole JSON object; {error}: the file is cut or damaged"
        raise wrong(source, f"line {line}", message) from None
    if report.version < 1:  # later versions add entries only
        raise wrong(
            source, "version", f"expected version 1 of the JSON of nccl-tests, or later; found {report.version}"
        )
    config = report.config
    program = re.search(r"(\w+?)_perf\b", report.args[0]) if report.args else None
    named = config.collective or (program[1] if program else "")
    collective = named_collective(source, "config.collective" if config.collective else "args[0]", named)
    each = config.nthreads * config.ngpus
    if len(config.devices) * each > MOST_RANKS:
        raise wrong(source, "config", f"expected at most {MOST_RANKS} ranks; found {len(config.devices) * each}")
    hosts = hosts_in_order([device.hostname for device in config.devices for _ in range(each)])
    num_ranks = config.num_ranks or len(config.devices) * each
    rows = {f"results[{number}]": row for number, row in enumerate(report.results)}
    return table_of_rows(source, "results", rows, collective, num_ranks, hosts)


def table_of_rows(
    source: str, where: str, rows: Mapping[str, JsonRow], collective: str, num_ranks: int, hosts: tuple[int, ...]
) -> MeasuredTable:
    """Returns the table of rows, which have their places as keys. where: the place of all of them.

    Raises ValueError with the place of a row that is damaged or contradicts the number of ranks.
    """
    calls = [_call(source, place, row) for place, row in rows.items() if row.size]
    if not calls:
        raise wrong(source, where, "expected results of sizes above 0; found none")
    best = max((one for row in rows.values() for one in (row.out_of_place, row.in_place) if one), key=_bandwidth)
    if num_ranks > 1 and best.alg_bw > 0:
        check_factor(source, where, collective, num_ranks, best.bus_bw / best.alg_bw)
    return MeasuredTable(source, collective, num_ranks, hosts, fastest_of_each(calls))


def _bandwidth(timing: JsonTiming) -> float:
    return timing.alg_bw


def _call(source: str, where: str, row: JsonRow) -> MeasuredCall:
    times = []
    for mode in ("out_of_place", "in_place"):
        timing: JsonTiming | None = getattr(row, mode)
        if timing is None:
            continue
        here = f"{where}.{mode}"
        if timing.time is None:
            raise wrong(source, here, "expected time, that of the operation; found only cpu_time: run without -C")
        if not 0 < timing.time < float("inf"):
            raise wrong(source, f"{here}.time", f"expected a time in us, above 0; found {timing.time:g}")
        if isinstance(timing.nwrong, int | float) and timing.nwrong > 0:
            raise wrong(source, f"{here}.nwrong", f"expected right results; found {timing.nwrong:g} wrong values")
        expected = row.size / timing.time / 1e3
        if not abs(timing.alg_bw - expected) <= _TOLERANCE * expected + 1e-6:
            raise wrong(
                source,
                f"{here}.alg_bw",
                f"expected size / time = {expected:.4g} GB/s, with time in us; found {timing.alg_bw:.4g}",
            )
        times.append(timing.time)
    if not times or row.size < 0:
        raise wrong(source, where, "expected a size above 0, with out_of_place, in_place or both; found neither")
    return MeasuredCall(where, row.size, min(times) * 1e-6)
