"""`hocket explain`: which algorithm runs for a call, what it costs beside the others, and why.

The numbers are those that `hocket tune` left: times, and costs fitted to them. --measure takes new times at this size.
Where nothing was timed, predictions are rough ones, by what this machine's cores and memory can do.
With --topology they are simulated on that network instead (explain_network.py).
"""

import argparse
import contextlib
import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hocket.runtime import Costs, Entry, MachineCosts, Measured, Sample, Traits

_FEWEST_TO_FIT = 3  # times of one algorithm: a straight line goes through any two
_MEASURE_SECONDS = 60.0  # at most; some seconds will do on a quiet machine
_ROUGH_SIZES = tuple(1 << power for power in range(31))  # bytes; at which rough costs are compared
_SAME = 1 + 1e-9  # times the least: what differs by rounding alone
_AS_GOOD = 1.05  # times the best: what is not told apart in the ranges of sizes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket explain`."""
    from hocket.cli.argument_types import byte_count, collective_name
    from hocket.cli.network_arguments import add_topology

    parser.description = (
        "Say which algorithm runs for a call, what each would cost, why this one, and where that changes."
    )
    parser.epilog = (
        "For example: hocket explain all_reduce -n 8 -b 64K. What it knows of costs comes from hocket tune; without "
        "it, predictions are rough ones, by what cores and memory can do here."
    )
    parser.add_argument("collective", type=collective_name, metavar="COLLECTIVE", help="as all_reduce")
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="how many ranks; with --topology, its first ones")
    parser.add_argument(
        "-b", "--bytes", type=byte_count, metavar="B", help="of the whole vector, as 64K; not for barrier"
    )
    parser.add_argument("--measure", action="store_true", help="time the algorithms now, at this size")
    add_topology(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Explains. ValueError for what there is not; HocketError if ranks that measure fail."""
    if arguments.topology is not None:
        from hocket.cli.explain.explain_network import run_on_network

        return run_on_network(arguments)
    from hocket.cli.limits import check_memory, check_ranks
    from hocket.runtime import Entry
    from hocket.runtime.tuning import rough_costs, tuner

    if arguments.ranks is None:
        raise ValueError("expected --ranks, or --topology; found neither")
    if arguments.link or arguments.reduce or arguments.overhead:
        raise ValueError("--link, --reduce and --overhead are about a --topology; found none")
    if arguments.collective not in tuner.COLLECTIVES:
        raise ValueError(
            f"expected a collective, one of {', '.join(tuner.COLLECTIVES)}; found {arguments.collective!r}"
        )
    check_ranks(arguments.ranks)
    if (arguments.bytes is None) != (arguments.collective == "barrier"):
        expected = "no --bytes, as barrier moves none" if arguments.bytes else "--bytes, the size of the call"
        raise ValueError(f"expected {expected}; see hocket explain --help")
    call = (arguments.collective, arguments.ranks, arguments.bytes or 1)
    if arguments.measure:
        check_memory(*call[1:], "--bytes, or --ranks")
    entry, rough = tuner.load().find(*call[:2]), dict[int, Entry]()
    if entry is None:
        rough = rough_costs.rough_entries(*call[:2], (call[2], *_ROUGH_SIZES), _machine_costs())
        entry = rough[call[2]]
        rough = {size: rough[size] for size in _ROUGH_SIZES}
    found = explain(*call, entry, rough, measure=arguments.measure)
    if arguments.json:
        print(json.dumps(found))
    else:
        from hocket.view import print_explanation

        print_explanation(found)
    return 0


def _machine_costs() -> "MachineCosts":
    """Those that `hocket tune --measure` stored; where it has never run, they are measured now."""
    from hocket.runtime.tuning import machine_costs

    costs = machine_costs.load()
    if costs is None:
        print("hocket explain: measuring cores and memory, once, which takes 3 s", file=sys.stderr, flush=True)
        costs = machine_costs.measure()
        with contextlib.suppress(OSError):  # then the next call measures again
            machine_costs.store(costs)
    return costs


def explain(
    collective: str,
    num_ranks: int,
    num_bytes: int,
    entry: "Entry",
    rough: "Mapping[int, Entry]",
    *,
    measure: bool = False,
) -> dict[str, Any]:
    """All that is known of a call, as plain values: bytes and seconds; None for what is not known.

    Where the entry is one of rough_costs.rough_entries, so are the predictions, and `tuned` is None; `rough` has those
    of many sizes.
    """
    from hocket.algorithms import ALGORITHMS
    from hocket.runtime import Policy, choose
    from hocket.runtime.choice import select
    from hocket.runtime.ranks import cores
    from hocket.runtime.tuning import fit, timed_ranks, tuner

    policy = Policy.from_environment(os.environ, shares_cores=cores.shared_by(num_ranks))
    algorithm, by = select.choose_by(collective, num_ranks, num_bytes, "fast", policy)
    by_table = choose(collective, num_ranks, num_bytes, "fast", policy.table_alone())
    names = tuner.candidates(collective, num_ranks, (algorithm, by_table))
    known = _known(entry, names)
    samples = _measured_now(collective, num_ranks, num_bytes, tuple(names)) if measure else {}
    exact = timed_ranks.exact_bytes(collective, num_bytes, num_ranks)
    samples = samples or {name: found for name, one in known.items() if (found := one.at(exact))}
    complete = tuner.timed_to_the_end(samples)
    rows = []
    for name, twins in names.items():
        one = known.get(name)
        traits = fit.traits_of(ALGORITHMS[collective, name].build(num_ranks))
        row = {"algorithm": name, "twins": list(twins), **_work(traits, num_bytes)}
        row |= _predicted(one.costs if one else None, traits, num_bytes)
        rows.append(row | _measured(samples.get(name)) | {"complete": name in complete})
        if one is not None and len(one.samples) < _FEWEST_TO_FIT:
            rows[-1]["error"] = None
    rows.sort(key=_order)
    roughly = ranges_roughly(rough, lambda size: choose(collective, num_ranks, size, "fast", policy))
    return {
        "collective": collective,
        "num_ranks": num_ranks,
        "num_bytes": num_bytes,
        "algorithm": algorithm,
        "by": by,
        "table": by_table,
        "tuner_file_lines": len(policy.rules),
        "algo": str(policy.allowed(collective) or ""),
        "tuned": entry.date or None,
        "candidates": rows,
        "fastest_measured": ranges_measured(entry),
        "fastest_predicted": [] if collective == "barrier" else ranges_predicted(entry) if entry.date else roughly,
    }


def _known(entry: "Entry", names: dict[str, tuple[str, ...]]) -> dict[str, "Measured"]:
    """What there is of each candidate, or of one with the same schedule."""
    there = {one.algorithm: one for one in entry.algorithms}
    stands_for = {twin: name for name, twins in names.items() for twin in (*twins, name)}
    return {stands_for[name]: one for name, one in there.items() if name in stands_for}


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    """The quickest first; what was dropped after a few rounds behind what was timed to the end."""
    times = (row["measured"] or math.inf, row["predicted"] or math.inf)
    return (not row["complete"], *times, row["steps"], row["sent"])


def _measured_now(collective: str, num_ranks: int, num_bytes: int, names: tuple[str, ...]) -> dict[str, "Sample"]:
    from hocket.runtime import sample_of
    from hocket.runtime.tuning import timed_ranks, tuner

    exact = timed_ranks.exact_bytes(collective, num_bytes, num_ranks)
    job = timed_ranks.Job(collective, (exact,), names, names[:1])
    found = tuner.time_algorithms(num_ranks, [job], _MEASURE_SECONDS)
    return {name: sample_of(exact, rounds) for name, rounds in found.get((collective, exact), {}).items()}


def _work(traits: "Traits", num_bytes: int) -> dict[str, Any]:
    """Steps, and bytes by the rank that has most of them."""
    sent, reduced = round(traits.sent * num_bytes), round(traits.reduced * num_bytes)
    return {"steps": traits.steps, "sent": sent, "reduced": reduced}


def _predicted(costs: "Costs | None", traits: "Traits", num_bytes: int) -> dict[str, Any]:
    if costs is None:
        return dict.fromkeys(("predicted", "latency", "bandwidth", "reduction", "error"))
    latency, bandwidth, reduction = costs.parts(traits, num_bytes)
    return {
        "predicted": latency + bandwidth + reduction,
        "latency": latency,
        "bandwidth": bandwidth,
        "reduction": reduction,
        "error": costs.error,
    }


def _measured(sample: "Sample | None") -> dict[str, Any]:
    if sample is None:
        return dict.fromkeys(("measured", "low", "high", "rounds"))
    return {"measured": sample.seconds, "low": sample.low, "high": sample.high, "rounds": sample.num_rounds}


def ranges_measured(entry: "Entry") -> list[dict[str, Any]]:
    """Which algorithm was the fastest, from size to size; of such as are equally good, one that is so for longer.

    What was dropped after a few rounds does not count.
    """
    from hocket.runtime.tuning import rules, tuner

    samples: dict[int, dict[str, Sample]] = {}
    for one in entry.algorithms:
        for sample in one.samples:
            samples.setdefault(sample.num_bytes, {})[one.algorithm] = sample
    best: dict[int, list[str]] = {}
    for size, tried in samples.items():
        times = {name: sample.seconds for name, sample in tuner.timed_to_the_end(tried).items()}
        limit = _AS_GOOD * min(times.values())
        best[size] = [name for name in sorted(times, key=lambda name: times[name]) if times[name] <= limit]
    return [
        _range(rule.min_bytes, None if rule.max_bytes == -1 else rule.max_bytes, rule.algorithm)
        for rule in rules.merged(entry.collective, entry.num_ranks, best, {})
    ]


def ranges_predicted(entry: "Entry") -> list[dict[str, Any]]:
    """Which algorithm is the fastest by its costs, from size to size: the lower hull of straight lines."""
    lines = {
        one.algorithm: (
            one.costs.alpha * one.traits.steps,
            one.costs.beta * one.traits.sent + one.costs.gamma * one.traits.reduced,
        )
        for one in entry.algorithms
    }
    ranges: list[dict[str, Any]] = []
    name = min(lines, key=lambda name: lines[name], default="")
    begin = 0
    while name:
        start, slope = lines[name]
        crossings = {
            other: (more - start) / (slope - flatter) for other, (more, flatter) in lines.items() if flatter < slope
        }
        after = min(crossings, key=lambda other: (crossings[other], lines[other][1]), default="")
        end = math.floor(crossings[after]) if after else None
        if end is None or end >= begin:
            ranges.append(_range(begin, end, name))
            begin = begin if end is None else end + 1
        name = after
    return ranges


def ranges_roughly(rough: "Mapping[int, Entry]", runs: "Callable[[int], str]") -> list[dict[str, Any]]:
    """Which algorithm is the fastest by rough costs, which change with the size, up to each of these sizes.

    Of such as cost the same, that which runs there, or else that of the sizes below.
    """
    ranges: list[dict[str, Any]] = []
    for size in sorted(rough):
        seconds = {
            name: one.costs.seconds(one.traits, size)
            for one in rough[size].algorithms
            for name in (one.algorithm, *one.twins)
        }
        limit = _SAME * min(seconds.values())
        tied = [name for name in seconds if seconds[name] <= limit]
        before = ranges[-1]["algorithm"] if ranges else None
        name = next((name for name in (runs(size), before) if name in tied), tied[0])
        if name == before:
            ranges[-1]["max_bytes"] = size
        else:
            ranges.append(_range(ranges[-1]["max_bytes"] + 1 if ranges else 0, size, name))
    if ranges:
        ranges[-1]["max_bytes"] = None
    return ranges


def _range(first: int, last: int | None, algorithm: str) -> dict[str, Any]:
    return {"min_bytes": first, "max_bytes": last, "algorithm": algorithm}
