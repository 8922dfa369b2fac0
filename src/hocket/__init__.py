"""Hocket: collective communication in which an algorithm is a small Python program, proved before it runs.

    import hocket

    with hocket.init() as comm:
        comm.all_reduce(x)

Names are loaded when they are first used: ranks start many at a time, so importing must be cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket import errors
    from hocket.algorithms import ALGORITHMS, algorithm
    from hocket.runtime.communicator import Communicator, init
    from hocket.runtime.launch import run_ranks
    from hocket.runtime.memory import empty
    from hocket.runtime.work import Work

__version__ = "0.1.0"

__all__ = ["init", "Communicator", "Work", "empty", "run_ranks", "algorithm", "ALGORITHMS", "errors"]

_HOMES = {
    "init": "hocket.runtime.communicator",
    "Communicator": "hocket.runtime.communicator",
    "Work": "hocket.runtime.work",
    "empty": "hocket.runtime.memory",
    "run_ranks": "hocket.runtime.launch",
    "algorithm": "hocket.algorithms",
    "ALGORITHMS": "hocket.algorithms",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("hocket.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'hocket' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
