"""`hocket optimum`: prints the best bandwidth of a collective on a network, and writes a schedule that reaches it."""

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.answers import Answer
    from hocket.schedule import Schedule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket optimum`."""
    from hocket.cli.argument_types import collective_name
    from hocket.cli.network_arguments import add_network

    parser.epilog = "For example: hocket optimum all_gather --topology dgx-a100:2 --msccl all_gather.xml"
    parser.add_argument("collective", type=collective_name, metavar="COLLECTIVE", help="for example all_gather")
    add_network(parser)
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="use only the first N ranks of the topology")
    parser.add_argument("--root", type=int, metavar="R", help="the root of a rooted collective (default 0)")
    parser.add_argument(
        "--forwarding", action="store_true", help="accelerators that are no ranks may forward, such as idle ones"
    )
    parser.add_argument(
        "--msccl", metavar="FILE.xml", help="also make a schedule that reaches it, prove it, and write it as MSCCL XML"
    )
    steps = parser.add_argument_group("schedules step by step, between ranks that are linked directly")
    found = steps.add_mutually_exclusive_group()
    found.add_argument(
        "--tuple",
        type=_tuple,
        metavar="C,S,R",
        help="search a schedule of C chunks per block, S steps and R rounds, or prove that there is none (needs z3)",
    )
    found.add_argument(
        "--matching", type=int, metavar="C", help="a schedule of few steps, with C chunks per block, by greedy matching"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _tuple(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected C,S,R, for example 6,3,7; found {text!r}")
    chunks, steps, rounds = map(int, parts)
    return chunks, steps, rounds


def run(arguments: argparse.Namespace) -> int:
    """Prints the optimum. Raises ValueError for a bad argument, TopologyError for an impossible network."""
    from hocket.answers import Synthesis, optimum, synthesise
    from hocket.cli.writable import check_writable

    if arguments.msccl is not None:
        check_writable(arguments.msccl)
    if arguments.tuple is not None or arguments.matching is not None:
        return _step_by_step(arguments)
    find = optimum if arguments.msccl is None else synthesise
    found = find(arguments.collective, arguments.ranks, **_network_of(arguments), forwarding=arguments.forwarding)
    _report(found, arguments, found.schedule if isinstance(found, Synthesis) else None, "synthesised")
    return 0


def _report(found: "Answer", arguments: argparse.Namespace, schedule: "Schedule | None", name: str) -> None:
    """Prints an answer, and writes its schedule if a file is asked for. What cannot be written is not printed."""
    from hocket.cli.writable import say_written
    from hocket.schedule import msccl
    from hocket.view import Terminal, saving

    text = None if schedule is None or arguments.msccl is None else msccl.write(schedule, name)
    if arguments.json:
        print(json.dumps(found.as_json()))
    else:
        found.print(Terminal())
    if text is not None:
        saving.write(arguments.msccl, text)
        say_written(arguments.msccl)


def _network_of(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"topology": arguments.topology, "root": arguments.root, "links": arguments.link}


def _step_by_step(arguments: argparse.Namespace) -> int:
    """Prints what --tuple or --matching finds. Returns 1 if there is no such schedule."""
    from hocket.answers import stepwise

    if arguments.forwarding:
        raise ValueError("--forwarding: only ranks take part in --tuple and --matching; leave it out")
    steps = {"rounds": arguments.tuple, "chunks": arguments.matching}
    found = stepwise(arguments.collective, arguments.ranks, **_network_of(arguments), **steps)
    _report(found, arguments, found.schedule, found.method)
    return 1 if found.schedule is None else 0
