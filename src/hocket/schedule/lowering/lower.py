"""From a schedule to plans: what one rank executes, as flat arrays. The native core is given these very arrays.

A chunk of `data` lies in output memory if the output holds it; else in the input until it is first written, and from
then on in scratch, whose slots are reused once dead. The first fold into a place reads the input and writes the new
home, so no copy is made that a fold can absorb. In place, input and output are one memory under one name.

All sources of a step are read before its destinations are written. Where a rank writes what it also sends in the step,
the transport copies the source (STAGED); where a channel carries more than that one message, or another fold of the
rank reads it, the plan copies it to scratch first. Both keep every wait within a step pointing to a later row:

- a fold waits for sends of its own rows, a send for folds of earlier rows of its channels (capacity one);
- a send that serves rows a < b leaves row b to a new send where its channels carry anything in between;
- all but the last row of a group that come from one peer are received into scratch on their own.

So a step cannot deadlock, in any schedule; law 3 checks it again on the arrays.

What is lowered has no names yet: ranks that do the same elsewhere share the work (forms.py). Law 3 is asked of the
plans with their names, so it takes nothing about this on trust.

A fold marks the operands that are raw: untouched contributions, which premul multiplies. The copies added here mark
nothing, so what they carry is still raw for the row that reads it. Where no row ever reads a contribution, as only one
rank is there, the copy to the output reads it, in place too.
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
    Ends,
    Form,
    Forms,
    ends_of_all,
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
"""Outlines of the forms that were met last, in that order: the roots of one algorithm have most of theirs in common."""


def lower(schedule: Schedule, rank: int, in_place: bool) -> Plan:
    """The plan of one rank; holds that rank's transfers only. VerifyError (law 2) if a row reads what holds nothing."""
    ends = Ends(schedule, transfers(schedule, rank), range(rank, rank + 1))
    return _plans(Forms(ends, in_place))[0]


def lower_all(schedule: Schedule, in_place: bool) -> list[Plan]:
    """The plans of all ranks, by rank, from one pass over the steps. Errors as `lower`."""
    small = schedule.num_rows <= _MOST_ROWS_KEPT
    all_ends = _kept_ends(schedule) if small else ends_of_all(schedule)
    return [plan for ends in all_ends for plan in _plans(Forms(ends, in_place))]


@lru_cache(1)  # The proof asks once for each alias mode.
def _kept_ends(schedule: Schedule) -> list[Ends]:
    return list(ends_of_all(schedule))


def _plans(forms: Forms) -> list[Plan]:
    """Lower what differs, and put the names in."""
    wanted = dict.fromkeys(forms.forms)
    with _lock:
        known = {form: _outlines.pop(form) for form in wanted if form in _outlines}
    writer, missing = OutlineWriter(), [form for form in wanted if form not in known]
    for form in missing:
        try:
            _FormLowering(form, writer).run()
        except _NothingHeld as error:
            index = forms.forms.index(form)
            rank, place = forms.ends.ranks[index], forms.place(index, error.place)
            text = f"rank {rank} reads {Buffer(place & 3).name.lower()}[{place >> 2}], which holds nothing yet"
            raise VerifyError(text, law=2, step=error.step, rank=rank, chunk=place >> 2) from None
    known.update(zip(missing, writer.outlines(), strict=True))
    with _lock:
        _outlines.update((form, outline) for form, outline in known.items() if outline.sizes[0] <= _LONGEST_KEPT)
        for form in list(_outlines)[:-_NUM_KEPT]:
            del _outlines[form]
    return forms.plans([known[form] for form in forms.forms])


class _NothingHeld(Exception):
    """A form reads a place, called by its number, that holds nothing."""

    def __init__(self, place: int, step: int) -> None:
        self.place, self.step = place, step


@dataclass(slots=True)
class _Send:
    """Rows of one step that read one location for different peers: published once."""

    location: int
    first: int
    last: int
    readers: list[tuple[int, int]]
    closed: bool = False


