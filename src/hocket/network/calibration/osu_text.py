"""Reads the output of the OSU benchmarks, and of `hocket bench --format osu`: a size and an average latency per line.

Such a log does not say how many ranks there were.
"""

import re

from hocket.network.calibration.measured_calls import MeasuredCall, MeasuredTable, named_collective, wrong

_TITLE = re.compile(r"^#\s*(?:OSU [\w-]+|Hocket) (\S.*?) Test\b", re.MULTILINE)
_COLLECTIVE = re.compile(r"([\w-]+)(?: Personalized Exchange)? Latency")
_NUMBER = re.compile(r"\d{1,12}\.\d\d")  # both print two decimals, so that a number that was cut is seen
_TIME = "Avg Latency(us)"
_KNOWN = {"Size", _TIME, "Min Latency(us)", "Max Latency(us)", "Iterations", "Validation"}
_TAILS = re.compile(r"P\d+ Tail Lat\(us\)")


def is_osu(text: str) -> bool:
    """Returns whether a text has the title of an OSU benchmark."""
    return _TITLE.search(text) is not None


def read_osu(text: str, source: str) -> tuple[MeasuredTable, ...]:
    """Returns a table for each collective, with sizes as printed: some are of one rank, until the ranks are known.

    Tables of other operations, such as messages between two ranks, are passed over. Raises ValueError with the line for
    a column, unit or number that is not that of such a log, and if there is no such table.
    """
    tables: list[MeasuredTable] = []
    unpredicted: ValueError | None = None
    collective, columns, calls = "", list[str](), list[MeasuredCall]()
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        where = f"line {number}"
        if title := _TITLE.match(line):
            _finish(tables, source, where, collective, calls)
            columns, calls = [], []
            of_ranks = _COLLECTIVE.fullmatch(title[1])
            try:
                collective = named_collective(source, where, of_ranks[1].replace("-", "") if of_ranks else title[1])
            except ValueError as error:
                collective, unpredicted = "", unpredicted or error
        elif collective and re.match(r"#\s*Size\b", line):
            columns = _columns(source, where, line)
        elif columns and re.match(r"\d", line):
            calls.append(_call(source, where, line.split(), columns, calls))
    _finish(tables, source, f"line {len(lines)}", collective, calls)
    if not tables and unpredicted:
        raise unpredicted
    return tuple(tables)


def _finish(tables: list[MeasuredTable], source: str, where: str, collective: str, calls: list[MeasuredCall]) -> None:
    if collective and not calls:
        raise wrong(source, where, f"expected sizes and latencies below the title of {collective}; found none")
    if collective:
        tables.append(MeasuredTable(source, collective, 0, (), tuple(calls), sizes_of_ranks=True))


def _columns(source: str, where: str, line: str) -> list[str]:
    found = [one for one in re.split(r"\s{2,}", line.lstrip("# \t").rstrip()) if one]
    for name in found:
        if name not in _KNOWN and not _TAILS.fullmatch(name):
            raise wrong(source, where, f"expected columns of {', '.join(sorted(_KNOWN))}; found {name!r}")
    if found[:2] != ["Size", _TIME]:
        raise wrong(source, where, f"expected the columns Size and {_TIME}; found {', '.join(found)}")
    return found


def _call(source: str, where: str, cells: list[str], columns: list[str], before: list[MeasuredCall]) -> MeasuredCall:
    if len(cells) != len(columns):
        raise wrong(source, where, f"expected {len(columns)} values: {', '.join(columns)}; found {len(cells)}")
    if not re.fullmatch(r"\d{1,18}", cells[0]) or not int(cells[0]):
        raise wrong(source, where, f"expected a size in bytes, above 0; found {cells[0]!r}")
    if not _NUMBER.fullmatch(cells[1]) or not float(cells[1]):
        raise wrong(source, where, f"expected a latency in us with two decimals, above 0; found {cells[1]!r}")
    if "Validation" in columns and cells[columns.index("Validation")] == "Fail":
        raise wrong(source, where, "expected right results; the benchmark found wrong ones (Fail)")
    if before and int(cells[0]) <= before[-1].num_bytes:
        raise wrong(source, where, f"expected a size above {before[-1].num_bytes}; found {cells[0]}")
    return MeasuredCall(where, int(cells[0]), float(cells[1]) * 1e-6)
