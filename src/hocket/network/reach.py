"""Finds which nodes reach which others along directed links; fast enough for a million links."""

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def unreached(among: Ints, source: Ints, target: Ints, num_nodes: int) -> tuple[int, int] | None:
    """Returns two nodes of `among` without a path from the first to the second; None if each reaches each."""
    component = components(source, target, num_nodes)
    apart = np.flatnonzero(component[among] != component[among[0]])
    if len(apart):
        return int(among[0]), int(among[apart[0]])
    if _goes_both_ways(source, target, num_nodes):
        return None  # with links in both directions, connected nodes reach each other
    for begin, end, forward in ((source, target, True), (target, source, False)):
        away = np.flatnonzero(np.isinf(distances(begin, end, num_nodes, int(among[0]))[among]))
        if len(away):
            first, second = int(among[0]), int(among[away[0]])
            return (first, second) if forward else (second, first)
    return None


def components(source: Ints, target: Ints, num_nodes: int) -> Ints:
    """Returns the connected component of each node, named by its least node, ignoring direction: int64[num_nodes].

    Each round takes the least label along every link and then shortens chains of labels, so there are few rounds.
    """
    label = np.arange(num_nodes)
    while True:
        least = np.minimum(label[source], label[target])
        after = label.copy()
        for end in (label[source], label[target], source, target):
            np.minimum.at(after, end, least)
        while not np.array_equal(shorter := after[after], after):
            after = shorter
        if np.array_equal(after, label):
            return label
        label = after


def distances(
    source: Ints, target: Ints, num_nodes: int, start: int, weights: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.float64]:
    """Returns the least sum of weights (default: 1 per link) from a node to all others; infinity without a path.

    Bellman-Ford in rounds: each round continues from the nodes that the previous round has brought nearer.
    """
    order = np.argsort(source, kind="stable")
    begins = np.searchsorted(source[order], np.arange(num_nodes + 1))
    target = target[order]
    weight = np.ones(len(source)) if weights is None else weights[order]
    best = np.full(num_nodes, np.inf)
    best[start] = 0
    nearer = np.array([start])
    while len(nearer):
        links, begun = ranges(begins[nearer], begins[nearer + 1])
        found, ends = best[nearer][begun] + weight[links], target[links]
        better = found < best[ends]
        np.minimum.at(best, ends[better], found[better])
        nearer = different(ends[better])
    return best


def ranges(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Returns all numbers from begin[i] to end[i] - 1, for each i in turn, and the i of each number."""
    lengths = end - begin
    which = np.repeat(np.arange(len(begin)), lengths)
    return np.arange(len(which)) + np.repeat(begin - np.cumsum(lengths) + lengths, lengths), which


def different(numbers: Ints) -> Ints:
    """Returns the distinct numbers in order. (numpy.unique uses a hash that is slow for regular numbers.)"""
    ordered = np.sort(numbers)
    found: Ints = ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]
    return found


def _goes_both_ways(source: Ints, target: Ints, num_nodes: int) -> bool:
    there = different(source * np.int64(num_nodes) + target)
    return np.array_equal(there, different(target * np.int64(num_nodes) + source))
