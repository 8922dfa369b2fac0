"""`hocket tune`: times the algorithms on this machine and writes a tuner file with those that win."""

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hocket.runtime import Result, Rule

_DEFAULT_FILE = "hocket_tuner.conf"  # tuner_file's, which is not loaded for --help
_FEW_RANKS = (2, 4, 8)
_SPREAD = 0.25  # of the median: above, a machine is not quiet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket tune`."""
    from hocket.cli.argument_types import byte_counts, rank_counts, time_limit

    parser.description = (
        "Time the algorithms on this machine, in turns; fit their costs; write a tuner file with those that clearly "
        "beat the default, and check it. Leave the machine alone meanwhile."
    )
    ranks_help = "how many, as 2,4,8 (default: these, the cores, and twice and four times as many)"
    parser.add_argument("-n", "--ranks", type=rank_counts, metavar="N,...", help=ranks_help)
    parser.add_argument("--collective", metavar="NAME,...", help="only these (default: all with blocks of one length)")
    sizes_help = "bytes of the whole vector, as 8,64K,16M (default: eleven, from 8 to 64M)"
    parser.add_argument("--sizes", type=byte_counts, metavar="B,...", help=sizes_help)
    parser.add_argument("--seconds", type=time_limit, metavar="S", help="about how long it may take (default 100)")
    check_help = "time what was chosen again beside the default, and give up what does not win again (default: yes)"
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, help=check_help)
    output_help = f"the tuner file (default {_DEFAULT_FILE}, read where rank 0 starts); lines about others stay"
    measure_help = "instead: measure the costs of cores and memory, from which `hocket bench` has its bounds"
    parser.add_argument("--measure", action="store_true", help=measure_help)
    parser.add_argument("-o", "--output", metavar="FILE", help=output_help)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Tunes. Returns 1 if nothing was timed, else 0.

    ValueError for what there is not, HocketError if ranks fail, OSError if the file cannot be written.
    """
    import msgspec

    from hocket.cli.limits import check_memory, check_ranks
    from hocket.cli.writable import check_cache, check_writable
    from hocket.runtime.choice import tuner_file
    from hocket.runtime.tuning import tuner

    if arguments.measure:
        _check_alone(arguments)
        check_cache()
        return _measure_machine(arguments.json)
    collectives = _collectives(arguments.collective)
    rank_counts = arguments.ranks or _default_rank_counts()
    if rank_counts[0] < 2:
        raise ValueError(f"--ranks: expected at least 2, as one rank has nothing to choose; found {rank_counts[0]}")
    sizes = arguments.sizes or tuner.SIZES
    check_ranks(rank_counts[-1])
    if collectives != ["barrier"]:
        check_memory(rank_counts[-1], max(sizes), "--sizes, or --ranks")
    output = Path(arguments.output or _DEFAULT_FILE)
    # What cannot be read or written is told before time is spent.
    if output.is_file():
        tuner_file.read(output)
    check_writable(output)
    check_cache()
    result = tuner.tune(
        collectives,
        rank_counts,
        sizes,
        seconds=arguments.seconds or tuner.SECONDS,
        check=arguments.check is not False,
        tell=_tell,
    )
    if not result.entries:
        _tell("nothing was timed: it takes more --seconds; no file has changed")
    else:
        try:
            tuner.store(result.entries)
        finally:  # if one cannot be written, the other is not lost
            timed = {(entry.collective, entry.num_ranks) for entry in result.entries}
            for line in _older(result, tuner_file.update(output, result.rules, timed)):
                _tell(f"{output}: {line}")
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(result) | {"file": str(output), "times": str(tuner.file())}))
    elif result.entries:
        _print(result, output, tuner.file())
    return 0 if result.entries else 1


def _tell(text: str) -> None:
    print(f"hocket tune: {text}", file=sys.stderr, flush=True)


def _check_alone(arguments: argparse.Namespace) -> None:
    """ValueError where --measure comes with an option that it would not heed."""
    names = ("ranks", "collective", "sizes", "seconds", "check", "output")
    given = [f"--{name}" for name in names if getattr(arguments, name) is not None]
    if given:
        raise ValueError(f"--measure times no algorithm and writes no tuner file: expected no {', '.join(given)}")


def _older(result: "Result", stayed: "Sequence[Rule]") -> list[str]:
    """Of the rules that stayed, those that decide at a size that was timed, as no new one does."""
    from hocket.view import name_bytes

    found: dict[tuple[str, int, Rule], list[str]] = {}
    for entry in result.entries:
        for size in sorted({sample.num_bytes for one in entry.algorithms for sample in one.samples}):
            call = (entry.collective, entry.num_ranks, size)
            first = next((rule for rule in (*result.rules, *stayed) if rule.matches(*call)), None)
            if first is not None and first in stayed:
                found.setdefault((entry.collective, entry.num_ranks, first), []).append(name_bytes(size))
    return [
        f"an older line, about any number of ranks, has {rule.algorithm} in the place of the default, which nothing "
        f"clearly beats: {collective}, {num_ranks} ranks, {', '.join(sizes)}"
        for (collective, num_ranks, rule), sizes in found.items()
    ]


def _default_rank_counts() -> list[int]:
    cores = len(os.sched_getaffinity(0))
    return sorted({*_FEW_RANKS, *(p for p in (cores, 2 * cores, 4 * cores) if p > 1)})


def _measure_machine(as_json: bool) -> int:
    """Stores what the machine's cores and memory cost, and prints it."""
    import msgspec

    from hocket.runtime.tuning import machine_costs
    from hocket.view import name_bytes, name_count, name_seconds

    costs, kept = machine_costs.store(machine_costs.measure())
    if as_json:
        print(json.dumps(msgspec.to_builtins(costs) | {"file": str(kept)}))
        return 0
    print(
        f"{name_count(costs.num_cores, 'core')}; from a store on one to its being seen on another: "
        f"{name_seconds(costs.hop_seconds)}"
    )
    for kind, rates in costs.bytes_per_second.items():
        alone = ", ".join(f"{rate / 1e9:.1f} ({name_bytes(size)})" for size, rate in rates.items())
        together = costs.together_bytes_per_second[kind] / 1e9
        print(f"{kind}, GB/s of one core by the bytes that it touches: {alone}; all cores in memory: {together:.1f}")
    print(f"{kept}: the fastest that was measured here so far, for `hocket bench` and `hocket explain`")
    return 0


