"""`hocket show topology`: prints the nodes and links of a network, and a matrix like that of `nvidia-smi topo -m`."""

import argparse
import json


def add_arguments(topology: argparse._ArgumentGroup) -> None:
    """Declares what `hocket show topology` takes besides --json."""
    from hocket.cli.network_arguments import OneNetwork

    topology.description = (
        "a network and how its devices reach each other, for example: hocket show topology dgx-a100:1"
    )
    topology.add_argument(
        "--topology",
        action=OneNetwork,
        metavar="KIND:ARGS",
        help="the same as KIND:ARGS alone; without both, list all kinds of network; or the network for which "
        "`hocket show synthesised` makes a schedule",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints nodes, links and the matrix, or one JSON object. Returns 0."""
    from hocket.answers import topology
    from hocket.cli.writable import say_written
    from hocket.view import Terminal, saving

    if arguments.subject and arguments.topology:
        raise ValueError(
            f"expected one network; found {arguments.subject} and --topology {arguments.topology}; leave one out"
        )
    named = arguments.subject or arguments.topology
    if named is None:
        _print_kinds(as_json=arguments.json)
        return 0
    network = topology(named)
    if arguments.svg == "-":
        print(network.svg(), end="")
    elif arguments.svg is not None:
        saving.write(arguments.svg, network.svg())
        say_written(arguments.svg)
    if arguments.json:
        print(json.dumps(network.as_json()))
    elif arguments.svg is None:
        network.print(Terminal())
    return 0


def _print_kinds(*, as_json: bool) -> None:
    from hocket.network import KINDS
    from hocket.view import Terminal

    if as_json:
        print(json.dumps({"kinds": {name: {"usage": kind.usage, "about": kind.about} for name, kind in KINDS.items()}}))
        return
    console = Terminal()
    for name, kind in KINDS.items():
        console.print(f"{name}:{kind.usage}\n    {kind.about}", markup=False)
    console.print("INNER@OUTER\n    a network INNER at each rank of OUTER, for example dgx-h100:1@torus:4x4")
