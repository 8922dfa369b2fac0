"""Named axes over the ranks of a communicator: one communicator for each axis, and for each set of axes."""

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hocket.runtime.communicator.cartesian import Cartesian

if TYPE_CHECKING:
    from hocket.runtime.communicator.communicator import Communicator


class Mesh:
    """The communicators of named axes: a process is in one group per axis, with a rank of its own in each.

    All members of `comm` call it with the same `dims`; the product of the sizes is comm.size. mesh["tp"] is then the
    communicator of the ranks that differ from this one along axis tp only; this rank has number mesh.coords["tp"] in
    it. All members must first make a group of several axes, mesh.group("dp", "tp"); then mesh["dp", "tp"] works, too.
    Closing the mesh closes the communicators that it has made; `comm` stays open.

    Attributes: topology (the Cartesian), coords (the coordinates of this rank), comm (the communicator of all members
    with this topology; comm.rank is the rank in the mesh).
    """

    def __init__(self, comm: "Communicator", dims: Mapping[str, int], periodic: Collection[str] = ()) -> None:
        if not hasattr(comm, "cartesian"):
            raise TypeError(f"Mesh: expected a hocket.Communicator, found {comm!r}")
        self.topology = Cartesian(dims, periodic)
        self.topology.check_size(comm.size)
        with ExitStack() as made:  # if one cannot be made, those made before it are closed
            self.comm: Communicator = made.enter_context(comm.cartesian(dims, periodic))
            self.coords = self.topology.coords(self.comm.rank)
            self._groups: dict[tuple[str, ...], Communicator] = {self.topology.axes: self.comm}
            for axis in self.topology.axes:
                self._make((axis,), made)
            self._made = made.pop_all()

    def group(self, *axes: str) -> "Communicator":
        """Returns the communicator of the ranks that differ from this one in these axes only, ordered as in the mesh.

        The first call for a set of axes makes the group: all members of the mesh make that call together.
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
        """Closes the communicators of the mesh. Every rank calls it; it may be called again."""
        self._made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._made.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        dims = " x ".join(f"{axis}={size}" for axis, size in self.topology.dims.items())
        coordinates = ", ".join(f"{axis} {along}" for axis, along in self.coords.items())
        return f"<hocket.Mesh {dims}, this rank at {coordinates}>"

    def _make(self, axes: tuple[str, ...], made: ExitStack) -> None:
        """Makes the group of these axes. Each rank computes the members, so only the members exchange messages."""
        if axes in self._groups:
            return
        part = self.comm.subgroup(self.topology.group_of(self.comm.rank, *axes))
        assert part is not None
        part.topology = self.topology.along(*axes)
        self._groups[axes] = made.enter_context(part)
