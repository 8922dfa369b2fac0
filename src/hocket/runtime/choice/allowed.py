"""HOCKET_ALGO: which algorithms may run, in the grammar of NCCL_ALGO.

    HOCKET_ALGO="ring,direct;all_reduce:^tree;broadcast:direct"

Semicolons separate lists. A list names the algorithms that may run, or with ^ in front those that may not. It applies
to the collective before its colon. Only the first list may omit the collective; it applies to all collectives without
a list of their own. If a list leaves no algorithm for a call:

- NCCL's own five collectives, and every collective that is named: the call is refused, as in NCCL since 2.24.
- All others (NCCL makes them from sends and receives): a list without a name is ignored. So HOCKET_ALGO=ring does not
  forbid barriers.
"""

from dataclasses import dataclass

from hocket.errors import did_you_mean
from hocket.runtime.choice.spelling import algorithm_names, find_algorithm_name
from hocket.runtime.variables import ALGO
from hocket.schedule import COLLECTIVES, find_collective_name

_PLAIN = ("direct", "ring", "tree", "binomial", "pairwise")  # preferred among those that an exclusion leaves
_BOUND = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


@dataclass(frozen=True)
class Allowed:
    """One list: algorithms that may run, or may not, for one collective; "" is all collectives without a list."""

    collective: str
    names: tuple[str, ...]
    excludes: bool = False

    def names_for(self, collective: str) -> list[str]:
        """Returns the algorithms of a collective that may run: those listed, or all not excluded, plain ones first."""
        listed = [found for name in self.names if (found := find_algorithm_name(name, collective)) is not None]
        if not self.excludes:
            return listed
        left = [name for name in algorithm_names(collective) if name not in listed]
        return sorted(left, key=lambda name: _PLAIN.index(name) if name in _PLAIN else len(_PLAIN))

    def binds(self, collective: str) -> bool:
        """Returns whether a call is refused if this list leaves no algorithm for it."""
        return self.collective == collective or collective in _BOUND

    def __str__(self) -> str:
        name = f"{self.collective}:" if self.collective else ""
        return f"{name}{'^' if self.excludes else ''}{','.join(self.names)}"


def parse(text: str) -> tuple[Allowed, ...]:
    """Returns the lists in a text; the last one for each collective counts. ValueError says what is allowed."""
    if ".py" in text:
        raise ValueError(
            f"{ALGO}: expected names of algorithms; found {text!r}; for an algorithm in a file, use algorithm= of "
            f"a call or of comm.configure()"
        )
    lists: dict[str, Allowed] = {}
    for position, entry in enumerate(part.strip() for part in text.split(";") if part.strip()):
        name, colon, listed = entry.rpartition(":")
        collective = _collective(name, text) if colon else ""
        if not colon and position > 0:
            raise ValueError(
                f"{ALGO}: expected COLLECTIVE:ALGORITHM,... in all lists but the first; found {entry!r} in {text!r}"
            )
        excludes, names = listed.strip().startswith("^"), listed.strip().removeprefix("^").split(",")
        known = tuple(_algorithm(one.strip(), collective, text) for one in names)
        lists[collective] = Allowed(collective, known, excludes)
    return tuple(lists.values())


def _collective(name: str, text: str) -> str:
    found = find_collective_name(name.strip())
    if found is None:
        there, near = ", ".join(COLLECTIVES), did_you_mean(name, COLLECTIVES)
        raise ValueError(f"{ALGO}: expected a collective, one of {there}; found {name!r} in {text!r}{near}")
    return found


def _algorithm(name: str, collective: str, text: str) -> str:
    """Returns the name of an algorithm of this collective, or of any if it is "". Raises ValueError if unknown."""
    concerned = [collective] if collective else list(COLLECTIVES)
    if any(find_algorithm_name(name, one) for one in concerned):
        return name
    there = sorted({one for kind in concerned for one in algorithm_names(kind)})
    what = f"an algorithm for {collective}" if collective else "an algorithm"
    raise ValueError(
        f"{ALGO}: expected {what}, one of {', '.join(there)}; found {name!r} in {text!r}{did_you_mean(name, there)}"
    )
