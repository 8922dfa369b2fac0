"""From a file to a schedule: which values the instructions move, and the earliest step for each.

Only the movement of values is kept. A message becomes a row from where it was sent to where it is stored. A result that
a thread block sends on without storing it goes to the spot of its own operand if that is not needed any more, else to
scratch. Instructions that touch one chunk, at least one of which stores to it, must be ordered by thread blocks,
dependencies and messages; the result of a race is not guessed.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

from hocket.errors import ScheduleError, VerifyError
from hocket.schedule.collective import COLLECTIVES
from hocket.schedule.ir import Schedule
from hocket.schedule.msccl.contents import Cell, CellContents, Cells, find_race
from hocket.schedule.msccl.folds import ChunkSpot, MscclFold, Value, earliest_steps, late, repeats_of, without_detours
from hocket.schedule.msccl.program import Flow, Node, Program, refuse, where
from hocket.schedule.msccl.text import MAX_BYTES, parse
from hocket.schedule.proof.verify import verify


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
    return parse(text_of(file, "XML"), str(file))


def text_of(file: str | Path, form: str) -> str:
    """The text of a file, at most one character more than is allowed; ScheduleError if it is no text."""
    try:
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(MAX_BYTES + 1)
    except UnicodeDecodeError as error:
        raise ScheduleError(f"{file}: expected {form} in UTF-8; found {error}") from None


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
    return schedule_from(program, direct, steps)


def schedule_from(program: Program, folds: Sequence[MscclFold], steps: Sequence[int]) -> Schedule:
    """The schedule with these folds in these steps, for what else the file says: its collective, chunks and root."""
    kind = COLLECTIVES[program.collective]
    repeats, num_scratch = repeats_of(folds, steps)
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
    cells = Cells(flow.program)
    race = find_race([cells.used_by(node) for node in flow.nodes], flow.before, flow.before)
    if race is not None:
        found = f"no order between it and {where(flow.nodes[race[1]])}"
        expected = "steps that use a chunk of which one stores it to be ordered"
        refuse(flow.program, flow.nodes[race[0]], expected, found)


class _Reader(CellContents):
    """Goes through the instructions in order and notes what each computes: `folds`, in that order.

    `staged` are the indices of receives whose message goes into scratch of the receiver when it is sent.
    """

    def __init__(self, flow: Flow, staged: Collection[int] = ()) -> None:
        super().__init__(flow.program, Cells(flow.program))
        self.flow, self.staged = flow, staged
        self.messages: dict[int, list[Value]] = {}  # by the instruction that sends
        self.uses = self._uses()
        receiver = {sent: received for received, sent in flow.sender.items()}
        for i, node in enumerate(flow.nodes):
            self._run(i, node, receiver.get(i, -1))
        self.leave_in_place(f"{self.program.source}:1")

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
                operands.append(self.now(dst))
            if kind.reduces or one.name in ("cpy", "s"):
                operands.append(self.now(src))
            if kind.receives:
                operands.append(arrived[k])
            if one.name == "s":
                leaving += operands
                continue
            into = self.store(dst) if kind.stores else self._keep(src)
            self.fold(i, self._site(i), into, operands)
            if kind.sends:
                leaving.append((into, self.writer[into]))
        if kind.sends:
            if receiver in self.staged:
                leaving = [self._staged(i, value, self.flow.nodes[receiver].gpu) for value in leaving]
            self.messages[i] = leaving

    def _site(self, i: int) -> str:
        return f"{self.program.source}:{self.flow.nodes[i].instruction.line}"

    def _staged(self, i: int, value: Value, to: int) -> Value:
        slot = self.slot(to)
        self.fold(i, self._site(i), slot, [value])
        return slot, self.writer[slot]

    def _keep(self, cell: Cell) -> ChunkSpot:
        """Where a result goes that is sent and not stored: to its local operand if that is not needed any more."""
        following = self.uses[cell][-1] if self.uses[cell] else None
        unread = not self._is_output(cell) if following is None else following[2] and not following[1]
        return self.store(cell) if unread else self.slot(cell[0])

    def _is_output(self, cell: Cell) -> bool:
        gpu, memory, chunk = cell
        if memory in "is":
            return False
        kind = self.cells.kind
        return memory == "o" or kind.output != "own" or chunk // self.cells.block == gpu
