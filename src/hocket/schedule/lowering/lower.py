"""From a schedule to plans: what one rank executes, as flat arrays. The native core gets these very arrays.

A chunk of `data` lies in output memory if the output holds it. Otherwise it lies in the input until it is first
written, and from then on in scratch, whose slots are reused when their content is no longer needed. The first fold into
a spot reads the input and writes where the spot lies from then on, so a copy that a fold can do is never made. In
place, input and output are one memory under one name.

All sources of a step are read before its destinations are written. If a rank writes in a step what it also sends, the
transport copies the source (STAGED). If a channel carries more than this one message, or another fold of the rank reads
the source, the plan copies it to scratch first. Both keep the waits inside a step in the order of rows:

- A fold waits for sends of its own rows; a send waits for folds of earlier rows of its channels (capacity one).
- A send that serves rows a < b leaves row b to a new send if one of its channels carries anything in between.
- All rows of a group that come from one peer, except the last one, are received into scratch separately.

So a step cannot deadlock, in any schedule. Law 3 checks this again on the arrays.

Lowering works without names: ranks that do the same with other peers and chunks share the work (forms.py). Law 3 checks
the plans with their names, so it does not rely on this.

A fold marks its raw operands: untouched contributions, which premul multiplies. Copies that lowering adds mark nothing,
so their content is still raw for the row that reads it. A rank that is alone may have no row that reads its
contribution; then the copy to the output reads it, in place too.
"""

import threading
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hocket.errors import VerifyError
from hocket.schedule.ir import Buffer, Schedule
from hocket.schedule.lowering.dependencies import REMOTE
from hocket.schedule.lowering.forms import (
    COMPLETING,
    KEEPS,
    KEEPS_RAW,
    NO_STEP,
    OPENS,
    RAW,
    RECEIVES,
    SENDS,
    Form,
    Forms,
    RankTransfers,
    rank_transfers,
)
from hocket.schedule.lowering.placement import NOWHERE, Memory
from hocket.schedule.lowering.plan import COMPLETES, STAGED, Outline, OutlineWriter, Plan
from hocket.schedule.lowering.transfers import transfers

__all__ = ["COMPLETES", "STAGED", "Plan", "lower", "lower_all"]

_Operand = tuple[int, bool]
"""What a fold reads: a location, or ~row for the message of that row; and whether it is raw."""

_MOST_ROWS_KEPT = 1 << 17
_NUM_KEPT = 1024
_LONGEST_KEPT = 1024  # instructions
_lock = threading.Lock()  # guards _outlines
_outlines: dict[Form, Outline] = {}
"""Outlines of the forms that were used last, in this order. The roots of one algorithm have most forms in common."""


def lower(schedule: Schedule, rank: int, in_place: bool) -> Plan:
    """The plan of one rank; keeps that rank's transfers only. VerifyError (law 2) if a row reads an empty spot."""
    batch = RankTransfers(schedule, transfers(schedule, rank), range(rank, rank + 1))
    return _plans(Forms(batch, in_place))[0]


def lower_all(schedule: Schedule, in_place: bool) -> list[Plan]:
    """The plans of all ranks, by rank, from one pass over the steps. Errors as in `lower`."""
    small = schedule.num_rows <= _MOST_ROWS_KEPT
    batches = _kept_transfers(schedule) if small else rank_transfers(schedule)
    return [plan for batch in batches for plan in _plans(Forms(batch, in_place))]


@lru_cache(1)  # The proof asks once for each alias mode.
def _kept_transfers(schedule: Schedule) -> list[RankTransfers]:
    return list(rank_transfers(schedule))


def _plans(forms: Forms) -> list[Plan]:
    """Lower each different form once, and put the names in."""
    wanted = dict.fromkeys(forms.forms)
    with _lock:
        known = {form: _outlines.pop(form) for form in wanted if form in _outlines}
    writer, missing = OutlineWriter(), [form for form in wanted if form not in known]
    for form in missing:
        try:
            _FormLowering(form, writer).run()
        except _NothingHeld as error:
            index = forms.forms.index(form)
            rank, spot = forms.batch.ranks[index], forms.spot(index, error.spot)
            text = f"rank {rank} reads {Buffer(spot & 3).name.lower()}[{spot >> 2}], which holds nothing yet"
            raise VerifyError(text, law=2, step=error.step, rank=rank, chunk=spot >> 2) from None
    known.update(zip(missing, writer.outlines(), strict=True))
    with _lock:
        _outlines.update((form, outline) for form, outline in known.items() if outline.sizes[0] <= _LONGEST_KEPT)
        for form in list(_outlines)[:-_NUM_KEPT]:
            del _outlines[form]
    return forms.plans([known[form] for form in forms.forms])


