"""The shortest cycle of ranks that wait for each other, after `finish_times` found that some never end."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hocket.training.pipeline.table import Ints

_MAX_SEARCHED = 3000
"""Among so many nodes the search looks at all cycles; among more, only at those of nodes where a rank stops first."""


def shortest_cycle(first: Ints, needs: Sequence[Ints], stuck: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The waits of a shortest cycle, as (waiting node, needed node): the needed node comes at or after the next waiting
    node on its rank, and the last needed node at or after the first waiting node.

    first, needs: as in `finish_times`. stuck: the nodes that never end; each rank stops at its first one.
    """
    nodes = np.flatnonzero(stuck)
    ranks, at = np.unique(np.searchsorted(first, nodes, side="right") - 1, return_index=True)
    heads = dict(zip(ranks.tolist(), nodes[at].tolist(), strict=True))
    search = _Search(first, needs, stuck, heads, every=len(nodes) <= _MAX_SEARCHED)
    best: list[tuple[int, int]] = []
    starts = [*sorted(heads.values()), *(nodes.tolist() if search.every else ())]
    for start in starts:
        found = search.through(start, len(best) - 1 if best else len(first))
        best = found or best
        if len(best) == 1:
            break
    return best


class _Search:
    def __init__(
        self, first: Ints, needs: Sequence[Ints], stuck: npt.NDArray[np.bool_], heads: dict[int, int], every: bool
    ) -> None:
        self._first, self._needs, self._stuck, self._heads, self.every = first, needs, stuck, heads, every

    def through(self, start: int, limit: int) -> list[tuple[int, int]]:
        """A shortest cycle of at most `limit` waits that begins with `start`, or []."""
        home = self._rank(start)
        came: dict[int, tuple[int, int]] = {}  # a node reached -> the wait that reached it
        reached: dict[int, int] = {}  # by rank, the last node reached
        frontier = [start]
        for _ in range(limit):
            following = []
            for waiting in frontier:
                for needed in self._stuck_needs(waiting):
                    rank = self._rank(needed)
                    if rank == home and needed >= start:
                        return self._path(came, start, (waiting, needed))
                    head = self._heads[rank]
                    low = max(reached.get(rank, head - 1) + 1, head)
                    for node in range(low, (needed if self.every else head) + 1):
                        came[node] = (waiting, needed)
                        following.append(node)
                    reached[rank] = max(reached.get(rank, needed), needed)
            frontier = following
        return []

    def _path(self, came: dict[int, tuple[int, int]], start: int, last: tuple[int, int]) -> list[tuple[int, int]]:
        path = [last]
        while path[-1][0] != start:
            path.append(came[path[-1][0]])
        return path[::-1]

    def _rank(self, node: int) -> int:
        return int(np.searchsorted(self._first, node, side="right")) - 1

    def _stuck_needs(self, node: int) -> Iterator[int]:
        for need in self._needs:
            needed = int(need[node])
            if needed >= 0 and self._stuck[needed]:
                yield needed
