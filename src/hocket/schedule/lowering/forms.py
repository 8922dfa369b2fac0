"""What of a rank's transfers its plan depends on, without names: most ranks, and most roots, do the same elsewhere.

Peers, places and locations of a rank get numbers of their own, in the order in which the rank's transfers meet them;
a message and a size class is called by the row that has it. What is left is the rank's *form*. Lowering sees a form and
nothing else (lower.py), so ranks of equal forms share what it makes of it, the outline of a plan, and `Forms.plans`
puts each rank's names in. No two places of a rank, no two locations, and no two peers get the same number. So all that
lowering can ask of a name, whether it is equal to another, has the same answer of its number.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hocket.schedule.ir import Buffer, Schedule
from hocket.schedule.lowering.dependencies import REMOTE, SCRATCH, Ints
from hocket.schedule.lowering.placement import NOWHERE, first_locations, is_shared
from hocket.schedule.lowering.plan import Outline, Plan
from hocket.schedule.lowering.transfers import Transfers, transfers

SENDS, RECEIVES, OPENS, KEEPS, RAW, KEEPS_RAW, COMPLETING = (1 << i for i in range(7))
"""Marks of a row of a form: this rank is its source; its destination; and what Transfers says of it, if so."""

NO_STEP = -1
"""Step of the rows behind a form's transfers: output that no transfer writes, with its place as the source."""

_MOST_ENDS, _MOST_NAMES = 1 << 18, 1 << 22


class Form(NamedTuple):
    """The transfers of a rank, in their order; hashable.

    rows: int32[., 5] of step, marks, source, target (numbers of places, or -1 at the other end), peer (or -1). places:
    int32[., 2] of where each lies first and where once it is written, as ``number of the location * 4 + space`` or
    NOWHERE. overlaps: explicit output, or what an exchange receives, lies in the same memory as the input. reads_at:
    the step in which the only rank reads the contributions that no row reads; else NO_STEP.
    """

    rows: bytes
    places: bytes
    overlaps: bool
    reads_at: int


