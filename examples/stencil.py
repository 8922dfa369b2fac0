"""The heat equation on a cylinder, divided into a rectangle per rank: a stencil with a halo exchange.

    hocket run -n 4 -- examples/stencil.py

The ranks form a grid (comm.cartesian): along x it is a ring, along y it ends at two cold edges. In each time step a
cell needs its four neighbours. So each rank first receives the border cells of the ranks around it into the halo of its
own rectangle (shift, sendrecv). In the end rank 0 collects the rectangles (gather_v), repeats the computation alone,
compares the bits, and draws the result.
"""

import numpy as np

import hocket

ROWS, COLUMNS, STEPS = 16, 60, 60
SHADES = " .:-=+*#%@"


def bounds(length: int, part: int, num_parts: int) -> tuple[int, int]:
    """Returns begin and end of one part of a length; the lengths of parts may differ by one."""
    return length * part // num_parts, length * (part + 1) // num_parts


def start() -> np.ndarray:
    """Returns the whole field at the start: cold, with hot spots at the seam of the cylinder and in the middle."""
    field = np.zeros((ROWS, COLUMNS))
    field[3:7, :4] = field[3:7, -4:] = 100.0
    field[9:13, 26:34] = 60.0
    return field


def advance(field: np.ndarray) -> None:
    """Does one time step of the cells inside the halo."""
    inside = field[1:-1, 1:-1]
    around = field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]
    inside += 0.2 * (around - 4.0 * inside)


def alone() -> np.ndarray:
    """Returns the result of one process alone: the halo of a whole cylinder is its own other side."""
    field = np.pad(start(), 1)
    for _ in range(STEPS):
        field[:, 0], field[:, -1] = field[:, -2], field[:, 1]
        advance(field)
    return field[1:-1, 1:-1]


def pass_on(comm: hocket.Communicator, axis: str, displacement: int, border: np.ndarray, halo: np.ndarray) -> None:
    """Sends every rank's border into the halo of the rank that is `displacement` further along the axis."""
    source, destination = comm.topology.shift(axis, displacement, comm.rank)
    outgoing, incoming = np.ascontiguousarray(border), np.empty(halo.shape)
    if destination == comm.rank:  # a ring of one
        halo[:] = outgoing
        return
    if source is not None and destination is not None:
        comm.sendrecv(outgoing, destination, incoming, source)
    elif destination is not None:
        comm.send(outgoing, destination)
    elif source is not None:
        comm.recv(incoming, source)
    if source is not None:
        halo[:] = incoming  # without a source, the edge stays cold


def main() -> None:
    with hocket.init() as world:
        num_y = next(n for n in range(int(world.size**0.5), 0, -1) if world.size % n == 0)
        dims = {"y": num_y, "x": world.size // num_y}
        with world.cartesian(dims, periodic=["x"]) as comm:
            places = [comm.topology.coords(rank) for rank in range(comm.size)]
            blocks = [
                tuple(slice(*bounds(length, place[axis], dims[axis])) for axis, length in (("y", ROWS), ("x", COLUMNS)))
                for place in places
            ]
            field = np.pad(start()[blocks[comm.rank]], 1)
            for _ in range(STEPS):
                pass_on(comm, "y", +1, field[-2, 1:-1], field[0, 1:-1])
                pass_on(comm, "y", -1, field[1, 1:-1], field[-1, 1:-1])
                pass_on(comm, "x", +1, field[1:-1, -2], field[1:-1, 0])
                pass_on(comm, "x", -1, field[1:-1, 1], field[1:-1, -1])
                advance(field)
            whole = np.empty((ROWS, COLUMNS))
            counts = [whole[block].size for block in blocks]
            cells = comm.gather_v(field[1:-1, 1:-1].ravel(), counts, root=0)
            if cells is not None:  # at rank 0
                for block, part in zip(blocks, np.split(cells, np.cumsum(counts)[:-1]), strict=True):
                    whole[block] = part.reshape(whole[block].shape)
                for row in whole * (len(SHADES) - 1) / whole.max():
                    print("|" + "".join(SHADES[round(shade)] for shade in row) + "|")
                same = np.array_equal(whole, alone())
                print(f"{STEPS} steps on {dims['y']} x {dims['x']} ranks: the same bits as one process: {same}")


if __name__ == "__main__":
    main()
