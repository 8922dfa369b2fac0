"""`hocket optimum`: prints the best bandwidth of a collective on a network, and writes a schedule that reaches it."""

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket optimum`."""
    from hocket.cli.argument_types import collective_name
    from hocket.cli.network_arguments import add_network

    parser.epilog = "For example: hocket optimum all_gather --topology dgx-a100:2 --msccl all_gather.xml"
    parser.add_argument("collective", type=collective_name, metavar="COLLECTIVE", help="for example all_gather")
    add_network(parser, required=True)
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="use only the first N ranks of the topology")
    parser.add_argument("--root", type=int, metavar="R", help="the root of a rooted collective (default 0)")
    parser.add_argument(
        "--forwarding", action="store_true", help="accelerators that are no ranks may forward, such as idle ones"
    )
    parser.add_argument(
        "--msccl", metavar="FILE.xml", help="also make a schedule that reaches it, prove it, and write it as MSCCL XML"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Prints the optimum. Raises ValueError for a bad argument, TopologyError for an impossible network."""
    from hocket.answers import optimum, synthesise
    from hocket.cli.writable import check_writable, say_written
    from hocket.view import Terminal, saving

    if arguments.msccl is not None:
        check_writable(arguments.msccl)
    find = optimum if arguments.msccl is None else synthesise
    found = find(
        arguments.collective,
        arguments.ranks,
        topology=arguments.topology,
        root=arguments.root,
        links=arguments.link,
        forwarding=arguments.forwarding,
    )
    if arguments.json:
        print(json.dumps(found.as_json()))
    else:
        found.print(Terminal())
    if arguments.msccl is not None:
        from hocket.answers import Synthesis
        from hocket.schedule import msccl

        assert isinstance(found, Synthesis)
        saving.write(arguments.msccl, msccl.write(found.schedule, found.algorithm.name))
        say_written(arguments.msccl)
    return 0