class _FormLowering:
    """Lowers one rank's transfers, step by step, whatever their names. What it emits is meant as in plan.Outline."""

    def __init__(self, form: Form, writer: OutlineWriter) -> None:
        self.writer, self.overlaps, self.reads_at = writer, form.overlaps, form.reads_at
        table = np.frombuffer(form.rows, np.int32).reshape(-1, 5)
        transfers_end = int(np.count_nonzero(table[:, 0] != NO_STEP))
        self.unwritten = list(enumerate(table[transfers_end:, 2].tolist(), transfers_end))  # row and place
        step, marks, source, target, peer = table[:transfers_end].T
        self.steps, self.peer = step.tolist(), peer.tolist()
        self.source, self.target = source.tolist(), target.tolist()
        self.sends, self.receives, self.opens, self.keeps, self.raw, self.keeps_raw, self.completes = (
            (marks & mark > 0).tolist() for mark in (SENDS, RECEIVES, OPENS, KEEPS, RAW, KEEPS_RAW, COMPLETING)
        )
        last_use: dict[int, int] = {}
        for read, written, at in zip(self.source, self.target, self.steps, strict=True):
            last_use[read] = last_use[written] = at
        places = np.frombuffer(form.places, np.int32).reshape(-1, 2)
        now, home = (
            {place: location for place, location in enumerate(column) if location != NOWHERE}
            for column in places.T.tolist()
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
            for place, last_read, row in rescued.get(step, ()):
                location = self.memory.slot(last_read)
                self.writer.copy(step, row, self.memory.now[place], location)
                self.memory.now[place] = location
            self.step(step, begin, end)
            if step == 0 and self.reads_at == NO_STEP:
                self.fill_output(0)
            begin = end
        if self.reads_at != NO_STEP:
            self.fill_output(self.reads_at)
        self.writer.end(self.memory.num_slots)

    def fill_output(self, step: int) -> None:
        """Copy to the output what it takes from the input unchanged; after step 0's sends, which others wait for."""
        raw = self.reads_at != NO_STEP
        for row, place in self.unwritten:
            source, home = self.read(place, step), self.memory.home[place]
            if source != home or raw:
                self.writer.copy(step, row, source, home, raw)

    def overwritten_inputs(self) -> dict[int, list[tuple[int, int, int]]]:
        """Input that is read after a row has overwritten its memory: (place, last read, row of its size), by that step.

        Such a row writes another place, which lies in the same memory: explicit output, or what an exchange receives.
        """
        found: dict[int, list[tuple[int, int, int]]] = {}
        memory = self.memory
        if not self.overlaps:
            return found
        overwritten: dict[int, int] = {}  # location -> the first step that does it
        last_read: dict[int, tuple[int, int]] = {}  # place of an input -> step and row
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
        for place, (last, row) in last_read.items():
            first = overwritten.get(memory.now[place], last)
            if first < last:
                found.setdefault(first, []).append((place, last, row))
        return found

    def moves_nothing(self, row: int, location: int) -> bool:
        """Whether a row is a group of its own that copies an input to the memory in which it lies: no instruction."""
        last = row + 1 == len(self.steps) or self.opens[row + 1] or not self.receives[row + 1]
        alone = last and self.opens[row] and not self.keeps[row] and self.sends[row]
        return alone and not self.raw[row] and self.memory.now.get(self.source[row]) == location

    def read(self, place: int, step: int) -> int:
        location = self.memory.now.get(place)
        if location is None:
            raise _NothingHeld(place, step)
        return location

    def step(self, step: int, begin: int, end: int) -> None:
        """Lower the rows begin to end, all those of this step."""
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
            if operands != [(location, False)]:  # in place, a copy from input to output may be none
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

    def merge(self, outgoing: list[tuple[int, int]]) -> list[_Send]:
        """Group the rows that read one location for several peers, as far as no wait can point backwards."""
        sends: list[_Send] = []
        latest: dict[int, _Send] = {}  # by peer: the last send on that channel so far
        open_sends: dict[int, _Send] = {}  # by location
        for row, location in outgoing:
            peer = self.peer[row]
            send, before = open_sends.get(location), latest.get(peer)
            joins = send is not None and not send.closed and before is not send
            if send is None or not joins or (before is not None and before.last > send.first):
                send = open_sends[location] = _Send(location, row, row, [])
                sends.append(send)
            send.readers.append((peer, row))
            send.last = row
            if before is not None:
                before.closed = True
            latest[peer] = send
        return sends

    def rescue(
        self, step: int, sends: list[_Send], folds: list[tuple[int, list[_Operand], int]], written: set[int]
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
        """Emit a row group, receiving on their own all messages but the last that one peer sends to it."""
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
