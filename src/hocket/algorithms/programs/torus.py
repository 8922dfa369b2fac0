"""Torus: ranks stand in a grid, and data goes along one axis after the other, between neighbours only.

Each axis comes first for an equal share of the data, so that the links of all axes are busy at the same time.
"""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from hocket.algorithms.programs.ring import ring_all_gather
from hocket.algorithms.registry import algorithm
from hocket.schedule import Builder, Schedule, compose

Dims = tuple[int, ...]


def grid(p: int, num_dims: int) -> Dims:
    """The lengths of a grid of p ranks, about equal where p has such divisors; the longest first."""
    if num_dims == 1:
        return (p,)
    shortest = next(one for one in range(round(p ** (1 / num_dims)), 0, -1) if p % one == 0 and one**num_dims <= p)
    return tuple(sorted((shortest, *grid(p // shortest, num_dims - 1)), reverse=True))


def _steps(p: int, dims: Dims) -> int:
    return sum(dims) - len(dims)


def _num_shares(p: int, dims: Dims) -> int:
    """How many axes go anywhere; 1 if none does."""
    return max(sum(length > 1 for length in dims), 1)


def _shares(dims: Dims) -> Iterator[tuple[Dims, npt.NDArray[np.int64]]]:
    """Of each share of the data: the axes in their order, and of each place in the grid of these the rank there."""
    lengths = [length for length in dims if length > 1] or [1]
    ranks = np.arange(math.prod(lengths)).reshape(lengths)
    for i in range(len(lengths)):
        order = [*range(i, len(lengths)), *range(i)]
        yield tuple(lengths[axis] for axis in order), ranks.transpose(order).ravel()


def _gathered(dims: Dims) -> Schedule:
    """all_gather along the last axis, then along the one before it, and so on: so blocks that move on lie together."""
    p, behind = math.prod(dims), math.prod(dims[1:])
    ring = ring_all_gather.build(dims[0])
    lines = [compose.on(ring, range(start, p, behind), p, collective="all_gather") for start in range(behind)]
    last = compose.beside(*lines)
    if len(dims) == 1:
        return last
    part = _gathered(dims[1:])
    slabs = [range(start, start + behind) for start in range(0, p, behind)]
    before = [compose.on(part, slab, p, chunks=slab, num_chunks=p, collective="all_gather") for slab in slabs]
    return compose.then(compose.beside(*before), last, collective="all_gather")


@algorithm(
    "all_gather",
    name="torus",
    chunks=lambda p, dims: p * _num_shares(p, dims),
    steps=_steps,
    sent=lambda p: (p - 1) / p,
    dims=lambda p: grid(p, 2),
)
def torus_all_gather(schedule: Builder) -> None:
    """Rings along one axis, then rings along the next one, in which all that came before goes on.

    Steps: X - 1 + Y - 1
    Sent: (P - 1) / P * N
    Best: large N on a torus, whose links only neighbours share: in fewer steps than one ring of all
    Ranks: any
    Reference: Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects", 2010

    One half of each block goes along x first and the other along y, so that both axes are busy at once. Grids of other
    dimensions will do as well; a prime number of ranks is one ring.
    """
    assert schedule.dims is not None
    p, shares = schedule.num_ranks, _num_shares(schedule.num_ranks, schedule.dims)
    parts = [
        compose.on(
            _gathered(dims),
            ranks.tolist(),
            p,
            chunks=(ranks * shares + share).tolist(),
            num_chunks=schedule.num_chunks,
            collective="all_gather",
        )
        for share, (dims, ranks) in enumerate(_shares(schedule.dims))
    ]
    schedule.include(compose.beside(*parts))


torus_reduce_scatter = algorithm(
    "reduce_scatter",
    name="torus",
    steps=_steps,
    sent=lambda p: (p - 1) / p,
    labels=("same_on_all_ranks",),
    doc="""The all_gather run backwards: rings along one axis add up what is for the others of each line, and so on.

    Steps: X - 1 + Y - 1
    Sent: (P - 1) / P * N
    Best: large N on a torus, whose links only neighbours share: in fewer steps than one ring of all
    Ranks: any
    Reference: Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects", 2010

    Shares, grids and prime numbers: as for all_gather.
    """,
)(torus_all_gather.reversed())


def _all_reduce(schedule: Builder) -> None:
    assert schedule.dims is not None
    p, parts = schedule.num_ranks, []
    for share, (dims, ranks) in enumerate(_shares(schedule.dims)):
        gather = _gathered(dims)
        whole, chunks = compose.then(compose.reversed(gather), gather), range(share * p, (share + 1) * p)
        parts.append(compose.on(whole, ranks.tolist(), p, chunks=chunks, num_chunks=schedule.num_chunks))
    schedule.include(compose.beside(*parts))


torus_all_reduce = algorithm(
    "all_reduce",
    name="torus",
    chunks=lambda p, dims: p * _num_shares(p, dims),
    steps=lambda p, dims: 2 * _steps(p, dims),
    sent=lambda p: 2 * (p - 1) / p,
    labels=("same_on_all_ranks",),
    dims=lambda p: grid(p, 2),
    doc="""reduce_scatter along x, all_reduce of what that leaves each rank along y, all_gather along x; all by rings.

    Steps: 2 * (X - 1 + Y - 1)
    Sent: 2 * (P - 1) / P * N
    Best: large N on a torus, whose links only neighbours share: in fewer steps than one ring of all
    Ranks: any
    Reference: Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects", 2010;
      Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", 2018

    One half of the data goes along x first and the other along y, so that both axes are busy at once. Grids of other
    dimensions will do as well; a prime number of ranks is one ring.
    """,
)(_all_reduce)


torus_3d_all_reduce = algorithm(
    "all_reduce",
    name="torus_3d",
    chunks=lambda p, dims: p * _num_shares(p, dims),
    steps=lambda p, dims: 2 * _steps(p, dims),
    sent=lambda p: 2 * (p - 1) / p,
    labels=("same_on_all_ranks",),
    dims=lambda p: grid(p, 3),
    doc="""As on a torus of two dimensions, on one of three: in along x, y and z, and back along z, y and x.

    Steps: 2 * (X - 1 + Y - 1 + Z - 1)
    Sent: 2 * (P - 1) / P * N
    Best: large N on a torus of three dimensions
    Ranks: any
    Reference: Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects", 2010

    One third of the data goes along x first, one along y, and one along z. Other grids: as for two dimensions.
    """,
)(_all_reduce)
