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

A fold marks the operands that are raw: untouched contributions, which premul multiplies. The copies added here mark
nothing, so what they carry is still raw for the row that reads it. Where no row ever reads a contribution, as only one
rank is there, the copy to the output reads it, in place too.
"""

from dataclasses import dataclass

from hocket.errors import VerifyError
from hocket.schedule.dependencies import REMOTE
from hocket.schedule.ir import Buffer, Schedule
from hocket.schedule.placement import Memory
from hocket.schedule.plan import COMPLETES, STAGED, Plan, PlanWriter
from hocket.schedule.transfers import Transfers, by_rank, transfers

__all__ = ["COMPLETES", "STAGED", "Plan", "lower", "lower_all"]

_Operand = tuple[int, bool]
"""What a fold reads: a location, or ~row for the message of that row; and whether it is raw."""

_BATCH = 1 << 18
"""Instructions collected before they become arrays: many small plans share one dependency analysis."""


def lower(schedule: Schedule, rank: int, in_place: bool) -> Plan:
    """The plan of one rank; holds that rank's transfers only. VerifyError (law 2) if a row reads what holds nothing."""
    writer = PlanWriter(schedule, in_place)
    _RankLowering(schedule, rank, in_place, transfers(schedule, rank), writer).run()
    return writer.plans()[0]


def lower_all(schedule: Schedule, in_place: bool) -> list[Plan]:
    """The plans of all ranks, by rank, from one pass over the steps. Errors as `lower`."""
    plans: list[Plan] = []
    writer = PlanWriter(schedule, in_place)
    for rank, own in enumerate(by_rank(transfers(schedule), schedule.num_ranks)):
        _RankLowering(schedule, rank, in_place, own, writer).run()
        if writer.num_instructions > _BATCH:
            plans += writer.plans()
            writer = PlanWriter(schedule, in_place)
    return plans + writer.plans()


@dataclass(slots=True)
class _Send:
    """Rows of one step that read one location for different peers: published once."""

    location: int
    chunk: int
    first: int
    last: int
    readers: list[tuple[int, int]]
    closed: bool = False


