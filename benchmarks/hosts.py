"""Compares Hocket over TCP with Open MPI and MPICH over TCP, Gloo, and a raw exchange: two ranks of this host.

    python benchmarks/hosts.py [--sizes 8,64K,1M,64M] [--operations all_reduce,all_gather] [--peers gloo,openmpi]
                               [--rounds 3] [--json FILE]

All of them send through the loopback interface, in turns within each round. The raw exchange (benchmarks/lab/
exchange.cpp) sends so many bytes each way and does nothing else; an all_reduce of two ranks moves as many. Its time is
that of C++, without Python. `make compare` installs the libraries.
"""

import argparse
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from arguments import listed, new_file, num_bytes, one_of, whole
from comparison import building, machine, report
from comparison.measuring import QUICK, Comparison, Effort, say
from comparison.results import Row, Run, geometric_mean, size_name
from comparison.values import OPERATIONS
from peers import ROOT

OURS, RAW = "tcp", "raw exchange"
SIZES = (8, 64 << 10, 1 << 20, 64 << 20)
USUAL = ("all_reduce", "all_gather", "broadcast", "send_recv", "all_to_all")
PEERS = ("gloo", "openmpi", "mpich")


def raw_exchange(program: Path, row: Row, effort: Effort) -> float | None:
    """Returns the seconds of an exchange of as many bytes; None of operations that do something else."""
    if row.operation != "all_reduce":
        return None
    command = [program, str(row.num_bytes), str(effort.batch_seconds), str(effort.batches)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return float(done.stdout)


def measure(run: Run, peers: Sequence[str], effort: Effort) -> None:
    """Measures run.rows."""
    build = ROOT / "build" / "compare"
    building.touch_module(build)
    program = building.compiled(building.LAB / "exchange.cpp", build / "exchange")
    for row in run.rows:
        row.left_out = [] if row.operation == "all_reduce" else ["gloo"]  # which takes long for all of them
    most = max(row.num_bytes for row in run.rows)
    with Comparison(run, [OURS, *peers], 2, most, effort, build, tried=[OURS]) as comparison:
        for number in range(effort.rounds):
            comparison.round(number, run.rows)
            for row in run.rows:
                if (seconds := raw_exchange(program, row, effort)) is not None:
                    row.note(RAW, "touched", seconds)
            say(f"  round {number + 1} of {effort.rounds}")


def line(row: Row, peers: Sequence[str]) -> str:
    """Returns one line of the table: microseconds, and how many times as quick as the best other one Hocket is."""
    ours = row.times(OURS)
    found = {name: statistics.median(times) for name in peers if (times := row.times(name))}
    cells = [f"{statistics.median(ours) * 1e6:.2f}" if ours else "-"]
    cells += [f"{found[name] * 1e6:.2f}" if name in found else "-" for name in peers]
    best = min(found, key=lambda name: found[name], default=None)
    ratio = row.ratio(OURS, best) if best and ours else None
    raw = row.ratio(RAW, OURS) if row.times(RAW) and ours else None
    cells += ["-" if ratio is None else f"{ratio:.2f}", "-" if raw is None else f"{raw:.2f}"]
    return "|".join(["", f"{row.operation} {size_name(row.num_bytes)}", *cells, ""])


def table(run: Run, peers: Sequence[str]) -> str:
    head = ["cell", "Hocket, us", *(f"{name}, us" for name in peers), "best other / Hocket", "Hocket / raw exchange"]
    lines = ["|".join(["", *head, ""]), "|" + "---|" * len(head), *(line(row, peers) for row in run.rows)]
    ratios = []
    for row in run.rows:
        ratios += [min(found) for found in [[row.ratio(OURS, name) for name in peers if row.times(name)]] if found]
    known = [ratio for ratio in ratios if ratio is not None]
    mean = f"geometric mean of {len(known)} cells: {geometric_mean(known):.2f}" if known else "nothing to compare with"
    missing = [f"absent: {name}: {reason}" for name, reason in run.absent.items()]
    return "\n".join([run.machine, "", *lines, "", mean, *missing])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=listed(num_bytes), default=list(SIZES), help="bytes of the larger buffer")
    parser.add_argument("--operations", type=listed(one_of(OPERATIONS)), default=list(USUAL))
    parser.add_argument("--peers", type=listed(one_of(PEERS), 0), default=list(PEERS))
    parser.add_argument("--rounds", type=whole(1), default=QUICK.rounds)
    parser.add_argument("--json", type=new_file, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    rows = [Row(operation, size, "float32", 2) for operation in arguments.operations for size in arguments.sizes]
    run = Run(rows=rows)
    measure(run, arguments.peers, QUICK.with_rounds(arguments.rounds))
    run.machine = machine.description([name for name in arguments.peers if name not in run.absent])
    print(table(run, arguments.peers))
    if arguments.json:
        report.write_json(arguments.json, run, [])


if __name__ == "__main__":
    main()
