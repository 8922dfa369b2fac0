"""From a file to a schedule: which values the instructions move, and the earliest step for each.

Only the movement of values is kept. A message becomes a row from where it was sent to where it is stored. A result that
a thread block sends on without storing it goes to the spot of its own operand if that is not needed any more, else to
scratch. Instructions that touch one chunk, at least one of which stores to it, must be ordered by thread blocks,
dependencies and messages; the result of a race is not guessed.
"""

from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from hocket.errors import ScheduleError, VerifyError
from hocket.schedule.collective import COLLECTIVES
from hocket.schedule.ir import Buffer, Schedule
from hocket.schedule.msccl.folds import ChunkSpot, MscclFold, Value, earliest_steps, late, repeats_of, without_detours
from hocket.schedule.msccl.program import Flow, Node, Program, refuse, where
from hocket.schedule.msccl.text import MAX_BYTES, parse
from hocket.schedule.proof.verify import verify

Cell = tuple[int, str, int]  # gpu, and what of its memory is one: "d" chunks of data; "i", "o" and "s" as in the file


def read(file: str | Path) -> Schedule:
    """The schedule of an MSCCL file: its path, or its text, which begins with "<". It is not proved here.

    If the file does not tell the root, it is the first root for which the file does what the collective promises.
    ScheduleError, with line, gpu, tb and step, if the file is malformed; OSError if it cannot be read.
    """
    return schedule_of(read_program(file))


def read_program(file: str | Path) -> Program:
    """What the file says; arguments and errors as for read."""
    if isinstance(file, str) and file.lstrip().startswith("<"):
        return parse(file, "MSCCL XML")
    try:
        with Path(file).open(encoding="utf-8") as opened:
            text = opened.read(MAX_BYTES + 1)
    except UnicodeDecodeError as error:
        raise ScheduleError(f"{file}: expected XML in UTF-8; found {error}") from None
    return parse(text, str(file))


def schedule_of(program: Program) -> Schedule:
    """The schedule of a program."""
    flow = Flow(program)
    check_races(flow)
    folds = _Reader(flow).folds
    direct = without_detours(folds)
    steps = earliest_steps(direct)
    if steps is None:  # What waits in scratch may have to.
        direct, steps = folds, earliest_steps(folds)
    if steps is None:  # A message is needed longer than its source exists: it waits in scratch of its receiver.
        direct = _Reader(flow, late(folds)).folds
        steps = earliest_steps(direct)
        assert steps is not None
    kind = COLLECTIVES[program.collective]
    repeats, num_scratch = repeats_of(direct, steps, program.source)
    num_chunks = program.num_chunks * (program.num_ranks if kind.blocks == "pair" else 1)
    roots = [program.root] if program.root is not None else range(program.num_ranks if kind.rooted else 1)
    schedules = [
        Schedule(program.collective, program.num_ranks, num_chunks, root, repeats, num_scratch) for root in roots
    ]
    return next((one for one in schedules if _holds(one)), schedules[0]) if len(schedules) > 1 else schedules[0]


def _holds(schedule: Schedule) -> bool:
    try:
        verify(schedule, laws=(2,))
    except VerifyError:
        return False
    return True


def check_races(flow: Flow) -> None:
    """ScheduleError where two instructions touch one chunk, one of them storing to it, and nothing orders them."""
    stored: dict[Cell, int] = {}
    used: dict[Cell, list[int]] = defaultdict(list)
    cells = Cells(flow.program)
    for i, node in enumerate(flow.nodes):
        reads, writes = cells.used_by(node)
        for cell in reads | writes:
            others = [stored[cell]] if cell in stored else []
            others += used[cell] if cell in writes else []
            for other in others:
                if not flow.before[i] >> other & 1:
                    found = f"no order between it and {where(flow.nodes[other])}"
                    refuse(flow.program, node, "steps that use a chunk of which one stores it to be ordered", found)
        for cell in reads:
            used[cell].append(i)
        for cell in writes:
            stored[cell], used[cell] = i, []


class Cells:
    """Which spots of a file are the same memory."""

    def __init__(self, program: Program) -> None:
        self.kind = COLLECTIVES[program.collective]
        self.in_place = program.in_place
        self.block = program.num_chunks // program.num_ranks if self.kind.blocks == "rank" else 0
        self.on_data = self.in_place and self.kind.blocks != "pair"

    def of(self, gpu: int, spot: tuple[str, int]) -> Cell:
        """The cell of a spot. In place, input and output are one memory; in an all_to_all, position by position."""
        buffer, chunk = spot
        if not self.in_place or buffer == "s":
            return gpu, buffer, chunk
        if not self.on_data:
            return gpu, "o", chunk
        own = {"i": self.kind.input, "o": self.kind.output}[buffer] == "own"
        return gpu, "d", chunk + gpu * self.block if own else chunk

    def used_by(self, node: Node) -> tuple[set[Cell], set[Cell]]:
        """The cells that an instruction reads, and the cells it stores to. A copy onto itself only reads."""
        one = node.instruction
        reads, writes = ([self.of(node.gpu, spot) for spot in spots] for spots in (one.reads(), one.writes()))
        return set(reads), set() if one.name == "cpy" and reads == writes else set(writes)


