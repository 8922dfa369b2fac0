"""A grid of ranks: pure arithmetic on coordinates, neighbours and groups.

The last axis varies fastest (row-major), as in MPI_Cart_create and PyTorch's DeviceMesh. Ranks are never reordered to
fit a machine.
"""

import itertools
import math
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hocket.errors import did_you_mean


@dataclass(frozen=True, init=False, repr=False)
class Cartesian:
    """A grid of ranks: `dims` gives the number of ranks along each axis, in order; `periodic` axes are rings.

    Attributes: axes (their names), shape (their sizes), periodic (the axes that are rings, in the order of axes).
    Raises ValueError or TypeError for arguments that make no grid, and for axes and ranks that are not in the grid.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    periodic: tuple[str, ...]

    def __init__(self, dims: Mapping[str, int], periodic: Collection[str] = ()) -> None:
        if not isinstance(dims, Mapping):
            raise TypeError(f"dims is {dims!r}; expected sizes by axis, such as {{'dp': 2, 'tp': 4}}")
        if not dims:
            raise ValueError("dims is empty; expected at least one axis, such as {'dp': 2, 'tp': 4}")
        for axis, size in dims.items():
            if not isinstance(axis, str) or not axis:
                raise TypeError(f"expected the name of an axis as text, found {axis!r}")
            if _as_int(size, f"the size of axis {axis}") < 1:
                raise ValueError(f"expected at least 1 rank along axis {axis}, found {size!r}")
        if isinstance(periodic, str) or not isinstance(periodic, Collection):
            axis = periodic if isinstance(periodic, str) else next(iter(dims))
            raise TypeError(f"periodic is {periodic!r}; expected a collection of axes, such as ({axis!r},)")
        object.__setattr__(self, "axes", tuple(dims))
        object.__setattr__(self, "shape", tuple(operator.index(size) for size in dims.values()))
        rings = self._known(tuple(periodic))
        object.__setattr__(self, "periodic", rings)

    @property
    def size(self) -> int:
        """The number of ranks in the grid."""
        return math.prod(self.shape)

    @property
    def dims(self) -> dict[str, int]:
        """The number of ranks along each axis."""
        return dict(zip(self.axes, self.shape, strict=True))

    def coords(self, rank: int) -> dict[str, int]:
        """Returns the coordinates of a rank: its number along each axis, from 0."""
        left = self._checked(rank)
        found = []
        for size in reversed(self.shape):
            left, along = divmod(left, size)
            found.append(along)
        return dict(zip(self.axes, reversed(found), strict=True))

    def rank_at(self, coords: Mapping[str, int]) -> int:
        """Returns the rank at these coordinates. Every axis needs one; a coordinate wraps around on a periodic axis."""
        if set(coords) != set(self.axes):
            raise ValueError(f"expected coords of the axes {', '.join(self.axes)}; found {dict(coords)!r}")
        rank = 0
        for axis, size in zip(self.axes, self.shape, strict=True):
            along = _as_int(coords[axis], f"the coordinate along axis {axis}")
            if axis in self.periodic:
                along %= size
            if not 0 <= along < size:
                raise ValueError(
                    f"expected a coordinate from 0 to {size - 1} along axis {axis}, which is no ring; found {along}"
                )
            rank = rank * size + along
        return rank

    def shift(self, axis: str, displacement: int, rank: int) -> tuple[int | None, int | None]:
        """Returns (source, destination) of a rank if data moves by `displacement` along the axis, as in MPI_Cart_shift.

        The rank sends to the destination and receives from the source. None means: beyond an edge that is not periodic.
        """
        by = _as_int(displacement, "displacement")
        return self._moved(axis, -by, rank), self._moved(axis, by, rank)

    def neighbours(self, rank: int) -> dict[str, tuple[int | None, int | None]]:
        """Returns the ranks before and after this one along each axis; None beyond an edge that is not periodic."""
        return {axis: self.shift(axis, 1, rank) for axis in self.axes}

    def groups(self, *axes: str) -> list[list[int]]:
        """Returns all groups of ranks that differ in these axes only: each in rank order, sorted by first rank."""
        axes = self._known(axes, at_least=1)
        firsts = itertools.product(*(range(1 if axis in axes else size) for axis, size in self.dims.items()))
        return [self.group_of(self.rank_at(dict(zip(self.axes, first, strict=True))), *axes) for first in firsts]

    def group_of(self, rank: int, *axes: str) -> list[int]:
        """Returns this rank and all ranks that differ from it in these axes only, in rank order."""
        axes, coords = self._known(axes, at_least=1), self.coords(rank)
        positions = itertools.product(*(range(self.dims[axis]) for axis in axes))
        return [self.rank_at(coords | dict(zip(axes, position, strict=True))) for position in positions]

    def along(self, *axes: str) -> "Cartesian":
        """Returns the grid that one group of these axes forms by itself, as in MPI_Cart_sub."""
        dims = self.dims
        axes = self._known(axes, at_least=1)
        return Cartesian({axis: dims[axis] for axis in axes}, [axis for axis in axes if axis in self.periodic])

    def check_size(self, num_ranks: int) -> None:
        """Raises ValueError unless the grid has exactly this many ranks."""
        if self.size != num_ranks:
            product = " x ".join(f"{axis}={size}" for axis, size in self.dims.items())
            raise ValueError(
                f"expected axes whose sizes multiply to the {num_ranks} ranks of the communicator; found {product}, "
                f"which are {self.size}"
            )

    def __repr__(self) -> str:
        return f"Cartesian({self.dims!r}" + (f", periodic={self.periodic!r})" if self.periodic else ")")

    def _moved(self, axis: str, displacement: int, rank: int) -> int | None:
        self._known((axis,))
        coords = self.coords(rank)
        along = coords[axis] + displacement
        if axis not in self.periodic and not 0 <= along < self.dims[axis]:
            return None
        return self.rank_at(coords | {axis: along})

    def _checked(self, rank: int) -> int:
        number = _as_int(rank, "rank")
        if not 0 <= number < self.size:
            raise ValueError(f"expected a rank from 0 to {self.size - 1} of {self!r}, found {rank!r}")
        return number

    def _known(self, axes: tuple[str, ...], *, at_least: int = 0) -> tuple[str, ...]:
        """Returns these axes, each once and in the order of the grid. Raises ValueError for an unknown axis."""
        for axis in axes:
            if axis not in self.axes:
                raise ValueError(
                    f"expected one of the axes {', '.join(self.axes)}; found {axis!r}{did_you_mean(axis, self.axes)}"
                )
        if len(axes) < at_least:
            raise ValueError(f"expected at least one of the axes {', '.join(self.axes)}; found none")
        return tuple(axis for axis in self.axes if axis in axes)


def _as_int(value: int, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"expected {what} as an int, found {value!r}") from None
