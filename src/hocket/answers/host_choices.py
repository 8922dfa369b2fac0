"""Which algorithm runs on this host, what each algorithm costs, and the fastest by size.

The numbers come from `hocket tune`: measured times, and costs fitted to them. Without measured times, predictions are
rough estimates from the speed of this machine's cores and memory.
"""

import contextlib
import math
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hocket.runtime import Costs, Entry, MachineCosts, Measured, Sample, Traits

_FEWEST_TO_FIT = 3  # times of one algorithm: a straight line fits any two, so no error can be given
_MEASURE_SECONDS = 60.0  # at most; a quiet machine needs a few seconds
_ROUGH_SIZES = tuple(1 << power for power in range(31))  # sizes in bytes at which rough costs are compared
_SAME = 1 + 1e-9  # factor over the least cost within which costs differ by rounding only
_AS_GOOD = 1.05  # factor over the best time within which algorithms count as equally fast


def entries_of(collective: str, num_ranks: int, num_bytes: int) -> "tuple[Entry, Mapping[int, Entry]]":
    """Returns what `hocket tune` has measured, or else rough costs at this size, and rough costs at many sizes."""
    from hocket.runtime.tuning import rough_costs, tuner

    entry = tuner.load().find(collective, num_ranks)
    if entry is not None:
        return entry, {}
    rough = rough_costs.rough_entries(collective, num_ranks, (num_bytes, *_ROUGH_SIZES), _machine_costs())
    return rough[num_bytes], {size: rough[size] for size in _ROUGH_SIZES}


def _machine_costs() -> "MachineCosts":
    """Returns the costs that `hocket tune --measure` stored; if it has never run, measures them now."""
    from hocket.runtime.tuning import machine_costs

    costs = machine_costs.load()
    if costs is None:
        print("hocket: measuring cores and memory once; this takes 3 s", file=sys.stderr, flush=True)
        costs = machine_costs.measure()
        with contextlib.suppress(OSError):  # if the file cannot be written, the next call measures again
            machine_costs.store(costs)
    return costs


def choices_on_host(
    collective: str,
    num_ranks: int,
    num_bytes: int,
    entry: "Entry",
    rough: "Mapping[int, Entry]",
    *,
    measure: bool = False,
) -> dict[str, Any]:
    """Returns all that is known about a call as plain values, in bytes and seconds; unknown values are None.

    If the entry is one of rough_costs.rough_entries, the predictions are rough too and `tuned` is None. `rough` holds
    such entries for many sizes.
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
    """Returns the measurements of each candidate, or of an algorithm with the same schedule."""
    there = {one.algorithm: one for one in entry.algorithms}
    stands_for = {twin: name for name, twins in names.items() for twin in (*twins, name)}
    return {stands_for[name]: one for name, one in there.items() if name in stands_for}


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Returns a sort key: the fastest first; algorithms dropped after a few rounds follow those timed to the end."""
    times = (row["measured"] or math.inf, row["predicted"] or math.inf)
    return (not row["complete"], *times, row["steps"], row["sent"])


def _measured_now(collective: str, num_ranks: int, num_bytes: int, names: tuple[str, ...]) -> dict[str, "Sample"]:
    from hocket.runtime import sample_of
    from hocket.runtime.tuning import timed_ranks, tuner

    exact = timed_ranks.exact_bytes(collective, num_bytes, num_ranks)
    job = timed_ranks.TimedJob(collective, (exact,), names, names[:1])
    found = tuner.time_algorithms(num_ranks, [job], _MEASURE_SECONDS)
    return {name: sample_of(exact, rounds) for name, rounds in found.get((collective, exact), {}).items()}


def _work(traits: "Traits", num_bytes: int) -> dict[str, Any]:
    """Returns the number of steps, and the bytes sent and reduced by the busiest rank."""
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
    """Returns the ranges of sizes, each with the algorithm measured fastest.

    Among equally fast algorithms, the one that stays so over more sizes is taken. Algorithms dropped after a few
    rounds do not count.
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
    """Returns the ranges of sizes, each with the algorithm predicted fastest: the lower hull of the cost lines."""
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
    """Returns the ranges of sizes, each with the fastest algorithm by rough costs, which depend on the size.

    Among equally cheap algorithms, the one that runs at this size is taken, else the one of the smaller sizes.
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
