"""`hocket show topology`: what a network is made of, and how its devices reach each other, as `nvidia-smi topo -m`."""

import argparse
import json


def add_arguments(topology: argparse._ArgumentGroup) -> None:
    """Declares what `hocket show topology` takes besides --json."""
    topology.description = (
        "a network and how its devices reach each other, as: hocket show topology --topology dgx-a100:1"
    )
    topology.add_argument("--topology", metavar="KIND:ARGS", help="a kind of network, or a file; without it: all kinds")


def run(arguments: argparse.Namespace) -> int:
    """Prints nodes, links and the matrix, or one JSON object. Returns 0."""
    from hocket.network import load
    from hocket.view import facts_of, print_topology

    if arguments.topology is None:
        _print_kinds(as_json=arguments.json)
        return 0
    topology = load(arguments.topology)
    facts = facts_of(topology)
    if arguments.json:
        print(json.dumps(facts))
    else:
        print_topology(facts)
    return 0


def _print_kinds(*, as_json: bool) -> None:
    from hocket.network import KINDS

    if as_json:
        print(json.dumps({"kinds": {name: {"usage": kind.usage, "about": kind.about} for name, kind in KINDS.items()}}))
        return
    for name, kind in KINDS.items():
        print(f"{name}:{kind.usage}\n    {kind.about}")
    print("INNER@OUTER\n    the network INNER at each rank of OUTER, as dgx-h100:1@torus:4x4")
