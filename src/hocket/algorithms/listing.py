"""The algorithms of a collective by name, as hocket.algorithms returns them."""

from collections.abc import Iterator, Mapping
from html import escape

from hocket.algorithms.promise import said
from hocket.algorithms.registry import ALGORITHMS, Algorithm
from hocket.errors import did_you_mean
from hocket.schedule import find_collective, find_collective_name

_HEAD = ("algorithm", "ranks", "steps", "sent", "order of reduction", "idea")
_MOST_WIDTH = 28  # of a cell of text, so that a line fits the screen


class Algorithms(Mapping[str, Algorithm]):
    """All registered algorithms of a collective, by name; it never changes.

    `str()` is a table of their promises, with long ones cut; the page for notebooks has all of them, and the ideas.
    """

    def __init__(self, collective: str, known: Mapping[str, Algorithm]) -> None:
        self.collective = collective
        self._known = dict(known)

    def __getitem__(self, name: str) -> Algorithm:
        try:
            return self._known[name]
        except KeyError:
            known = ", ".join(self._known)
            near = did_you_mean(name, self._known)
            raise KeyError(
                f"expected an algorithm for {self.collective}, one of {known}; found {name!r}{near}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return f"<algorithms for {self.collective}: {', '.join(self)}>"

    def __str__(self) -> str:
        rows = [[*map(_cut, row[:-2]), row[-2]] for row in (_HEAD, *map(_row, self.values()))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        head, *rows = ([f"<td>{escape(cell)}</td>" for cell in row] for row in (_HEAD, *map(_row, self.values())))
        body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
        return f"<table><thead><tr>{''.join(head).replace('td>', 'th>')}</tr></thead><tbody>{body}</tbody></table>"


def list_algorithms(collective: str) -> Algorithms:
    """Returns all registered algorithms of a collective, by name. Raises ScheduleError for an unknown collective.

    hocket.algorithms("all_reduce")["ring"] is one of them, and print() of the result is a table of their promises.
    """
    kind = find_collective(find_collective_name(collective) or collective)
    return Algorithms(kind.name, {name: one for (of, name), one in sorted(ALGORITHMS.items()) if of == kind.name})


def _row(one: Algorithm) -> tuple[str, ...]:
    ranks = "any" if one.ranks is None else one.ranks[0]
    idea = " ".join(one.doc.strip().partition("\n\n")[0].split())
    return one.name, ranks, said(one.steps), said(one.sent), ", ".join(sorted(one.labels)), idea


def _cut(cell: str) -> str:
    return cell if len(cell) <= _MOST_WIDTH else cell[: _MOST_WIDTH - 3] + "..."