class _RankLowering:
    """Lowers one rank's transfers, step by step."""

    def __init__(self, schedule: Schedule, rank: int, in_place: bool, rows: Transfers, writer: PlanWriter) -> None:
        self.rank, self.writer = rank, writer
        self.uses_data = writer.uses_data
        # One rank alone may have no rows: then its contribution is read where it becomes the output.
        self.reads_at_the_end = schedule.kind.counts_contributions and schedule.num_ranks == 1
        self.last_step = max(schedule.num_steps, 1) - 1
        self.steps = rows.step.tolist()
        self.order, self.src, self.dst = rows.order.tolist(), rows.src.tolist(), rows.dst.tolist()
        self.source, self.target, self.chunk = rows.source.tolist(), rows.target.tolist(), rows.chunk.tolist()
        self.raw, self.opens, self.keeps = rows.raw.tolist(), rows.opens.tolist(), rows.keeps.tolist()
        self.keeps_raw, self.completes = rows.keeps_raw.tolist(), rows.completes.tolist()
        reads, writes = rows.src == rank, rows.dst == rank
        self.last_read: dict[int, int] = dict(zip(rows.source[reads].tolist(), rows.step[reads].tolist(), strict=True))
        self.last_write: dict[int, int] = dict(
            zip(rows.target[writes].tolist(), rows.step[writes].tolist(), strict=True)
        )
        last_use = self.last_write | self.last_read
        if self.last_write.keys() & self.last_read.keys():
            last_use = {place: max(step, self.last_write.get(place, 0)) for place, step in last_use.items()}
        self.memory = Memory(schedule, rank, in_place, last_use)

    def run(self) -> None:
        """Emit the rank's whole plan."""
        rescued = self.overwritten_inputs()
        begin, size = 0, len(self.steps)
        if not self.reads_at_the_end and (not self.steps or self.steps[0] > 0):
            self.fill_output(0)
        while begin < size:
            step = self.steps[begin]
            end = begin + 1
            while end < size and self.steps[end] == step:
                end += 1
            self.memory.begin(step)
            for place, last_read, chunk in rescued.get(step, ()):
                location = self.memory.slot(last_read)
                self.writer.copy(step, chunk, self.memory.now[place], location)
                self.memory.now[place] = location
            self.step(step, begin, end)
            if step == 0 and not self.reads_at_the_end:
                self.fill_output(0)
            begin = end
        if self.reads_at_the_end:
            self.fill_output(self.last_step)
        self.writer.end_rank(self.rank, self.memory.num_slots)

    def fill_output(self, step: int) -> None:
        """Copy to the output what it takes from the input unchanged; after step 0's sends, which others wait for."""
        if not self.uses_data:
            return
        raw = self.reads_at_the_end
        for chunk in self.memory.wanted:
            place = chunk * 4 + Buffer.DATA
            if place not in self.last_write:
                source, home = self.read(place, step), self.memory.home[place]
                if source != home or raw:
                    size_class = chunk if self.writer.uneven else chunk % self.writer.chunks_per_block
                    self.writer.copy(step, size_class, source, home, raw)

    def overwritten_inputs(self) -> dict[int, list[tuple[int, int, int]]]:
        """Input that is read after a row has overwritten its memory: (place, last read, size class), by that step.

        Such a row writes another place, which lies in the same memory: explicit output, or what an exchange receives.
        """
        found: dict[int, list[tuple[int, int, int]]] = {}
        memory = self.memory
        if not (memory.exchanges or (memory.shared and not self.uses_data)):
            return found
        overwritten: dict[int, int] = {}  # location -> the first step that does it
        last_read: dict[int, tuple[int, int]] = {}  # place of an input -> step and size class
        for row, step in enumerate(self.steps):
            source, target = self.source[row], self.target[row]
            if self.src[row] == self.rank and source in memory.now:
                last_read[source] = step, self.chunk[row]
            if self.dst[row] != self.rank:
                continue
            if self.keeps[row] and target in memory.now:
                last_read[target] = step, self.chunk[row]
            location = memory.home.get(target)
            if location is not None and memory.now.get(target) != location and not self.moves_nothing(row, location):
                overwritten.setdefault(location, step)
        for place, (last, chunk) in last_read.items():
            first = overwritten.get(memory.now[place], last)
            if first < last:
                found.setdefault(first, []).append((place, last, chunk))
        return found

    def moves_nothing(self, row: int, location: int) -> bool:
        """Whether a row is a group of its own that copies an input to the memory in which it lies: no instruction."""
        last = row + 1 == len(self.steps) or self.opens[row + 1] or self.dst[row + 1] != self.rank
        alone = last and self.opens[row] and not self.keeps[row] and self.src[row] == self.rank
        return alone and not self.raw[row] and self.memory.now.get(self.source[row]) == location

    def read(self, place: int, step: int) -> int:
        location = self.memory.now.get(place)
        if location is None:
            text = f"rank {self.rank} reads {Buffer(place & 3).name.lower()}[{place >> 2}], which holds nothing yet"
            raise VerifyError(text, law=2, step=step, rank=self.rank, chunk=place >> 2)
        return location

    def step(self, step: int, begin: int, end: int) -> None:
        """Lower the rows begin to end, all those of this step."""
        rank, memory = self.rank, self.memory
        outgoing: list[tuple[int, int]] = []
        groups: list[tuple[int, list[_Operand]]] = []  # opening row, operands
        for row in range(begin, end):
            if self.dst[row] != rank:
                outgoing.append((row, self.read(self.source[row], step)))
                continue
            if self.opens[row]:
                operands = [(self.read(self.target[row], step), self.keeps_raw[row])] if self.keeps[row] else []
                groups.append((row, operands))
            source = self.read(self.source[row], step) if self.src[row] == rank else ~row
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
            for peer, order in send.readers:
                self.writer.destinations += (peer, REMOTE, order)
            self.writer.emit(step, send.chunk, flags)
        for row, operands, location in folds:
            self.fold(step, row, operands, location, moved)

    def merge(self, outgoing: list[tuple[int, int]]) -> list[_Send]:
        """Group the rows that read one location for several peers, as far as no wait can point backwards."""
        sends: list[_Send] = []
        latest: dict[int, _Send] = {}  # by peer: the last send on that channel so far
        open_sends: dict[int, _Send] = {}  # by location
        for row, location in outgoing:
            peer, order = self.dst[row], self.order[row]
            send, before = open_sends.get(location), latest.get(peer)
            joins = send is not None and not send.closed and before is not send
            if send is None or not joins or (before is not None and before.last > send.first):
                send = open_sends[location] = _Send(location, self.chunk[row], order, order, [])
                sends.append(send)
            send.readers.append((peer, order))
            send.last = order
            if before is not None:
                before.closed = True
            latest[peer] = send
        return sends

    def rescue(
        self, step: int, sends: list[_Send], folds: list[tuple[int, list[_Operand], int]], written: set[int]
    ) -> dict[int, int]:
        """Copy to scratch what is overwritten in this step and cannot be staged: location -> location of the copy."""
        needed: dict[int, int] = {}  # location -> size class
        for row, operands, location in folds:
            for operand, _ in operands:
                if operand in written and operand != location:
                    needed[operand] = self.chunk[row]
        exposed = [send for send in sends if send.location in written]
        if exposed:
            messages: dict[int, int] = {}
            for send in sends:
                for peer, _ in send.readers:
                    messages[peer] = messages.get(peer, 0) + 1
            for send in exposed:
                if any(messages[peer] > 1 for peer, _ in send.readers):
                    needed[send.location] = send.chunk
        moved = {}
        for location, chunk in needed.items():
            moved[location] = self.memory.slot(step)
            self.writer.copy(step, chunk, location, moved[location])
        return moved

    def fold(self, step: int, row: int, operands: list[_Operand], location: int, moved: dict[int, int]) -> None:
        """Emit a row group, receiving on their own all messages but the last that one peer sends to it."""
        writer, chunk = self.writer, self.chunk[row]
        if len(operands) > 2 or (len(operands) == 2 and operands[0][0] < 0):
            final = {self.src[~operand]: operand for operand, _ in operands if operand < 0}
            for i, (operand, raw) in enumerate(operands):
                if operand < 0 and final[self.src[~operand]] != operand:
                    operands[i] = self.memory.slot(step), raw
                    writer.sources += (self.src[~operand], REMOTE, self.order[~operand], False)
                    writer.fold(step, chunk, operands[i][0], 0)
        for operand, raw in operands:
            if operand < 0:
                writer.sources += (self.src[~operand], REMOTE, self.order[~operand], raw)
            else:
                held = moved.get(operand, operand) if operand != location else operand
                writer.sources += (-1, held & 3, held >> 2, raw)
        writer.fold(step, chunk, location, COMPLETES if self.completes[row] else 0)
