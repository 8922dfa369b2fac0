"""Collectives as data: what every rank holds before, what it must hold after, and how long each chunk is.

A collective works on a virtual vector `data` of `num_blocks` blocks, which have equal lengths unless the collective is
`uneven`. A schedule cuts each block into k chunks, so `data` has C = num_blocks * k chunks. A rank's input and output
memory hold ranges of blocks. How a schedule gets from input to output is not told here; `verify` checks whether it
does.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hocket.errors import ScheduleError, did_you_mean, name_count

Extent = Literal["whole", "own", "root", "row", "column"]
Ints = npt.NDArray[np.int64]
AnyInts = int | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Collective:
    """What must hold before and after, for any rank count and root.

    `data` has "one" block, one for each "rank", or one for each "pair" of ranks: block i * p + j goes from rank i to
    rank j. `input` and `output` say which blocks a rank's memory holds: the "whole" vector; its "own" block (that of
    its rank number); the whole vector at the "root" and nothing elsewhere; or, for pairs, its "row" (what it sends) or
    its "column" (what it receives). The blocks of an `uneven` collective have different lengths, which each call gives.
    `reverse` names the collective that is this one run backwards, if there is one.
    """

    name: str
    blocks: Literal["one", "rank", "pair"]
    input: Extent
    output: Extent
    reduces: bool = False
    exactly_once: bool = True
    uneven: bool = False
    reverse: str | None = None

    @property
    def rooted(self) -> bool:
        """Whether one rank, the root, has a special part."""
        return "root" in (self.input, self.output)

    @property
    def counts_contributions(self) -> bool:
        """Whether a result sums each rank's contribution exactly once: avg divides the sum, premul multiplies each of
        them.
        """
        return self.reduces and self.exactly_once

    def hears_all(self, output_blocks: Sized) -> bool:
        """Whether a rank with this output is done only once all ranks have begun, if no block is empty."""
        return len(output_blocks) > 0 and self.input != "root" and not self.uneven

    @property
    def vector(self) -> str:
        """What sizes and promises count in, in words: the whole `data`, or for pairs of ranks what one rank gives."""
        return "a rank's own vector" if self.blocks == "pair" else "the whole vector"

    def bus_factor(self, num_ranks: int) -> float:
        """busbw / algbw: what NCCL's PERFORMANCE.md defines, so that a perfect ring has the bandwidth of its links."""
        if self.blocks == "one":
            return 1.0 if self.rooted else 2 * (num_ranks - 1) / num_ranks
        return (num_ranks - 1) / num_ranks

    def num_blocks(self, num_ranks: int) -> int:
        """Blocks of `data`: one, one per rank, or one per pair of ranks."""
        return {"one": 1, "rank": num_ranks, "pair": num_ranks * num_ranks}[self.blocks]

    def chunks_per_block(self, num_ranks: int, num_chunks: int) -> int:
        """k if `data` has num_chunks chunks; ScheduleError unless the blocks divide num_chunks evenly."""
        blocks = self.num_blocks(num_ranks)
        if num_chunks < 1 or num_chunks % blocks:
            raise ScheduleError(
                f"{self.name} of {num_ranks} ranks: expected a positive multiple of {blocks} chunks"
                f" ({blocks} block(s) of equally many chunks), found {num_chunks}"
            )
        return num_chunks // blocks

    def input_blocks(self, rank: int, num_ranks: int, root: int = 0) -> range:
        """Blocks that the rank's input memory holds, in the order of memory."""
        return self._blocks(self.input, rank, num_ranks, root)

    def output_blocks(self, rank: int, num_ranks: int, root: int = 0) -> range:
        """Blocks that the rank's output memory holds, in the order of memory."""
        return self._blocks(self.output, rank, num_ranks, root)

    # The other methods answer for many ranks and blocks at once: arguments are integers, or arrays that broadcast.

    def owner(self, block: AnyInts, num_ranks: int, root: int = 0) -> Ints:
        """The rank whose input holds this block, if nothing is reduced: int64, shaped like block."""
        blocks = np.asarray(block, np.int64)
        if self.input == "root":
            return np.full_like(blocks, root)
        return blocks // num_ranks if self.input == "row" else blocks

    def input_block(self, rank: AnyInts, position: AnyInts, num_ranks: int) -> Ints:
        """The block at this position of the rank's input memory: input_blocks(rank)[position]."""
        return _block_at(self.input, rank, position, num_ranks)

    def output_block(self, rank: AnyInts, position: AnyInts, num_ranks: int) -> Ints:
        """The block at this position of the rank's output memory: output_blocks(rank)[position]."""
        return _block_at(self.output, rank, position, num_ranks)

    def input_position(self, rank: AnyInts, block: AnyInts, num_ranks: int, root: int = 0) -> Ints:
        """The position of this block in the rank's input memory, or -1 if it is not there."""
        return _position_of(self.input, rank, block, num_ranks, root)

    def output_position(self, rank: AnyInts, block: AnyInts, num_ranks: int, root: int = 0) -> Ints:
        """The position of this block in the rank's output memory, or -1 if it is not there."""
        return _position_of(self.output, rank, block, num_ranks, root)

    def knows(self, rank: AnyInts, block: AnyInts, num_ranks: int, root: AnyInts = 0) -> npt.NDArray[np.bool_]:
        """Whether a rank knows the length of a block: of all blocks if they are even, else of those in its input or
        output.
        """
        ranks, blocks = np.broadcast_arrays(np.asarray(rank, np.int64), np.asarray(block, np.int64))
        if not self.uneven:
            return np.ones(blocks.shape, bool)
        return _holds(self.input, ranks, blocks, num_ranks, root) | _holds(self.output, ranks, blocks, num_ranks, root)

    @property
    def known_by_all(self) -> bool:
        """Whether every rank knows the length of every block."""
        return not self.uneven or "whole" in (self.input, self.output)

    def num_input_blocks(self, num_ranks: int, root: int = 0) -> Ints:
        """Length of input_blocks, for all ranks: int64[num_ranks]."""
        return self._num_blocks(self.input, num_ranks, root)

    def num_output_blocks(self, num_ranks: int, root: int = 0) -> Ints:
        """Length of output_blocks, for all ranks: int64[num_ranks]."""
        return self._num_blocks(self.output, num_ranks, root)

    def _blocks(self, extent: Extent, rank: int, num_ranks: int, root: int) -> range:
        if extent == "own":
            return range(rank, rank + 1)
        if extent == "row":
            return range(rank * num_ranks, (rank + 1) * num_ranks)
        if extent == "column":
            return range(rank, num_ranks * num_ranks, num_ranks)
        if extent == "root" and rank != root:
            return range(0)
        return range(self.num_blocks(num_ranks))

    def _num_blocks(self, extent: Extent, num_ranks: int, root: int) -> Ints:
        if extent == "own":
            return np.ones(num_ranks, np.int64)
        each = np.full(num_ranks, self.num_blocks(num_ranks) if extent in ("whole", "root") else num_ranks, np.int64)
        return np.where(np.arange(num_ranks) == root, each, 0) if extent == "root" else each


