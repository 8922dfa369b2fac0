"""Compares Hocket over TCP with Open MPI and MPICH over TCP, Gloo, and a raw exchange: on this host, or between some.

    python benchmarks/hosts.py [--sizes 8,64K,1M,64M] [--operations all_reduce,all_gather] [--peers gloo,openmpi]
                               [--rounds 3] [--json FILE]
    python benchmarks/hosts.py --hosts 2 --rate 1gbit [--delay 0.001] [--per-host 1,2,4] ...

Without --hosts, two ranks of this host send through the loopback interface. With it, ranks run on two to four hosts,
which are made of network namespaces (tests/hosts/lab.py, as root), with so many bits a second each way. All contenders
take turns within each round. `make compare` installs the libraries.

The raw exchange (benchmarks/lab/exchange.cpp) is one process at each of two ends, which sends so many bytes each way
and does nothing else; an all_reduce of two ranks moves as many, and so does one of more ranks on two hosts, between the
hosts. Its time is that of C++, without Python. The bound is what no program can beat: 2 (H - 1) / H of the bytes at the
rate of one of H hosts, and one delay, which only a link between two hosts has. But the link saves up to 256 KiB of its
rate while nothing is sent, so a short call may be quicker.

Between hosts, the flat ring is Hocket's own algorithm that takes no notice of hosts, and the prediction is what `hocket
simulate` says of the algorithm that runs, on the network that `hocket tune --hosts` has measured there.

Under the table are the goals (comparison/goals_of_hosts.py) that are about this link. The exit status is 0 if they are
missed, too: times depend on the machine and on what else it does.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arguments import listed, new_file, num_bytes, one_of, whole
from comparison import building, goals_of_hosts, machine, on_hosts, report
from comparison.goals import Outcome, outcome
from comparison.goals_of_hosts import BITS, FLAT, OTHERS, OURS, OURS_ON_HOSTS, PREDICTED, RAW, Link
from comparison.measuring import QUICK, Comparison, Effort, say
from comparison.results import Row, Run, geometric_mean, size_name
from comparison.values import OPERATIONS, undefined
from peers import ROOT

import hocket
from hocket.schedule import COLLECTIVES

if TYPE_CHECKING:
    from tests.hosts.lab import Lab

SIZES, SIZES_ON_HOSTS = (8, 64 << 10, 1 << 20, 64 << 20), (8, 64 << 10, 64 << 20)
USUAL = ("all_reduce", *OTHERS)
PEERS = ("gloo", "openmpi", "mpich")
RAW_SECONDS = 600.0  # limit; 64 MiB take a second at 1 Gbit/s
MEASURING_SECONDS = 60.0  # limit of `hocket tune --hosts`
HOCKET = str(Path(sys.executable).with_name("hocket"))
MOST_HOSTS = 4


def raw_exchange(program: Path, row: Row, effort: Effort, lab: "Lab | None" = None) -> float | None:
    """Returns the seconds of an exchange of as many bytes; None if the cell does something else."""
    if row.operation != "all_reduce" or (lab is not None and len(lab.hosts) != 2):
        return None
    command = [program, str(row.num_bytes), str(effort.batch_seconds), str(effort.batches)]
    for host in lab.hosts if lab else ():
        command += [f"/proc/{host.keeper}/ns/net", host.address]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=RAW_SECONDS)
    return float(done.stdout)


def measure(run: Run, rows: Sequence[Row], ours: str, peers: Sequence[str], effort: Effort, lab: "Lab | None") -> None:
    """Measures these rows of the run, which have one number of ranks."""
    build = ROOT / "build" / "compare"
    building.touch_module(build)
    program = building.compiled(building.LAB / "exchange.cpp", build / "exchange")
    most = max(row.num_bytes for row in rows)
    tried = ["tcp" if lab is None else "hosts"]
    with Comparison(run, [ours, *peers], rows[0].num_ranks, most, effort, build, tried=tried, lab=lab) as comparison:
        for number in range(effort.rounds):
            comparison.round(number, rows)
            for row in rows:
                if len(row.times(RAW)) == len(row.loads):
                    continue  # this round has left out a cell that takes long
                if (seconds := raw_exchange(program, row, effort, lab)) is not None:
                    row.note(RAW, "touched", seconds)
            say(f"  round {number + 1} of {effort.rounds}")


def on_this_host(run: Run, arguments: argparse.Namespace, effort: Effort) -> None:
    for operation in arguments.operations or USUAL:
        for size in arguments.sizes or SIZES:
            run.rows.append(Row(operation, size, "float32", 2))
    measure(run, run.rows, OURS, arguments.peers, effort, None)


def between_hosts(run: Run, arguments: argparse.Namespace, effort: Effort) -> None:
    """Measures all layouts, each on hosts of its own; exits with the reason if there can be none."""
    sys.path.append(str(ROOT))
    from tests.hosts.lab import Lab
    from tests.hosts.namespaces import Unavailable

    for per_host in arguments.per_host:
        num_ranks, rows = arguments.hosts * per_host, list[Row]()
        for operation in arguments.operations or ["all_reduce"]:
            if reason := undefined(operation, "float32", num_ranks):
                run.absent[f"{operation}, {num_ranks} ranks"] = reason
                continue
            left_out = [] if operation == "all_reduce" else [FLAT]  # which names a ring for that alone
            for size in arguments.sizes or SIZES_ON_HOSTS:
                rows.append(Row(operation, size, "float32", num_ranks, left_out=left_out))
        run.rows += rows
        if not rows:
            continue
        try:
            with Lab(arguments.hosts, rate=arguments.rate, delay_seconds=arguments.delay) as lab:
                measure(run, rows, OURS_ON_HOSTS, [FLAT, *arguments.peers], effort, lab)
                predict(rows, lab)
        except Unavailable as reason:
            sys.exit(f"no hosts: {reason}")


def predict(rows: Sequence[Row], lab: "Lab") -> None:
    """Notes what the simulation says of each row, on the network that the ranks measure."""
    num_ranks = rows[0].num_ranks
    commands = on_hosts.of_ranks(lambda rank: [HOCKET, "tune", "--hosts", "--json"], num_ranks, lab)
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    said = [process.communicate(timeout=MEASURING_SECONDS)[0] for process in started]
    if any(process.returncode for process in started):
        say("  no prediction: `hocket tune --hosts` has failed")
        return
    topology = json.loads(said[0])["topology"]
    for row in rows:
        if row.operation in COLLECTIVES:
            chosen = hocket.explain(row.operation, row.num_bytes, hosts=[num_ranks // len(lab.hosts)] * len(lab.hosts))
            found = hocket.simulate(row.operation, row.num_bytes, topology=topology, algorithm=chosen.algorithm)
            row.note(PREDICTED, "touched", found.seconds)


def cells(row: Row, ours: str, peers: Sequence[str], link: Link | None) -> list[str]:
    """Returns a line of the table: microseconds, and how many times as quick as the best other one Hocket is."""
    our_times = row.times(ours)
    others = [*peers, RAW, FLAT, PREDICTED]
    found = {name: statistics.median(times) for name in others if (times := row.times(name))}
    bound = link.bound_seconds(row) if link else None
    best = row.best(peers)
    ratio = row.ratio(ours, best) if best and our_times else None
    raw = row.ratio(RAW, ours) if row.times(RAW) and our_times else None
    times = [statistics.median(our_times) if our_times else None, *map(found.get, peers)]
    if link:
        times += [found.get(RAW), bound, found.get(FLAT), found.get(PREDICTED)]
    where = f", {link.num_hosts} x {row.num_ranks // link.num_hosts}" if link else ""
    name = f"{row.operation} {size_name(row.num_bytes)}{where}"
    microseconds = ["-" if each is None else f"{each * 1e6:.2f}" for each in times]
    return [name, *microseconds, *("-" if each is None else f"{each:.2f}" for each in (ratio, raw))]


def table(run: Run, peers: Sequence[str], link: Link | None = None) -> str:
    ours = OURS_ON_HOSTS if link else OURS
    named = ["Hocket", *peers, *((RAW, "bound", FLAT, PREDICTED) if link else ())]
    head = ["cell", *(f"{name}, us" for name in named), "best other / Hocket", "Hocket / raw exchange"]
    lines = [head, ["---"] * len(head), *(cells(row, ours, peers, link) for row in run.rows)]
    ratios = [row.ratio(ours, best) for row in run.rows if (best := row.best(peers))]
    known = [ratio for ratio in ratios if ratio is not None]
    mean = f"geometric mean of {len(known)} cells: {geometric_mean(known):.2f}" if known else "nothing to compare with"
    missing = [f"absent: {name}: {reason.split(' / ')[-1]}" for name, reason in run.absent.items()]
    return "\n".join([run.machine, "", *("|".join(["", *line, ""]) for line in lines), "", mean, *missing])


def judged(run: Run, peers: Sequence[str], link: Link | None) -> list[Outcome]:
    """Returns the outcome of each goal of this link, or of the loopback interface."""
    goals = goals_of_hosts.between_hosts(link) if link else goals_of_hosts.on_this_host(peers)
    return [outcome(goal, run.rows, {}) for goal in goals]


def rate(text: str) -> str:
    """Reads a rate as tc does, such as 1gbit."""
    if not re.fullmatch(rf"[1-9]\d*({'|'.join(BITS)})", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a rate, such as 1gbit or 100mbit")
    return text


def seconds(text: str) -> float:
    """Reads a delay."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds from 0 to 1, such as 0.001")
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=listed(num_bytes), help="bytes of the larger buffer")
    parser.add_argument("--operations", type=listed(one_of(OPERATIONS)))
    parser.add_argument("--peers", type=listed(one_of(PEERS), 0), default=list(PEERS))
    parser.add_argument("--rounds", type=whole(1), default=QUICK.rounds)
    parser.add_argument("--json", type=new_file, metavar="FILE")
    parser.add_argument("--hosts", type=whole(2, MOST_HOSTS), help="so many, in network namespaces (needs root)")
    parser.add_argument("--rate", type=rate, help="of the link between the hosts, such as 1gbit")
    parser.add_argument("--delay", type=seconds, help="seconds from one of two hosts to the other (0)")
    parser.add_argument("--per-host", type=listed(whole(1)), help="ranks of each host, one layout each (1,2,4)")
    found = parser.parse_args()
    if found.hosts is None and (found.rate or found.delay is not None or found.per_host):
        parser.error("--rate, --delay and --per-host are those of --hosts")
    if found.hosts is not None and not found.rate:
        parser.error("--hosts needs --rate, such as 1gbit")
    if found.delay and found.hosts != 2:
        parser.error(f"--delay is that of a link between two hosts, but --hosts is {found.hosts}")
    found.delay, found.per_host = found.delay or 0.0, found.per_host or [1, 2, 4]
    return found


def main() -> None:
    arguments = parsed()
    run, effort = Run(), QUICK.with_rounds(arguments.rounds)
    (on_this_host if arguments.hosts is None else between_hosts)(run, arguments, effort)
    run.machine = machine.description([name for name in arguments.peers if name not in run.absent])
    link = None if arguments.hosts is None else Link(arguments.rate, arguments.delay, arguments.hosts)
    outcomes = judged(run, arguments.peers, link)
    print(table(run, arguments.peers, link), report.goal_lines(outcomes), sep="\n")
    if arguments.json:
        report.write_json(arguments.json, run, outcomes)


if __name__ == "__main__":
    main()