class Ends:
    """The transfers of some consecutive ranks, rank after rank, and all of their forms that no alias mode changes."""

    def __init__(self, schedule: Schedule, rows: Transfers, ranks: range) -> None:
        self.schedule, self.ranks = schedule, ranks
        first, self.span = ranks.start, _num_names(schedule)
        ends = np.stack((rows.src, np.where(rows.src == rows.dst, -1, rows.dst)), axis=1).ravel()
        own = np.flatnonzero((ends >= first) & (ends < ranks.stop))
        owner, row = ends[own] - first, own >> 1
        sends, receives = rows.src[row] - first == owner, rows.dst[row] - first == owner
        marks = sends * SENDS + receives * RECEIVES
        for mark, column in (
            (OPENS, rows.opens),
            (KEEPS, rows.keeps),
            (RAW, rows.raw),
            (KEEPS_RAW, rows.keeps_raw),
            (COMPLETING, rows.completes),
        ):
            marks += (column[row] & receives) * mark
        peer = np.where(sends, rows.dst[row], rows.src[row])
        peer[sends & receives] = -1
        source, target = np.where(sends, rows.source[row], -1), np.where(receives, rows.target[row], -1)
        table = np.stack((owner, rows.step[row], marks, source, target, peer, rows.chunk[row], rows.order[row]))
        if schedule.uses_data:
            written = np.zeros(len(ranks) * self.span, bool)
            written[(owner * self.span + target)[receives]] = True
            table = np.concatenate((table, self._unwritten(written)), axis=1)
        table = table[:, np.argsort(table[0].astype(np.min_scalar_type(len(ranks))), kind="stable")]
        owner, step, marks, source, target, self.peer, self.chunk, self.order = table
        self.starts = self.cuts(owner)
        places, self.place_owner, self.places = self.numbers(owner, np.stack((source, target), axis=1), self.span)
        self.place_starts = self.cuts(self.place_owner)
        peers, _, _ = self.numbers(owner, self.peer[:, None], schedule.num_ranks)
        lines = np.stack((step, marks, *places.T, peers[:, 0]), axis=1).astype(np.int32)
        self.rows = _bytes(lines, self.starts)

    def numbers(self, owner: Ints, names: Ints, span: int) -> tuple[Ints, Ints, Ints]:
        """Number the names below span in each line of a table, apart for each owner, by first appearance; -1 is none.

        Gives the numbers, shaped like names; and owner and name of every number, owner after owner.
        """
        named = names >= 0
        key = (owner[:, None] * span + names)[named]
        position = np.arange(len(key))
        first = np.empty(len(self.ranks) * span, np.int64)
        first[key[::-1]] = position[::-1]  # of several assignments the last one stays
        first_of = first[key]
        opens = first_of == position
        name_owner, name = np.divmod(key[opens], span)
        numbers = np.full(names.shape, -1)
        numbers[named] = (np.cumsum(opens) - 1)[first_of] - self.cuts(name_owner)[key // span]
        return numbers, name_owner, name

    def cuts(self, owner: Ints) -> Ints:
        """Where the lines of each owner begin, and the end: int64[ranks + 1]."""
        return np.searchsorted(owner, np.arange(len(self.ranks) + 1))

    def _unwritten(self, written: NDArray[np.bool_]) -> Ints:
        """Columns of the rows for output that no transfer writes."""
        schedule, k = self.schedule, self.schedule.chunks_per_block
        size = (
            schedule.kind.num_output_blocks(schedule.num_ranks, schedule.root)[self.ranks.start : self.ranks.stop] * k
        )
        owner = np.repeat(np.arange(len(size)), size)
        index = np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
        chunk = schedule.kind.output_block(owner + self.ranks.start, index // k, schedule.num_ranks) * k + index % k
        missing = ~written[owner * self.span + chunk * 4 + Buffer.DATA]
        owner, chunk = owner[missing], chunk[missing]
        none = np.full_like(owner, -1)
        size_class = chunk if schedule.kind.uneven else chunk % k
        return np.stack((owner, none, np.zeros_like(owner), chunk * 4 + Buffer.DATA, none, none, size_class, none))


class Forms:
    """The forms of some ranks in one alias mode, by rank, and the names that belong to them."""

    def __init__(self, ends: Ends, in_place: bool) -> None:
        self.ends, self.in_place = ends, in_place
        schedule, ranks = ends.schedule, np.arange(ends.ranks.start, ends.ranks.stop)
        first, home = first_locations(schedule, in_place, ranks[ends.place_owner], ends.places)
        locations = np.stack((first, home), axis=1)
        numbers, location_owner, self._locations = ends.numbers(ends.place_owner, locations, ends.span)
        self._location_starts = ends.cuts(location_owner)
        codes = np.where(locations == NOWHERE, NOWHERE, numbers * 4 + (locations & 3))
        # One rank alone may have no rows: then its contribution is read where it becomes the output.
        alone = schedule.kind.counts_contributions and schedule.num_ranks == 1
        reads_at = max(schedule.num_steps, 1) - 1 if alone else NO_STEP
        overlaps = np.zeros(len(ranks), bool)
        if in_place and (schedule.kind.blocks == "pair" or not schedule.uses_data):
            overlaps = is_shared(schedule, ranks)
        places = _bytes(codes.astype(np.int32), ends.place_starts)
        self.forms = [Form(*parts, reads_at) for parts in zip(ends.rows, places, overlaps.tolist(), strict=True)]

    def place(self, index: int, number: int) -> int:
        """The place with this number in the form at this index."""
        return int(self.ends.places[self.ends.place_starts[index] + number])

    def plans(self, outlines: Sequence[Outline]) -> list[Plan]:
        """The plans of all ranks here, from the outlines of their forms."""
        ends, schedule = self.ends, self.ends.schedule
        kind, k, num_steps = schedule.kind, schedule.chunks_per_block, max(1, schedule.num_steps)
        sizes = np.array([outline.sizes for outline in outlines])
        cuts = np.concatenate((np.zeros((1, 4), np.int64), np.cumsum(sizes, axis=0))).tolist()
        instructions = np.concatenate([outline.instructions for outline in outlines])
        sources = np.concatenate([outline.sources for outline in outlines])
        destinations = np.concatenate([outline.destinations for outline in outlines])
        dependencies = np.concatenate([outline.dependencies for outline in outlines])
        instructions[:, 1] = ends.chunk[instructions[:, 1] + np.repeat(ends.starts[:-1], sizes[:, 0])]
        self._name(sources, sizes[:, 1])
        self._name(destinations, sizes[:, 2])
        plans = []
        held = self._blocks(kind.num_input_blocks(schedule.num_ranks, schedule.root), kind.input_block)
        wanted = self._blocks(kind.num_output_blocks(schedule.num_ranks, schedule.root), kind.output_block)
        for i, (rank, outline) in enumerate(zip(ends.ranks, outlines, strict=True)):
            begin, end = cuts[i], cuts[i + 1]
            plan = Plan(
                rank=rank,
                num_ranks=schedule.num_ranks,
                chunks_per_block=k,
                uneven=kind.uneven,
                num_input_chunks=len(held[i]) * k,
                num_output_chunks=len(wanted[i]) * k,
                num_scratch=outline.num_scratch,
                in_place=self.in_place,
                num_steps=num_steps,  # one even if nothing moves between ranks
                input_blocks=held[i],
                output_blocks=wanted[i],
                instructions=instructions[begin[0] : end[0]],
                sources=sources[begin[1] : end[1]],
                destinations=destinations[begin[2] : end[2]],
                dependencies=dependencies[begin[3] : end[3]],
            )
            plans.append(plan)
        return plans

    def _blocks(self, num_blocks: Ints, block_at: Callable[[Ints, Ints, int], Ints]) -> list[NDArray[np.int32]]:
        """The blocks of each rank's input or output."""
        sizes = num_blocks[self.ends.ranks.start : self.ends.ranks.stop]
        cuts = np.append(0, np.cumsum(sizes))
        owner = np.repeat(np.arange(len(sizes)), sizes)
        index, rank = np.arange(len(owner)) - cuts[owner], owner + self.ends.ranks.start
        blocks = block_at(rank, index, self.ends.schedule.num_ranks).astype(np.int32)
        return [blocks[begin:end] for begin, end in pairwise(cuts.tolist())]

    def _name(self, entries: NDArray[np.int32], sizes: Ints) -> None:
        """Put names in the place of numbers, in the sources or destinations of all ranks, so many of each."""
        space = entries[:, 1]
        remote = np.flatnonzero(space == REMOTE)
        row = entries[remote, 2] + np.repeat(self.ends.starts[:-1], sizes)[remote]
        entries[remote, 0], entries[remote, 2] = self.ends.peer[row], self.ends.order[row]
        fixed = np.flatnonzero(space < SCRATCH)
        location = entries[fixed, 2] + np.repeat(self._location_starts[:-1], sizes)[fixed]
        entries[fixed, 2] = self._locations[location] >> 2


def ends_of_all(schedule: Schedule) -> Iterator[Ends]:
    """The ends of all ranks, as many ranks at a time as fit in bounded tables."""
    rows, num_ranks = transfers(schedule), schedule.num_ranks
    batches = max(2 * len(rows.src) / _MOST_ENDS, num_ranks * _num_names(schedule) / _MOST_NAMES)
    length = max(1, int(num_ranks / max(1.0, batches)))
    for first in range(0, num_ranks, length):
        yield Ends(schedule, rows, range(first, min(first + length, num_ranks)))


def _bytes(table: NDArray[np.int32], starts: Ints) -> list[bytes]:
    """The lines of each rank."""
    cuts = starts.tolist()
    return [table[begin:end].tobytes() for begin, end in pairwise(cuts)]


def _num_names(schedule: Schedule) -> int:
    """A bound of the places of a rank, and of the locations in its input and output."""
    kind, p, root = schedule.kind, schedule.num_ranks, schedule.root
    span = int(max(kind.num_input_blocks(p, root).max(), kind.num_output_blocks(p, root).max()))
    span *= schedule.chunks_per_block
    if schedule.uses_data:
        span = schedule.num_chunks
    return 4 * max(span, schedule.num_scratch, 1)
