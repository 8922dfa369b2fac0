"""`hocket simulate`: how long a collective takes on a network, which link binds, and how far from the bound it is.

The schedule that is simulated is the one that would run. With --sweep: over sizes, ranks, algorithms and networks.
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
    parser.add_argument("collective", type=collective_name, metavar="COLLECTIVE", help="as all_reduce")
    parser.add_argument(
        "--algorithm",
        metavar="A,...",
        help=f"built-in ones, or FILE.py:NAME; without it, up to {MOST_RANKS} ranks, all, and the fastest is shown",
    )
    parser.add_argument(
        "-b",
        "--bytes",
        type=byte_counts,
        metavar="B,...",
        help=f"of the whole vector, as 64K or 1K,1M; not for barrier (default {DEFAULT_BYTES >> 20}M)",
    )
    add_topology(parser, several=True, required=True)
    parser.add_argument(
        "-n", "--ranks", type=rank_counts, metavar="N,...", help="how many: the first ranks of the topology"
    )
    parser.add_argument("--root", type=int, metavar="R", help="the root, where there is one (default 0)")
    parser.add_argument(
        "--level",
        choices=LEVELS,
        default=LEVELS[-1],
        help="closed: nobody else on the links; steps: the busiest link of each step; events: flows that share links, "
        f"ranks that do not wait for each other (default {LEVELS[-1]})",
    )
    parser.add_argument("--trace", metavar="FILE.json", help="write a timeline for Perfetto: a lane per rank and link")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    sweep.add_arguments(parser.add_argument_group("hocket simulate --sweep"))


def run(arguments: argparse.Namespace) -> int:
    """Simulates. ValueError for what there is not, TopologyError for a network that cannot be.

    VerifyError for an algorithm that breaks a law.
    """
    if arguments.trace is not None and arguments.level != LEVELS[-1]:
        raise ValueError(f"--trace: expected --level {LEVELS[-1]}, which alone knows when; found {arguments.level}")
    cases = cases_of(arguments)
    if arguments.sweep:
        return sweep.run(arguments, cases)
    for name in ("csv", "plot", "jobs", "backend"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name} belongs to --sweep")
    places = {(case.topology, case.num_ranks, case.num_bytes) for case in cases}
    if len(places) > 1:
        raise ValueError(f"expected one size, rank count and topology without --sweep; found {len(places)} of them")
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