class _Reader:
    """Goes through the instructions in order and notes what each computes: `folds`, in that order.

    `staged` are the indices of receives whose message goes into scratch of the receiver when it is sent.
    """

    def __init__(self, flow: Flow, staged: Collection[int] = ()) -> None:
        self.flow, self.program, self.staged = flow, flow.program, staged
        self.cells = Cells(flow.program)
        self.folds: list[MscclFold] = []
        self.writer: dict[ChunkSpot, MscclFold] = {}
        self.num_writes: dict[Cell, int] = defaultdict(int)
        self.slots = list(self.program.num_scratch)
        self.spare: dict[Cell, ChunkSpot] = {}
        self.messages: dict[int, list[Value]] = {}  # by the instruction that sends
        self.uses = self._uses()
        receiver = {sent: received for received, sent in flow.sender.items()}
        for i, node in enumerate(flow.nodes):
            self._run(i, node, receiver.get(i, -1))
        self._leave_in_place()

    def _uses(self) -> dict[Cell, list[tuple[int, bool, bool]]]:
        """The uses of each cell, in order: the instruction, and whether it reads and stores the cell."""
        uses: dict[Cell, list[tuple[int, bool, bool]]] = defaultdict(list)
        for i, node in enumerate(self.flow.nodes):
            reads, writes = self.cells.used_by(node)
            for cell in reads | writes:
                uses[cell].append((i, cell in reads, cell in writes))
        for used in uses.values():
            used.reverse()  # The next use is the last entry.
        return uses

    def _run(self, i: int, node: Node, receiver: int) -> None:
        one, kind, gpu = node.instruction, node.instruction.kind, node.gpu
        arrived = self.messages.pop(self.flow.sender[i]) if kind.receives else []
        leaving: list[Value] = []
        for k in range(one.count if one.name != "nop" else 0):
            src = self.cells.of(gpu, (one.src[0], one.src[1] + k))
            dst = self.cells.of(gpu, (one.dst[0], one.dst[1] + k))
            for cell in (src, dst):
                if self.uses[cell] and self.uses[cell][-1][0] == i:
                    self.uses[cell].pop()
            operands: list[Value] = []
            if one.name == "re":
                operands.append(self._now(dst))
            if kind.reduces or one.name in ("cpy", "s"):
                operands.append(self._now(src))
            if kind.receives:
                operands.append(arrived[k])
            if one.name == "s":
                leaving += operands
                continue
            into = self._store(dst) if kind.stores else self._keep(src)
            self._fold(i, into, operands)
            if kind.sends:
                leaving.append((into, self.writer[into]))
        if kind.sends:
            if receiver in self.staged:
                leaving = [self._staged(i, value, self.flow.nodes[receiver].gpu) for value in leaving]
            self.messages[i] = leaving

    def _fold(self, i: int, into: ChunkSpot, operands: list[Value]) -> None:
        if [location for location, _ in operands] != [into]:  # Input and output may be one memory.
            self.writer[into] = MscclFold(into, operands, i, self.flow.nodes[i].instruction.line)
            self.folds.append(self.writer[into])

    def _staged(self, i: int, value: Value, to: int) -> Value:
        slot = self._slot(to)
        self._fold(i, slot, [value])
        return slot, self.writer[slot]

    def _now(self, cell: Cell) -> Value:
        location = self._location(cell, self.num_writes[cell])
        return location, self.writer.get(location)

    def _store(self, cell: Cell) -> ChunkSpot:
        self.num_writes[cell] += 1
        return self._location(cell, self.num_writes[cell])

    def _keep(self, cell: Cell) -> ChunkSpot:
        """Where a result goes that is sent and not stored: to its local operand if that is not needed any more."""
        following = self.uses[cell][-1] if self.uses[cell] else None
        unread = not self._is_output(cell) if following is None else following[2] and not following[1]
        return self._store(cell) if unread else self._slot(cell[0])

    def _is_output(self, cell: Cell) -> bool:
        gpu, memory, chunk = cell
        if memory in "is":
            return False
        kind = self.cells.kind
        return memory == "o" or kind.output != "own" or chunk // self.cells.block == gpu

    def _location(self, cell: Cell, num_writes: int) -> ChunkSpot:
        """Where the content of a cell is after so many stores. No input is written; such a store goes to scratch."""
        gpu, memory, chunk = cell
        if memory == "d":
            return gpu, Buffer.DATA, chunk
        if memory == "s":
            return gpu, Buffer.SCRATCH, chunk
        if memory == "o" and (num_writes or not self.program.in_place):
            return gpu, Buffer.OUTPUT, chunk
        if num_writes == 0:
            return gpu, Buffer.INPUT, chunk
        if cell not in self.spare:
            self.spare[cell] = self._slot(gpu)
        return self.spare[cell]

    def _slot(self, gpu: int) -> ChunkSpot:
        self.slots[gpu] += 1
        return gpu, Buffer.SCRATCH, self.slots[gpu] - 1

    def _leave_in_place(self) -> None:
        """What an all_to_all in place never stores stays as it is: there the input is the output."""
        if not self.program.in_place or self.cells.on_data:
            return
        for gpu in range(self.program.num_ranks):
            for chunk in range(self.program.num_chunks):
                if not self.num_writes[gpu, "o", chunk]:
                    inside: Value = (gpu, Buffer.INPUT, chunk), None
                    self.folds.append(MscclFold((gpu, Buffer.OUTPUT, chunk), [inside], -1, 1))
