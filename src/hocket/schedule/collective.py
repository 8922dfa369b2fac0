"""Collectives as data: what every rank holds before, what it must hold after, and how long each chunk is.

A collective is about a virtual vector `data` of `num_blocks` equal blocks; a schedule cuts each block into k chunks, so
`data` has C = num_blocks * k of them. What a rank's input and output memory hold are ranges of blocks. How a schedule
gets from one to the other is not said here; whether it does is verify's business.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hocket.errors import ScheduleError

Extent = Literal["whole", "own", "root"]


@dataclass(frozen=True)
class Collective:
    """What must hold before and after, for any rank count and root.

    `input` and `output` say which blocks of `data` a rank's memory holds: the "whole" vector, its "own" block (that of
    its rank number), or the whole vector at the "root" and nothing elsewhere. `reverse` names the collective that is
    this one run backwards, where there is one.
    """

    name: str
    block_per_rank: bool
    input: Extent
    output: Extent
    reduces: bool
    exactly_once: bool = True
    reverse: str | None = None

    @property
    def rooted(self) -> bool:
        """Whether one rank, the root, plays a part of its own."""
        return "root" in (self.input, self.output)

    def num_blocks(self, num_ranks: int) -> int:
        """Blocks of `data`: one per rank, or one."""
        return num_ranks if self.block_per_rank else 1

    def chunks_per_block(self, num_ranks: int, num_chunks: int) -> int:
        """k, where `data` has num_chunks chunks; ScheduleError unless it divides evenly."""
        blocks = self.num_blocks(num_ranks)
        if num_chunks < 1 or num_chunks % blocks:
            raise ScheduleError(
                f"{self.name} of {num_ranks} ranks: expected a positive multiple of {blocks} chunks"
                f" ({blocks} block(s) of equally many chunks), found {num_chunks}"
            )
        return num_chunks // blocks

    def input_blocks(self, rank: int, num_ranks: int, root: int = 0) -> range:
        """Blocks that the rank's input memory holds, in its order."""
        return self._blocks(self.input, rank, num_ranks, root)

    def output_blocks(self, rank: int, num_ranks: int, root: int = 0) -> range:
        """Blocks that the rank's output memory holds, in its order."""
        return self._blocks(self.output, rank, num_ranks, root)

    def contributors(self, block: int, num_ranks: int, root: int = 0) -> range:
        """Ranks whose contribution every output copy of this block must hold."""
        if self.reduces:
            return range(num_ranks)
        owner = root if self.input == "root" else block
        return range(owner, owner + 1)

    def num_input_blocks(self, num_ranks: int, root: int = 0) -> npt.NDArray[np.int64]:
        """Length of input_blocks, for all ranks: int64[num_ranks]."""
        return self._num_blocks(self.input, num_ranks, root)

    def num_output_blocks(self, num_ranks: int, root: int = 0) -> npt.NDArray[np.int64]:
        """Length of output_blocks, for all ranks: int64[num_ranks]."""
        return self._num_blocks(self.output, num_ranks, root)

    def _blocks(self, extent: Extent, rank: int, num_ranks: int, root: int) -> range:
        if extent == "own":
            return range(rank, rank + 1)
        if extent == "root" and rank != root:
            return range(0)
        return range(self.num_blocks(num_ranks))

    def _num_blocks(self, extent: Extent, num_ranks: int, root: int) -> npt.NDArray[np.int64]:
        if extent == "own":
            return np.ones(num_ranks, np.int64)
        whole = np.full(num_ranks, self.num_blocks(num_ranks), np.int64)
        return whole if extent == "whole" else np.where(np.arange(num_ranks) == root, whole, 0)


COLLECTIVES: dict[str, Collective] = {
    collective.name: collective
    for collective in (
        Collective("all_reduce", block_per_rank=False, input="whole", output="whole", reduces=True),
        Collective(
            "all_gather", block_per_rank=True, input="own", output="whole", reduces=False, reverse="reduce_scatter"
        ),
        Collective(
            "reduce_scatter", block_per_rank=True, input="whole", output="own", reduces=True, reverse="all_gather"
        ),
        Collective("broadcast", block_per_rank=False, input="root", output="whole", reduces=False, reverse="reduce"),
        Collective("reduce", block_per_rank=False, input="whole", output="root", reduces=True, reverse="broadcast"),
        # One token byte, folded with max: everybody must have heard of everybody, however often.
        Collective("barrier", block_per_rank=False, input="whole", output="whole", reduces=True, exactly_once=False),
    )
}


def find_collective(name: str) -> Collective:
    """The collective of this name; ScheduleError, listing the names, if there is none."""
    if name not in COLLECTIVES:
        raise ScheduleError(f"expected a collective, one of {', '.join(COLLECTIVES)}; found {name!r}")
    return COLLECTIVES[name]


def chunk_bounds(num_elements: int, chunks_per_block: int) -> npt.NDArray[np.int64]:
    """Where the chunks of a block of num_elements elements begin and end: int64[chunks_per_block + 1].

    Chunk j has elements bounds[j] to bounds[j + 1]; lengths differ by one at most. Chunk c of `data` is chunk
    j = c % chunks_per_block of its block: its size class. Refining every chunk by m leaves the old bounds in place.
    """
    return np.arange(chunks_per_block + 1, dtype=np.int64) * num_elements // chunks_per_block
