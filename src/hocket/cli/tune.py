"""`hocket tune`: times the algorithms on this machine and writes the fastest per size to a tuner file."""

import argparse
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hocket.runtime import Rule, TuningResult

_DEFAULT_FILE = "hocket_tuner.conf"  # the name in tuner_file, repeated here because --help does not load that module
_FEW_RANKS = (2, 4, 8)
_ALONE = ("ranks", "collective", "sizes", "seconds", "check")  # options of timing algorithms
_SPREAD = 0.25  # share of the median; above it, the machine is not quiet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket tune`."""
    from hocket.cli.argument_types import byte_counts, rank_counts, time_limit

    parser.description = (
        "Time the algorithms on this machine, in turns; fit their costs; write those that clearly beat the default to "
        "a tuner file; time these again as a check. Run nothing else on the machine during that time."
    )
    ranks_help = "rank counts, for example 2,4,8 (default: 2, 4, 8, and one, two and four times the cores)"
    parser.add_argument("-n", "--ranks", type=rank_counts, metavar="N,...", help=ranks_help)
    parser.add_argument(
        "--collective", metavar="NAME,...", help="only these (default: all with blocks of equal length)"
    )
    sizes_help = "bytes of the whole vector, for example 8,64K,16M (default: eleven sizes from 8 to 64M)"
    parser.add_argument("--sizes", type=byte_counts, metavar="B,...", help=sizes_help)
    parser.add_argument("--seconds", type=time_limit, metavar="S", help="approximate time to spend (default 100)")
    check_help = "time each choice again against the default, and drop those that do not win again (default: yes)"
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, help=check_help)
    output_help = (
        f"the tuner file (default {_DEFAULT_FILE}, read if rank 0 starts in its folder); other lines stay. With "
        "--measure or --hosts: a machine file of this host or these hosts, for --machine of other commands"
    )
    measure_help = "measure only the costs of cores and memory, from which `hocket bench` computes its bounds"
    parser.add_argument("--measure", action="store_true", help=measure_help)
    hosts_help = (
        "on every rank of a job, as in `hocket run -n 4 -- hocket tune --hosts`: time messages inside and between "
        "hosts, and print the network for `hocket simulate`"
    )
    parser.add_argument("--hosts", action="store_true", help=hosts_help)
    parser.add_argument("-o", "--output", metavar="FILE", help=output_help)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Times the algorithms and writes the tuner file. Returns 1 if nothing was timed, else 0.

    Raises ValueError for a bad argument, HocketError if a rank fails, OSError if the file cannot be written.
    """
    import msgspec

    from hocket.answers import check_memory, check_ranks
    from hocket.cli.writable import check_cache, check_writable
    from hocket.runtime.choice import tuner_file
    from hocket.runtime.tuning import tuner

    if arguments.hosts:
        _check_alone(arguments, "--hosts", [*_ALONE, "measure"])
        return _measure_links(arguments.output, arguments.json)
    if arguments.measure:
        _check_alone(arguments, "--measure", _ALONE)
        check_cache()
        if arguments.output is not None:
            check_writable(arguments.output)
        return _measure_machine(arguments.output, arguments.json)
    collectives = _collectives(arguments.collective)
    rank_counts = arguments.ranks or _default_rank_counts()
    if rank_counts[0] < 2:
        raise ValueError(f"--ranks: expected at least 2, because one rank has no choice; found {rank_counts[0]}")
    sizes = arguments.sizes or tuner.SIZES
    check_ranks(rank_counts[-1])
    if collectives != ["barrier"]:
        check_memory(rank_counts[-1], max(sizes), "--sizes, or --ranks")
    output = Path(arguments.output or _DEFAULT_FILE)
    # Report files that cannot be read or written before the measurements, not after.
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
        _tell("nothing was timed: allow more --seconds; no file has changed")
    else:
        try:
            tuner.store(result.entries)
        finally:  # if one file cannot be written, the other still is
            timed = {(entry.collective, entry.num_ranks) for entry in result.entries}
            for line in _older(result, tuner_file.update(output, result.rules, timed)):
                _tell(f"{output}: {line}")
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(result) | {"file": str(output), "times": str(tuner.file())}))
    elif result.entries:
        _print(result, output, tuner.file())
    return 0 if result.entries else 1


def _tell(text: str) -> None:
    from hocket.view import print_aside

    print_aside(f"hocket tune: {text}")


def _check_alone(arguments: argparse.Namespace, option: str, names: "Sequence[str]") -> None:
    """Raises ValueError if --measure or --hosts comes with an option that it ignores."""
    given = [f"--{name}" for name in names if getattr(arguments, name) not in (None, False)]
    given += ["--no-check"] if arguments.check is False else []
    if given:
        raise ValueError(f"{option} times no algorithm and writes no tuner file: expected no {', '.join(given)}")


def _older(result: "TuningResult", stayed: "Sequence[Rule]") -> list[str]:
    """Returns a line for each older rule that still decides at a timed size, because no new rule covers that size."""
    from hocket.view import name_bytes, name_count

    found: dict[tuple[str, int, Rule], list[str]] = {}
    for entry in result.entries:
        for size in sorted({sample.num_bytes for one in entry.algorithms for sample in one.samples}):
            call = (entry.collective, entry.num_ranks, size)
            first = next((rule for rule in (*result.rules, *stayed) if rule.matches(*call)), None)
            if first is not None and first in stayed:
                found.setdefault((entry.collective, entry.num_ranks, first), []).append(name_bytes(size))
    return [
        f"an older line for any number of ranks still selects {rule.algorithm}, although nothing clearly beats the "
        f"default: {collective}, {name_count(num_ranks, 'rank')}, {', '.join(sizes)}"
        for (collective, num_ranks, rule), sizes in found.items()
    ]


def _default_rank_counts() -> list[int]:
    cores = len(os.sched_getaffinity(0))
    return sorted({*_FEW_RANKS, *(p for p in (cores, 2 * cores, 4 * cores) if p > 1)})


def _measure_machine(output: str | None, as_json: bool) -> int:
    """Measures the costs of the machine's cores and memory, stores them, prints them, and writes a machine file."""
    import msgspec

    from hocket.runtime.tuning import host_machine, machine_costs
    from hocket.view import Terminal, name_bytes, name_count, name_seconds

    console = Terminal()
    costs, kept = machine_costs.store(machine_costs.measure())
    if output is not None:
        _write(output, host_machine.machine_of_costs(costs))
    if as_json:
        print(json.dumps(msgspec.to_builtins(costs) | {"file": str(kept)}))
        return 0
    console.print(
        f"{name_count(costs.num_cores, 'core')}; time until one core sees a store of another: "
        f"{name_seconds(costs.hop_seconds)}"
    )
    for kind, rates in costs.bytes_per_second.items():
        alone = ", ".join(f"{rate / 1e9:.1f} ({name_bytes(size)})" for size, rate in rates.items())
        together = costs.together_bytes_per_second[kind] / 1e9
        text = f"{kind}, GB/s of one core, by bytes touched: {alone}; of all cores, in main memory: {together:.1f}"
        console.print(text, markup=False)
    text = f"{kept}: the best values measured on this machine so far, for `hocket bench` and `hocket explain`"
    console.print(text, markup=False)
    return 0


