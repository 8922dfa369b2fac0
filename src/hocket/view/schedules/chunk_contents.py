"""Computes what every rank holds of every chunk after each step; the pictures of a schedule show this.

The contents are the sets of contributions of law 2 (hocket.schedule.proof.result); this module interprets no schedule.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.errors import VerifyError
from hocket.schedule import Buffer, Places, Schedule, Step, Symbolic

MAX_RANKS = 64  # above, law 2 does not use sets, and no picture would be readable
_MAX_SCRATCH_COLUMNS = 8

# Levels that are not a number of contributions.
ABSENT, FOREIGN, SPOILED, UNKNOWN = -1, -2, -3, -4
MEANINGS = {
    FOREIGN: "data of another chunk",
    SPOILED: "a wrong sum",
    UNKNOWN: "unknown, because an earlier row reads a chunk that is not there",
}

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_AnyInts = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class State:
    """The contents of all ranks after a step, or before the first (number and step are None). Arrays: [rank, column].

    `titles` are those of the columns: before the first step, columns of output memory are columns of input memory.
    `level` is the number of contributions (0 or 1 if nothing is reduced), or ABSENT, FOREIGN, SPOILED or UNKNOWN.
    `full`: all contributions are there; `written`: the step wrote the cell; `hue`: the number of its colour. `carried`
    counts, for each rank, the chunks it holds in places without a column. `hue_of_place` has an entry for every place,
    see ChunkContents.place.
    """

    number: int | None
    step: Step | None
    titles: list[str]
    level: Ints
    full: Bools
    written: Bools
    hue: Ints
    carried: Ints
    hue_of_place: Ints


class ChunkContents:
    """The contents of a schedule of at most MAX_RANKS ranks, as a table of ranks and columns.

    A column is a chunk of `data` or of scratch memory. If rows name input and output, or pairs of ranks have blocks, it
    is a chunk of output memory instead, and of input memory before the first step. If a single chunk is reduced, the
    columns are the contributing ranks. `total` is the number of contributions that make a place full. `num_hues` is the
    number of colours: one per chunk, or, if pairs of ranks have blocks, one per source rank.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._places = schedule, Places(schedule)
        kind, p = schedule.kind, schedule.num_ranks
        self._pairs = kind.blocks == "pair"
        self.by_rank = kind.reduces and schedule.uses_data and schedule.num_chunks == 1 and not schedule.num_scratch
        self.total = p if kind.reduces else 1
        self.num_hues = p if self._pairs else schedule.num_chunks
        place, wanted, titles = self._main_columns()
        first_place, first_titles = self._first_columns(place, titles)
        in_columns = np.zeros(self._places.count, bool)
        in_columns[place[place >= 0]] = True
        in_columns[self._places.inputs()[0]] = True
        if 0 < schedule.num_scratch <= _MAX_SCRATCH_COLUMNS:
            scratch = self._at(Buffer.SCRATCH, schedule.num_scratch)
            in_columns[scratch] = True
            place, first_place = (np.concatenate((table, scratch), axis=1) for table in (place, first_place))
            wanted = np.concatenate((wanted, np.full_like(scratch, -1)), axis=1)
            named = [f"s{chunk}" for chunk in range(schedule.num_scratch)]
            titles, first_titles = titles + named, first_titles + named
        self._place, self._wanted, self._first_place = place, wanted, first_place
        self._beside = np.flatnonzero(~in_columns)
        self.titles = [f"r{rank}" for rank in range(p)] if self.by_rank else titles
        self._first_titles = self.titles if self.by_rank else first_titles

    def place(self, rank: _AnyInts, buffer: _AnyInts, chunk: _AnyInts) -> Ints:
        """Returns the numbers of places, which index State.hue_of_place. The arguments have equal lengths."""
        return np.asarray(rank * self._places.width + self._places.begins[buffer] + chunk, np.int64)

    def states(self) -> Iterator[State]:
        """Yields the state before the first step and after each step."""
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
        """Returns, for all columns but scratch, their places (-1: none), their chunks of `data`, and their titles."""
        schedule, places = self._schedule, self._places
        if schedule.uses_data and not self._pairs:
            chunks = np.arange(schedule.num_chunks)
            wanted = np.tile(chunks, (schedule.num_ranks, 1))
            return self._at(Buffer.DATA, schedule.num_chunks), wanted, [f"c{chunk}" for chunk in chunks]
        sizes = (schedule.kind.num_input_blocks, schedule.kind.num_output_blocks)
        most = max(int(size(schedule.num_ranks, schedule.root).max()) for size in sizes) * schedule.chunks_per_block
        table, wanted, num_columns = self._end(*places.outputs(), most)
        return table, wanted, [f"o{index}" if index < num_columns else "" for index in range(most)]

    def _first_columns(self, place: Ints, titles: list[str]) -> tuple[Ints, list[str]]:
        """Returns the places and titles of the main columns before the first step, from those after it."""
        if self._schedule.uses_data and not self._pairs:
            return place, titles
        table, _, num_columns = self._end(*self._places.inputs(), len(titles))
        return table, [f"i{index}" if index < num_columns else "" for index in range(len(titles))]

    def _end(self, place: Ints, rank: Ints, chunk: Ints, most: int) -> tuple[Ints, Ints, int]:
        """Returns the places and chunks of input or output memory, in `most` columns, and how many of them are used."""
        sizes = np.bincount(rank, minlength=self._schedule.num_ranks)
        column = np.arange(len(rank)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        table, wanted = (np.full((self._schedule.num_ranks, most), -1) for _ in range(2))
        table[rank, column], wanted[rank, column] = place, chunk
        return table, wanted, int(sizes.max())

    def _at(self, buffer: Buffer, num_chunks: int) -> Ints:
        """Returns the places of the first num_chunks chunks of a buffer on all ranks: int64[rank, chunk]."""
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
        place = self._place if step is not None else self._first_place
        wanted = self._wanted if step is not None else np.full_like(place, -1)
        chunk = held.chunk[place]
        if self.by_rank:
            level, spoiled = bits[place[:, 0]].astype(np.int64), np.repeat(chunk < -1, bits.shape[1], axis=1)
            full = np.repeat(count[place] == self.total, bits.shape[1], axis=1) & (level > 0)
            just_written = written[place] & (level > (before.level if before else 0))
        else:
            level, spoiled = count[place] if self.total > 1 else (chunk >= 0).astype(np.int64), chunk < -1
            level[(chunk >= 0) & (wanted >= 0) & (chunk != wanted)] = FOREIGN
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
            titles=self.titles if step is not None else self._first_titles,
            level=level,
            full=full & (level > 0),
            written=just_written & (level != ABSENT),
            hue=np.broadcast_to(hue[place], level.shape),
            carried=np.bincount(beside // self._places.width, minlength=self._schedule.num_ranks),
            hue_of_place=hue,
        )
