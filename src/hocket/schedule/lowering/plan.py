"""A plan: what one rank executes, as flat arrays. The native core is given these very arrays.

`OutlineWriter` collects instructions and adds the dependencies. What they should be is said in lower.py, and whether a
plan is safe to run in races.py.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hocket.schedule.lowering.dependencies import accesses, conflicts, owners

COMPLETES = 1
"""Flag of a fold whose result is the first to hold all contributions: avg divides here."""

STAGED = 2
"""Flag of a send whose source is overwritten in the same step: the transport copies it, and never lends it."""

_FIELDS = 6


@dataclass(frozen=True, eq=False)
class Plan:
    """One rank's instructions, each of which folds n sources into m destinations; the arrays are all int32.

    instructions[n, 6]: step, chunk (size class), sources_end, destinations_end, dependencies_end (exclusive ends of
    this instruction's part of the three lists), flags. sources [., 4]: peer, space, index, raw; destinations [., 3]:
    peer, space, index. Local: peer -1, a space of dependencies.py, and the chunk in that memory. Remote: the peer,
    REMOTE, and the row's order number, the same at both ends. raw: a fold reads a rank's untouched contribution, which
    premul multiplies here; copies that lowering adds leave it as it is, for the one fold that reads it for a row.
    dependencies: earlier instructions whose piece j must be settled before piece j of this one. A fold is settled when
    it is written; a send when its source may be overwritten.

    input_blocks and output_blocks are the numbers of the blocks of `data` that the rank's memory holds, in its order.

    A channel carries messages by (step, order), and with pieces by (piece + step, step, order). A piece is a fixed
    range of elements of every chunk (a slot of scratch holds chunks of unequal length in turn). A fold may name its
    destination among its sources, at any position.
    """

    rank: int
    num_ranks: int
    chunks_per_block: int
    uneven: bool
    num_input_chunks: int
    num_output_chunks: int
    num_scratch: int
    in_place: bool
    num_steps: int
    input_blocks: NDArray[np.int32]
    output_blocks: NDArray[np.int32]
    instructions: NDArray[np.int32]
    sources: NDArray[np.int32]
    destinations: NDArray[np.int32]
    dependencies: NDArray[np.int32]


class Outline(NamedTuple):
    """A plan without names, for all ranks of one form (forms.py): arrays as in Plan, with numbers for what they name.

    Size classes and messages are numbers of the form's rows, places in input and output numbers of locations.
    """

    sizes: tuple[int, int, int, int]
    num_scratch: int
    instructions: NDArray[np.int32]
    sources: NDArray[np.int32]
    destinations: NDArray[np.int32]
    dependencies: NDArray[np.int32]


class OutlineWriter:
    """Collects the instructions of some outlines, one after the other; locations as in dependencies.py."""

    def __init__(self) -> None:
        self.instructions: list[int] = []
        self.sources: list[int] = []
        self.destinations: list[int] = []
        self._ends: list[tuple[int, int, int, int]] = []

    def emit(self, step: int, chunk: int, flags: int) -> None:
        """Close the instruction whose sources and destinations were just appended."""
        self.instructions += (step, chunk, len(self.sources) // 4, len(self.destinations) // 3, 0, flags)

    def fold(self, step: int, chunk: int, location: int, flags: int) -> None:
        """Close the instruction whose sources were just appended, and which writes this location."""
        self.destinations += (-1, location & 3, location >> 2)
        self.instructions += (step, chunk, len(self.sources) // 4, len(self.destinations) // 3, 0, flags)

    def copy(self, step: int, chunk: int, source: int, destination: int, raw: bool = False) -> None:
        """A local copy from one location to another."""
        self.sources += (-1, source & 3, source >> 2, raw)
        self.fold(step, chunk, destination, 0)

    def end(self, num_scratch: int) -> None:
        """Everything since the last end is one outline."""
        entries = len(self.sources) // 4, len(self.destinations) // 3
        self._ends.append((num_scratch, len(self.instructions) // _FIELDS, *entries))

    def outlines(self) -> list[Outline]:
        """Turn the lists into outlines: one dependency analysis, in which their locations are kept apart."""
        instructions = np.array(self.instructions, np.int32).reshape(-1, _FIELDS)
        sources = np.array(self.sources, np.int32).reshape(-1, 4)
        destinations = np.array(self.destinations, np.int32).reshape(-1, 3)
        ends = np.array(self._ends, np.int64).reshape(-1, 4)
        touched = accesses(instructions[:, 2], instructions[:, 3], sources, destinations)
        outline_of = owners(ends[:, 1])
        span = int(touched.location.max(initial=0)) + 1
        found = conflicts(touched._replace(location=touched.location + outline_of[touched.instruction] * span))
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1]
        dependencies = (found.earlier - starts[outline_of[found.later], 1]).astype(np.int32)
        dependencies_end = np.searchsorted(found.later, np.arange(len(instructions)), side="right")
        cut = np.append(0, dependencies_end)
        base = np.stack((starts[:, 2], starts[:, 3], cut[starts[:, 1]]), axis=1)
        instructions[:, 4] = dependencies_end
        instructions[:, 2:5] -= base[outline_of].astype(np.int32)
        outlines = []
        for (num_scratch, i1, s1, d1), (_, i0, s0, d0) in zip(ends.tolist(), starts.tolist(), strict=True):
            e0, e1 = int(cut[i0]), int(cut[i1])
            outline = Outline(
                (i1 - i0, s1 - s0, d1 - d0, e1 - e0),
                num_scratch,
                # Copies: outlines outlive the batch that they were made with.
                instructions[i0:i1].copy(),
                sources[s0:s1].copy(),
                destinations[d0:d1].copy(),
                dependencies[e0:e1].copy(),
            )
            outlines.append(outline)
        return outlines
