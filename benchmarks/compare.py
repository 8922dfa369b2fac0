"""Compares Hocket with Open MPI, MPICH, Intel MPI, Gloo and the floor in one run, and checks the goals.

    python benchmarks/compare.py [--quick] [--ranks 2,4,8] [--sizes 8,1K,64M] [--operations all_reduce,barrier]
                                 [--peers openmpi,impi] [--settings default,pinned] [--rounds N] [--no-costs]
                                 [--json FILE] [--plot FILE] [--read FILE,FILE] [--table] [--report-only]

Each peer has its own virtual environment under build/peers/, made on the first run. A short trial finds its best
settings for every rank count. All libraries are called from Python on the same buffers, with the protocol of
comparison/measuring.py. Compare only ratios within a round: times depend on the machine and the hour. All times of a
row are from one round, the one with the median ratio. `hop` is the nanoseconds in which two cores exchange a cache line
in that round, with the minimum and maximum of all rounds: on some machines it changes by the minute. A row is marked !
if others used more than 5 % of all cores (the median over rounds; the floor is measured after the rest of the row, and
does not count). The exit status is 0 if all goals are reached and Hocket failed in no cell. A goal with a cell in which
Hocket failed is not reached. bfloat16 is measured only for operations that add: the others move the same bytes for
every type. --read reports on files of --json, also of runs that ended early. oneCCL and DeepSpeed's kernel, which has
only all_reduce, are measured if --peers names them; no goal is about them.
"""

import argparse
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, os.fspath(Path(__file__).parent))
from arguments import listed, new_file, num_bytes, one_of, picture, whole
from comparison import building, costs, goals, machine, markdown, report
from comparison.contenders import CONTENDERS, SETTINGS, Contender
from comparison.goals import Outcome
from comparison.measuring import FULL, QUICK, Comparison, Effort, say
from comparison.results import Row, Run, size_name, together
from comparison.values import ITEM_BYTES, MOST_RANKS, OPERATIONS, undefined
from peers import PACKAGES, ROOT, USUAL

