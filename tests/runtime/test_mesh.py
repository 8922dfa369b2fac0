"""Named axes over ranks: arithmetic compared with NumPy, and exchanges over the communicators of a mesh."""

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hocket
from hocket.errors import CollectiveMismatch, PeerAborted
from hocket.runtime import Cartesian, Mesh, run_ranks

CUBE = {"pp": 2, "dp": 2, "tp": 2}


# --- the arithmetic ------------------------------------------------------------------------------------------------


@st.composite
def grids(draw: st.DrawFn) -> Cartesian:
    axes = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=4, unique=True))
    dims = {axis: draw(st.integers(1, 4)) for axis in axes}
    return Cartesian(dims, draw(st.sets(st.sampled_from(axes))))


@given(grids())
def test_ranks_are_row_major(grid: Cartesian) -> None:
    assert grid.size == int(np.prod(grid.shape))
    for rank in range(grid.size):
        coords = grid.coords(rank)
        assert tuple(coords) == grid.axes
        assert tuple(coords.values()) == np.unravel_index(rank, grid.shape)
        assert grid.rank_at(dict(reversed(coords.items()))) == rank


@given(grids(), st.integers(-7, 7))
def test_shift_moves_an_array_as_numpy_does(grid: Cartesian, displacement: int) -> None:
    ranks = np.arange(grid.size).reshape(grid.shape)
    for number, axis in enumerate(grid.axes):
        rolled = np.roll(ranks, displacement, axis=number).ravel().tolist()  # what arrives at each rank
        for rank in range(grid.size):
            source, destination = grid.shift(axis, displacement, rank)
            came_from = grid.coords(rank)[axis] - displacement
            inside = axis in grid.periodic or 0 <= came_from < grid.shape[number]
            assert source == (rolled[rank] if inside else None)
            if destination is not None:
                assert grid.shift(axis, displacement, destination)[0] == rank


@given(grids(), st.data())
def test_groups_are_the_lines_and_planes_of_the_grid(grid: Cartesian, data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.sampled_from(grid.axes), min_size=1, unique=True))
    numbers = sorted(grid.axes.index(axis) for axis in axes)
    fixed = [number for number in range(len(grid.axes)) if number not in numbers]
    ranks = np.arange(grid.size).reshape(grid.shape).transpose(*fixed, *numbers)
    along = grid.along(*axes)
    groups = grid.groups(*axes)
    assert groups == ranks.reshape(-1, along.size).tolist()
    assert all(grid.group_of(rank, *axes) == group for group in groups for rank in group)
    assert along == Cartesian(
        {axis: grid.dims[axis] for axis in grid.axes if axis in axes}, set(grid.periodic) & {*axes}
    )


def test_the_groups_that_megatron_documents() -> None:
    """16 devices with 4 stages, 2 replicas and 2 tensor ranks, as in the docstring of its initialize_model_parallel."""
    grid = Cartesian({"pp": 4, "dp": 2, "tp": 2})
    assert grid.groups("tp") == [[first, first + 1] for first in range(0, 16, 2)]
    assert grid.groups("dp") == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert grid.groups("pp") == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    assert grid.groups("tp", "dp") == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_neighbours_end_at_an_edge_and_go_round_a_ring() -> None:
    grid = Cartesian({"y": 3, "x": 4}, periodic=["x"])
    assert grid.neighbours(0) == {"y": (None, 4), "x": (3, 1)}
    assert grid.neighbours(5) == {"y": (1, 9), "x": (4, 6)}
    assert grid.neighbours(11) == {"y": (7, None), "x": (10, 8)}
    assert grid.rank_at({"y": 1, "x": -1}) == 7 and grid.rank_at({"y": 1, "x": 9}) == 5


