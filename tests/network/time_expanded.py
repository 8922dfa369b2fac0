"""Makes all_gathers link by link: in each step, every link carries one chunk that its target still lacks.

A greedy matching as in TACOS (Won et al. 2024), rarest chunks first. It tries several random matchings, and takes the
first with as few steps as the rank of the smallest degree allows.
"""

import numpy as np

from hocket.network import Topology
from hocket.schedule import Builder, Schedule

Step = list[tuple[int, int, int]]  # source, target, chunk


def gathered_by_links(topology: Topology, chunks_per_rank: int, attempts: int = 200) -> Schedule:
    """Returns an all_gather in ceil((p - 1) * chunks_per_rank / smallest degree) steps; all nodes must be ranks."""
    p = topology.num_ranks
    rank = {int(node): number for number, node in enumerate(topology.ranks)}
    links = [(rank[int(s)], rank[int(t)]) for s, t in zip(topology.link_source, topology.link_target, strict=True)]
    degree = np.bincount([target for _, target in links])
    fewest = -(-(p - 1) * chunks_per_rank // int(degree.min()))
    for seed in range(attempts):
        steps = _matched(links, degree, p, chunks_per_rank, fewest, np.random.default_rng(seed))
        if steps is not None:
            schedule = Builder("all_gather", p, p * chunks_per_rank)
            for step in steps:
                source, target, chunk = np.array(step).T
                with schedule.step():
                    schedule.copy(src=source, dst=target, chunk=chunk)
            return schedule.finish()
    raise AssertionError(f"no matching of {fewest} steps found in {attempts} attempts")


def _matched(
    links: list[tuple[int, int]],
    degree: np.ndarray,
    p: int,
    chunks_per_rank: int,
    fewest: int,
    random: np.random.Generator,
) -> list[Step] | None:
    num_chunks = p * chunks_per_rank
    has = np.zeros((p, num_chunks), bool)
    has[np.arange(num_chunks) // chunks_per_rank, np.arange(num_chunks)] = True
    steps: list[Step] = []
    while not has.all():
        if len(steps) == fewest:
            return None
        coming, holders = has.copy(), has.sum(axis=0).astype(float)
        slack = (fewest - len(steps)) * degree - (~has).sum(axis=1)  # the rank with the fewest goes first
        step = []
        for number in np.lexsort((random.random(len(links)), slack[[target for _, target in links]])):
            source, target = links[number]
            wanted = np.flatnonzero(has[source] & ~coming[target])
            if len(wanted):
                chunk = int(wanted[np.argmin(holders[wanted] + 0.5 * random.random(len(wanted)))])
                coming[target, chunk] = True
                holders[chunk] += 1
                step.append((source, target, chunk))
        has = coming
        steps.append(step)
    return steps
