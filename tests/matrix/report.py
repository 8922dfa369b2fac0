"""Makes docs/reports/matrix.md from outcomes: how many cases ran in each cell, and how many were wrong."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hocket.runtime import DTYPES, OPS
from hocket.schedule import COLLECTIVES
from tests.matrix.cells import (
    CALLS,
    CHOSEN,
    COMPLETE_DTYPES,
    LARGE,
    MEMORIES,
    RANKS,
    SIZES,
    Cell,
    Exchange,
    memory_of,
    reduces,
)
from tests.matrix.definition import ORDERED
from tests.matrix.kernels import Kernel
from tests.matrix.runner import Outcome

COMMAND = "make matrix"
MOST_FAILURES = 40
PLACES = ("out of place", "in place")

HEAD = """\
# Test matrix: every collective, type and reduction

`{command}` wrote this page from its results; do not edit it. **{total} cases, {wrong} wrong.**

|where|cases|right|refused|wrong|
|---|---|---|---|---|
{ran}
A case is one call that all ranks make together. Every rank gives a verdict.

- **A number**: so many cases ran and gave the right answer on every rank.
- **3 of 40 wrong**: 3 of 40 cases gave a wrong answer on at least one rank. The end of this page says why.
- **refused**: the reduction has no meaning for the type. Every rank raised TypeError or ValueError before it sent
  anything, as it must.
- **An empty cell**: the call does not exist.

The tests compare every output twice:

1. With the definition, written in plain NumPy without any schedule. The comparison is to the bit where only one answer
   is right (moved data, integers, min, max, logic, `order="rank"`, `order="invariant"`). Elsewhere it allows the error
   that follows from the type and the number of ranks.
2. With the reference interpreter, which runs the same schedule. This comparison is always to the bit.

Out of place, the input must not change. The memory beside the output must never change.

"""

COLLECTIVES_HEAD = """\
## Collectives and types

For {types} every combination of the following ran:

- {ranks} ranks;
- sizes {sizes} (more than one piece of 128 KiB);
- in place and out of place;
- every root up to 4 ranks, two roots above;
- uneven counts, some of them zero.

For all types, every two values of type, reduction, algorithm, ranks, root, order, size and place meet in at least one
case. A barrier moves no elements; it counts under the type of its token.
"""

PLACES_HEAD = """\
## Collectives, sizes and memory

Each case counts three times: by its size, by its place, and by the memory of its arrays. `of the process` is ordinary
memory, `registered` is memory of `hocket.empty`, and `mixed` is memory of `hocket.empty` on every second rank.
"""

ORDERS_HEAD = """\
## Orders and ranks

