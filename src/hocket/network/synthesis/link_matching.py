"""Makes schedules link by link: in each step, every link carries one chunk that its target can use.

A greedy matching as in TACOS (Won et al. 2024), rarest chunks first, and in a scatter the farthest first. Of several
random matchings the one with the fewest steps is taken. All links count as equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hocket.errors import TopologyError
from hocket.network.reach import distances
from hocket.network.topology import Bools, Topology
from hocket.schedule import Builder, Schedule, compose

Matched = list[tuple[int, int, int]]
"""The transfers of a step: source, target, chunk."""

_FORWARD = {
    "all_gather": "all_gather",
    "reduce_scatter": "all_gather",
    "scatter": "scatter",
    "gather": "scatter",
    "broadcast": "broadcast",
    "reduce": "broadcast",
}


def match_links(
    topology: Topology, collective: str, chunks_per_block: int, *, root: int = 0, attempts: int = 20
) -> Schedule:
    """Returns a schedule of few steps, in each of which a link carries one chunk at most.

    Blocks are cut in chunks_per_block. It stops at a matching with as few steps as possible, and takes the best one
    after `attempts`. all_gather, broadcast and scatter are matched; reduce_scatter, reduce and gather are these
    backwards. Raises ValueError for another collective, TopologyError if there are nodes that are no ranks.
    """
    if collective not in _FORWARD:
        raise ValueError(f"expected one of {', '.join(_FORWARD)}; found {collective!r}")
    if chunks_per_block < 1:
        raise ValueError(f"expected 1 chunk per block or more, found {chunks_per_block}")
    if topology.num_nodes != topology.num_ranks:
        raise TopologyError(f"{topology.name}: expected only ranks, linked directly; found nodes that are no ranks")
    kind = _FORWARD[collective]
    if kind != collective:
        turned = replace(topology, link_source=topology.link_target, link_target=topology.link_source, unchanged=None)
        return compose.reversed(match_links(turned, kind, chunks_per_block, root=root, attempts=attempts))
    matching = _Matching.of(topology, kind, chunks_per_block, root)
    best: list[Matched] = []
    for seed in range(attempts):
        steps = matching.steps(np.random.default_rng(seed), len(best))
        best = steps or best
        if len(best) == matching.fewest:
            break
    schedule = Builder(kind, topology.num_ranks, matching.wanted.shape[1], 0 if kind == "all_gather" else root)
    for step in best:
        source, target, chunk = np.array(step).T
        with schedule.step():
            schedule.copy(src=source, dst=target, chunk=chunk)
    return schedule.finish()


@dataclass(frozen=True, eq=False)
class _Matching:
    """links: source and target ranks. held, wanted: bool[ranks, chunks], before the first step and after the last.

    far: int64[ranks, chunks], the links from a rank to the only one that wants the chunk, if chunks move and are not
    copied; else None. fewest: a bound of the number of steps.
    """

    links: Sequence[tuple[int, int]]
    held: Bools
    wanted: Bools
    far: npt.NDArray[np.int64] | None
    fewest: int

    @classmethod
    def of(cls, topology: Topology, kind: str, chunks_per_block: int, root: int) -> "_Matching":
        p = topology.num_ranks
        rank = {int(node): number for number, node in enumerate(topology.ranks)}
        links = [(rank[int(s)], rank[int(t)]) for s, t in zip(topology.link_source, topology.link_target, strict=True)]
        source, target = np.array(links, np.int64).T
        owner = np.repeat(np.arange(1 if kind == "broadcast" else p), chunks_per_block)
        held = (np.full_like(owner, root) if kind != "all_gather" else owner) == np.arange(p)[:, None]
        ones = np.ones(len(links))
        hops = np.stack([distances(target, source, p, node, ones) for node in range(p)], axis=1).astype(np.int64)
        if kind == "scatter":
            out = int(np.count_nonzero(source == root))
            fewest = max(-(-(p - 1) * chunks_per_block // out), int(hops[root].max()))
            return cls(links, held, owner == np.arange(p)[:, None], hops[:, owner], fewest)
        into = np.bincount(target, minlength=p)
        lacking = (~held).sum(axis=1)
        fewest = max(int((-(-lacking // into)).max()), int(hops[root].max()) if kind == "broadcast" else 1)
        return cls(links, held, np.ones_like(held), None, fewest)

    def steps(self, random: np.random.Generator, most: int) -> list[Matched]:
        """Returns the steps of one matching; none if there would be `most` or more, unless this is 0."""
        has, steps = self.held.copy(), list[Matched]()
        degree = np.bincount([target for _, target in self.links])
        while not (has | ~self.wanted).all():
            if most and len(steps) + 1 >= most:
                return []
            coming, holders, step = has.copy(), has.sum(axis=0).astype(float), Matched()
            # The rank with the least time to spare goes first.
            slack = (self.fewest - len(steps)) * degree - (self.wanted & ~has).sum(axis=1)
            for number in np.lexsort((random.random(len(self.links)), slack[[target for _, target in self.links]])):
                source, target = self.links[number]
                useful = has[source] & ~coming[target]
                if self.far is not None:
                    useful &= coming[source] & (self.far[target] < self.far[source])
                found = np.flatnonzero(useful)
                if not len(found):
                    continue
                rarity = holders[found] if self.far is None else -self.far[source, found]
                chunk = int(found[np.argmin(rarity + 0.5 * random.random(len(found)))])
                coming[target, chunk] = True
                coming[source, chunk] &= self.far is None
                holders[chunk] += 1
                step.append((source, target, chunk))
            has = coming
            steps.append(step)
        return steps
