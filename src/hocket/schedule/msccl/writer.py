"""From a schedule to a file: every row becomes a send and a receive, and a fold of two operands one instruction.

A file is written for calls in place, except for an all_to_all or a schedule that names input and output. No input is
written that the caller expects to keep. `blocks` gives the instructions to thread blocks.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from hocket.errors import ScheduleError
from hocket.schedule.ir import Buffer, Schedule
from hocket.schedule.msccl.blocks import Op, thread_blocks
from hocket.schedule.msccl.program import MAX_COUNT, MAX_STEPS, Instruction, Program, Spot, can_run, span
from hocket.schedule.msccl.reader import schedule_of
from hocket.schedule.msccl.text import SPELLINGS, format_program, parse
from hocket.schedule.proof.verify import Certificate, verify


def write(schedule: Schedule, name: str = "hocket") -> str:
    """The MSCCL XML of a schedule, under this name.

    The text is read again and proved before it is given away: the same labels, and no rank sends more. VerifyError
    where the schedule itself breaks a law, ScheduleError where the format cannot say what it does: another collective,
    more than two operands folded with one rounding if labels depend on it, more instructions than a thread block has.
    """
    if schedule.collective not in SPELLINGS:
        known = ", ".join(SPELLINGS)
        raise ScheduleError(f"MSCCL XML: expected a collective that it has, {known}; found {schedule.collective}")
    expected = verify(schedule, laws=(1, 2, 4))
    program = program_of(schedule, name)
    for gpu, blocks in enumerate(program.blocks):
        for tb, block in enumerate(blocks):
            if len(block.steps) > MAX_STEPS:
                at, limit = f"MSCCL XML: gpu {gpu}, tb {tb}", f"at most {MAX_STEPS} steps of a thread block"
                raise ScheduleError(f"{at}: expected {limit}; found {len(block.steps)}")
    text = format_program(program)
    check_reread(schedule, expected, schedule_of(parse(text, "MSCCL XML")), "MSCCL XML")
    return text


def check_reread(schedule: Schedule, expected: Certificate, reread: Schedule, what: str) -> None:
    """ScheduleError unless what was read again has the labels of the schedule, whose certificate is given."""
    found = verify(reread, laws=(1, 2, 4))
    if found.labels != expected.labels:
        changed = ", ".join(sorted(expected.labels ^ found.labels))
        why = f"its instructions fold two operands at a time and round each time, and {_widest(schedule)}"
        next_step = "choose an algorithm that folds two at a time, for example ring"
        told = f"expected the same labels when read again; found a change of {changed}: {why}; {next_step}"
        raise ScheduleError(f"{what}: {told}")
    assert (found.sent, found.root) == (expected.sent, expected.root)


def program_of(schedule: Schedule, name: str) -> Program:
    """The thread blocks that carry out a schedule of legal shape, whatever it computes."""
    # Fused blocks can wait for each other where separate ones do not. Separate ones can only if messages have to wait.
    for fuse, early in ((True, False), (False, False), (False, True)):
        program = _Writer(schedule, early).program(name, fuse)
        if can_run(program):
            break
    return program


def _widest(schedule: Schedule) -> str:
    """The first row group of more than two operands, in words."""
    for number, group in enumerate(_groups_of_steps(schedule)):
        for rank, chunk, operands in group:
            if len(operands) > 2:
                return f"step {number} folds {len(operands)} operands at rank {rank}, chunk {chunk[1]}, and rounds once"
    return "the order of operands differs"


Located = tuple[int, tuple[Buffer, int]]  # rank, and buffer and chunk of the schedule
Group = tuple[int, tuple[Buffer, int], list[Located]]  # rank and spot written, and all operands in order


def _groups_of_steps(schedule: Schedule) -> Iterator[list[Group]]:
    for step in schedule.steps():
        one = step.expanded()
        groups: list[Group] = []
        last = -1
        assert one.group is not None
        columns = (
            one.group,
            one.src,
            one.dst,
            one.src_buffer,
            one.dst_buffer,
            one.src_chunk,
            one.dst_chunk,
            one.reduce,
        )
        for group, src, dst, from_, into, chunk, at, reduces in zip(*(each.tolist() for each in columns), strict=True):
            if group != last:
                spot = (Buffer(into), at)
                groups.append((dst, spot, [(dst, spot)] if reduces else []))
                last = group
            groups[-1][2].append((src, (Buffer(from_), chunk)))
        yield groups


@dataclass
class _Bundle:
    """Row groups that differ only in their chunks, which follow each other."""

    rank: int
    dst: Spot
    operands: list[tuple[int, Spot]]
    count: int = 1

    def takes(self, other: "_Bundle") -> bool:
        """Whether the next chunk is what the other one is about."""
        if self.count == MAX_COUNT or (self.rank, len(self.operands)) != (other.rank, len(other.operands)):
            return False
        mine, others = [*self.operands, (self.rank, self.dst)], [*other.operands, (other.rank, other.dst)]
        follow = all(
            a[0] == b[0] and (a[1][0], a[1][1] + self.count) == b[1] for a, b in zip(mine, others, strict=True)
        )
        # A local operand in another spot of the same buffer could be overwritten by the bundle itself.
        apart = all(rank != self.rank or spot[0] != self.dst[0] or spot == self.dst for rank, spot in self.operands)
        return follow and apart


class _Writer:
    """Goes through the steps and notes the instructions of every rank in an order in which they can run.

    With `early`, everything is received into scratch, so that no receive waits for its spot.
    """

    def __init__(self, schedule: Schedule, early: bool) -> None:
        self.schedule, self.kind, self.early = schedule, schedule.kind, early
        ranks = range(schedule.num_ranks)
        self.in_place = schedule.uses_data and self.kind.blocks != "pair"
        self.slots = [schedule.num_scratch for _ in ranks]
        self.moved: dict[tuple[int, int], Spot] = {}  # chunks of data that are in scratch, by rank and chunk
        self.ops: list[list[Op]] = [[] for _ in ranks]
        self.writer: list[dict[Spot, Op]] = [{} for _ in ranks]
        self.readers: list[dict[Spot, list[Op]]] = [defaultdict(list) for _ in ranks]
        # For each rank, the chunks of data in its input and output, with their spots there.
        self.input = [self._chunks(self.kind.input_blocks(r, len(ranks), schedule.root)) for r in ranks]
        self.output = [self._chunks(self.kind.output_blocks(r, len(ranks), schedule.root)) for r in ranks]
        self._start()
        for groups in _groups_of_steps(schedule):
            self._step(groups)
        for rank in ranks:
            for spot in self._output_spots(rank):
                if spot in self.writer[rank]:
                    self.writer[rank][spot].stays = True

    def program(self, name: str, fuse: bool) -> Program:
        """The instructions in thread blocks."""
        schedule = self.schedule
        ranks = range(schedule.num_ranks)
        blocks = [thread_blocks(self.ops[rank], rank, len(ranks), fuse) for rank in ranks]
        channels = 1 + max((block.channel for of_rank in blocks for block in of_rank), default=0)
        root = schedule.root if self.kind.rooted else None
        per_rank = schedule.vector_chunks
        return Program(name, schedule.collective, self.in_place, per_rank, channels, blocks, self.slots, root)

    def _chunks(self, blocks: range) -> dict[int, int]:
        k = self.schedule.chunks_per_block
        return {block * k + i: number * k + i for number, block in enumerate(blocks) for i in range(k)}

    def _start(self) -> None:
        """What is input and output alike without any row has to be copied where the two are not one memory."""
        if self.schedule.uses_data and not self.in_place:
            for rank in range(self.schedule.num_ranks):
                for chunk in sorted(self.input[rank].keys() & self.output[rank].keys()):
                    src, dst = ("i", self.input[rank][chunk]), ("o", self.output[rank][chunk])
                    self._local("cpy", rank, src, dst, 1)

    def _output_spots(self, rank: int) -> list[Spot]:
        if self.schedule.uses_data:
            return [self._spot(rank, (Buffer.DATA, chunk)) for chunk in self.output[rank]]
        return span(("o", 0), len(self.output[rank]))

    def _spot(self, rank: int, spot: tuple[Buffer, int]) -> Spot:
        """Where the file has what the schedule has here: data in the larger of input and output, else in scratch."""
        buffer, chunk = spot
        if buffer != Buffer.DATA:
            return {Buffer.INPUT: "i", Buffer.OUTPUT: "o", Buffer.SCRATCH: "s"}[buffer], chunk
        if (rank, chunk) in self.moved:
            return self.moved[rank, chunk]
        whole = self.in_place and self.kind.input == "whole"  # Then the input is the larger one.
        if chunk in self.output[rank] and not (whole and chunk in self.input[rank]):
            return "o", self.output[rank][chunk]
        if chunk in self.input[rank]:
            return "i", self.input[rank][chunk]
        return self._move(rank, chunk)

    def _written(self, rank: int, spot: tuple[Buffer, int]) -> Spot:
        """The same for a spot that is written: an input that is no output stays as it is, but in a reduce_scatter."""
        buffer, chunk = spot
        keeps = buffer == Buffer.DATA and chunk in self.input[rank] and chunk not in self.output[rank]
        if keeps and self.schedule.collective != "reduce_scatter" and (rank, chunk) not in self.moved:
            return self._move(rank, chunk)
        return self._spot(rank, spot)

    def _move(self, rank: int, chunk: int) -> Spot:
        self.moved[rank, chunk] = self._slot(rank, 1)
        return self.moved[rank, chunk]

    def _slot(self, rank: int, count: int) -> Spot:
        self.slots[rank] += count
        return "s", self.slots[rank] - count

    def _step(self, groups: list[Group]) -> None:
        read = [[(rank, self._spot(rank, spot)) for rank, spot in operands] for _, _, operands in groups]
        singles = [
            _Bundle(rank, self._written(rank, spot), operands)
            for (rank, spot, _), operands in zip(groups, read, strict=True)
        ]
        singles.sort(key=lambda one: (one.rank, [rank for rank, _ in one.operands], one.dst))
        bundles: list[_Bundle] = []
        for one in singles:
            if bundles and bundles[-1].takes(one):
                bundles[-1].count += 1
            else:
                bundles.append(one)
        for bundle in bundles:
            for rank, spot in bundle.operands:
                if rank != bundle.rank:
                    self._note(rank, Op("s", spot, spot, bundle.count, send=bundle.rank))
        overwritten: set[tuple[int, Spot]] = set()
        for bundle in bundles:  # What an earlier bundle overwrites is saved for bundles that read it.
            for i, (rank, first) in enumerate(bundle.operands):
                if rank == bundle.rank and any((rank, spot) in overwritten for spot in span(first, bundle.count)):
                    saved = self._slot(rank, bundle.count)
                    self._local("cpy", rank, first, saved, bundle.count)
                    bundle.operands[i] = (rank, saved)
            overwritten.update((bundle.rank, spot) for spot in span(bundle.dst, bundle.count))
        for bundle in bundles:
            self._arrive(bundle)

    def _arrive(self, bundle: _Bundle) -> None:
        """Receive and fold the operands of a bundle, whose sends are noted."""
        rank, dst, count = bundle.rank, bundle.dst, bundle.count
        for i, (other, _) in enumerate(bundle.operands):
            if self.early and other != rank:
                bundle.operands[i] = (rank, self._slot(rank, count))
                self._note(rank, Op("r", bundle.operands[i][1], bundle.operands[i][1], count, recv=other))
        (whence, first), *rest = bundle.operands
        into = dst
        if any(other == rank and spot == dst for other, spot in rest):
            into = self._slot(rank, count)  # The old content is needed after something else has come into its spot.
        if whence != rank:
            self._note(rank, Op("r", into, into, count, recv=whence))
        elif rest and rest[0][0] != rank:
            self._note(rank, Op("rrc", first, into, count, recv=rest.pop(0)[0]))
        elif first != into:
            self._local("cpy", rank, first, into, count)
        for other, spot in rest:
            if other != rank:
                self._note(rank, Op("rrc", into, into, count, recv=other))
            else:
                self._local("re", rank, spot, into, count)
        if into != dst:
            self._local("cpy", rank, into, dst, count)

    def _local(self, name: str, rank: int, src: Spot, dst: Spot, count: int) -> None:
        self._note(rank, Op(name, src, dst, count))

    def _note(self, rank: int, op: Op) -> None:
        """Add an instruction, to wait for those that stored what it reads, and that use what it overwrites."""
        one = Instruction(op.name, op.src, op.dst, op.count)
        writer, readers = self.writer[rank], self.readers[rank]
        for spot in one.reads():
            if spot in writer:
                op.after.add(writer[spot])
                writer[spot].users.add(op)
            readers[spot].append(op)
        for spot in one.writes():
            op.after.update(readers.pop(spot, []))
            if spot in writer:
                op.after.add(writer[spot])
            writer[spot] = op
        op.after.discard(op)
        self.ops[rank].append(op)
