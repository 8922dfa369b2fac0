"""What an op of a plan does to memory: chunks of one or several buffers are folded into chunks of another one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import NoReturn

from hocket.errors import ScheduleError
from hocket.schedule.msccl.contents import Cell, Cells
from hocket.schedule.msccl.program import Program, Spot, span
from hocket.schedule.msccl.text import num_chunks
from hocket.schedule.mscclpp.execution_plan import (
    MAX_CHANNELS,
    BufferName,
    ExecutionPlan,
    GroupPart,
    PlanChunks,
    PlanOp,
    refuse_op,
)

At = tuple[int, int, int]  # gpu, thread block, number of the op
Place = tuple[int, Spot]  # gpu, and a buffer of it with the first chunk

# The sources and the destinations that an op has: l is local, r is remote; p is local and q remote in packets.
_SHAPES = {
    "copy": ("l", "l"),
    "put": ("l+", "r+"),
    "pws": ("l+", "r+"),
    "pwsf": ("l+", "r+"),
    "get": ("r+", "l+"),
    "re": ("l+", "l"),
    "res": ("l+", "lr+"),
    "rre": ("lr+", "l"),
    "rres": ("lr+", "lr+"),
    "cpkt": ("l", "p"),
    "ppkt": ("l+", "q+"),
    "rppkt": ("p", "q+"),
    "upkt": ("p", "l"),
    "repkt": ("lp+", "l"),
    "respkt": ("lp+", "lq+"),
    "recpkt": ("lp+", "lp"),
    "recspkt": ("lp+", "lpq+"),
}
_PAIRED = ("copy", "put", "pws", "pwsf", "get", "cpkt", "ppkt", "upkt")  # the others fold, or send one thing to all
_PUTS = ("put", "pws", "pwsf")
_CONTROL = ("nop", "barrier", "signal", "wait", "rlxsignal", "rlxwait", "flush", "sem_acquire", "sem_release")
_REFUSED = {
    "pipeline": "its rounds move parts of chunks whose number depends on the size of the call",
    **dict.fromkeys(("glre", "glres", "gstore", "gstorepkt"), "what a switch does in one op has no row in a schedule"),
}
_REDUCTIONS = ("sum", "min", "max")
_MAX_BUFFERS = 10  # of one op, on either side
_MAX_PARTS = 1 << 20


@dataclass(frozen=True)
class Move:
    """The operands, folded in their order, come into `into`; all are `count` chunks long."""

    into: Place
    operands: tuple[Place, ...]
    count: int

    def cells(self, place: Place, cells: Cells) -> list[Cell]:
        """The cells of one of its places."""
        return [cells.of(place[0], spot) for spot in span(place[1], self.count)]

    def chunk(self, k: int) -> "Move":
        """The move of its k-th chunk alone."""
        into, *operands = ((gpu, (kind, first + k)) for gpu, (kind, first) in (self.into, *self.operands))
        return Move(into, tuple(operands), 1)


def has_packets(op: PlanOp) -> bool:
    """Whether an op reads or writes packets, each of which carries the number of its call."""
    return op.name.endswith("pkt")


def parts_of_chunk(plan: ExecutionPlan, source: str) -> int:
    """Into how many parts groups of thread blocks cut a chunk, so that each part belongs to one of them.

    They do so if the bytes of a chunk are a multiple of 16 times this number. Otherwise the executor's groups cut
    elsewhere, each at a place of its own, and what is proved here need not hold. ScheduleError if all parts of the
    plan's buffers and ops are too many.
    """
    ops = [op for gpu in plan.gpus for tb in gpu.threadblocks for op in tb.ops]
    parts = lcm(*(op.tbg_info.tbg_size for op in ops if isinstance(op.tbg_info, GroupPart)))
    chunks = sum(gpu.input_chunks + gpu.output_chunks + gpu.scratch_chunks for gpu in plan.gpus)
    chunks += sum(one.size for op in ops for one in (*op.src_buff, *op.dst_buff))
    if parts * chunks > _MAX_PARTS:
        found = f"{chunks}, each cut into {parts} parts by tbg_size"
        raise ScheduleError(f"{source}: expected at most {_MAX_PARTS} chunks in all buffers and ops; found {found}")
    return parts


class Moves:
    """Finds the moves of ops; `parts` is what parts_of_chunk says, and `program` counts in such parts.

    Packets are other scratch than chunks: those of a GPU have the numbers above its scratch chunks.
    """

    def __init__(self, plan: ExecutionPlan, program: Program, parts: int) -> None:
        self.plan, self.program, self.parts = plan, program, parts
        self.cells = Cells(program)
        limits = num_chunks(program, program.num_ranks)
        self._limits = {"i": limits[0], "o": limits[1]}
        names = {op.name for gpu in plan.gpus for tb in gpu.threadblocks for op in tb.ops}
        # Packets overlap scratch chunks, of which in a second half others than the own GPU know nothing.
        self._scratch = not (plan.use_double_scratch_buffer or any("pkt" in name for name in names))

    def of(self, at: At, op: PlanOp) -> list[Move]:
        """The moves of an op, in order; none if it only synchronizes. ScheduleError if they have no meaning."""
        if op.name in _CONTROL:
            return []
        if op.name not in _SHAPES:
            why = f": {_REFUSED[op.name]}" if op.name in _REFUSED else ""
            self._refuse(at, op, f"an op among {', '.join((*_CONTROL, *_SHAPES))}", f"{op.name[:40]!r}{why}")
        if op.reduce_op not in _REDUCTIONS and isinstance(op.reduce_op, str):
            self._refuse(at, op, f"reduce_op one of {', '.join(_REDUCTIONS)}", repr(op.reduce_op[:40]))
        self._check_channel(at, op)
        sources, targets = (
            self._places(at, op, side, chunks, shape)
            for side, chunks, shape in zip(
                ("src_buff", "dst_buff"), (op.src_buff, op.dst_buff), _SHAPES[op.name], strict=True
            )
        )
        if len({one.size for one in (*op.src_buff, *op.dst_buff)}) != 1:
            sizes = ", ".join(str(one.size) for one in (*op.src_buff, *op.dst_buff))
            self._refuse(at, op, "one size of all its buffers", sizes)
        count = self._range(at, op, op.src_buff[0])[1]
        if op.name in _PAIRED:
            if len(sources) != len(targets):
                self._refuse(at, op, "as many sources as destinations", f"{len(sources)} and {len(targets)}")
            moves = [Move(into, (one,), count) for one, into in zip(sources, targets, strict=True)]
        else:
            if has_packets(op):
                sources.append(sources.pop(0))  # The executor adds what is local last.
            moves = [Move(targets[0], tuple(sources), count)]
            moves += [Move(into, (targets[0] if op.name != "rppkt" else sources[0],), count) for into in targets[1:]]
        for move in moves:
            self._check_overlap(at, op, move)
        return moves

    def one_by_one(self, op: PlanOp, moves: Sequence[Move]) -> list[list[Move]]:
        """The moves of an op with packets, those together that each thread does for an element before the next one."""
        if op.name in _PAIRED:
            return [[move.chunk(k)] for move in moves for k in range(move.count)]
        return [[move.chunk(k) for move in moves] for k in range(moves[0].count)]

    def used_by(self, moves: Sequence[Move]) -> tuple[set[Cell], set[Cell]]:
        """The cells that moves read, and those they store to, packets included. A copy onto itself only reads."""
        reads: set[Cell] = set()
        writes: set[Cell] = set()
        for move in moves:
            into = move.cells(move.into, self.cells)
            operands = [move.cells(one, self.cells) for one in move.operands]
            reads.update(*operands)
            writes.update(into if operands != [into] else ())
        return reads, writes

    def is_packet(self, cell: Cell) -> bool:
        """Whether a cell is a packet."""
        return cell[1] == "s" and cell[2] >= self._scratch_of(cell[0])

    def memory(self, gpu: int) -> set[Cell]:
        """All cells of a GPU but its packets."""
        sizes = {**self._limits, "s": self._scratch_of(gpu)}
        return {self.cells.of(gpu, spot) for kind, size in sizes.items() for spot in span((kind, 0), size)}

    def _scratch_of(self, gpu: int) -> int:
        return self.plan.gpus[gpu].scratch_chunks * self.parts

    def _refuse(self, at: At, op: PlanOp, expected: str, found: str) -> NoReturn:
        refuse_op(self.program.source, at, op, expected, found)

    def _range(self, at: At, op: PlanOp, chunks: PlanChunks) -> tuple[int, int]:
        """The first part and the number of parts that this thread block handles."""
        first, count, group = chunks.index * self.parts, chunks.size * self.parts, op.tbg_info
        if isinstance(group, GroupPart):
            if group.tb_id >= group.tbg_size:
                self._refuse(at, op, f"tb_id below tbg_size={group.tbg_size}", str(group.tb_id))
            count //= group.tbg_size
            first += group.tb_id * count
        return first, count

    def _places(self, at: At, op: PlanOp, side: str, chunks: Sequence[PlanChunks], shape: str) -> list[Place]:
        """The places of one side of an op, which has this shape."""
        kinds = "".join("r" if isinstance(one.buffer_id, int) else "l" for one in chunks)
        plain = shape.replace("p", "l").replace("q", "r")
        if re.fullmatch(plain, kinds) is None or len(chunks) > _MAX_BUFFERS:
            self._refuse(at, op, f"{side} of local (l) and remote (r) buffers {plain}", kinds or "none")
        letters = shape.replace("+", "")
        return [self._place(at, op, one, letters[min(i, len(letters) - 1)] in "pq") for i, one in enumerate(chunks)]

    def _place(self, at: At, op: PlanOp, chunks: PlanChunks, packets: bool) -> Place:
        if isinstance(chunks.buffer_id, int):
            gpu, kind = self._remote(at, op, chunks.buffer_id)
        elif isinstance(chunks.type, str):
            gpu, kind = at[0], chunks.type
        else:
            self._refuse(at, op, "type or buffer_id in each of its buffers", "neither")
        limit = self._scratch_of(gpu) if kind == "s" else self._limits[kind]
        if (chunks.index + chunks.size) * self.parts > limit:
            expected = f"chunks of {kind} of gpu {gpu} below {limit // self.parts}"
            self._refuse(at, op, expected, f"index {chunks.index}, size {chunks.size}")
        if packets and kind != "s":
            self._refuse(at, op, "packets in scratch", f"them in {kind}")
        if kind == "s" and not packets and not self._scratch:
            expected = "only packets in scratch where a plan has packets, or use_double_scratch_buffer"
            self._refuse(at, op, expected, "chunks")
        return gpu, (kind, self._range(at, op, chunks)[0] + (limit if packets else 0))

    def _remote(self, at: At, op: PlanOp, number: int) -> tuple[int, BufferName]:
        """The GPU and the buffer behind a buffer_id."""
        (gpu, tb, _), kind = at, op.channel_type
        refs = self.plan.gpus[gpu].threadblocks[tb].remote_buffer_refs
        known = [i for one in refs if one.access_channel_type == kind for i in one.remote_buffer_ids]
        buffers = self.plan.gpus[gpu].remote_buffers
        if number >= min(len(known), MAX_CHANNELS) or known[number] >= len(buffers):
            expected = f"a remote buffer of its thread block and gpu for channel_type {kind}"
            self._refuse(at, op, expected, f"buffer_id {number}")
        buffer = buffers[known[number]]
        if buffer.rank >= len(self.plan.gpus) or kind not in buffer.access_channel_types:
            self._refuse(at, op, f"a buffer of a gpu of the file for channel_type {kind}", f"buffer_id {number}")
        if self.cells.is_own(buffer.type):
            whole = {"i": "o", "o": "i"}[buffer.type]
            expected = f"{whole} of gpu {buffer.rank}, because in place the executor looks for {buffer.type}"
            expected += f" of another gpu at the place of its own {buffer.type}"
            self._refuse(at, op, expected, f"{buffer.type}, buffer_id {number}")
        return buffer.rank, buffer.type

    def _check_channel(self, at: At, op: PlanOp) -> None:
        """What the executor takes for granted."""
        if has_packets(op) and self.plan.protocol != "LL":
            self._refuse(at, op, "protocol LL, which makes scratch large enough for packets", self.plan.protocol)
        remote = any(isinstance(one.buffer_id, int) for one in (*op.src_buff, *op.dst_buff))
        if remote and op.name not in _PUTS and op.channel_type != "memory":
            why = "; a port may put packets before they are there" if has_packets(op) else ""
            self._refuse(at, op, f"channel_type memory{why}", repr(op.channel_type))
        if op.name == "put" and op.channel_type == "memory" and len({one.type for one in op.src_buff}) > 1:
            self._refuse(at, op, "src_buff of one type, because the executor reads all from the first", "several")
        indices = [[one.index for one in side] for side in (op.src_buff, op.dst_buff)]
        if op.name == "get" and indices[0] != indices[1]:
            expected = "the same index in src_buff and dst_buff, because the executor takes one for the other"
            self._refuse(at, op, expected, f"{indices[0]} and {indices[1]}")

    def _check_overlap(self, at: At, op: PlanOp, move: Move) -> None:
        """Threads handle elements in any order, so a chunk cannot be read and written at different positions."""
        into = move.cells(move.into, self.cells)
        for operand in move.operands:
            cells = move.cells(operand, self.cells)
            if cells != into and not {*cells}.isdisjoint(into):
                self._refuse(
                    at, op, "sources and destinations that are the same or do not overlap", "that they overlap"
                )
