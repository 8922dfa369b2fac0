"""`hocket show mesh`: draws a mesh of ranks and lists its groups, and which groups span several nodes.

Ranks fill one node after the other. The command starts no ranks and does not need the compiled core.
"""

import argparse
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.runtime import Cartesian

_MAX_RANKS = 1 << 17
_EXAMPLE = "hocket show mesh --nodes 2 --axes pp=2,dp=2,tp=4"


def add_arguments(mesh: argparse._ArgumentGroup) -> None:
    """Declares what `hocket show mesh` takes besides --json."""
    mesh.description = f"the groups of a mesh and their ranks, for example: {_EXAMPLE}"
    mesh.add_argument(
        "--axes", metavar="A=N,...", help="the axes and their sizes; consecutive ranks differ along the last axis"
    )
    mesh.add_argument("--nodes", type=int, metavar="N", help="number of nodes that share the ranks evenly (default 1)")


def run(arguments: argparse.Namespace) -> int:
    """Prints the picture and the table, or one JSON object. Returns 0."""
    from hocket.view import PlacedMesh, Terminal, name_axes, name_count, print_mesh

    topology = _parse(arguments.axes)
    num_nodes = 1 if arguments.nodes is None else arguments.nodes
    if num_nodes < 1 or topology.size % num_nodes:
        allowed = [n for n in range(1, topology.size + 1) if topology.size % n == 0]
        named = ", ".join(map(str, allowed if len(allowed) <= 12 else [*allowed[:11], "..."]))
        raise ValueError(
            f"{name_count(num_nodes, 'node')} cannot share the {name_count(topology.size, 'rank')} of "
            f"{name_axes(topology)} evenly; set --nodes to one of {named}, or change --axes"
        )
    placed = PlacedMesh(topology, num_nodes)
    if arguments.json:
        print(json.dumps(placed.as_json()))
    else:
        print_mesh(Terminal(), placed)
    return 0


def _parse(text: str | None) -> "Cartesian":
    """Returns the grid in "pp=2,dp=2,tp=4"."""
    from hocket.runtime import Cartesian
    from hocket.view import name_axes

    if not text:
        raise ValueError(f"expected --axes; for example: {_EXAMPLE}")
    dims: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = (piece.strip() for piece in part.partition("="))
        if not axis.isidentifier() or not (size.isascii() and size.isdecimal()) or int(size) < 1:
            raise ValueError(f"{part.strip()!r} is not an axis with a size; for example: --axes pp=2,dp=2,tp=4")
        if axis in dims:
            raise ValueError(f"axis {axis} appears twice in {text!r}; name each axis once: --axes pp=2,dp=2,tp=4")
        dims[axis] = int(size)
    topology = Cartesian(dims)
    if topology.size > _MAX_RANKS:
        raise ValueError(f"expected at most {_MAX_RANKS} ranks, found {topology.size} in {name_axes(topology)}")
    return topology