`order="rank"` is the left fold over ranks in the accumulator type, rounded once. `order="invariant"` is the binary tree
over ranks, split at the largest power of two below the number of ranks, and rounded at each node. The tests compare
both to the bit with NumPy folds of the same shape. Sums ran with every combination of type, rank count and size.
"""

ALGORITHMS_HEAD = """\
The calls name the algorithm. Every combination of {types} with the sizes {sizes} ran,
in place and out of place; the roots take turns. An empty cell is a rank count that the algorithm does not take.
"""
VERDICTS = ("right", "refused", "wrong")
KINDS = {
    "one process": "compiled kernels alone, in one process",
    "thread": "ranks that are threads of one process",
    "process": "ranks that are processes",
}


class Table:
    """Counts of outcomes by row and column."""

    def __init__(self, rows: Sequence[Any], columns: Sequence[Any], outcomes: Iterable[tuple[Any, Any, str]]) -> None:
        self.rows, self.columns = rows, columns
        self.counts = Counter(outcomes)

    def cell(self, row: Any, column: Any) -> str:
        right, refused, wrong = (self.counts[row, column, verdict] for verdict in VERDICTS)
        if wrong:
            return f"**{wrong} of {right + refused + wrong} wrong**"
        if right:  # some others may have been refused
            return str(right)
        return "refused" if refused else ""

    def text(self, corner: str) -> str:
        lines = [[corner, *map(str, self.columns)], ["---"] * (1 + len(self.columns))]
        lines += [[str(row), *(self.cell(row, column) for column in self.columns)] for row in self.rows]
        return "\n".join("|" + "|".join(line) + "|" for line in lines) + "\n"


def write(outcomes: Sequence[Outcome]) -> str:
    """Returns the whole document."""
    counts = Counter((outcome.kind, outcome.verdict) for outcome in outcomes)
    ran = ""
    for kind, text in KINDS.items():
        numbers = [counts[kind, verdict] for verdict in VERDICTS]
        ran += f"|{text}|{sum(numbers)}|{'|'.join(map(str, numbers))}|\n"
    wrong = sum(outcome.verdict == "wrong" for outcome in outcomes)
    head = HEAD.format(command=COMMAND, total=len(outcomes), wrong=wrong, ran=ran)
    return head + "\n".join(_sections(outcomes)) + _failures(outcomes)


def _sections(outcomes: Sequence[Outcome]) -> Iterable[str]:
    cells = [one for one in outcomes if isinstance(one.case, Cell)]
    exchanges = [one for one in outcomes if isinstance(one.case, Exchange)]
    kernels = [one for one in outcomes if isinstance(one.case, Kernel)]
    sizes = ", ".join(map(_size, SIZES))

    def table(
        of: Sequence[Outcome], corner: str, rows: Sequence[Any], columns: Sequence[Any], row: str, column: str
    ) -> str:
        counted = ((getattr(one.case, row), getattr(one.case, column), one.verdict) for one in of)
        return Table(rows, columns, counted).text(corner)

    yield COLLECTIVES_HEAD.format(types=", ".join(COMPLETE_DTYPES), ranks=", ".join(map(str, RANKS)), sizes=sizes)
    yield table(cells, "collective", tuple(COLLECTIVES), DTYPES, "collective", "dtype")
    yield "## Collectives and ranks\n"
    yield table(cells, "collective", tuple(COLLECTIVES), RANKS, "collective", "num_ranks")
    yield PLACES_HEAD
    columns = (*map(_size, SIZES), *PLACES, *MEMORIES)
    placed = ((one.case.collective, column, one.verdict) for one in cells for column in _places(one.case))
    yield Table([name for name in COLLECTIVES if name != "barrier"], columns, placed).text("collective")
    yield "## Reductions and types, in the kernels\n"
    yield "Every combination ran with the sizes 0, 1, 7, 1000 and 5000, and with 1, 2, 3 and 8 operands.\n"
    yield table(kernels, "op", OPS, DTYPES, "op", "dtype")
    reducing = [one for one in cells if one.case.op]
    yield "## Reductions and types, among ranks\n"
    yield table(reducing, "op", OPS, DTYPES, "op", "dtype")
    yield "## Reductions and collectives\n"
    yield table(reducing, "op", OPS, [name for name in COLLECTIVES if reduces(name)], "op", "collective")
    yield ORDERS_HEAD
    yield table(reducing, "order", ("fast", *ORDERED), RANKS, "order", "num_ranks")
    yield "## Algorithms and ranks\n"
    yield ALGORITHMS_HEAD.format(types=", ".join(COMPLETE_DTYPES), sizes=sizes)
    named = [one._replace(case=_named(one.case)) for one in cells if one.case.algorithm != CHOSEN]
    yield table(named, "algorithm", sorted({one.case.algorithm for one in named}), RANKS, "algorithm", "num_ranks")
    yield "## Point to point\n"
    yield f"Every rank sends to its right neighbour and receives from its left neighbour; sizes {sizes}.\n"
    yield table(exchanges, "call", CALLS, DTYPES, "call", "dtype")
    yield table(exchanges, "call", CALLS, RANKS, "call", "num_ranks")


def _size(size: int) -> str:
    return "large" if size == LARGE else str(size)


def _places(cell: Cell) -> tuple[str, str, str]:
    return _size(cell.size), PLACES[cell.in_place], memory_of(cell)


def _named(cell: Any) -> Any:
    return cell._replace(algorithm=f"{cell.collective} {cell.algorithm}")


def _failures(outcomes: Sequence[Outcome]) -> str:
    wrong = [one for one in outcomes if one.verdict == "wrong"]
    if not wrong:
        return ""
    describe: Callable[[Outcome], str] = lambda one: f"- {one.case}, {one.kind}: {one.reason}"  # noqa: E731
    more = f"- and {len(wrong) - MOST_FAILURES} more\n" if len(wrong) > MOST_FAILURES else ""
    return "\n## Wrong\n\n" + "\n".join(map(describe, wrong[:MOST_FAILURES])) + "\n" + more
