"""Prints a mesh over nodes: its picture, the table of all groups, and which groups cross nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.runtime import Cartesian
from hocket.view.words import name_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_MAX_WIDTH = 100


_MAX_LISTED = 128  # ranks per axis in the table


_MAX_MEMBERS = 64  # ranks per group in the table


def name_axes(topology: Cartesian) -> str:
    """Returns for example "dp=2 x tp=4"."""
    return " x ".join(f"{axis}={size}" for axis, size in topology.dims.items())


@dataclass(frozen=True)
class PlacedMesh:
    """A grid over nodes with equal numbers of devices; ranks fill one node after the other."""

    topology: Cartesian
    num_nodes: int

    @property
    def num_devices(self) -> int:
        """The devices of one node."""
        return self.topology.size // self.num_nodes

    def crossing(self, axis: str) -> list[list[int]]:
        """Returns the groups of an axis that have members in several nodes."""
        groups = self.topology.groups(axis)
        return [group for group in groups if group[0] // self.num_devices != group[-1] // self.num_devices]

    def as_json(self) -> dict[str, Any]:
        """Returns all ranks, groups, and groups that cross nodes, as plain values."""
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


def print_mesh(console: "Console", placed: PlacedMesh) -> None:
    """Prints the picture, the table of all groups, and which groups cross nodes."""
    from rich.table import Table

    from hocket.view.networks.mesh_picture import Picture

    console.soft_wrap = False  # long lists of groups go on below each other
    console.width = min(console.width, _MAX_WIDTH)
    topology, names = placed.topology, ",".join(placed.topology.axes)
    ranks, nodes = name_count(topology.size, "rank"), name_count(placed.num_nodes, "node")
    devices = name_count(placed.num_devices, "device")
    console.print(f"[bold]mesh {name_axes(topology)}[/]: {ranks} on {nodes} of {devices}")
    console.print()
    picture = Picture(topology, placed.num_nodes, console.width)
    picture.print(console)
    if picture.num_ranks < topology.size:
        console.print(f"... and {name_count(topology.size - picture.num_ranks, 'more rank')}; --json has all")
    console.print()
    console.print(f"A cell: the global rank; below it ({names}), its coordinate along each axis.", style="dim")
    others = " Links: neighbours along another axis, if drawn side by side." if len(topology.axes) > 1 else ""
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
    console.print("A rank's position in a list, counted from 0, is its rank in that group.", style="dim")
    console.print(_crossings(placed), markup=False)


def _list(group: Sequence[int]) -> str:
    named = [str(rank) for rank in group]
    return f"[{','.join(named if len(named) <= _MAX_MEMBERS else [*named[:8], '...', named[-1]])}]"


def _verbatim(text: str) -> "Text":
    from rich.text import Text

    return Text(text)  # so that brackets are not read as markup


def _crossings(placed: PlacedMesh) -> str:
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