def test_a_grid_is_a_value() -> None:
    grid = Cartesian(CUBE, periodic={"tp", "pp"})
    assert repr(grid) == "Cartesian({'pp': 2, 'dp': 2, 'tp': 2}, periodic=('pp', 'tp'))"
    assert repr(Cartesian({"dp": 4})) == "Cartesian({'dp': 4})"
    same = eval(repr(grid))
    assert same == grid and hash(same) == hash(grid) and len({grid, same}) == 1
    assert pickle.loads(pickle.dumps(grid)) == grid == copy.deepcopy(grid)
    assert grid != Cartesian(CUBE) and Cartesian({"a": 2, "b": 3}) != Cartesian({"b": 3, "a": 2})
    with pytest.raises(dataclasses.FrozenInstanceError):
        grid.shape = (8,)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Cartesian({}), "at least one axis"),
        (lambda: Cartesian({"dp": 0}), "at least 1 rank along axis dp, found 0"),
        (lambda: Cartesian({"dp": 2.0}), "the size of axis dp as an int, found 2.0"),
        (lambda: Cartesian({1: 2}), "name of an axis as text, found 1"),
        (lambda: Cartesian([2, 2]), "expected sizes by axis"),
        (lambda: Cartesian(CUBE, periodic="tp"), "collection of axes, such as ('tp',)"),
        (lambda: Cartesian(CUBE, periodic=True), "collection of axes, such as ('pp',)"),
        (lambda: Cartesian(CUBE, periodic=["cp"]), "one of the axes pp, dp, tp; found 'cp'"),
        (lambda: Cartesian(CUBE).coords(8), "a rank from 0 to 7 of Cartesian"),
        (lambda: Cartesian(CUBE).coords(-1), "a rank from 0 to 7 of Cartesian"),
        (lambda: Cartesian(CUBE).coords("0"), "rank as an int, found '0'"),
        (lambda: Cartesian(CUBE).rank_at({"pp": 0, "dp": 0}), "coords of the axes pp, dp, tp; found {'pp': 0"),
        (lambda: Cartesian(CUBE).rank_at({"pp": 0, "dp": 2, "tp": 0}), "from 0 to 1 along axis dp"),
        (lambda: Cartesian(CUBE).shift("cp", 1, 0), "one of the axes pp, dp, tp; found 'cp'"),
        (lambda: Cartesian(CUBE).shift("tp", 0.5, 0), "displacement as an int, found 0.5"),
        (lambda: Cartesian(CUBE).groups(), "at least one of the axes pp, dp, tp; found none"),
        (lambda: Cartesian(CUBE).along("tp", "ep"), "one of the axes pp, dp, tp; found 'ep'"),
        (
            lambda: Cartesian(CUBE).check_size(6),
            "multiply to the 6 ranks of the communicator; found pp=2 x dp=2 x tp=2",
        ),
    ],
)
def test_what_is_no_grid_is_refused(call: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert words in str(caught.value)


# --- the communicators ---------------------------------------------------------------------------------------------


def members(comm: hocket.Communicator, number: int) -> list[int]:
    """Returns the numbers of a communicator's ranks, in its order."""
    return comm.all_gather(np.array([number])).tolist()


def in_a_cube() -> None:
    with hocket.init() as comm, Mesh(comm, CUBE, periodic=["tp"]) as mesh:
        grid = Cartesian(CUBE, periodic=["tp"])
        assert mesh.topology == mesh.comm.topology == grid
        assert mesh.coords == grid.coords(comm.rank) and mesh.comm.rank == comm.rank
        assert members(mesh.comm, comm.rank) == list(range(8))
        for axis in CUBE:
            part = mesh[axis]
            (group,) = (group for group in grid.groups(axis) if comm.rank in group)
            assert part.rank == mesh.coords[axis] and part.size == 2
            assert members(part, comm.rank) == group
            assert part.topology == Cartesian({axis: 2}, grid.periodic if axis == "tp" else ())
        with pytest.raises(KeyError, match=r'call mesh.group\("dp", "tp"\) on all ranks'):
            mesh["tp", "dp"]
        model = mesh.group("tp", "dp")
        assert members(model, comm.rank) == [4 * mesh.coords["pp"] + place for place in range(4)]
        assert model is mesh.group("dp", "tp") is mesh["tp", "dp"]
        assert model.topology == Cartesian({"dp": 2, "tp": 2}, ["tp"])
        assert mesh.group("tp") is mesh["tp"] and mesh["pp", "dp", "tp"] is mesh.comm
        place = ", ".join(f"{axis} {along}" for axis, along in mesh.coords.items())
        assert repr(mesh) == f"<hocket.Mesh pp=2 x dp=2 x tp=2, this rank at {place}>"
        with pytest.raises(ValueError, match="one of the axes pp, dp, tp; found 'ep'"):
            mesh["ep"]


def test_a_process_is_in_many_groups() -> None:
    run_ranks(in_a_cube, 8, kind="thread")


def in_a_line() -> None:
    with hocket.init() as comm:
        mesh = Mesh(comm, {"one": 1, "dp": 3})
        assert mesh["dp"].size == 3 and mesh["one"].size == 1
        assert mesh["dp"].all_reduce(np.array([comm.rank])).tolist() == [3]
        mesh.close()
        mesh.close()
        assert members(comm, comm.rank) == [0, 1, 2]  # the communicator stays open
        with pytest.raises(hocket.errors.CommunicationError, match="closed"):
            mesh["dp"].barrier()


def test_the_communicator_outlives_its_mesh() -> None:
    run_ranks(in_a_line, 3)


def in_a_mesh_that_one_leaves() -> str:
    with hocket.init() as comm:
        try:
            with Mesh(comm, {"dp": 2}) as mesh:
                if comm.rank == 0:
                    raise RuntimeError("no more data")
                mesh["dp"].barrier()
        except (RuntimeError, PeerAborted) as error:
            return str(error)
    return "nothing happened"


def test_who_fails_inside_tells_the_others() -> None:
    said = run_ranks(in_a_mesh_that_one_leaves, 2, kind="thread")
    assert said[0] == "no more data" and "no more data" in said[1]


def too_small() -> None:
    with hocket.init() as comm:
        with pytest.raises(ValueError, match="multiply to the 2 ranks of the communicator; found dp=3, which are 3"):
            Mesh(comm, {"dp": 3})
        with pytest.raises(TypeError, match=r"Mesh: expected a hocket\.Communicator, found 3"):
            Mesh(3, {"dp": 2})  # type: ignore[arg-type]
        with Mesh(comm, {"dp": 2}) as mesh:
            assert mesh[["dp"]] is mesh["dp"]  # type: ignore[index]
            for axis in (0, None, ("dp", 0)):
                with pytest.raises(ValueError, match=f"one of the axes dp; found {0 if axis else axis}"):
                    mesh[axis]  # type: ignore[index]
        comm.barrier()


def test_the_axes_must_hold_all_ranks() -> None:
    run_ranks(too_small, 2, kind="thread")


class StandIn:
    """A stand-in for a communicator that knows which are open; subgroup number `failing` fails."""

    def __init__(self, opened: list["StandIn"], failing: int) -> None:
        self.rank, self.size, self._opened, self._failing = 0, 4, opened, failing
        opened.append(self)

    def cartesian(self, dims: dict[str, int], periodic: tuple[str, ...]) -> "StandIn":
        return StandIn(self._opened, self._failing)

    def subgroup(self, ranks: list[int]) -> "StandIn":
        self._failing -= 1
        if self._failing == 0:
            raise MemoryError("no memory for a further group")
        return StandIn(self._opened, 0)

    def __enter__(self) -> "StandIn":
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.remove(self)


def test_what_was_made_is_closed_if_one_cannot_be_made() -> None:
    opened: list[StandIn] = []
    comm = StandIn(opened, failing=2)
    with pytest.raises(MemoryError):
        Mesh(comm, {"dp": 2, "tp": 2})  # type: ignore[arg-type]
    assert opened == [comm]


def test_no_group_is_left_open() -> None:
    opened: list[StandIn] = []
    comm = StandIn(opened, failing=-1)
    with Mesh(comm, {"pp": 1, "dp": 2, "tp": 2}) as mesh:  # type: ignore[arg-type]
        assert len(opened) == 1 + 4  # all, and one per axis
        mesh.group("dp", "tp")
        assert len(opened) == 1 + 5
    assert opened == [comm]


def test_ranks_that_differ_in_the_axes_are_told_both_grids() -> None:
    def main() -> str:
        with pytest.raises((CollectiveMismatch, PeerAborted)) as caught, hocket.init() as comm:
            Mesh(comm, {"dp": 2, "tp": 2} if comm.rank < 3 else {"dp": 4})
        return str(caught.value)

    both = "rank 0 makes one with grid Cartesian({'dp': 2, 'tp': 2}), rank 3 one with grid Cartesian({'dp': 4})"
    for told in run_ranks(main, 4, kind="thread"):
        assert both in told
