"""HOCKET_ALGO: which algorithms may run, in the grammar of NCCL_ALGO.

    HOCKET_ALGO="ring,direct;all_reduce:^tree;broadcast:direct"

Semicolons separate lists. A list says what may run, or with ^ in front what may not; it is for the collective named
before its colon. Only the first may do without a name: it is for all collectives that have no list of their own. As in
NCCL since 2.24 nothing falls back: a call for which the list leaves nothing is refused. That goes for NCCL's own five
collectives and all that are named; others, which NCCL makes of sends and receives, heed a list without a name only
where it leaves them something, so that HOCKET_ALGO=ring does not forbid barriers.
"""

from dataclasses import dataclass

from hocket.runtime.choice.spelling import algorithm_names, find_algorithm_name, find_collective_name
from hocket.schedule import COLLECTIVES

VARIABLE = "HOCKET_ALGO"

_PLAIN = ("direct", "ring", "tree", "binomial", "pairwise")  # tried before all others that an exclusion leaves
_BOUND = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


@dataclass(frozen=True)
class Allowed:
    """One list: the algorithms that may run, or may not, for one collective, or ("") for all that have no list."""

    collective: str
    names: tuple[str, ...]
    excludes: bool = False

    def names_for(self, collective: str) -> list[str]:
        """The algorithms for a collective that may run: as listed, or what exclusion leaves, plain ones first."""
        listed = [found for name in self.names if (found := find_algorithm_name(name, collective)) is not None]
        if not self.excludes:
            return listed
        left = [name for name in algorithm_names(collective) if name not in listed]
        return sorted(left, key=lambda name: _PLAIN.index(name) if name in _PLAIN else len(_PLAIN))

    def binds(self, collective: str) -> bool:
        """Whether a call for which this leaves nothing is refused."""
        return self.collective == collective or collective in _BOUND

    def __str__(self) -> str:
        name = f"{self.collective}:" if self.collective else ""
        return f"{name}{'^' if self.excludes else ''}{','.join(self.names)}"


def parse(text: str) -> tuple[Allowed, ...]:
    """The lists in a text; of several for one collective the last. ValueError, saying what there is, for other text."""
    if ".py" in text:
        raise ValueError(
            f"{VARIABLE}: expected names of algorithms; found {text!r}; one in a file of yours is asked for by "
            f"algorithm= of a call or of comm.configure()"
        )
    lists: dict[str, Allowed] = {}
    for position, entry in enumerate(part.strip() for part in text.split(";") if part.strip()):
        name, colon, listed = entry.rpartition(":")
        collective = _collective(name, text) if colon else ""
        if not colon and position > 0:
            raise ValueError(
                f"{VARIABLE}: expected COLLECTIVE:ALGORITHM,... in all lists but the first; found {entry!r} in {text!r}"
            )
        excludes, names = listed.strip().startswith("^"), listed.strip().removeprefix("^").split(",")
        known = tuple(_algorithm(one.strip(), collective, text) for one in names)
        lists[collective] = Allowed(collective, known, excludes)
    return tuple(lists.values())


def _collective(name: str, text: str) -> str:
    found = find_collective_name(name.strip())
    if found is None:
        raise ValueError(
            f"{VARIABLE}: expected a collective, one of {', '.join(COLLECTIVES)}; found {name!r} in {text!r}"
        )
    return found


def _algorithm(name: str, collective: str, text: str) -> str:
    """A name that at least one of the collectives concerned has an algorithm for."""
    concerned = [collective] if collective else list(COLLECTIVES)
    if any(find_algorithm_name(name, one) for one in concerned):
        return name
    there = sorted({one for kind in concerned for one in algorithm_names(kind)})
    what = f"an algorithm for {collective}" if collective else "an algorithm"
    raise ValueError(f"{VARIABLE}: expected {what}, one of {', '.join(there)}; found {name!r} in {text!r}")
