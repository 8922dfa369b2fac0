"""Who reaches whom along directed links, for networks of a million of them."""

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def unreached(among: Ints, source: Ints, target: Ints, num_nodes: int) -> tuple[int, int] | None:
    """Two of the nodes `among` of which the first has no way to the second; None where each reaches each."""
    component = components(source, target, num_nodes)
    apart = np.flatnonzero(component[among] != component[among[0]])
    if len(apart):
        return int(among[0]), int(among[apart[0]])
    if _goes_both_ways(source, target, num_nodes):
        return None  # what hangs together is then reached
    for begin, end, forward in ((source, target, True), (target, source, False)):
        away = np.flatnonzero(np.isinf(distances(begin, end, num_nodes, int(among[0]))[among]))
        if len(away):
            first, second = int(among[0]), int(among[away[0]])
            return (first, second) if forward else (second, first)
    return None


def components(source: Ints, target: Ints, num_nodes: int) -> Ints:
    """The least node of those that each node hangs together with, whichever way the links lead: int64[num_nodes].

    Each round takes the least label along every link, then follows labels to the labels of these: few rounds.
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
    """The least sum of weights (by default 1 for each link) from a node to all, infinity where no way leads.

    Bellman-Ford, in rounds: each goes on from the nodes that the one before has brought nearer.
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
    """All numbers from begin[i] to end[i] - 1, for one i after the other; and the i of each."""
    lengths = end - begin
    which = np.repeat(np.arange(len(begin)), lengths)
    return np.arange(len(which)) + np.repeat(begin - np.cumsum(lengths) + lengths, lengths), which


def different(numbers: Ints) -> Ints:
    """The different ones of these numbers, in order. (numpy.unique hashes, and slowly where numbers are regular.)"""
    ordered = np.sort(numbers)
    found: Ints = ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]
    return found


def _goes_both_ways(source: Ints, target: Ints, num_nodes: int) -> bool:
    there = different(source * np.int64(num_nodes) + target)
    return np.array_equal(there, different(target * np.int64(num_nodes) + source))
