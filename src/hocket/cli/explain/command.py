"""`hocket explain`: explains which algorithm runs for a call, what it costs compared with the others, and why.

The numbers come from `hocket tune`: measured times, and costs fitted to them. --measure takes new times at this size.
Without measured times, predictions are rough estimates from the speed of this machine's cores and memory.
With --hosts it counts what goes between hosts. With --topology all costs are simulated on that network, with --machine
those of its GPU library.
"""

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket explain`."""
    from hocket.answers import DEFAULT_BYTES
    from hocket.cli.argument_types import add_hosts, add_layout, byte_count, collective_name
    from hocket.cli.network_arguments import add_topology

    parser.description = (
        "Explain which algorithm runs for a call, what each would cost, why this one runs, and at which sizes another "
        "one is the fastest."
    )
    parser.epilog = (
        "For example: hocket explain all_reduce -n 8 -b 64K. Costs come from hocket tune; before it has run, "
        "predictions are rough estimates from the speed of this machine's cores and memory."
    )
    parser.add_argument("collective", type=collective_name, metavar="COLLECTIVE", help="for example all_reduce")
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="number of ranks; with --topology, its first N")
    parser.add_argument(
        "-b",
        "--bytes",
        type=byte_count,
        metavar="B",
        help=f"size of the whole vector, for example 64K; not for barrier (default {DEFAULT_BYTES >> 20}M)",
    )
    parser.add_argument(
        "--algorithm", metavar="FILE.py:NAME,...", help="algorithms of your own, to compare with the built-in ones"
    )
    parser.add_argument("--measure", action="store_true", help="time the algorithms now, at this size")
    parser.add_argument("--ways", action="store_true", help="print by which ways the data travels between the ranks")
    add_hosts(parser, "with --ranks")
    add_topology(parser)
    add_layout(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Prints the explanation. Raises ValueError for a bad argument, HocketError if a measuring rank fails."""
    from hocket.answers import Answer, Explanation, explain

    others = [name for name in ("topology", "hosts", "machine") if getattr(arguments, name) is not None]
    if arguments.ways and others:
        raise ValueError(
            f"--ways tells how data travels on this host and excludes --{others[0]}; leave one of them out"
        )
    found: Answer = explain(
        arguments.collective,
        arguments.bytes,
        ranks=arguments.ranks,
        topology=arguments.topology,
        algorithm=arguments.algorithm or (),
        measure=arguments.measure,
        links=arguments.link,
        reduce=arguments.reduce,
        overhead=arguments.overhead,
        groups=arguments.groups,
        dims=arguments.dims,
        hosts=arguments.hosts,
        machine=arguments.machine or "",
        protocol=arguments.protocol,
    )
    if arguments.ways and isinstance(found, Explanation):
        found = found.ways()
    if arguments.json:
        print(json.dumps(found.as_json()))
    else:
        from hocket.view import Terminal

        found.print(Terminal())
    return 0
