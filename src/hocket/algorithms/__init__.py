"""HOW: one small program for each algorithm, and the registry that knows them all.

Unlike other faces this one loads everything at once: a program is there only once it has registered itself.
"""

from hocket.algorithms import programs
from hocket.algorithms.loading import find, load, only
from hocket.algorithms.registry import ALGORITHMS, Algorithm, algorithm, is_built_in, on_replaced

__all__ = ["ALGORITHMS", "Algorithm", "algorithm", "find", "is_built_in", "load", "on_replaced", "only", "programs"]