KIB, MIB = 1 << 10, 1 << 20
SIZES = (8, 64, KIB, 8 * KIB, 64 * KIB, 512 * KIB, MIB, 16 * MIB, 64 * MIB)
QUICK_SIZES = (8, KIB, 8 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
QUICK_SIZES_OF_MORE = (8, 8 * KIB, 64 * KIB, MIB, 16 * MIB)  # for more than two ranks: their calls are long
QUICK_LARGEST_OF_MORE = ("all_reduce", "reduce_scatter")
BFLOAT16_OPERATIONS = ("all_reduce", "reduce_scatter", "reduce")  # the others move the same bytes for every type
QUICK_BFLOAT16 = (8, 64 * KIB, 64 * MIB)
GLOO_QUICK = ("all_reduce",)
LEAST_ATTACHED = 64 * KIB
MEASURED = {  # defaults of the options that say what to measure
    "quick": False,
    "ranks": [2, 4, 8],
    "sizes": [],
    "operations": list(OPERATIONS),
    "peers": list(USUAL),
    "settings": [],
    "rounds": None,
    "no_costs": False,
}


def default_sizes(operation: str, num_ranks: int, quick: bool) -> Sequence[int]:
    if quick and num_ranks > 2:
        return QUICK_SIZES_OF_MORE + (QUICK_SIZES[-1:] if operation in QUICK_LARGEST_OF_MORE else ())
    return QUICK_SIZES if quick else SIZES


def dtypes(operation: str) -> Sequence[str]:
    return tuple(ITEM_BYTES) if operation in BFLOAT16_OPERATIONS else ("float32",)


def cells(operations: Sequence[str], asked_sizes: Sequence[int], num_ranks: int, quick: bool) -> list[Row]:
    """Returns rows without values, for the given sizes or the default ones."""
    rows = []
    for operation in operations:
        for dtype in dtypes(operation):
            sizes = asked_sizes or default_sizes(operation, num_ranks, quick)
            if operation == "barrier":
                sizes = (0,)
            elif quick and dtype == "bfloat16":
                sizes = [size for size in sizes if num_ranks == 2 and size in QUICK_BFLOAT16]
            if not undefined(operation, dtype, num_ranks):
                rows += [Row(operation, size, dtype, num_ranks) for size in sizes]
    return rows


def left_out(operations: Sequence[str], num_ranks: int) -> dict[str, str]:
    """Returns the cells that cannot exist, and why."""
    return {
        f"{operation} of {dtype}, {num_ranks} ranks": reason
        for operation in operations
        for dtype in dtypes(operation)
        if (reason := undefined(operation, dtype, num_ranks))
    }


def quick_leaves_out(peers: Sequence[str], asked_sizes: Sequence[int]) -> str:
    """Returns in words what --quick does not measure, and so its goals do not cover."""
    words = []
    if not asked_sizes:
        but_for = f"the last one except {' and '.join(QUICK_LARGEST_OF_MORE)}"
        for whose, kept, but in (("2 ranks", QUICK_SIZES, ""), ("more ranks", QUICK_SIZES_OF_MORE, f" ({but_for})")):
            words.append(f"{whose}: {', '.join(size_name(size) for size in SIZES if size not in kept)}{but}")
    words.append(f"bfloat16 except {', '.join(map(size_name, QUICK_BFLOAT16))} with 2 ranks")
    if "gloo" in peers:
        words.append(f"Gloo except {' and '.join(GLOO_QUICK)} with 2 ranks")
    return "; ".join([*words, f"hocket without cross-memory attach below {size_name(LEAST_ATTACHED)}"])


def wanted(row: Row, contender: Contender, quick: bool) -> bool:
    """Returns whether the contender is measured in this cell. Gloo takes up to 1 s where others take milliseconds."""
    if contender.name == "gloo" and quick:
        return row.operation in GLOO_QUICK and row.num_ranks == 2
    if contender.name == "deepspeed":
        return row.operation == "all_reduce"  # its only operation
    if contender.name == "no cma" and quick:
        return row.num_bytes == 0 or row.num_bytes >= LEAST_ATTACHED  # smaller messages never use it
    return True


def compare(arguments: argparse.Namespace, effort: Effort, run: Run) -> None:
    """Measures everything that was asked for, into run.rows."""
    build = ROOT / "build" / "compare"
    building.touch_module(build)
    floor = building.floor_program(build)
    names = ["hocket", "registered", "no cma", *arguments.peers]
    if arguments.quick:
        run.absent["in a quick run"] = quick_leaves_out(arguments.peers, arguments.sizes)
    for num_ranks in arguments.ranks:
        rows = cells(arguments.operations, arguments.sizes, num_ranks, arguments.quick)
        for row in rows:
            row.left_out = [name for name in names if not wanted(row, CONTENDERS[name], arguments.quick)]
        run.rows += rows
        run.absent |= left_out(arguments.operations, num_ranks)
        say(f"{num_ranks} ranks: {len(rows)} cells")
        if not rows:
            continue
        needed = [name for name in names if any(name not in row.left_out for row in rows)]
        most = max(row.num_bytes for row in rows)
        with Comparison(run, needed, num_ranks, most, effort, build, floor, arguments.settings) as comparison:
            for number in range(effort.rounds):
                began = time.monotonic()
                comparison.round(number, rows)
                say(f"  round {number + 1} of {effort.rounds}: {time.monotonic() - began:.0f} s")
    if not arguments.no_costs:
        rank_counts = costs.QUICK_RANK_COUNTS if arguments.quick else costs.RANK_COUNTS
        costs.measure(run, build, rank_counts, rounds=1 if arguments.quick else 3)


def was_written(path: Path, write: Callable[[Path], None]) -> bool:
    """Returns whether the file could be written; if not, prints why, and the report goes on."""
    try:
        write(path)
    except OSError as error:
        say(f"{path} cannot be written: {error}")
        return False
    return True


def stop(number: int, _: object) -> NoReturn:
    # A second signal must not interrupt the ending. With SIG_IGN, Python would print an error for one that has arrived.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: None)
    sys.exit(128 + number)  # leaves every `with`, which ends what was started


def parsed() -> argparse.Namespace:
    """Returns the command line. All its errors are found here, before anything is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    quick = "fewer sizes and shorter batches: under ten minutes"
    parser.add_argument("--quick", action="store_true", default=None, help=quick)
    names = list(dict.fromkeys(setting.name for known in SETTINGS.values() for setting in known))
    runs = listed(report.read_json)
    parser.add_argument("--ranks", type=listed(whole(2, MOST_RANKS)), help="(2,4,8)")
    parser.add_argument("--sizes", type=listed(num_bytes), help="bytes of the larger buffer")
    parser.add_argument("--operations", type=listed(one_of(OPERATIONS)), help="(all)")
    parser.add_argument("--peers", type=listed(one_of(tuple(PACKAGES)), 0), help=f"({','.join(USUAL)})")
    parser.add_argument("--settings", type=listed(one_of(names)), help="try only these settings of the peers")
    parser.add_argument("--rounds", type=whole(1), help=f"({FULL.rounds}; quick: {QUICK.rounds})")
    costs_out = "skip the costs of start-up, memory, waiting and protections"
    parser.add_argument("--no-costs", action="store_true", default=None, help=costs_out)
    parser.add_argument("--read", type=runs, metavar="FILES", help="report on these files of --json; measure nothing")
    parser.add_argument("--table", action="store_true", help="print Markdown tables, as in docs, instead of the report")
    parser.add_argument("--json", type=new_file, metavar="FILE")
    parser.add_argument("--plot", type=picture, metavar="FILE", help="needs matplotlib, the extra `plot`")
    parser.add_argument("--report-only", action="store_true", help="exit with 0 even if a goal is missed")
    arguments = parser.parse_args()
    for name, default in MEASURED.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
        elif arguments.read:
            parser.error(f"argument --{name.replace('_', '-')}: says what to measure, but --read measures nothing")
    if not arguments.read and importlib.util.find_spec("ml_dtypes") is None:
        parser.error(f"{sys.executable} has no ml_dtypes: `make compare` installs what it needs")
    return arguments


def judged(run: Run) -> list[Outcome]:
    """Returns the outcome of every goal."""
    known = goals.across_rows(run.rows) | {name: run.costs[name] for name in run.costs if name != "communicators"}
    return [goals.outcome(goal, run.rows, known) for goal in goals.GOALS]


def measured(arguments: argparse.Namespace) -> Run:
    """Measures what was asked for. If the run ends early, --json gets its results so far, marked as such."""
    effort = QUICK if arguments.quick else FULL
    if arguments.rounds:
        effort = effort.with_rounds(arguments.rounds)
    began, run, early = time.monotonic(), Run(), "ended early, "
    try:
        compare(arguments, effort, run)
        early = ""
    finally:
        present = [peer for peer in PACKAGES if any(peer in chosen for chosen in run.settings.values())]
        spent = f"{early}{effort.rounds} rounds, {time.monotonic() - began:.0f} s"
        run.machine = f"{date.today()}, {spent}, {machine.description(present)}"
        if early and arguments.json:
            was_written(arguments.json, lambda path: report.write_json(path, run, judged(run)))
    return run


def main() -> int:
    arguments = parsed()
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    run = together(arguments.read) if arguments.read else measured(arguments)
    outcomes = judged(run)
    print(markdown.tables(run) + "\n" if arguments.table else report.text(run, outcomes))
    written = True
    if arguments.json:
        written &= was_written(arguments.json, lambda path: report.write_json(path, run, outcomes))
    if arguments.plot:
        written &= was_written(arguments.plot, lambda path: report.plot(path, run.rows))
    print(goals.summary(run.rows))
    reached = all(outcome.reached for outcome in outcomes) and not any(map(report.lacks_ours, run.rows))
    return 0 if written and (arguments.report_only or reached) else 1


if __name__ == "__main__":
    sys.exit(main())
