"""`hocket explain --topology`: the costs of each algorithm on a network, who sends what to whom, why the best wins."""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hocket.cli.simulate.case import Case, candidates, check_collective

if TYPE_CHECKING:
    from hocket.schedule import Schedule

_SIZES = tuple(1 << shift for shift in range(8, 31, 2))  # among which cross-overs are looked for


def run_on_network(arguments: argparse.Namespace) -> int:
    """Explains. ValueError for what there is not, TopologyError for a network that cannot be."""
    check_collective(arguments.collective)
    if arguments.measure:
        raise ValueError("--measure is for this machine; expected it without --topology")
    if (arguments.bytes is None) != (arguments.collective == "barrier"):
        expected = "no --bytes, as barrier moves none" if arguments.bytes else "--bytes, the size of the call"
        raise ValueError(f"expected {expected}; see hocket explain --help")
    size, links = arguments.bytes or 1, tuple(arguments.link)
    call = Case(
        arguments.collective,
        "",
        size,
        arguments.topology,
        arguments.ranks,
        links,
        arguments.reduce,
        overhead=arguments.overhead,
    )
    found = explain_on_network(call)
    if arguments.json:
        print(json.dumps(found))
    else:
        from hocket.view import print_network_explanation

        print_network_explanation(found)
    return 0


def explain_on_network(call: Case) -> dict[str, Any]:
    """The rows of all candidates, the fastest first; the steps of the fastest; and where another is, size by size.

    `call` says all but the algorithm.
    """
    names = candidates(call.collective, call.network())
    rows = sorted((_with(call, name, call.num_bytes).row() for name in names), key=lambda row: float(row["seconds"]))
    best = _with(call, rows[0]["algorithm"], call.num_bytes)
    sizes = () if call.collective == "barrier" else _SIZES
    busy = {row["algorithm"]: row["binding_share"] * row["seconds"] / max(call.num_bytes, 1) for row in rows}
    fastest = [_fastest(call, size, busy) for size in sizes]
    return {
        "collective": call.collective,
        "topology": rows[0]["topology"],
        "num_ranks": rows[0]["num_ranks"],
        "num_bytes": call.num_bytes,
        "algorithm": rows[0]["algorithm"],
        "candidates": rows,
        "steps": steps_of(best.schedule(), call.num_bytes),
        "fastest": list(ranges(sizes, fastest)),
    }


def _fastest(call: Case, num_bytes: int, busy: dict[str, float]) -> str:
    """The fastest at a size. busy: of each algorithm, the seconds for each byte that its busiest link needs anyway."""
    best = (math.inf, "")
    for name in sorted(busy, key=lambda name: busy[name]):
        if busy[name] * num_bytes > best[0]:
            break  # that link alone takes this one, and all behind it, longer
        best = min(best, (_with(call, name, num_bytes).result().seconds, name))
    return best[1]


def _with(call: Case, algorithm: str, num_bytes: int) -> Case:
    return replace(call, algorithm=algorithm, num_bytes=num_bytes)


def steps_of(schedule: "Schedule", num_bytes: int) -> list[dict[str, Any]]:
    """Who sends how many bytes to whom; equal steps that follow each other are one entry."""
    from hocket.network import traffic_of

    traffic = traffic_of(schedule)
    chunk = traffic.chunk_bytes(num_bytes)
    steps: list[dict[str, Any]] = []
    first = 0
    for number, repeat in traffic.blocks:
        one = traffic.patterns[number]
        sent = zip(one.source.tolist(), one.target.tolist(), (one.chunks * chunk).tolist(), strict=True)
        messages = [{"source": source, "target": target, "bytes": size} for source, target, size in sent]
        if steps and steps[-1]["messages"] == messages:
            steps[-1]["last"] += repeat
        else:
            steps.append({"first": first, "last": first + repeat - 1, "messages": messages})
        first += repeat
    return steps


def ranges(sizes: Sequence[int], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Which algorithm is the fastest from which size to which; sizes between two that were tried go with the lower."""
    begin = 0
    for number, name in enumerate(names):
        if number + 1 == len(names) or names[number + 1] != name:
            end = None if number + 1 == len(names) else sizes[number + 1] - 1
            yield {"min_bytes": begin, "max_bytes": end, "algorithm": name}
            begin = (end or 0) + 1
