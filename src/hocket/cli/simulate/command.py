"""`hocket simulate`: predicts the time of a collective on a network, its bottleneck link, and its ratio to the bound.

The simulated schedule is the one that would run. --sweep varies sizes, ranks, algorithms and networks.
"""

import argparse
import json

from hocket.cli.limits import MOST_RANKS
from hocket.cli.simulate import sweep
from hocket.cli.simulate.case import DEFAULT_BYTES, cases_of

LEVELS = ("closed", "steps", "events")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket simulate`."""
    from hocket.cli.argument_types import byte_counts, collective_name, rank_counts
    from hocket.cli.network_arguments import add_topology

    parser.epilog = "For example: hocket simulate all_reduce --algorithm ring -b 64M --topology torus:4x4"
    parser.add_argument("collective", type=collective_name, metavar="COLLECTIVE", help="for example all_reduce")
    parser.add_argument(
        "--algorithm",
        metavar="A,...",
        help=f"built-in algorithms or FILE.py:NAME (default, up to {MOST_RANKS} ranks: try all and show the fastest)",
    )
    parser.add_argument(
        "-b",
        "--bytes",
        type=byte_counts,
        metavar="B,...",
        help=f"size of the whole vector, for example 64K or 1K,1M; not for barrier (default {DEFAULT_BYTES >> 20}M)",
    )
    add_topology(parser, several=True, required=True)
    parser.add_argument(
        "-n", "--ranks", type=rank_counts, metavar="N,...", help="use only the first N ranks of the topology"
    )
    parser.add_argument("--root", type=int, metavar="R", help="the root of a rooted collective (default 0)")
    parser.add_argument(
        "--level",
        choices=LEVELS,
        default=LEVELS[-1],
        help="closed: a formula, each message alone on its links; steps: the busiest link of each step; events: "
        f"messages share links, and ranks do not wait for the end of a step (default {LEVELS[-1]})",
    )
    parser.add_argument(
        "--trace", metavar="FILE.json", help="write a timeline for Perfetto, with a lane per rank and link"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    sweep.add_arguments(parser.add_argument_group("hocket simulate --sweep"))


def run(arguments: argparse.Namespace) -> int:
    """Simulates and prints. Raises ValueError for a bad argument, TopologyError for an impossible network.

    Raises VerifyError for an algorithm that breaks a law.
    """
    if arguments.trace is not None and arguments.level != LEVELS[-1]:
        raise ValueError(f"--trace: expected --level {LEVELS[-1]}, the only one with times; found {arguments.level}")
    cases = cases_of(arguments)
    if arguments.sweep:
        return sweep.run(arguments, cases)
    for name in ("csv", "plot", "jobs", "backend"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name} belongs to --sweep")
    places = {(case.topology, case.num_ranks, case.num_bytes) for case in cases}
    if len(places) > 1:
        raise ValueError(f"expected one size, rank count and topology without --sweep; found {len(places)} cases")
    if arguments.trace is not None:
        from hocket.cli.writable import check_writable
        from hocket.view import saving

        check_writable(arguments.trace)
    rows = [case.row() for case in cases]
    best = min(range(len(rows)), key=lambda number: rows[number]["seconds"])
    result = cases[best].result(record=arguments.trace is not None)
    if arguments.trace is not None:
        from hocket.network.simulation import timeline

        with saving.writing(arguments.trace):
            timeline.write(result, arguments.trace)
    others = [row for row in rows if row is not rows[best]]
    if arguments.json:
        print(json.dumps(rows[best] | {"others": others}))
    else:
        from hocket.view import print_result

        print_result(rows[best], result, others)
    return 0
