"""Reads SimAI's topology text: counts, the numbers of the switches, then five words for each cable."""

import re
from collections import Counter

import numpy as np

from hocket.errors import TopologyError
from hocket.network.drawing import Drawing
from hocket.network.links import Link, bytes_per_second, seconds
from hocket.network.routing import ShortestPath
from hocket.network.topology import Topology


def from_simai(text: str, name: str) -> Topology:
    """Returns the network of the text; GPUs are ranks, in order. Raises a TopologyError that names the wrong line.

    First: number of nodes, GPUs per server, NVSwitches, other switches, cables; type of GPU. Then the numbers of all
    switches, NVSwitches first; GPUs have the numbers before them. The rest are cables with two directions: "source
    target 400Gbps 0.0005ms error". The class of a cable is nvswitch at an NVSwitch, nvlink between GPUs, else nic.
    SimAI reads word by word, so lines may end anywhere.
    """
    words = [(word, number) for number, line in enumerate(text.splitlines(), 1) for word in line.split()]
    num_nodes, _, num_nvswitches, num_others, num_cables = (int(word) for word, _ in words[:5])
    num_switches = num_nvswitches + num_others
    num_gpus = num_nodes - num_switches
    if num_gpus < 1:
        raise TopologyError(
            f"{name}, line {words[0][1]}: expected more nodes than switches, found {num_nodes} nodes and "
            f"{num_switches} switches"
        )
    found_switches = [*words[6:], ("end of text", words[-1][1])]
    for expected, (word, number) in zip(range(num_gpus, num_nodes), found_switches, strict=False):
        if word != str(expected):
            raise TopologyError(
                f"{name}, line {number}: expected switches {num_gpus} to {num_nodes - 1}, given by line "
                f"{words[0][1]}; found {word!r} in place of {expected}"
            )
    of_cables = words[6 + num_switches :]
    if len(of_cables) != 5 * num_cables:
        odd = [number for number, count in Counter(number for _, number in of_cables).items() if count % 5]
        raise TopologyError(
            f"{name}: expected {num_cables} cables of five words, given by line {words[0][1]}; found {len(of_cables)} "
            "words" + (f"; look at line {odd[0]}" if odd else "")
        )
    drawing = Drawing(name)
    gpus = drawing.nodes("gpu", num_gpus, forwards=False)
    drawing.nodes("nvswitch", num_nvswitches)
    drawing.nodes("switch", num_others)
    kind = np.repeat(["gpu", "nvswitch", "switch"], [num_gpus, num_nvswitches, num_others])
    for first in range(0, len(of_cables), 5):
        where = f"{name}, line {of_cables[first][1]}"
        cable = [word for word, _ in of_cables[first : first + 5]]
        source, target, bandwidth, latency, _ = cable
        if not re.fullmatch(r"[\d.]+[kMGT]?bps", bandwidth):
            raise TopologyError(f"{where}: expected 'source target 400Gbps 0.0005ms error', found {' '.join(cable)!r}")
        ends = [_number(word, num_nodes, where) for word in (source, target)]
        kinds = {str(kind[end]) for end in ends}
        link_class = "nvswitch" if "nvswitch" in kinds else "nvlink" if kinds == {"gpu"} else "nic"
        try:
            link = Link(link_class, bytes_per_second(bandwidth), seconds(latency))
        except TopologyError as error:
            raise TopologyError(f"{where}: {error}") from None
        if link.bytes_per_second <= 0 or link.seconds < 0:
            raise TopologyError(
                f"{where}: expected a bandwidth above 0 and a latency of 0 or more, found {bandwidth} and {latency}"
            )
        drawing.cable(ends[0], ends[1], link)
    return drawing.topology(gpus, ShortestPath())


def _number(word: str, num_nodes: int, where: str) -> int:
    if not word.isdecimal() or int(word) >= num_nodes:
        raise TopologyError(f"{where}: unknown node {word!r}; the nodes are 0 to {num_nodes - 1}")
    return int(word)
