"""`hocket simulate`: predicts the time of a collective on a network, its bottleneck link, and its ratio to the bound.

The simulated schedule is the one that would run. --sweep varies sizes, ranks, algorithms and networks.
"""

import argparse
import json
from collections.abc import Sequence

from hocket.answers import DEFAULT_BYTES, MOST_RANKS, MachineCase, SimulationCase
from hocket.cli.simulate import sweep
from hocket.cli.writable import check_writable, say_written
from hocket.view import saving

LEVELS = ("closed", "steps", "events")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket simulate`."""
    from hocket.cli.argument_types import add_layout, byte_counts, collective_name, rank_counts
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
    add_layout(parser)
    parser.add_argument("--root", type=int, metavar="R", help="the root of a rooted collective (default 0)")
    parser.add_argument(
        "--level",
        choices=LEVELS,
        default=LEVELS[-1],
        help="closed: a formula, each message alone on its links; steps: the busiest link of each step; events: "
        f"messages share links, and ranks do not wait for the end of a step (default {LEVELS[-1]})",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE.json",
        help="write a trace for `hocket trace view` or Perfetto: a lane per rank and link",
    )
    parser.add_argument("--svg", metavar="FILE", help="draw the network, the busier a link the redder, to FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    sweep.add_arguments(parser.add_argument_group("hocket simulate --sweep"))


def run(arguments: argparse.Namespace) -> int:
    """Simulates and prints. Raises ValueError for a bad argument, TopologyError for an impossible network.

    Raises VerifyError for an algorithm that breaks a law.
    """
    if arguments.trace is not None and arguments.level != LEVELS[-1]:
        raise ValueError(f"--trace: expected --level {LEVELS[-1]}, the only one with times; found {arguments.level}")
    from hocket.answers import fastest_of
    from hocket.errors import name_count
    from hocket.view import print_aside

    cases, notes = cases_asked(arguments)
    for note in notes:
        print_aside(f"hocket simulate: {note}")
    if arguments.sweep and arguments.svg is not None:
        raise ValueError("--svg is for one call; with --sweep, --plot draws a picture of each network")
    if arguments.sweep:
        return sweep.run(arguments, cases)
    for name in ("csv", "plot", "jobs", "backend"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name} belongs to --sweep, which simulates every combination; add --sweep")
    calls = {(case.topology, case.num_ranks, case.num_bytes) for case in cases}
    if len(calls) > 1:
        raise ValueError(
            f"expected one size, rank count and topology without --sweep; found {len(calls)} cases; add --sweep"
        )
    for file in filter(None, (arguments.trace, arguments.svg)):
        check_writable(file)
    from rich.console import Console

    with Console(stderr=True).status(f"simulating {name_count(len(cases), 'algorithm')}"):  # seen on a terminal only
        prediction = fastest_of(cases, notes, record=arguments.trace is not None)
    if arguments.trace is not None:
        from hocket.network import SimulationResult
        from hocket.network.simulation import timeline

        assert isinstance(prediction.result, SimulationResult)
        with saving.writing(arguments.trace):
            timeline.write(prediction.result, arguments.trace)
        say_written(arguments.trace)
    if arguments.svg is not None:
        saving.write(arguments.svg, prediction.svg())
        say_written(arguments.svg)
    if arguments.json:
        print(json.dumps(prediction.as_json()))
    else:
        from hocket.view import Terminal

        prediction.print(Terminal())
    return 0


def cases_asked(arguments: argparse.Namespace) -> tuple[Sequence[SimulationCase | MachineCase], list[str]]:
    """Returns the cases that a command line asks for, and what the reader should know. Raises as answers.cases_of."""
    from hocket.answers import cases_of, check_no_topology, machine_cases

    if arguments.machine:
        names = ("link", "reduce", "overhead", "groups", "dims", "level", "trace")
        check_no_topology({f"--{name}": getattr(arguments, name) for name in names})
        return machine_cases(
            arguments.collective,
            arguments.machine,
            algorithms=arguments.algorithm.split(",") if arguments.algorithm else (),
            protocol=arguments.protocol,
            sizes=arguments.bytes or (),
            rank_counts=arguments.ranks or (),
            root=arguments.root,
        ), []
    if arguments.protocol:
        raise ValueError(f"--protocol: expected --machine, whose library has protocols; found {arguments.protocol!r}")
    return cases_of(
        arguments.collective,
        arguments.topology,
        algorithms=arguments.algorithm.split(",") if arguments.algorithm else (),
        sizes=arguments.bytes or (),
        rank_counts=arguments.ranks or (),
        links=arguments.link,
        reduce=arguments.reduce,
        overhead=arguments.overhead,
        level=arguments.level,
        root=arguments.root,
        groups=arguments.groups,
        dims=arguments.dims,
    )
