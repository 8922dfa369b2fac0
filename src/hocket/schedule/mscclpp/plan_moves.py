"""What an op of a plan does to memory: chunks of one or several buffers are folded into chunks of another one."""

import re
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
    refuse_op,
)
from hocket.schedule.mscclpp.plan_flow import END, START, PlanFlow, PlanNode

Place = tuple[int, Spot]  # gpu, and a buffer of it with the first chunk

# The sources and the destinations that an op has: l is local, r is remote.
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
}
_CONTROL = ("nop", "barrier", "signal", "wait", "rlxsignal", "rlxwait", "flush", "sem_acquire", "sem_release")
_REFUSED = {
    "pipeline": "its rounds move parts of chunks whose number depends on the size of the call",
    **dict.fromkeys(
        ("ppkt", "rppkt", "respkt", "cpkt", "upkt", "repkt", "recpkt", "recspkt", "gstorepkt"),
        "a packet carries its own flag and takes part in no order of signals and waits",
    ),
    **dict.fromkeys(("glre", "glres", "gstore"), "a switch reduces in an order that the plan does not say"),
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


def parts_of_chunk(plan: ExecutionPlan, source: str) -> int:
    """Into how many parts groups of thread blocks cut a chunk, so that each part belongs to one of them.

    ScheduleError if all parts of the plan's buffers and ops are too many.
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
    """Finds the moves of ops; `parts` is what parts_of_chunk says, and `program` counts in such parts."""

    def __init__(self, flow: PlanFlow, program: Program, parts: int) -> None:
        self.flow, self.plan, self.program, self.parts = flow, flow.plan, program, parts
        self.cells = Cells(program)
        limits = num_chunks(program, program.num_ranks)
        self._limits = {"i": limits[0], "o": limits[1]}

    def of(self, node: PlanNode) -> list[Move]:
        """The moves of an op, in order; none if it only synchronizes. ScheduleError if they have no meaning."""
        op = node.op
        if op.name in _CONTROL or op is START or op is END:
            return []
        if op.name not in _SHAPES:
            why = f": {_REFUSED[op.name]}" if op.name in _REFUSED else ""
            self._refuse(node, f"an op among {', '.join((*_CONTROL, *_SHAPES))}", f"{op.name[:40]!r}{why}")
        if op.reduce_op not in _REDUCTIONS and isinstance(op.reduce_op, str):
            self._refuse(node, f"reduce_op one of {', '.join(_REDUCTIONS)}", repr(op.reduce_op[:40]))
        shapes = _SHAPES[op.name]
        for side, chunks, shape in (("src_buff", op.src_buff, shapes[0]), ("dst_buff", op.dst_buff, shapes[1])):
            kinds = "".join("r" if isinstance(one.buffer_id, int) else "l" for one in chunks)
            if re.fullmatch(shape, kinds) is None or len(chunks) > _MAX_BUFFERS:
                self._refuse(node, f"{side} of local (l) and remote (r) buffers {shape}", kinds or "none")
        if len({one.size for one in (*op.src_buff, *op.dst_buff)}) != 1:
            sizes = ", ".join(str(one.size) for one in (*op.src_buff, *op.dst_buff))
            self._refuse(node, "one size of all its buffers", sizes)
        self._check_channel(node)
        sources, targets = ([self._place(node, one) for one in side] for side in (op.src_buff, op.dst_buff))
        count = self._range(node, op.src_buff[0])[1]
        if op.name in ("copy", "put", "pws", "pwsf", "get"):
            if len(sources) != len(targets):
                self._refuse(node, "as many sources as destinations", f"{len(sources)} and {len(targets)}")
            moves = [Move(into, (one,), count) for one, into in zip(sources, targets, strict=True)]
        else:
            moves = [Move(targets[0], tuple(sources), count)]
            moves += [Move(into, (targets[0],), count) for into in targets[1:]]
        for move in moves:
            self._check_overlap(node, move)
        return moves

    def used_by(self, node: PlanNode, moves: list[Move]) -> tuple[set[Cell], set[Cell]]:
        """The cells that an op with these moves reads, and those it stores to. A copy onto itself only reads.

        Before a call starts and after it has ended, all memory of its GPU may be stored to.
        """
        reads: set[Cell] = set()
        writes: set[Cell] = set()
        if node.op is START or node.op is END:
            sizes = {**self._limits, "s": self.program.num_scratch[node.at[0]]}
            spots = [spot for kind, size in sizes.items() for spot in span((kind, 0), size)]
            writes = {self.cells.of(node.at[0], spot) for spot in spots}
        for move in moves:
            into = move.cells(move.into, self.cells)
            operands = [move.cells(one, self.cells) for one in move.operands]
            reads.update(*operands)
            writes.update(into if operands != [into] else ())
        return reads, writes

    def _refuse(self, node: PlanNode, expected: str, found: str) -> NoReturn:
        refuse_op(self.program.source, node.at, node.op, expected, found)

    def _range(self, node: PlanNode, chunks: PlanChunks) -> tuple[int, int]:
        """The first part and the number of parts that this thread block handles."""
        first, count, group = chunks.index * self.parts, chunks.size * self.parts, node.op.tbg_info
        if isinstance(group, GroupPart):
            if group.tb_id >= group.tbg_size:
                self._refuse(node, f"tb_id below tbg_size={group.tbg_size}", str(group.tb_id))
            count //= group.tbg_size
            first += group.tb_id * count
        return first, count

    def _place(self, node: PlanNode, chunks: PlanChunks) -> Place:
        if isinstance(chunks.buffer_id, int):
            gpu, kind = self._remote(node, chunks.buffer_id)
        elif isinstance(chunks.type, str):
            gpu, kind = node.at[0], chunks.type
        else:
            self._refuse(node, "type or buffer_id in each of its buffers", "neither")
        limit = self.plan.gpus[gpu].scratch_chunks if kind == "s" else self._limits[kind] // self.parts
        if chunks.index + chunks.size > limit:
            expected = f"chunks of {kind} of gpu {gpu} below {limit}"
            self._refuse(node, expected, f"index {chunks.index}, size {chunks.size}")
        return gpu, (kind, self._range(node, chunks)[0])

    def _remote(self, node: PlanNode, number: int) -> tuple[int, BufferName]:
        """The GPU and the buffer behind a buffer_id."""
        (gpu, tb, _), kind = node.at, node.op.channel_type
        refs = self.plan.gpus[gpu].threadblocks[tb].remote_buffer_refs
        known = [i for one in refs if one.access_channel_type == kind for i in one.remote_buffer_ids]
        buffers = self.plan.gpus[gpu].remote_buffers
        if number >= min(len(known), MAX_CHANNELS) or known[number] >= len(buffers):
            expected = f"a remote buffer of its thread block and gpu for channel_type {kind}"
            self._refuse(node, expected, f"buffer_id {number}")
        buffer = buffers[known[number]]
        if buffer.rank >= len(self.plan.gpus) or kind not in buffer.access_channel_types:
            self._refuse(node, f"a buffer of a gpu of the file for channel_type {kind}", f"buffer_id {number}")
        return buffer.rank, buffer.type

    def _check_channel(self, node: PlanNode) -> None:
        """What the executor takes for granted of the channels of an op that reaches other GPUs."""
        op = node.op
        if op.name in ("put", "pws", "pwsf") and op.channel_type == "port":
            found = self.flow.peers(node.at, op)
            expected = [self._remote(node, one.buffer_id)[0] for one in op.dst_buff if isinstance(one.buffer_id, int)]
            if found != expected:
                self._refuse(node, f"channel_ids of channels to gpus {expected}, as dst_buff says", f"gpus {found}")
        elif {"get", "res", "rre", "rres"} & {op.name} and op.channel_type != "memory":
            self._refuse(node, "channel_type memory", repr(op.channel_type))
        elif op.name == "put" and len({one.type for one in op.src_buff}) > 1:
            self._refuse(node, "src_buff of one type, because the executor reads all from the first", "several")

    def _check_overlap(self, node: PlanNode, move: Move) -> None:
        """Threads handle elements in any order, so a chunk cannot be read and written at different positions."""
        into = move.cells(move.into, self.cells)
        for operand in move.operands:
            cells = move.cells(operand, self.cells)
            if cells != into and not {*cells}.isdisjoint(into):
                self._refuse(node, "sources and destinations that are the same or do not overlap", "that they overlap")
