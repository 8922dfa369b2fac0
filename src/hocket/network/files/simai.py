"""Reads SimAI's topology text: a line of counts, a line of switches, then a line for each cable."""

import re

import numpy as np

from hocket.errors import TopologyError
from hocket.network.drawing import Drawing
from hocket.network.links import Link, bytes_per_second, seconds
from hocket.network.routing import ShortestPath
from hocket.network.topology import Topology


def from_simai(text: str, name: str) -> Topology:
    """Returns the network of the text; GPUs are ranks, in order. Raises a TopologyError that names the wrong line.

    Line 1: number of nodes, GPUs per server, NVSwitches, other switches, cables; type of GPU. Line 2: the numbers of
    all switches, NVSwitches first; GPUs have the numbers before them. Every other line is a cable with two directions:
    "source target 400Gbps 0.0005ms error". Its class is nvswitch at an NVSwitch, nvlink between GPUs, else nic.
    """
    lines = [line.split() for line in text.splitlines() if line.strip()]
    num_nodes, _, num_nvswitches, num_others, num_cables = (int(word) for word in lines[0][:5])
    num_gpus = num_nodes - num_nvswitches - num_others
    if num_gpus < 1:
        raise TopologyError(
            f"{name}, line 1: expected more nodes than switches, found {num_nodes} nodes and "
            f"{num_nvswitches + num_others} switches"
        )
    switches = [_number(word, num_nodes, f"{name}, line 2") for word in lines[1]] if len(lines) > 1 else []
    if switches != list(range(num_gpus, num_nodes)):
        raise TopologyError(
            f"{name}, line 2: expected switches {num_gpus} to {num_nodes - 1}, given by line 1; found {len(switches)}"
        )
    if len(lines) - 2 != num_cables:
        raise TopologyError(f"{name}: expected {num_cables} lines of cables, given by line 1; found {len(lines) - 2}")
    drawing = Drawing(name)
    gpus = drawing.nodes("gpu", num_gpus, forwards=False)
    drawing.nodes("nvswitch", num_nvswitches)
    drawing.nodes("switch", num_others)
    kind = np.repeat(["gpu", "nvswitch", "switch"], [num_gpus, num_nvswitches, num_others])
    for number, line in enumerate(lines[2:], 3):
        where = f"{name}, line {number}"
        if len(line) < 4 or not re.fullmatch(r"[\d.]+[kMGT]?bps", line[2]):
            raise TopologyError(f"{where}: expected 'source target 400Gbps 0.0005ms error', found {' '.join(line)!r}")
        ends = [_number(word, num_nodes, where) for word in line[:2]]
        kinds = {str(kind[end]) for end in ends}
        link_class = "nvswitch" if "nvswitch" in kinds else "nvlink" if kinds == {"gpu"} else "nic"
        try:
            link = Link(link_class, bytes_per_second(line[2]), seconds(line[3]))
        except TopologyError as error:
            raise TopologyError(f"{where}: {error}") from None
        if link.bytes_per_second <= 0 or link.seconds < 0:
            raise TopologyError(f"{where}: expected a bandwidth above 0 and a latency of 0 or more, found {line[2:4]}")
        drawing.cable(ends[0], ends[1], link)
    return drawing.topology(gpus, ShortestPath())


def _number(word: str, num_nodes: int, where: str) -> int:
    if not word.isdecimal() or int(word) >= num_nodes:
        raise TopologyError(f"{where}: unknown node {word!r}; the nodes are 0 to {num_nodes - 1}")
    return int(word)
