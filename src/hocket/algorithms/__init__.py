"""How collectives are done: one small program for each algorithm, and the registry that knows them all."""

from hocket.algorithms import (
    chain,
    direct,
    dissemination,
    double_tree,
    halving_doubling,
    pairwise,
    recursive_multiplying,
    ring,
    scatter_all_gather,
    split_binary,
    tree,
)
from hocket.algorithms.registry import ALGORITHMS, Algorithm, algorithm, find, load

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "algorithm",
    "chain",
    "direct",
    "dissemination",
    "double_tree",
    "find",
    "halving_doubling",
    "load",
    "pairwise",
    "recursive_multiplying",
    "ring",
    "scatter_all_gather",
    "split_binary",
    "tree",
]
