"""A grid of ranks: arithmetic alone, of coordinates, neighbours and groups.

Ranks are numbered with the last axis fastest (row-major), as MPI_Cart_create and PyTorch's DeviceMesh number them; they
are never reordered to fit a machine.
"""

import itertools
import math
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, init=False, repr=False)
class Cartesian:
    """A grid of ranks: `dims` gives the number of ranks along each axis, in order; `periodic` axes are rings.

    Attributes: axes (their names), shape (their sizes), periodic (those of the axes that are rings, in their order).
    Raises ValueError and TypeError for what is no grid, and for axes and ranks that are not in it.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    periodic: tuple[str, ...]

    def __init__(self, dims: Mapping[str, int], periodic: Collection[str] = ()) -> None:
        if not isinstance(dims, Mapping):
            raise TypeError(f"dims is {dims!r}; expected sizes by axis, as {{'dp': 2, 'tp': 4}}")
        if not dims:
            raise ValueError("dims is empty; expected at least one axis, as {'dp': 2, 'tp': 4}")
        for axis, size in dims.items():
            if not isinstance(axis, str) or not axis:
                raise TypeError(f"expected the name of an axis as text, found {axis!r}")
            if _as_int(size, f"the size of axis {axis}") < 1:
                raise ValueError(f"expected at least 1 rank along axis {axis}, found {size!r}")
        if isinstance(periodic, str) or not isinstance(periodic, Collection):
            axis = periodic if isinstance(periodic, str) else next(iter(dims))
            raise TypeError(f"periodic is {periodic!r}; expected a collection of axes, as ({axis!r},)")
        object.__setattr__(self, "axes", tuple(dims))
        object.__setattr__(self, "shape", tuple(operator.index(size) for size in dims.values()))
        rings = self._known(tuple(periodic))
        object.__setattr__(self, "periodic", rings)

    @property
    def size(self) -> int:
        """How many ranks the grid has."""
        return math.prod(self.shape)

    @property
    def dims(self) -> dict[str, int]:
        """The number of ranks along each axis."""
        return dict(zip(self.axes, self.shape, strict=True))

    def coords(self, rank: int) -> dict[str, int]:
        """Where a rank stands: its number along each axis, from 0."""
        left = self._checked(rank)
        found = []
        for size in reversed(self.shape):
            left, along = divmod(left, size)
            found.append(along)
        return dict(zip(self.axes, reversed(found), strict=True))

    def rank_at(self, coords: Mapping[str, int]) -> int:
        """The rank that stands there. All axes must be given; along a periodic axis one may count beyond its end."""
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
        """(source, destination) of a rank when all data moves by `displacement` along the axis, as MPI_Cart_shift.

        The rank sends to the destination and receives from the source; None is beyond an edge that is not periodic.
        """
        by = _as_int(displacement, "displacement")
        return self._moved(axis, -by, rank), self._moved(axis, by, rank)

    def neighbours(self, rank: int) -> dict[str, tuple[int | None, int | None]]:
        """The ranks before and after this one along each axis; None beyond an edge that is not periodic."""
        return {axis: self.shift(axis, 1, rank) for axis in self.axes}

    def groups(self, *axes: str) -> list[list[int]]:
        """The ranks that differ in these axes only: all such groups, ordered by their first ranks, each in order."""
        axes = self._known(axes, at_least=1)
        firsts = itertools.product(*(range(1 if axis in axes else size) for axis, size in self.dims.items()))
        return [self.group_of(self.rank_at(dict(zip(self.axes, first, strict=True))), *axes) for first in firsts]

    def group_of(self, rank: int, *axes: str) -> list[int]:
        """The ranks that differ from this one in these axes only, and itself, in order."""
        axes, coords = self._known(axes, at_least=1), self.coords(rank)
        positions = itertools.product(*(range(self.dims[axis]) for axis in axes))
        return [self.rank_at(coords | dict(zip(axes, position, strict=True))) for position in positions]

    def along(self, *axes: str) -> "Cartesian":
        """The grid that one group of these axes is by itself, as MPI_Cart_sub makes it."""
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
        """These axes, each once and in the order of the grid."""
        for axis in axes:
            if axis not in self.axes:
                raise ValueError(f"expected one of the axes {', '.join(self.axes)}; found {axis!r}")
        if len(axes) < at_least:
            raise ValueError(f"expected at least one of the axes {', '.join(self.axes)}; found none")
        return tuple(axis for axis in self.axes if axis in axes)


def _as_int(value: int, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"expected {what} as an int, found {value!r}") from None
