"""What memory of the GPUs of a file is the same, and what it holds while instructions run one after the other."""

from collections import defaultdict
from collections.abc import Sequence

from hocket.schedule.collective import COLLECTIVES
from hocket.schedule.ir import Buffer
from hocket.schedule.msccl.folds import ChunkSpot, MscclFold, Value
from hocket.schedule.msccl.program import Node, Program

Cell = tuple[int, str, int]  # gpu, and what of its memory is one: "d" chunks of data; "i", "o" and "s" as in the file


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
        return gpu, "d", chunk + gpu * self.block if self.is_own(buffer) else chunk

    def is_own(self, buffer: str) -> bool:
        """Whether a buffer is only the block of its GPU in the memory that input and output are in place."""
        return self.on_data and {"i": self.kind.input, "o": self.kind.output}.get(buffer) == "own"

    def used_by(self, node: Node) -> tuple[set[Cell], set[Cell]]:
        """The cells that an instruction reads, and the cells it stores to. A copy onto itself only reads."""
        one = node.instruction
        reads, writes = ([self.of(node.gpu, spot) for spot in spots] for spots in (one.reads(), one.writes()))
        return set(reads), set() if one.name == "cpy" and reads == writes else set(writes)


def find_race(
    uses: Sequence[tuple[set[Cell], set[Cell]]], before: Sequence[int], read_before: Sequence[int]
) -> tuple[int, int] | None:
    """Two instructions that use a cell that one of them stores to, and that nothing orders: the later one first.

    `uses` has the cells that each instruction reads, and those it stores to; `before`, as bits, which instructions have
    ended before it, and `read_before` those that have at least read what they read.
    """
    stored: dict[Cell, int] = {}
    used: dict[Cell, list[int]] = defaultdict(list)
    for i, (reads, writes) in enumerate(uses):
        others = {stored[cell] for cell in reads | writes if cell in stored and not before[i] >> stored[cell] & 1}
        others.update(j for cell in writes for j in used[cell] if not read_before[i] >> j & 1)
        if others:
            return i, min(others)  # the first one, whatever the order in sets is
        for cell in reads:
            used[cell].append(i)
        for cell in writes:
            stored[cell], used[cell] = i, []
    return None


class CellContents:
    """Which fold each cell holds the result of: `folds`, in the order in which they are noted.

    An operand is what a cell holds when `now` is called; `fold` writes the result of operands into a location. No
    input is written that a caller expects to keep.
    """

    def __init__(self, program: Program, cells: Cells) -> None:
        self.program, self.cells = program, cells
        self.folds: list[MscclFold] = []
        self.writer: dict[ChunkSpot, MscclFold] = {}
        self.num_writes: dict[Cell, int] = defaultdict(int)
        self.slots = list(program.num_scratch)
        self.spare: dict[Cell, ChunkSpot] = {}

    def fold(self, at: int, site: str, into: ChunkSpot, operands: list[Value]) -> None:
        """Note that instruction `at`, which stands at `site`, folds the operands into a location."""
        if [location for location, _ in operands] != [into]:  # Input and output may be one memory.
            self.writer[into] = MscclFold(into, operands, at, site)
            self.folds.append(self.writer[into])

    def now(self, cell: Cell) -> Value:
        """What a cell holds."""
        location = self._location(cell, self.num_writes[cell])
        return location, self.writer.get(location)

    def store(self, cell: Cell) -> ChunkSpot:
        """The location into which what is stored in a cell now is to be folded."""
        self.num_writes[cell] += 1
        return self._location(cell, self.num_writes[cell])

    def slot(self, gpu: int) -> ChunkSpot:
        """A location of scratch that nothing else uses."""
        self.slots[gpu] += 1
        return gpu, Buffer.SCRATCH, self.slots[gpu] - 1

    def leave_in_place(self, site: str) -> None:
        """What an all_to_all in place never stores stays as it is: there the input is the output."""
        if not self.program.in_place or self.cells.on_data:
            return
        for gpu in range(self.program.num_ranks):
            for chunk in range(self.program.num_chunks):
                if not self.num_writes[gpu, "o", chunk]:
                    inside: Value = (gpu, Buffer.INPUT, chunk), None
                    self.folds.append(MscclFold((gpu, Buffer.OUTPUT, chunk), [inside], -1, site))

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
            self.spare[cell] = self.slot(gpu)
        return self.spare[cell]
