"""Reads Slurm's topology.conf (topology/tree), and what `scontrol show topology` prints: what is below each switch."""

import re
from collections.abc import Iterator

from hocket.errors import TopologyError
from hocket.network.drawing import Drawing
from hocket.network.files.host_list import expand_host_list
from hocket.network.links import LINKS
from hocket.network.routing import ShortestPath
from hocket.network.topology import Topology

_LINK = LINKS["infiniband-ndr"]
_ENTRY = re.compile(r"(\w+)\s*=\s*(?:\"([^\"]*)\"|([^\s\"]+))\s*")
_KEYS = {"switchname", "switches", "nodes", "linkspeed", "level"}


def from_slurm(text: str, name: str) -> Topology:
    """Returns the network of the text; its nodes are ranks, in order. Raises a TopologyError that names the wrong line.

    The file has no constants of links that a simulation could use (LinkSpeed has no unit), so every cable is
    infiniband-ndr; change that with Topology.with_links.
    """
    below: dict[str, list[str]] = {}
    nodes: dict[str, None] = {}
    for number, line in _lines(text):
        where = f"{name}, line {number}"
        entries = {found[1].lower(): found[2] or found[3] or "" for found in _ENTRY.finditer(line)}
        if _ENTRY.sub("", line) or entries.keys() - _KEYS or "switchname" not in entries:
            raise TopologyError(
                f"{where}: expected SwitchName=, Switches=, Nodes=, LinkSpeed= of topology/tree; found {line!r}"
            )
        switch = entries["switchname"]
        if switch in below:
            raise TopologyError(f"{where}: switch {switch} appears twice")
        children = expand_host_list(entries.get("switches", ""), where)
        hosts = expand_host_list(entries.get("nodes", ""), where)
        if "level" in entries and children:
            hosts = []  # scontrol also lists the nodes that are below the switches of this switch
        nodes.update(dict.fromkeys(hosts))
        below[switch] = list(dict.fromkeys([*children, *hosts]))  # a name that is listed twice is one cable
    drawing = Drawing(name)
    names = [*nodes, *below]
    ranks = drawing.nodes("host", len(nodes), forwards=False)
    drawing.nodes("switch", len(below))
    numbers = {node: number for number, node in enumerate(names)}
    for switch, children in below.items():
        for child in children:
            if child not in numbers:
                raise TopologyError(f"{name}: switch {switch} has an unknown switch {child!r} below it")
            drawing.cable(numbers[switch], numbers[child], _LINK)
    return drawing.topology(ranks, ShortestPath(), names=names)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields each line without its comment, with the number of its first part; after a backslash, it goes on."""
    begun = ""
    for number, line in enumerate(text.splitlines(), 1):
        part = line.partition("#")[0].strip()
        if not begun:
            first = number
        begun += part.removesuffix("\\")
        if begun and not part.endswith("\\"):
            yield first, begun
            begun = ""
    if begun:
        yield first, begun
