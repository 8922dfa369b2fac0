"""HOW: one small program for each algorithm, and the registry that knows all of them.

Call this module: hocket.algorithms("all_reduce") is a table of the algorithms for a collective, by name.

Unlike other faces, this one loads everything at once, because a program is known only once it has registered itself.
"""

import sys
from types import ModuleType

from hocket.algorithms import programs
from hocket.algorithms.layout import GroupsOfRanks, Layout, groups_by_host
from hocket.algorithms.listing import Algorithms, list_algorithms
from hocket.algorithms.loading import find, load, only, run_file
from hocket.algorithms.promise import said
from hocket.algorithms.registry import (
    ALGORITHMS,
    Algorithm,
    add_algorithms,
    algorithm,
    check_taken,
    is_built_in,
    on_replaced,
)
from hocket.algorithms.user_code import blamed_on
from hocket.schedule import COLLECTIVES

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Algorithms",
    "GroupsOfRanks",
    "Layout",
    "add_algorithms",
    "algorithm",
    "blamed_on",
    "check_taken",
    "find",
    "groups_by_host",
    "is_built_in",
    "list_algorithms",
    "load",
    "on_replaced",
    "only",
    "programs",
    "run_file",
    "said",
]


class _Face(ModuleType):
    """This module, which programs call: hocket.algorithms("all_reduce")."""

    def __call__(self, collective: str | None = None) -> Algorithms:
        """See list_algorithms."""
        if not isinstance(collective, str):
            known = ", ".join(COLLECTIVES)
            raise TypeError(f"hocket.algorithms: expected a collective, one of {known}; found {collective!r}")
        return list_algorithms(collective)


sys.modules[__name__].__class__ = _Face
