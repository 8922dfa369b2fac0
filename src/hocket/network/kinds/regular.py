"""Networks with at most one switch: line, ring, mesh, torus, hypercube, fully connected, one switch.

In all but the last two, ranks forward traffic of others, and paths follow dimension order.
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
    """Returns ranks at the points of a grid, in row-major order, each linked to the next along every axis.

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
    """Returns ranks with a cable between every two of them."""
    drawing = Drawing(name)
    ranks = drawing.nodes("rank", _at_least_1(num_ranks, name), forwards=False)
    drawing.clique(ranks, link)
    return drawing.topology(ranks, ShortestPath())


def one_switch(num_ranks: int, link: Link, *, name: str, reduces: bool = False) -> Topology:
    """Returns ranks on one non-blocking switch. reduces: whether the switch reduces and multicasts."""
    drawing = Drawing(name)
    ranks = drawing.nodes("rank", _at_least_1(num_ranks, name), forwards=False)
    drawing.cable(ranks, drawing.nodes("switch", 1, reducing=reduces), link)
    return drawing.topology(ranks, ShortestPath())


def _at_least_1(num_ranks: int, name: str) -> int:
    if num_ranks < 1:
        raise TopologyError(f"{name}: expected 1 rank or more, found {num_ranks}")
    return num_ranks