class _NothingHeld(Exception):
    """A form reads a spot that holds nothing; the spot is given by its number."""

    def __init__(self, spot: int, step: int) -> None:
        self.spot, self.step = spot, step


@dataclass(slots=True)
class _Publication:
    """Rows of one step that read one location for different peers; they are published once."""

    location: int
    first: int
    last: int
    readers: list[tuple[int, int]]
    closed: bool = False


class _FormLowering:
    """Lowers one rank's transfers, step by step, without names. Its output is described at plan.Outline."""

    def __init__(self, form: Form, writer: OutlineWriter) -> None:
        self.writer, self.overlaps, self.reads_at = writer, form.overlaps, form.reads_at
        table = np.frombuffer(form.rows, np.int32).reshape(-1, 5)
        transfers_end = int(np.count_nonzero(table[:, 0] != NO_STEP))
        self.unwritten = list(enumerate(table[transfers_end:, 2].tolist(), transfers_end))  # row and spot
        step, marks, source, target, peer = table[:transfers_end].T
        self.steps, self.peer = step.tolist(), peer.tolist()
        self.source, self.target = source.tolist(), target.tolist()
        self.sends, self.receives, self.opens, self.keeps, self.raw, self.keeps_raw, self.completes = (
            (marks & mark > 0).tolist() for mark in (SENDS, RECEIVES, OPENS, KEEPS, RAW, KEEPS_RAW, COMPLETING)
        )
        last_use: dict[int, int] = {}
        for read, written, at in zip(self.source, self.target, self.steps, strict=True):
            last_use[read] = last_use[written] = at
        spots = np.frombuffer(form.spots, np.int32).reshape(-1, 2)
        now, home = (
            {spot: location for spot, location in enumerate(column) if location != NOWHERE}
            for column in spots.T.tolist()
        )
        self.memory = Memory(now, home, last_use)

    def run(self) -> None:
        """Emit the whole outline."""
        rescued = self.overwritten_inputs()
        begin, size = 0, len(self.steps)
        if self.reads_at == NO_STEP and (not self.steps or self.steps[0] > 0):
            self.fill_output(0)
        while begin < size:
            step = self.steps[begin]
            end = begin + 1
            while end < size and self.steps[end] == step:
                end += 1
            self.memory.begin(step)
            for spot, last_read, row in rescued.get(step, ()):
                location = self.memory.slot(last_read)
                self.writer.copy(step, row, self.memory.now[spot], location)
                self.memory.now[spot] = location
            self.step(step, begin, end)
            if step == 0 and self.reads_at == NO_STEP:
                self.fill_output(0)
            begin = end
        if self.reads_at != NO_STEP:
            self.fill_output(self.reads_at)
        self.writer.end(self.memory.num_slots)

    def fill_output(self, step: int) -> None:
        """Copy unchanged input to the output; after the sends of step 0, because other ranks wait for these."""
        raw = self.reads_at != NO_STEP
        for row, spot in self.unwritten:
            source, home = self.read(spot, step), self.memory.home[spot]
            if source != home or raw:
                self.writer.copy(step, row, source, home, raw)

    def overwritten_inputs(self) -> dict[int, list[tuple[int, int, int]]]:
        """Input that is read after a row has overwritten its memory: (spot, last read, row of its size), by that step.

        Such a row writes another spot that lies in the same memory: explicit output, or what an exchange receives.
        """
        found: dict[int, list[tuple[int, int, int]]] = {}
        memory = self.memory
        if not self.overlaps:
            return found
        overwritten: dict[int, int] = {}  # location -> the first step that does it
        last_read: dict[int, tuple[int, int]] = {}  # spot of an input -> step and row
        for row, step in enumerate(self.steps):
            source, target = self.source[row], self.target[row]
            if self.sends[row] and source in memory.now:
                last_read[source] = step, row
            if not self.receives[row]:
                continue
            if self.keeps[row] and target in memory.now:
                last_read[target] = step, row
            location = memory.home.get(target)
            if location is not None and memory.now.get(target) != location and not self.moves_nothing(row, location):
                overwritten.setdefault(location, step)
        for spot, (last, row) in last_read.items():
            first = overwritten.get(memory.now[spot], last)
            if first < last:
                found.setdefault(first, []).append((spot, last, row))
        return found

    def moves_nothing(self, row: int, location: int) -> bool:
        """Whether a row alone copies an input to the memory where it already lies, and so needs no instruction."""
        last = row + 1 == len(self.steps) or self.opens[row + 1] or not self.receives[row + 1]
        alone = last and self.opens[row] and not self.keeps[row] and self.sends[row]
        return alone and not self.raw[row] and self.memory.now.get(self.source[row]) == location

    def read(self, spot: int, step: int) -> int:
        location = self.memory.now.get(spot)
        if location is None:
            raise _NothingHeld(spot, step)
        return location

    def step(self, step: int, begin: int, end: int) -> None:
        """Lower the rows from begin to end, which are all rows of this step."""
        memory = self.memory
        outgoing: list[tuple[int, int]] = []
        groups: list[tuple[int, list[_Operand]]] = []  # opening row, operands
        for row in range(begin, end):
            if not self.receives[row]:
                outgoing.append((row, self.read(self.source[row], step)))
                continue
            if self.opens[row]:
                operands = [(self.read(self.target[row], step), self.keeps_raw[row])] if self.keeps[row] else []
                groups.append((row, operands))
            source = self.read(self.source[row], step) if self.sends[row] else ~row
            operands.append((source, self.raw[row]))
        folds: list[tuple[int, list[_Operand], int]] = []
        for row, operands in groups:
            location = memory.write(self.target[row])
            if operands != [(location, False)]:  # in place, a copy from input to output may need no instruction
                folds.append((row, operands, location))
        written = {location for _, _, location in folds}
        sends = self.merge(outgoing) if outgoing else []
        moved = self.rescue(step, sends, folds, written)
        for send in sends:
            flags = STAGED if send.location in written and send.location not in moved else 0
            location = moved.get(send.location, send.location)
            self.writer.sources += (-1, location & 3, location >> 2, False)
            for peer, row in send.readers:
                self.writer.destinations += (peer, REMOTE, row)
            self.writer.emit(step, send.first, flags)
        for row, operands, location in folds:
            self.fold(step, row, operands, location, moved)

    def merge(self, outgoing: list[tuple[int, int]]) -> list[_Publication]:
        """Group the rows that read one location for several peers, as long as waits stay in the order of rows."""
        sends: list[_Publication] = []
        latest: dict[int, _Publication] = {}  # by peer: the last send on that channel so far
        open_sends: dict[int, _Publication] = {}  # by location
        for row, location in outgoing:
            peer = self.peer[row]
            send, before = open_sends.get(location), latest.get(peer)
            joins = send is not None and not send.closed and before is not send
            if send is None or not joins or (before is not None and before.last > send.first):
                send = open_sends[location] = _Publication(location, row, row, [])
                sends.append(send)
            send.readers.append((peer, row))
            send.last = row
            if before is not None:
                before.closed = True
            latest[peer] = send
        return sends

    def rescue(
        self, step: int, sends: list[_Publication], folds: list[tuple[int, list[_Operand], int]], written: set[int]
    ) -> dict[int, int]:
        """Copy to scratch what is overwritten in this step and cannot be staged: location -> location of the copy."""
        needed: dict[int, int] = {}  # location -> a row with its size
        for row, operands, location in folds:
            for operand, _ in operands:
                if operand in written and operand != location:
                    needed[operand] = row
        exposed = [send for send in sends if send.location in written]
        if exposed:
            messages: dict[int, int] = {}
            for send in sends:
                for peer, _ in send.readers:
                    messages[peer] = messages.get(peer, 0) + 1
            for send in exposed:
                if any(messages[peer] > 1 for peer, _ in send.readers):
                    needed[send.location] = send.first
        moved = {}
        for location, row in needed.items():
            moved[location] = self.memory.slot(step)
            self.writer.copy(step, row, location, moved[location])
        return moved

    def fold(self, step: int, row: int, operands: list[_Operand], location: int, moved: dict[int, int]) -> None:
        """Emit a row group. Each message of a peer, except its last one, is received by an instruction of its own."""
        writer = self.writer
        if len(operands) > 2 or (len(operands) == 2 and operands[0][0] < 0):
            final = {self.peer[~operand]: operand for operand, _ in operands if operand < 0}
            for i, (operand, raw) in enumerate(operands):
                if operand < 0 and final[self.peer[~operand]] != operand:
                    operands[i] = self.memory.slot(step), raw
                    writer.sources += (self.peer[~operand], REMOTE, ~operand, False)
                    writer.fold(step, row, operands[i][0], 0)
        for operand, raw in operands:
            if operand < 0:
                writer.sources += (self.peer[~operand], REMOTE, ~operand, raw)
            else:
                held = moved.get(operand, operand) if operand != location else operand
                writer.sources += (-1, held & 3, held >> 2, raw)
        writer.fold(step, row, location, COMPLETES if self.completes[row] else 0)
