"""Summarises a trace: time by name, communication hidden behind computation, and late ranks of each collective."""

from collections import Counter, defaultdict
from typing import Any

from hocket.view.traces.trace_timeline import Slice, Timeline, length, without

Summary = dict[str, Any]

HIDDEN_IS_A_LIMIT = (
    "The hidden time is an upper limit, and the exposed time a lower one. A trace counts waits of other libraries "
    "inside a span as computing; for example, DDP waits in backward. Wall times tell the real gain."
)
"""What must stand beside the hidden and exposed times of a summary."""


def summarise(timeline: Timeline) -> Summary:
    """Returns the summary as plain values, all times in seconds.

    "names": for each category and name, over all ranks: wall_seconds (of all occurrences), self_seconds (without
    nested slices), average_seconds, occurrences. "ranks": for each rank, computing_seconds, communicating_seconds,
    hidden_seconds (both at once: an upper limit, see HIDDEN_IS_A_LIMIT) and exposed_seconds (communicating alone: a
    lower limit); all but communicating_seconds are None if the trace has no computation of the rank. "stragglers": for
    each collective of each communicator, the rank that was last most often, how often, and how long the others waited:
    mean and maximum. The trace of another program has names only.
    """
    return {
        "seconds": timeline.seconds,
        "ended_early": [rank for rank, said in timeline.ranks.items() if said["ended_early"]],
        "missing": sorted(
            set(range(max((said["size"] for said in timeline.ranks.values()), default=0))) - timeline.ranks.keys()
        ),
        "names": _names(timeline),
        "ranks": [_rank(timeline, rank) for rank in timeline.ranks],
        "stragglers": _stragglers(timeline),
    }


def _names(timeline: Timeline) -> list[Summary]:
    found: dict[tuple[str, str], list[Slice]] = defaultdict(list)
    for lane in timeline.lanes:
        for one in lane.slices:
            found[one.category, one.name].append(one)
    rows = []
    for (category, name), slices in found.items():
        wall = sum(one.seconds for one in slices)
        rows.append(
            {
                "name": name,
                "category": category,
                "wall_seconds": wall,
                "self_seconds": wall - sum(length(one.inside) for one in slices),
                "average_seconds": wall / len(slices),
                "occurrences": len(slices),
            }
        )
    return sorted(rows, key=lambda row: -row["wall_seconds"])


def _rank(timeline: Timeline, rank: int) -> Summary:
    computing, communicating = timeline.computing(rank), timeline.communicating(rank)
    in_all, exposed = length(communicating), length(without(communicating, computing))
    is_known = any(one.category == "compute" for lane in timeline.of_rank(rank) for one in lane.slices)
    return {
        "rank": rank,
        "computing_seconds": length(computing) if is_known else None,
        "communicating_seconds": in_all,
        "hidden_seconds": in_all - exposed if is_known else None,
        "exposed_seconds": exposed if is_known else None,
    }


def _stragglers(timeline: Timeline) -> list[Summary]:
    arrived: dict[tuple[str, str], dict[Any, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for rank in timeline.ranks:
        for one in (one for lane in timeline.of_rank(rank) for one in lane.slices):
            if one.category == "communication" and one.said.keys() >= {"algorithm", "communicator", "sequence"}:
                calls = arrived[str(one.said["communicator"]), one.name]
                calls[str(one.said["sequence"])][rank] = one.begin
    rows = []
    for (communicator, name), calls in arrived.items():
        shared = [by_rank for by_rank in calls.values() if len(by_rank) > 1]
        if not shared:
            continue
        last = Counter(max(by_rank, key=lambda rank: by_rank[rank]) for by_rank in shared)
        waited = [max(by_rank.values()) - min(by_rank.values()) for by_rank in shared]
        [(rank, times)] = last.most_common(1)
        rows.append(
            {
                "name": name,
                "communicator": communicator,
                "ranks": sorted({rank for by_rank in shared for rank in by_rank}),
                "calls": len(shared),
                "rank": rank,
                "times_last": times,
                "mean_seconds": sum(waited) / len(waited),
                "most_seconds": max(waited),
            }
        )
    return sorted(rows, key=lambda row: -row["mean_seconds"] * row["calls"])
