"""`hocket show mesh`: who is in which group with which rank: a picture, a table of all groups, and which cross nodes.

Ranks fill one node after the other. Nothing has to be compiled or started for it.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.cli.selection import name_count
from hocket.runtime.mesh import Cartesian

if TYPE_CHECKING:
    from rich.text import Text

_MAX_WIDTH = 100
_MAX_RANKS = 1 << 17
_MAX_LISTED = 128  # ranks of one axis in the table
_MAX_MEMBERS = 64  # of one group there
_EXAMPLE = "hocket show mesh --nodes 2 --axes pp=2,dp=2,tp=4"


def add_arguments(mesh: argparse._ArgumentGroup) -> None:
    """Declares what `hocket show mesh` takes besides --json."""
    mesh.description = f"who is in which group, as: {_EXAMPLE}"
    mesh.add_argument("--axes", metavar="A=N,...", help="the axes and their sizes; the last varies fastest over ranks")
    mesh.add_argument("--nodes", type=int, metavar="N", help="how many nodes share the ranks evenly (default 1)")


def run(arguments: argparse.Namespace) -> int:
    """Prints the picture and the table, or one JSON object. Returns 0."""
    topology = _parse(arguments.axes)
    num_nodes = 1 if arguments.nodes is None else arguments.nodes
    if num_nodes < 1 or topology.size % num_nodes:
        allowed = [n for n in range(1, topology.size + 1) if topology.size % n == 0]
        named = ", ".join(map(str, allowed if len(allowed) <= 12 else [*allowed[:11], "..."]))
        raise ValueError(
            f"{name_count(num_nodes, 'node')} cannot share the {name_count(topology.size, 'rank')} of "
            f"{_product(topology)} evenly; type --nodes with one of {named}, or other --axes"
        )
    placed = _Placed(topology, num_nodes)
    if arguments.json:
        print(json.dumps(placed.as_json()))
    else:
        _print(placed)
    return 0


def _parse(text: str | None) -> Cartesian:
    """The grid from "pp=2,dp=2,tp=4"."""
    if not text:
        raise ValueError(f"expected --axes; type for example: {_EXAMPLE}")
    dims: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = (piece.strip() for piece in part.partition("="))
        if not axis.isidentifier() or not (size.isascii() and size.isdecimal()) or int(size) < 1:
            raise ValueError(f"{part.strip()!r} is no axis with a size; type for example: --axes pp=2,dp=2,tp=4")
        if axis in dims:
            raise ValueError(f"axis {axis} stands twice in {text!r}; type each axis once: --axes pp=2,dp=2,tp=4")
        dims[axis] = int(size)
    topology = Cartesian(dims)
    if topology.size > _MAX_RANKS:
        raise ValueError(f"expected at most {_MAX_RANKS} ranks, found {topology.size} of {_product(topology)}")
    return topology


def _product(topology: Cartesian) -> str:
    return " x ".join(f"{axis}={size}" for axis, size in topology.dims.items())


@dataclass(frozen=True)
class _Placed:
    """A grid over nodes that have equally many devices each; ranks fill one node after the other."""

    topology: Cartesian
    num_nodes: int

    @property
    def num_devices(self) -> int:
        """Of one node."""
        return self.topology.size // self.num_nodes

    def crossing(self, axis: str) -> list[list[int]]:
        """The groups of an axis that have members in several nodes."""
        groups = self.topology.groups(axis)
        return [group for group in groups if group[0] // self.num_devices != group[-1] // self.num_devices]

    def as_json(self) -> dict[str, Any]:
        axes = self.topology.axes
        return {
            "axes": self.topology.dims,
            "num_ranks": self.topology.size,
            "num_nodes": self.num_nodes,
            "devices_per_node": self.num_devices,
            "ranks": [
                {
                    "rank": rank,
                    "node": rank // self.num_devices,
                    "device": rank % self.num_devices,
                    "coords": self.topology.coords(rank),
                }
                for rank in range(self.topology.size)
            ],
            "groups": {axis: self.topology.groups(axis) for axis in axes},
            "crossing_nodes": {axis: self.crossing(axis) for axis in axes},
        }


def _print(placed: _Placed) -> None:
    from rich.table import Table

    from hocket.cli.mesh_picture import Picture
    from hocket.cli.terminal import Terminal

    console = Terminal()
    console.width = min(console.width, _MAX_WIDTH)
    topology, names = placed.topology, ",".join(placed.topology.axes)
    ranks, nodes = name_count(topology.size, "rank"), name_count(placed.num_nodes, "node")
    devices = name_count(placed.num_devices, "device")
    console.print(f"[bold]mesh {_product(topology)}[/]: {ranks} on {nodes} of {devices}")
    console.print()
    picture = Picture(topology, placed.num_nodes, console.width)
    picture.print(console)
    if picture.num_ranks < topology.size:
        console.print(f"... and {name_count(topology.size - picture.num_ranks, 'more rank')}; --json has all")
    console.print()
    console.print(f"A cell: the global rank; below it ({names}), its rank in its group of each axis.", style="dim")
    others = " Links: neighbours along another axis, where they stand side by side." if len(topology.axes) > 1 else ""
    console.print(f"A heavy frame: a group of {picture.framed}.{others}", style="dim")

    table = Table("axis", "groups, by global rank", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for axis in reversed(topology.axes):
        groups = topology.groups(axis)
        num_shown = min(len(groups), max(1, _MAX_LISTED // len(groups[0])))
        more = f"\n... and {name_count(len(groups) - num_shown, 'more group')}; --json has all"
        table.add_row(
            axis, _verbatim("  ".join(map(_list, groups[:num_shown])) + (more if num_shown < len(groups) else ""))
        )
    console.print()
    console.print(table)
    console.print()
    console.print("A rank's place in a list, from 0, is its rank in that group.", style="dim")
    console.print(_crossings(placed), markup=False)


def _list(group: Sequence[int]) -> str:
    named = [str(rank) for rank in group]
    return f"[{','.join(named if len(named) <= _MAX_MEMBERS else [*named[:8], '...', named[-1]])}]"


def _verbatim(text: str) -> "Text":
    from rich.text import Text

    return Text(text)  # brackets are no markup here


def _crossings(placed: _Placed) -> str:
    crossing, inside = [], []
    for axis in placed.topology.axes:
        num_crossing, num_groups = len(placed.crossing(axis)), len(placed.topology.groups(axis))
        if num_crossing:
            which = "" if num_crossing == num_groups else f"{num_crossing} of "
            crossing.append(f"{axis} ({which}{name_count(num_groups, 'group')})")
        else:
            inside.append(axis)
    crossed = f"Groups that cross nodes: {', '.join(crossing) or 'none'}."
    return crossed + (f" Inside a node: {', '.join(inside)}." if inside else "")