def _write(output: str, machine: str) -> None:
    from hocket.cli.writable import say_written
    from hocket.view import saving

    saving.write(output, machine)
    say_written(output)


def _measure_links(output: str | None, as_json: bool) -> int:
    """Times messages between the ranks of the job of which this process is one; rank 0 prints and writes them."""
    import msgspec
    from rich.table import Table

    from hocket.runtime import init
    from hocket.runtime.tuning import host_machine, link_times
    from hocket.view import Terminal, name_bandwidth, name_seconds

    with init() as comm:
        if comm.size == 1:
            raise ValueError(
                "--hosts times messages between the ranks of a job, and this process is a rank alone; start it on "
                "every rank, for example `hocket run -n 2 -- hocket tune --hosts`"
            )
        links, hosts = link_times.measure_links(comm), comm.context.hosts
        if comm.rank > 0:
            return 0
    if output is not None:
        _write(output, host_machine.machine_of_links(links, hosts))
    named = link_times.topology_of(links, hosts)
    if as_json:
        print(json.dumps({"hosts": hosts, "links": msgspec.to_builtins(links), "topology": named}))
        return 0
    console = Terminal()
    table = Table("messages", "between ranks", "8 B", "1 MiB", "bandwidth", box=None)
    for one in links:
        pairs = ", ".join(f"{first}-{second}" for first, second in one.pairs)
        times = (name_seconds(one.short_seconds), name_seconds(one.long_seconds))
        table.add_row(one.kind, pairs, *times, name_bandwidth(one.bytes_per_second))
    console.print_table(table)
    console.print()
    if named:
        text = f"Such a network, for simulations: hocket explain all_reduce --topology {named}"
    elif len(set(hosts)) == 1:
        text = "All ranks are on one host."
    else:
        text = "The hosts have unlike numbers of ranks: for simulations describe them in a file (docs/networks.md)."
    console.print(text, markup=False)
    return 0


