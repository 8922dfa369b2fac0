"""Makes schedules link by link: whenever a link is free, it takes a chunk that its target can use.

A greedy matching as in TACOS (Won et al. 2024), rarest chunks first, and in a scatter the farthest first. Of several
random matchings the fastest is taken. A link of half the bandwidth takes twice as long; latencies count as 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hocket.network.reach import distances
from hocket.network.synthesis.round_tuples import check_step_by_step, lanes_of
from hocket.network.topology import Bools, Ints, Topology
from hocket.schedule import Builder, Schedule, compose

Matched = list[tuple[int, int, int]]
"""The transfers that begin at one time: source, target, chunk."""

_FORWARD = {
    "all_gather": "all_gather",
    "reduce_scatter": "all_gather",
    "scatter": "scatter",
    "gather": "scatter",
    "broadcast": "broadcast",
    "reduce": "broadcast",
}
_TICKS = 720_720  # that the fastest link takes for a chunk: a multiple of 1 to 16, so that times often meet


def match_links(
    topology: Topology, collective: str, chunks_per_block: int, *, root: int = 0, attempts: int = 20
) -> Schedule:
    """Returns a schedule in which a link carries one chunk after the other. A step is what begins at one time.

    Blocks are cut in chunks_per_block. It stops at a matching that no other can beat, and takes the best one after
    `attempts`. all_gather, broadcast and scatter are matched; reduce_scatter, reduce and gather are these backwards.
    Nodes that are no ranks are left out. Raises ValueError for another collective, a single rank or a wrong root,
    TopologyError if ranks do not reach each other by links between ranks.
    """
    check_step_by_step(collective, tuple(_FORWARD), topology.num_ranks, root)
    if chunks_per_block < 1:
        raise ValueError(f"expected 1 chunk per block or more, found {chunks_per_block}")
    kind = _FORWARD[collective]
    matching = _Matching.of(topology, kind, chunks_per_block, root, backwards=kind != collective)
    best: list[Matched] = []
    end = 0
    for seed in range(attempts):
        steps, time = matching.steps(np.random.default_rng(seed), end)
        if steps:
            best, end = steps, time
        if end == matching.soonest:
            break
    schedule = Builder(kind, topology.num_ranks, matching.wanted.shape[1], 0 if kind == "all_gather" else root)
    for step in best:
        source, target, chunk = np.array(step).T
        with schedule.step():
            schedule.copy(src=source, dst=target, chunk=chunk)
    made = schedule.finish()
    return made if kind == collective else compose.reversed(made)


@dataclass(frozen=True, eq=False)
class _Matching:
    """links: source and target ranks. ticks: the time that each link takes for a chunk.

    held, wanted: bool[ranks, chunks], before the first transfer and after the last. owner: of each chunk, the rank of
    its block. times: float64[ranks, ranks], of a chunk from one to another, if no link is busy. moves: a chunk leaves
    the rank that sends it, because only its owner wants it. soonest: no matching ends before.
    """

    links: Sequence[tuple[int, int]]
    ticks: Ints
    held: Bools
    wanted: Bools
    owner: Ints
    times: npt.NDArray[np.float64]
    moves: bool
    soonest: int

    @classmethod
    def of(cls, topology: Topology, kind: str, chunks_per_block: int, root: int, *, backwards: bool) -> "_Matching":
        p, links = topology.num_ranks, list(lanes_of(topology))
        rank = {int(node): number for number, node in enumerate(topology.ranks)}
        bandwidths = dict.fromkeys(links, 0.0)
        ends = zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
        for (one, other), bandwidth in zip(ends, topology.bytes_per_second.tolist(), strict=True):
            if one in rank and other in rank:
                bandwidths[rank[one], rank[other]] += bandwidth
        bandwidth = np.array(list(bandwidths.values()))
        ticks = np.rint(_TICKS * bandwidth.max() / bandwidth).astype(np.int64)
        if backwards:
            links = [(target, source) for source, target in links]
        source, target = np.array(links, np.int64).T
        owner = np.repeat(np.arange(1 if kind == "broadcast" else p), chunks_per_block)
        held = (np.full_like(owner, root) if kind != "all_gather" else owner) == np.arange(p)[:, None]
        times = np.stack([distances(target, source, p, node, ticks) for node in range(p)], axis=1)
        if kind == "scatter":
            soonest = max(_soonest(ticks[source == root], (p - 1) * chunks_per_block), int(times[root].max()))
            return cls(links, ticks, held, owner == np.arange(p)[:, None], owner, times, True, soonest)
        lacking = (~held).sum(axis=1).tolist()
        soonest = max(_soonest(ticks[target == node], lacking[node]) for node in range(p))
        if kind == "broadcast":
            soonest = max(soonest, int(times[root].max()))
        return cls(links, ticks, held, np.ones_like(held), owner, times, False, soonest)

    def steps(self, random: np.random.Generator, before: int) -> tuple[list[Matched], int]:
        """Returns one matching and when it ends; no steps if that is not `before` this time, unless this is 0."""
        there = np.where(self.held, 0.0, np.inf)  # since when, or from when on
        steps = list[Matched]()
        holders = self.held.sum(axis=0).astype(float)
        target = np.array([end for _, end in self.links])
        speed = np.bincount(target, weights=1 / self.ticks)
        free = np.zeros(len(self.links))  # when each link has sent what it took
        now = 0.0
        while not ((there <= now) | ~self.wanted).all():
            step, idle = Matched(), np.flatnonzero(free <= now)
            # The rank with the least time to spare goes first.
            slack = (self.soonest - now) * speed - (self.wanted & ~np.isfinite(there)).sum(axis=1)
            for number in idle[np.lexsort((random.random(len(idle)), slack[target[idle]]))]:
                one, other = self.links[number]
                end = now + self.ticks[number]
                useful = (there[one] <= now) & np.isinf(there[other])
                if self.moves:
                    useful &= (self.times[other] < self.times[one])[self.owner]
                elif end > self.soonest:  # A chunk does not end late if it can come sooner another way.
                    useful &= end <= (np.maximum(there, now) + self.times[:, [other]]).min(axis=0)
                found = np.flatnonzero(useful)
                if not len(found):
                    continue
                rarity = -self.times[one, self.owner[found]] if self.moves else holders[found]
                chunk = int(found[np.argmin(rarity + 0.5 * random.random(len(found)))])
                there[other, chunk] = free[number] = end
                if self.moves:
                    there[one, chunk] = np.inf
                holders[chunk] += 1
                step.append((one, other, chunk))
            if step:
                steps.append(step)
            if before and free.max() >= before:
                return [], 0
            now = float(free[free > now].min())
        return steps, int(now)


def _soonest(ticks: Ints, number: int) -> int:
    """Returns when links that take these times for a chunk can have carried so many chunks in all."""
    ends = np.multiply.outer(np.arange(1, number + 1), ticks).ravel()
    return int(np.partition(ends, number - 1)[number - 1]) if number else 0
