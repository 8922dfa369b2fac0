"""Reads Slurm's topology.conf (topology/tree), and what `scontrol show topology` prints: what is below each switch."""

import re
from collections.abc import Iterator

from hocket.errors import TopologyError
from hocket.network.drawing import Drawing
from hocket.network.links import LINKS
from hocket.network.routing import ShortestPath
from hocket.network.topology import Topology

_LINK = LINKS["infiniband-ndr"]
_MOST_HOSTS = 1 << 20
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
        children = _expanded(entries.get("switches", ""), where)
        hosts = _expanded(entries.get("nodes", ""), where)
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


def _expanded(text: str, where: str) -> list[str]:
    """Returns the names of a Slurm host list, for example "tux[0-3,7],login" or "rack[0-1]node[0-3]"."""
    parts = re.split(r"[,\s]+(?![^\[]*\])", text)  # outside of brackets
    return [name for part in parts if part for name in _expanded_part(part, where)]


def _expanded_part(part: str, where: str) -> Iterator[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\](.*)", part)
    if match is None:
        if "[" in part or "]" in part:
            raise TopologyError(f"{where}: expected a host list such as tux[0-3,7]; found {part!r}")
        yield part
        return
    behind = _expanded(match[3], where) or [""]
    for span in match[2].split(","):
        first, _, last = span.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()):
            raise TopologyError(f"{where}: expected numbers in {part!r}, found {span!r}")
        if not 0 <= int(last) - int(first) < _MOST_HOSTS:
            raise TopologyError(
                f"{where}: expected an ascending range of at most {_MOST_HOSTS} numbers, found {span!r}"
            )
        for number in range(int(first), int(last) + 1):
            yield from (f"{match[1]}{number:0{len(first)}}{rest}" for rest in behind)
