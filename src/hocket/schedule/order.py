"""Law 4: in which order, and with which roundings, every output was reduced.

Each place carries a 64-bit hash of the tree of its operations. The hash neither commutes nor associates, and has a mark
wherever a row group rounds its result to the stored type; so equal hashes mean equal bits for any data.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hocket.schedule.hashing import Hashes, mix
from hocket.schedule.places import Fold, Places

LABELS = ("same_on_all_ranks", "rank_order", "balanced_tree", "size_invariant")


class Order:
    """Hashes of all places. Contributions hash by rank alone, so trees of different chunks can be compared."""

    def __init__(self, places: Places) -> None:
        self.places = places
        place, rank, _ = places.inputs()
        self.hashes = np.zeros(places.count, np.uint64)
        self.hashes[place] = _leaf(rank)

    def apply(self, fold: Fold) -> None:
        """Carry out one step."""
        held, pattern = self.hashes[fold.reads], fold.pattern
        if pattern.max_count == 1:
            self.hashes[fold.writes] = held
            return
        total = held[pattern.starts]
        for i in range(1, pattern.max_count):
            more = pattern.counts > i
            if more.all():
                total = _combined(total, held[pattern.starts + i])
            else:
                total[more] = _combined(total[more], held[pattern.starts[more] + i])
        self.hashes[fold.writes] = np.where(pattern.counts > 1, _rounded(total), total)

    def labels(self) -> frozenset[str]:
        """What is true of every output; empty for collectives that reduce nothing.

        same_on_all_ranks: an element that several ranks hold has the same bits on all of them.
        rank_order: the left fold over ranks 0, 1, ... in the accumulator type, rounded once.
        balanced_tree: the binary tree over rank numbers, split at the largest power of two below their count, every
        node rounded to the stored type.
        size_invariant: the tree of an element does not depend on where in a message, bucket or chunk it lies.
        """
        kind = self.places.schedule.kind
        if not kind.reduces or not kind.exactly_once:
            return frozenset()
        place, rank, chunk = self.places.outputs()
        found = self.hashes[place]
        p = self.places.schedule.num_ranks
        # Where each rank keeps its own block, another size moves an element to another rank.
        where = np.zeros_like(rank) if kind.blocks != "one" else rank
        true = {
            "same_on_all_ranks": _constant_in(found, chunk),
            "rank_order": bool((found == _rank_order(p)).all()),
            "balanced_tree": bool((found == _balanced_tree(p)).all()),
            "size_invariant": _constant_in(found, where),
        }
        return frozenset(label for label in LABELS if true[label])


def _constant_in(values: Hashes, group: npt.NDArray[np.int64]) -> bool:
    representative = np.zeros(int(group.max(initial=0)) + 1, np.uint64)
    representative[group] = values
    return bool((representative[group] == values).all())


def _leaf(ranks: npt.NDArray[np.int64]) -> Hashes:
    return mix((ranks.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))


def _combined(left: Hashes, right: Hashes) -> Hashes:
    return mix(left * np.uint64(0xD1342543DE82EF95) + right * np.uint64(0x2545F4914F6CDD1D) + np.uint64(1))


def _rounded(value: Hashes) -> Hashes:
    return mix(value ^ np.uint64(0xA0761D6478BD642F))


@lru_cache(64)
def _rank_order(num_ranks: int) -> np.uint64:
    leaves = _leaf(np.arange(num_ranks))
    total = leaves[:1]
    for rank in range(1, num_ranks):
        total = _combined(total, leaves[rank : rank + 1])
    return np.uint64((_rounded(total) if num_ranks > 1 else total)[0])


@lru_cache(64)
def _balanced_tree(num_ranks: int) -> np.uint64:
    def node(low: int, high: int) -> Hashes:
        if high - low == 1:
            return leaves[low:high]
        split = low + (1 << (high - low - 1).bit_length() - 1)
        return _rounded(_combined(node(low, split), node(split, high)))

    leaves = _leaf(np.arange(num_ranks))
    return np.uint64(node(0, num_ranks)[0])