def _collectives(text: str | None) -> list[str]:
    from hocket.cli.argument_types import collective_name
    from hocket.runtime.tuning import tuner

    names = list(tuner.COLLECTIVES) if text is None else [collective_name(name.strip()) for name in text.split(",")]
    for name in names:
        if name not in tuner.COLLECTIVES:
            raise ValueError(f"--collective: expected one of {', '.join(tuner.COLLECTIVES)}; found {name!r}")
    return names


def _print(result: "Result", output: Path, kept: Path) -> None:
    from rich.markup import escape
    from rich.table import Table

    from hocket.view import Terminal, name_bytes, name_count, name_range

    console = Terminal(soft_wrap=True)
    if result.rules:
        table = Table("collective", "ranks", "size", "algorithm", "time / default's, by size", box=None)
        for rule in result.rules:
            size = name_range(rule.min_bytes, None if rule.max_bytes == -1 else rule.max_bytes)
            table.add_row(rule.collective, str(rule.num_ranks), size, escape(rule.algorithm), _again(result, rule))
        console.print(table)
    else:
        console.print("Nothing clearly beats the default: no line is needed.")
    console.print()
    for line in _remarks(result):
        console.print(line)
    missing: dict[tuple[str, int], list[str]] = {}
    for collective, num_ranks, num_bytes in result.missing:
        missing.setdefault((collective, num_ranks), []).append(name_bytes(num_bytes))
    for (collective, num_ranks), sizes in missing.items():
        console.print(f"no time for {collective}, {num_ranks} ranks: {', '.join(sizes)}", style="dim")
    used = "read where rank 0 starts" if output.name == _DEFAULT_FILE else f"HOCKET_TUNER_CONFIG_FILE={output} uses it"
    console.print(f"{output}: {name_count(len(result.rules), 'line')}, {used}", markup=False)
    console.print(f"{kept}: times and costs, for `hocket explain`", markup=False)


def _again(result: "Result", rule: "Rule") -> str:
    """What the check said of a line."""
    from hocket.view import name_bytes

    found = [
        f"{one.ratio:.2f} ({name_bytes(one.num_bytes)})"
        for one in result.comparisons
        if one.holds and rule.matches(one.collective, one.num_ranks, one.num_bytes)
    ]
    return ", ".join(found) or "not checked"


def _remarks(result: "Result") -> list[str]:
    held = [one.ratio for one in result.comparisons if one.holds]
    remarks = []
    if result.comparisons:
        text = f"timed again beside the default: {len(held)} of {len(result.comparisons)} choices won again"
        if held:
            mean = math.exp(sum(map(math.log, held)) / len(held))
            text += f" (geometric mean {mean:.2f} of its time, worst {max(held):.2f})"
        remarks.append(f"{text}; the others are given up" if len(held) < len(result.comparisons) else text)
    samples = [sample for entry in result.entries for one in entry.algorithms for sample in one.samples]
    spreads = sorted((sample.high - sample.low) / sample.seconds for sample in samples if sample.num_rounds > 3)
    spread = spreads[len(spreads) // 2] if spreads else 0.0
    algorithms = sum(len(entry.algorithms) for entry in result.entries)
    remarks.append(
        f"{len(samples)} times of {algorithms} algorithms in {result.seconds:.0f} s; the middle half of the rounds of "
        f"each spans {spread:.0%} of its median"
    )
    if spread > _SPREAD:
        remarks.append("The machine was not quiet: tune again when nothing else runs.")
    return remarks
