"""Networks without switches, or with one: line, ring, mesh, torus, hypercube, fully connected, one switch.

In all but the last two, ranks pass on the traffic of others; ways are found in dimension order.
"""

import math
from collections.abc import Sequence

import numpy as np

from hocket.errors import TopologyError
from hocket.network.drawing import Drawing
from hocket.network.links import Link
from hocket.network.routing import DimensionOrder, ShortestPath
from hocket.network.topology import Routing, Topology


def grid(
    shape: Sequence[int], rings: Sequence[bool], link: Link, *, name: str, routing: Routing | None = None
) -> Topology:
    """Ranks at the points of a grid, numbered with the last axis fastest, each joined with the next along every axis.

    rings: which axes are closed to rings. A ring of two is one cable.
    """
    if not shape or min(shape) < 1:
        raise TopologyError(f"{name}: expected sizes of 1 or more along every axis, found {'x'.join(map(str, shape))}")
    drawing = Drawing(name)
    ranks = drawing.nodes("rank", math.prod(shape))
    numbers = ranks.reshape(shape)
    for axis, size in enumerate(shape):
        if size > 1:
            along = np.moveaxis(numbers, axis, 0)
            drawing.cable(along[:-1], along[1:], link)
            if rings[axis] and size > 2:
                drawing.cable(along[-1], along[0], link)
    return drawing.topology(
        ranks,
        routing or DimensionOrder(tuple(shape), tuple(rings)),
        axes=[f"axis {axis}" for axis in range(len(shape))],
        coordinates=np.stack(np.unravel_index(ranks, shape), axis=1),
    )


def fully_connected(num_ranks: int, link: Link, *, name: str) -> Topology:
    """A cable between every two ranks."""
    drawing = Drawing(name)
    ranks = drawing.nodes("rank", _at_least_1(num_ranks, name), forwards=False)
    drawing.clique(ranks, link)
    return drawing.topology(ranks, ShortestPath())


def one_switch(num_ranks: int, link: Link, *, name: str, reduces: bool = False) -> Topology:
    """Every rank on one switch that does not block. reduces: whether it reduces and multicasts."""
    drawing = Drawing(name)
    ranks = drawing.nodes("rank", _at_least_1(num_ranks, name), forwards=False)
    drawing.cable(ranks, drawing.nodes("switch", 1, reducing=reduces), link)
    return drawing.topology(ranks, ShortestPath())


def _at_least_1(num_ranks: int, name: str) -> int:
    if num_ranks < 1:
        raise TopologyError(f"{name}: expected 1 rank or more, found {num_ranks}")
    return num_ranks
