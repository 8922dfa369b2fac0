"""What every rank holds of every chunk, step by step: what the pictures of a schedule show.

Contents come from the sets that law 2 carries (hocket.schedule.proof.result); nothing is interpreted here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.errors import VerifyError
from hocket.schedule import Buffer, Places, Schedule, Step, Symbolic

MAX_RANKS = 64  # above, law 2 does not carry sets, and no picture would be readable
_MAX_SCRATCH_COLUMNS = 8

# Levels that are no number of contributions.
ABSENT, FOREIGN, SPOILED, UNKNOWN = -1, -2, -3, -4
MEANINGS = {
    FOREIGN: "data of another chunk",
    SPOILED: "a wrong sum",
    UNKNOWN: "unknown, as a row before it reads what is not there",
}

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_AnyInts = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class State:
    """What all ranks hold after a step, or before the first (number and step are None). Arrays: [rank, column].

    `level` is the number of contributions, 0 or 1 where nothing is reduced, or one of ABSENT, FOREIGN, SPOILED and
    UNKNOWN. `full` says that it is all there is to hold, `written` that the step wrote it, `hue` which colour it has.
    `carried` counts for each rank the chunks that it holds in places which have no column. `hue_of_place` is about all
    places, see ChunkContents.place.
    """

    number: int | None
    step: Step | None
    level: Ints
    full: Bools
    written: Bools
    hue: Ints
    carried: Ints
    hue_of_place: Ints


class ChunkContents:
    """The contents of a schedule of at most MAX_RANKS ranks, as a table of ranks and columns.

    A column is a chunk of `data`; or, where rows name input and output, or where pairs of ranks have blocks, a chunk of
    output memory; or a chunk of scratch memory. Where one chunk is reduced, columns are the ranks that contribute.
    `total` is how many contributions make a place full; `num_hues` how many colours there are, one for each chunk, or
    where pairs of ranks have blocks for each rank that a block comes from.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._places = schedule, Places(schedule)
        kind, p = schedule.kind, schedule.num_ranks
        self._pairs = kind.blocks == "pair"
        self.by_rank = kind.reduces and schedule.uses_data and schedule.num_chunks == 1 and not schedule.num_scratch
        self.total = p if kind.reduces else 1
        self.num_hues = p if self._pairs else schedule.num_chunks
        place, wanted, titles = self._main_columns()
        in_columns = np.zeros(self._places.count, bool)
        in_columns[place[place >= 0]] = True
        in_columns[self._places.inputs()[0]] = True
        if 0 < schedule.num_scratch <= _MAX_SCRATCH_COLUMNS:
            scratch = self._at(Buffer.SCRATCH, schedule.num_scratch)
            in_columns[scratch] = True
            place = np.concatenate((place, scratch), axis=1)
            wanted = np.concatenate((wanted, np.full_like(scratch, -1)), axis=1)
            titles += [f"s{chunk}" for chunk in range(schedule.num_scratch)]
        self._place, self._wanted = place, wanted
        self._beside = np.flatnonzero(~in_columns)
        self.titles = [f"r{rank}" for rank in range(p)] if self.by_rank else titles

    def place(self, rank: _AnyInts, buffer: _AnyInts, chunk: _AnyInts) -> Ints:
        """The number of a place: an index of State.hue_of_place. Arguments are equally long."""
        return np.asarray(rank * self._places.width + self._places.begins[buffer] + chunk, np.int64)

    def states(self) -> Iterator[State]:
        """The state before the first step, and the one after each step."""
        held = Symbolic(self._places)
        state = self._state(held, None, None, np.zeros(self._places.count, bool))
        yield state
        known = True
        for fold in self._places.folds():
            written = np.zeros(self._places.count, bool)
            if known:
                try:
                    held.apply(fold)
                except VerifyError:
                    known = False
            written[fold.writes] = known
            state = self._state(held, fold.number, fold.step, written, state, known)
            yield state

    def _main_columns(self) -> tuple[Ints, Ints, list[str]]:
        """For columns but scratch: their places (-1: the rank has none), the chunks of `data` they are for, titles."""
        schedule, places = self._schedule, self._places
        if schedule.uses_data and not self._pairs:
            chunks = np.arange(schedule.num_chunks)
            wanted = np.tile(chunks, (schedule.num_ranks, 1))
            return self._at(Buffer.DATA, schedule.num_chunks), wanted, [f"c{chunk}" for chunk in chunks]
        place, rank, chunk = places.outputs()
        sizes = np.bincount(rank, minlength=schedule.num_ranks)
        column = np.arange(len(rank)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        table, wanted = (np.full((schedule.num_ranks, int(sizes.max())), -1) for _ in range(2))
        table[rank, column], wanted[rank, column] = place, chunk
        return table, wanted, [f"o{index}" for index in range(table.shape[1])]

    def _at(self, buffer: Buffer, num_chunks: int) -> Ints:
        """The places of all ranks' first chunks in a buffer: int64[rank, chunk]."""
        first = np.arange(self._schedule.num_ranks)[:, None] * self._places.width + self._places.begins[buffer]
        return np.asarray(first + np.arange(num_chunks), np.int64)

    def _state(
        self,
        held: Symbolic,
        number: int | None,
        step: Step | None,
        written: Bools,
        before: State | None = None,
        known: bool = True,
    ) -> State:
        bits = np.unpackbits(held.sets.view(np.uint8), axis=1, bitorder="little")[:, : self._schedule.num_ranks]
        count = bits.sum(axis=1, dtype=np.int64)
        place, chunk = self._place, held.chunk[self._place]
        if self.by_rank:
            level, spoiled = bits[place[:, 0]].astype(np.int64), np.repeat(chunk < -1, bits.shape[1], axis=1)
            full = np.repeat(count[place] == self.total, bits.shape[1], axis=1) & (level > 0)
            just_written = written[place] & (level > (before.level if before else 0))
        else:
            level, spoiled = count[place] if self.total > 1 else (chunk >= 0).astype(np.int64), chunk < -1
            level[(chunk >= 0) & (self._wanted >= 0) & (chunk != self._wanted)] = FOREIGN
            full, just_written = level == self.total, written[place]
        level[spoiled] = SPOILED
        if not known:
            level[:] = UNKNOWN
        if not self.by_rank:
            level[place < 0] = ABSENT
        hue = np.maximum(held.chunk // (self._schedule.num_chunks // self.num_hues), 0)
        beside = self._beside[held.chunk[self._beside] != -1]
        return State(
            number=number,
            step=step,
            level=level,
            full=full & (level > 0),
            written=just_written & (level != ABSENT),
            hue=np.broadcast_to(hue[place], level.shape),
            carried=np.bincount(beside // self._places.width, minlength=self._schedule.num_ranks),
            hue_of_place=hue,
        )
