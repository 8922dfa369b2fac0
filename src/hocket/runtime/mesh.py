"""Named axes over the ranks of a communicator: the Cartesian view, and one communicator per axis.

`Cartesian` is arithmetic alone: who stands where, who is next to whom, who is in a group with whom. `Mesh` has the
communicators that go with it. Ranks are numbered with the last axis fastest (row-major), as MPI_Cart_create and
PyTorch's DeviceMesh number them; they are never reordered to fit a machine.
"""

import itertools
import math
import operator
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from hocket.runtime.communicator import Communicator


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
        places = itertools.product(*(range(self.dims[axis]) for axis in axes))
        return [self.rank_at(coords | dict(zip(axes, place, strict=True))) for place in places]

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


class Mesh:
    """The communicators of named axes: a process is in one group per axis, with another rank in each.

    All members of `comm` call it with the same `dims`, whose sizes multiply to comm.size. mesh["tp"] is then the
    communicator of the ranks that differ from this one along axis tp only; its rank there is mesh.coords["tp"].
    A group of several axes has to be made first, by all members: mesh.group("dp", "tp"), then also mesh["dp", "tp"].
    `comm` stays the caller's: closing the mesh closes what the mesh has made.

    Attributes: topology (the Cartesian), coords (where this rank stands), comm (the communicator of all members, whose
    topology this is; comm.rank is the rank in the mesh).
    """

    def __init__(self, comm: "Communicator", dims: Mapping[str, int], periodic: Collection[str] = ()) -> None:
        if not hasattr(comm, "cartesian"):
            raise TypeError(f"Mesh: expected a hocket.Communicator, found {comm!r}")
        self.topology = Cartesian(dims, periodic)
        self.topology.check_size(comm.size)
        with ExitStack() as made:  # if one cannot be made, those made before it do not stay
            self.comm: Communicator = made.enter_context(comm.cartesian(dims, periodic))
            self.coords = self.topology.coords(self.comm.rank)
            self._groups: dict[tuple[str, ...], Communicator] = {self.topology.axes: self.comm}
            for axis in self.topology.axes:
                self._make((axis,), made)
            self._made = made.pop_all()

    def group(self, *axes: str) -> "Communicator":
        """The communicator of the ranks that differ from this one in these axes only, numbered as in the mesh.

        The first call for the same axes, in any order, makes it: all members of the mesh call it, as a collective.
        """
        known = self.topology._known(axes, at_least=1)
        if known not in self._groups:
            self._make(known, self._made)
        return self._groups[known]

    def __getitem__(self, axes: str | tuple[str, ...]) -> "Communicator":
        named = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
        known = self.topology._known(named, at_least=1)
        if known not in self._groups:
            call = ", ".join(f'"{axis}"' for axis in known)
            raise KeyError(
                f"no group of {' and '.join(known)} yet; call mesh.group({call}) on all ranks of the mesh first"
            )
        return self._groups[known]

    def close(self) -> None:
        """Closes the communicators of the mesh, on every rank; may be called again."""
        self._made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._made.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        dims = " x ".join(f"{axis}={size}" for axis, size in self.topology.dims.items())
        place = ", ".join(f"{axis} {along}" for axis, along in self.coords.items())
        return f"<hocket.Mesh {dims}, this rank at {place}>"

    def _make(self, axes: tuple[str, ...], made: ExitStack) -> None:
        """Makes the groups of these axes. Arithmetic says who is in which, so only the members of each have to talk."""
        if axes in self._groups:
            return
        part = self.comm.subgroup(self.topology.group_of(self.comm.rank, *axes))
        assert part is not None
        part.topology = self.topology.along(*axes)
        self._groups[axes] = made.enter_context(part)


def _as_int(value: int, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"expected {what} as an int, found {value!r}") from None
