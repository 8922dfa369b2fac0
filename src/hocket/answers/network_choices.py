"""What each algorithm costs on a network, the steps of the fastest, and the fastest by size."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hocket.answers.simulation_case import SimulationCase, candidates, check_layout, hosts_on

if TYPE_CHECKING:
    from hocket.schedule import Schedule

_AS_GOOD = 1.01  # factor over the best time within which times count as equal
SIZES_COMPARED = tuple(1 << shift for shift in range(8, 31, 2))
"""The sizes at which the fastest algorithm is determined."""


def choices_on_network(call: SimulationCase, asked: Collection[str] = ()) -> dict[str, Any]:
    """Returns the rows of all candidates, the fastest first; the steps of the fastest; the fastest per size.

    `call` gives everything but the algorithm. asked: names of algorithms that have a row in any case.
    """
    default = _default(call)
    shown = (*asked, default) if default else asked
    names = candidates(call.collective, call.network(), call.groups, call.dims, shown)
    check_layout(_with(call, name, call.num_bytes) for name in names)
    rows = sorted((_with(call, name, call.num_bytes).row() for name in names), key=lambda row: float(row["seconds"]))
    best = _with(call, rows[0]["algorithm"], call.num_bytes)
    sizes = () if call.collective == "barrier" else SIZES_COMPARED
    busy = {row["algorithm"]: row["binding_share"] * row["seconds"] / max(call.num_bytes, 1) for row in rows}
    fastest: list[str] = []
    for size in sizes:
        fastest.append(_fastest(call, size, busy, *fastest[-1:]))
    return {
        "collective": call.collective,
        "topology": rows[0]["topology"],
        "num_ranks": rows[0]["num_ranks"],
        "num_bytes": call.num_bytes,
        "algorithm": rows[0]["algorithm"],
        "default": default,
        "candidates": rows,
        "steps": steps_of(best.schedule(), call.num_bytes),
        "fastest": list(ranges(sizes, fastest)),
    }


def _default(call: SimulationCase) -> str:
    """Returns the algorithm that the table chooses in a job on these hosts, "" if the network has no hosts."""
    from hocket.runtime.choice import select

    hosts = hosts_on(call.network())
    policy = select.Policy().on_hosts(hosts)
    return select.choose(call.collective, len(hosts), call.num_bytes, "fast", policy) if hosts else ""


def _fastest(call: SimulationCase, num_bytes: int, busy: dict[str, float], ahead: str = "") -> str:
    """Returns the fastest algorithm at a size. busy: for each algorithm, the seconds per byte of its busiest link.

    ahead: the fastest at the next smaller size, which stays the fastest if its time counts as equal.
    """
    best = (_with(call, ahead, num_bytes).result().seconds / _AS_GOOD if ahead else math.inf, ahead)
    for name in sorted(busy, key=lambda name: busy[name]):
        if busy[name] * num_bytes > best[0]:
            break  # its busiest link alone takes longer, and so do those of all algorithms after it
        best = min(best, (_with(call, name, num_bytes).result().seconds, name))
    return best[1]


def _with(call: SimulationCase, algorithm: str, num_bytes: int) -> SimulationCase:
    return replace(call, algorithm=algorithm, num_bytes=num_bytes)


def steps_of(schedule: "Schedule", num_bytes: int) -> list[dict[str, Any]]:
    """Returns the messages of each step: source, target and bytes. Equal consecutive steps share one entry."""
    from hocket.network import traffic_of

    traffic = traffic_of(schedule)
    chunk = traffic.chunk_bytes(num_bytes)
    steps: list[dict[str, Any]] = []
    first = 0
    for number, times in traffic.repeats:
        one = traffic.patterns[number]
        sent = zip(one.source.tolist(), one.target.tolist(), (one.chunks * chunk).tolist(), strict=True)
        messages = [{"source": source, "target": target, "bytes": size} for source, target, size in sent]
        if steps and steps[-1]["messages"] == messages:
            steps[-1]["last"] += times
        else:
            steps.append({"first": first, "last": first + times - 1, "messages": messages})
        first += times
    return steps


def ranges(sizes: Sequence[int], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the ranges of sizes, each with its fastest algorithm. A size between two tried ones uses the smaller."""
    begin = 0
    for number, name in enumerate(names):
        if number + 1 == len(names) or names[number + 1] != name:
            end = None if number + 1 == len(names) else sizes[number + 1] - 1
            yield {"min_bytes": begin, "max_bytes": end, "algorithm": name}
            begin = (end or 0) + 1
