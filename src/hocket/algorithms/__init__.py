"""How collectives are done: one small program for each algorithm, and the registry that knows them all."""

from hocket.algorithms import direct, dissemination, halving_doubling, pairwise, ring, tree
from hocket.algorithms.registry import ALGORITHMS, Algorithm, algorithm, find, load

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "algorithm",
    "direct",
    "dissemination",
    "find",
    "halving_doubling",
    "load",
    "pairwise",
    "ring",
    "tree",
]
