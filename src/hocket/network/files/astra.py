"""Reads ASTRA-sim's network.yml: one building block per dimension; NPU numbers grow fastest along the first."""

import math
from typing import Any

import numpy as np

from hocket.errors import TopologyError, did_you_mean
from hocket.network.drawing import Drawing
from hocket.network.links import Link
from hocket.network.routing import DimensionOrder, ShortestPath
from hocket.network.topology import Routing, Topology

_BLOCKS = ("Ring", "FullyConnected", "Switch")
_GB = 2.0**30  # ASTRA-sim's GB
_KEYS = ("topology", "npus_count", "bandwidth", "latency")


def from_astra(entries: dict[str, Any], name: str) -> Topology:
    """Returns the network of the file's entries; NPUs are ranks. Raises a TopologyError that names the wrong entry.

    topology: for each dimension Ring (both directions), FullyConnected or Switch. npus_count, bandwidth (GB/s of 2^30
    bytes), latency (ns): one per dimension. Traffic to the opposite point of a ring goes up, as in ASTRA-sim.
    """
    counts = entries.get("npus_count")
    if not isinstance(counts, list) or not counts or not all(type(count) is int and count > 0 for count in counts):
        raise TopologyError(f"{name}: expected positive whole numbers as npus_count, found {counts!r}")
    for key in _KEYS:
        if not isinstance(entries.get(key), list) or len(entries[key]) != len(counts):
            raise TopologyError(
                f"{name}: expected {key} with one value for each dimension of npus_count, found {entries.get(key)!r}"
            )
    for key in ("bandwidth", "latency"):
        for value in entries[key]:
            number = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else value
            if not 0 <= number < math.inf or (number == 0 and key == "bandwidth"):
                raise TopologyError(f"{name}: expected positive numbers as {key}, found {value!r}")
    shape = counts[::-1]
    drawing = Drawing(name)
    ranks = drawing.nodes("npu", math.prod(shape))
    numbers = ranks.reshape(shape)
    for dimension, block in enumerate(entries["topology"]):
        axis = len(shape) - 1 - dimension
        link = Link("nic", entries["bandwidth"][dimension] * _GB, entries["latency"][dimension] * 1e-9)
        along = np.moveaxis(numbers, axis, 0).reshape(shape[axis], -1)
        kind = str(block).lower()  # ASTRA-sim's own spelling is in _BLOCKS
        if kind == "ring":
            drawing.cable(along[:-1], along[1:], link)
            if len(along) > 2:
                drawing.cable(along[-1], along[0], link)
        elif kind == "fullyconnected":
            drawing.clique(along.T, link)
        elif kind == "switch":
            drawing.cable(along, drawing.nodes("switch", along.shape[1]), link)
        else:
            raise TopologyError(
                f"{name}: expected topology of {', '.join(_BLOCKS)}; found {block!r}{did_you_mean(block, _BLOCKS)}"
            )
    routing: Routing = ShortestPath()
    if {block.lower() for block in entries["topology"]} == {"ring"}:
        routing = DimensionOrder(tuple(shape), (True,) * len(shape), ties="up")
    return drawing.topology(
        ranks,
        routing,
        axes=[f"dimension {len(shape) - axis}" for axis in range(len(shape))],
        coordinates=np.stack(np.unravel_index(ranks, shape), axis=1),
    )
