"""Reads what `hocket bench --format csv` prints: a line for each size and mode."""

import csv
import math

from hocket.network.calibration.bench_json import JsonRow, JsonTiming, table_of_rows
from hocket.network.calibration.measured_calls import MOST_RANKS, MeasuredTable, named_collective, wrong

_BEGIN = "collective,ranks,"
_NUMBERS = ("size", "time", "alg_bw", "bus_bw")
_MODES = ("out_of_place", "in_place")


def is_csv(text: str) -> bool:
    """Returns whether a text begins with the names of the columns of such a file."""
    return text.startswith(_BEGIN)


def read_csv(text: str, source: str) -> MeasuredTable:
    """Returns the table of a file. Raises ValueError with the line for what is cut, damaged, or of several runs."""
    lines = csv.reader(text.splitlines())
    names = next(lines)
    for name in ("mode", "nwrong", *_NUMBERS):
        if name not in names:
            raise wrong(source, "line 1", f"expected a column {name}; found {', '.join(names)}")
    rows: dict[str, JsonRow] = {}
    runs = set()
    for number, cells in enumerate(lines, 2):
        where = f"line {number}"
        if len(cells) != len(names):
            raise wrong(source, where, f"expected {len(names)} values, as many as columns; found {len(cells)}")
        place = dict(zip(names, cells, strict=True))
        runs.add((place["collective"], place["ranks"]))
        if len(runs) > 1:
            raise wrong(source, where, f"expected one collective and number of ranks; found {sorted(runs)}")
        if place["mode"] not in _MODES:
            raise wrong(source, where, f"expected a mode, {' or '.join(_MODES)}; found {place['mode']!r}")
        size, time, alg_bw, bus_bw = (_number(source, where, name, place[name]) for name in _NUMBERS)
        num_wrong = _number(source, where, "nwrong", place["nwrong"] or "0")
        rows[where] = JsonRow(int(size), **{place["mode"]: JsonTiming(alg_bw, bus_bw, time, nwrong=num_wrong)})
    for name, ranks in runs:
        collective = named_collective(source, "line 2", name)
        if not ranks.isdecimal() or not 1 <= int(ranks) <= MOST_RANKS:
            raise wrong(source, "line 2", f"expected 1 to {MOST_RANKS} ranks; found {ranks!r}")
        return table_of_rows(source, "line 2", rows, collective, int(ranks), ())
    raise wrong(source, "line 1", "expected lines below the names of the columns; found none")


def _number(source: str, where: str, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise wrong(source, where, f"expected a number in the column {name}; found {text!r}")
    return number