def _block_at(extent: Extent, rank: AnyInts, position: AnyInts, num_ranks: int) -> Ints:
    ranks, found = np.broadcast_arrays(np.asarray(rank, np.int64), np.asarray(position, np.int64))
    if extent == "own":
        found = ranks
    elif extent == "row":
        found = ranks * num_ranks + found
    elif extent == "column":
        found = found * num_ranks + ranks
    return found


def _position_of(extent: Extent, rank: AnyInts, block: AnyInts, num_ranks: int, root: int) -> Ints:
    ranks, blocks = np.broadcast_arrays(np.asarray(rank, np.int64), np.asarray(block, np.int64))
    position = blocks
    if extent == "own":
        position = np.zeros_like(blocks)
    elif extent == "row":
        position = blocks % num_ranks
    elif extent == "column":
        position = blocks // num_ranks
    return np.where(_holds(extent, ranks, blocks, num_ranks, root), position, -1)


def _holds(extent: Extent, rank: Ints, block: Ints, num_ranks: int, root: AnyInts) -> npt.NDArray[np.bool_]:
    holder: Ints = np.broadcast_to(np.asarray(root, np.int64), rank.shape)
    if extent != "root":
        holder = {"whole": rank, "own": block, "row": block // num_ranks, "column": block % num_ranks}[extent]
    return np.asarray(rank == holder)


_ALL = (
    Collective("all_reduce", "one", "whole", "whole", reduces=True),
    Collective("all_gather", "rank", "own", "whole", reverse="reduce_scatter"),
    Collective("reduce_scatter", "rank", "whole", "own", reduces=True, reverse="all_gather"),
    Collective("broadcast", "one", "root", "whole", reverse="reduce"),
    Collective("reduce", "one", "whole", "root", reduces=True, reverse="broadcast"),
    # One token byte, folded with max: every rank must have heard of every rank, any number of times. Only its arrival
    # counts; between ranks it is not even stored.
    Collective("barrier", "one", "whole", "whole", reduces=True, exactly_once=False),
    Collective("gather", "rank", "own", "root", reverse="scatter"),
    Collective("scatter", "rank", "root", "own", reverse="gather"),
    Collective("all_to_all", "pair", "row", "column"),
    Collective("gather_v", "rank", "own", "root", uneven=True, reverse="scatter_v"),
    Collective("scatter_v", "rank", "root", "own", uneven=True, reverse="gather_v"),
    Collective("all_gather_v", "rank", "own", "whole", uneven=True, reverse="reduce_scatter_v"),
    Collective("reduce_scatter_v", "rank", "whole", "own", reduces=True, uneven=True, reverse="all_gather_v"),
    Collective("all_to_all_v", "pair", "row", "column", uneven=True),
)

COLLECTIVES: dict[str, Collective] = {collective.name: collective for collective in _ALL}
"""Every collective by name, in the order of their numbers in the core."""


def name_call(collective: str, num_ranks: int, root: int) -> str:
    """The call in words: "all_reduce of 4 ranks", or "broadcast of 4 ranks, root 2"."""
    rooted = collective in COLLECTIVES and COLLECTIVES[collective].rooted
    return f"{collective} of {name_count(num_ranks, 'rank')}" + (f", root {root}" if rooted else "")


def find_collective(name: str) -> Collective:
    """The collective with this name; ScheduleError, with a list of the names, if there is none."""
    if name not in COLLECTIVES:
        raise ScheduleError(
            f"expected a collective, one of {', '.join(COLLECTIVES)}; found {name!r}{did_you_mean(name, COLLECTIVES)}"
        )
    return COLLECTIVES[name]


def find_collective_name(text: str) -> str | None:
    """The name of the collective that is meant, in Hocket's spelling or NCCL's; None if there is none.

    Upper and lower case and underscores make no difference: AllReduce, allreduce and all_reduce are one.
    """
    return next((name for name in COLLECTIVES if plain_spelling(name) == plain_spelling(text)), None)


def plain_spelling(name: str) -> str:
    """How NCCL spells a collective or an algorithm: allreduce."""
    return name.replace("_", "").lower()


def chunk_bounds(num_elements: int, chunks_per_block: int) -> Ints:
    """Where the chunks of a block of num_elements elements begin and end: int64[chunks_per_block + 1].

    Chunk j has elements bounds[j] to bounds[j + 1]; lengths differ by one at most. Chunk c of `data` is chunk j = c %
    chunks_per_block of its block. j is its size class; in an uneven collective, c itself is its size class. Cutting
    every chunk into m parts keeps the old bounds.
    """
    return np.arange(chunks_per_block + 1, dtype=np.int64) * num_elements // chunks_per_block


def in_place_offset(input_blocks: Sequence[int], output_blocks: Sequence[int]) -> int:
    """In place, the smaller of input and output is a part of the larger: the position in the larger one of its first
    block.

    If both hold equally many blocks, they are one memory, position by position, whatever blocks they hold.
    """
    smaller, larger = sorted((input_blocks, output_blocks), key=len)
    return 0 if len(smaller) == len(larger) else list(larger).index(smaller[0])
