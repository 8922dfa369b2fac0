"""The table of `hocket bench --algorithm ring,direct`: a line for each size, with the times of all algorithms."""

from collections.abc import Sequence

from hocket.cli.bench.bench_report import (
    PLACE_TITLES,
    PLACE_UNITS,
    PLACE_WIDTHS,
    Report,
    Row,
    Timing,
    fixed,
    place_cells,
)

_LEAST_WIDTH = 8
_FASTEST, _WRONG = "*", "wrong"


class ComparisonReport(Report):
    """Prints a line when the last algorithm of a size has been measured. Other formats have a row per algorithm."""

    _secondary = range(1, len(PLACE_TITLES))

    def _head(self) -> list[str]:
        *lines, end = super()._head()
        mark = f"{_FASTEST} marks an algorithm whose slowest round is faster than any round of the others"
        return [*lines, f"# Out of place; {mark}", end]

    def _columns(self, block: Sequence[int]) -> list[str]:
        titles = [*PLACE_TITLES, *self._names, "bound(us)"]
        units = [*PLACE_UNITS, *["(us) "] * len(self._names), ""]
        return ["#" + line[1:] for line in (self._joined(titles, block), self._joined(units, block).rstrip())]

    @property
    def _names(self) -> list[str]:
        return [str(name) for name in self._settings.algorithms]

    @property
    def _widths(self) -> list[int]:
        return [*PLACE_WIDTHS, *(max(len(name), _LEAST_WIDTH) for name in self._names), 9]

    def _cells(self, row: Row) -> list[str] | None:
        if len(self._rows) % len(self._names):
            return None
        timings = [one.out_of_place for one in self._rows[-len(self._names) :]]
        fastest = clearly_fastest(timings)
        cells = place_cells(self._settings, row)
        for timing in timings:
            if timing is None or timing.num_wrong:
                cells.append(_WRONG)
                continue
            mark = _FASTEST if timing is fastest else " "
            cells.append(fixed(timing.seconds * 1e6, _LEAST_WIDTH - 1) + mark)
        return [*cells, self._printed_bound(row, "out_of_place")]

    def _foot(self) -> list[str]:
        return [line for line in super()._foot() if not line.startswith("# Avg bus bandwidth")]


def clearly_fastest(timings: Sequence[Timing | None]) -> Timing | None:
    """Returns the timing whose slowest round is faster than any round of the others; None if ranges overlap.

    Wrong ones do not count. A single round does not show how times vary, so it is never the fastest.
    """
    right = [timing for timing in timings if timing is not None and not timing.num_wrong]
    for one in right:
        others = [other.fastest_round or 0.0 for other in right if other is not one]
        if one.slowest_round is not None and all(one.slowest_round < other for other in others):
            return one
    return None