def _collectives(text: str | None) -> list[str]:
    from hocket.cli.argument_types import collective_name
    from hocket.errors import did_you_mean
    from hocket.runtime.tuning import tuner

    names = list(tuner.COLLECTIVES) if text is None else [collective_name(name.strip()) for name in text.split(",")]
    for name in names:
        if name not in tuner.COLLECTIVES:
            near = did_you_mean(name, tuner.COLLECTIVES)
            raise ValueError(f"--collective: expected one of {', '.join(tuner.COLLECTIVES)}; found {name!r}{near}")
    return names


def _print(result: "TuningResult", output: Path, kept: Path) -> None:
    from rich.markup import escape
    from rich.table import Table

    from hocket.view import Terminal, name_bytes, name_count, name_range

    console = Terminal()
    if result.rules:
        table = Table("collective", "ranks", "size", "algorithm", "time / default's time (size)", box=None)
        for rule in result.rules:
            size = name_range(rule.min_bytes, None if rule.max_bytes == -1 else rule.max_bytes)
            table.add_row(rule.collective, str(rule.num_ranks), size, escape(rule.algorithm), _again(result, rule))
        console.print_table(table)
    else:
        console.print("No algorithm clearly beats the default: the tuner file needs no line.")
    console.print()
    for line in _remarks(result):
        console.print(line)
    missing: dict[tuple[str, int], list[str]] = {}
    for collective, num_ranks, num_bytes in result.missing:
        missing.setdefault((collective, num_ranks), []).append(name_bytes(num_bytes))
    for (collective, num_ranks), sizes in missing.items():
        left = f"{collective}, {name_count(num_ranks, 'rank')}: {', '.join(sizes)}"
        console.print(f"not timed, for lack of time: {left}", style="dim")
    used = "read if rank 0 starts here" if output.name == _DEFAULT_FILE else f"use: HOCKET_TUNER_CONFIG_FILE={output}"
    console.print(f"{output}: {name_count(len(result.rules), 'line')}, {used}", markup=False)
    console.print(f"{kept}: times and costs, for `hocket explain`", markup=False)


def _again(result: "TuningResult", rule: "Rule") -> str:
    """Returns what the check found for a rule."""
    from hocket.view import name_bytes

    found = [
        f"{one.ratio:.2f} ({name_bytes(one.num_bytes)})"
        for one in result.comparisons
        if one.holds and rule.matches(one.collective, one.num_ranks, one.num_bytes)
    ]
    return ", ".join(found) or "not checked"


def _remarks(result: "TuningResult") -> list[str]:
    from hocket.view import name_count

    held = [one.ratio for one in result.comparisons if one.holds]
    remarks = []
    if result.comparisons:
        text = f"timed again against the default: {len(held)} of {len(result.comparisons)} choices won again"
        if held:
            mean = math.exp(sum(map(math.log, held)) / len(held))
            text += f" (geometric mean {mean:.2f} of its time, worst {max(held):.2f})"
        remarks.append(f"{text}; the others are dropped" if len(held) < len(result.comparisons) else text)
    samples = [sample for entry in result.entries for one in entry.algorithms for sample in one.samples]
    spreads = sorted((sample.high - sample.low) / sample.seconds for sample in samples if sample.num_rounds > 3)
    spread = spreads[len(spreads) // 2] if spreads else 0.0
    algorithms = sum(len(entry.algorithms) for entry in result.entries)
    remarks.append(
        f"{name_count(len(samples), 'measurement')} of {name_count(algorithms, 'algorithm')} "
        f"in {result.seconds:.0f} s; typical spread of rounds (middle half): {spread:.0%} of the median"
    )
    if spread > _SPREAD:
        remarks.append("The machine was busy: tune again when nothing else runs.")
    return remarks
