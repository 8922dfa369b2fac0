"""From a schedule to a plan: every message becomes a put, a signal, and a wait.

The thread blocks of MSCCL XML are the beginning. Each message gets scratch of its own at the receiver, or goes at once
where it is stored, if nothing uses that memory any more when it is sent. A channel belongs to one thread block at each
end. Before it puts anything, a block waits for a signal of the receiver's block: so no call writes to memory that the
call before it still uses. Blocks of one GPU wait for each other by semaphores.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from msgspec import UNSET

from hocket.errors import ScheduleError
from hocket.schedule.ir import Schedule, Step
from hocket.schedule.msccl.contents import Cell, Cells
from hocket.schedule.msccl.program import Flow, Instruction, Program, Spot, span
from hocket.schedule.msccl.text import num_chunks
from hocket.schedule.msccl.writer import check_reread, program_of
from hocket.schedule.mscclpp.block_ops import BlockOps
from hocket.schedule.mscclpp.execution_plan import (
    MAX_BLOCKS,
    MAX_CHANNELS,
    MAX_OPS,
    MAX_OPS_IN_ALL,
    MOST_OFFSET,
    SPELLINGS_IN_PLANS,
    BlockBuffers,
    BlockChannels,
    DeviceSemaphore,
    ExecutionPlan,
    GpuChannels,
    PlanBlock,
    PlanChunks,
    PlanGpu,
    PlanOp,
    RemoteBuffer,
    format_plan,
    parse_plan,
)
from hocket.schedule.mscclpp.plan_reader import schedule_of_plan
from hocket.schedule.proof.verify import verify

_LEAST_OPS = 3  # of a message: something that puts it, a signal, and a wait
_FRAME = 9  # ops around a block's own: signals and waits at the start, semaphores of the blocks before and after it


def write(schedule: Schedule, name: str = "hocket") -> str:
    """The JSON of a schedule for MSCCL++'s executor, under this name and some digits of the schedule's digest.

    The executor tells plans apart by their names. The text is read again and proved before it is given away: the same
    labels, and no rank sends more. VerifyError where the schedule itself breaks a law, ScheduleError where the format
    cannot say what it does: another collective, more than two operands folded with one rounding if labels depend on it,
    too many messages, more thread blocks than a GPU can run.
    """
    if schedule.collective not in SPELLINGS_IN_PLANS:
        known = ", ".join(SPELLINGS_IN_PLANS)
        raise ScheduleError(f"MSCCL++ plan: expected a collective that it has, {known}; found {schedule.collective}")
    _check_ops(_LEAST_OPS * sum(_num_messages(step) for step in schedule.steps()))
    expected = verify(schedule, laws=(1, 2, 4))
    text = format_plan(plan_of(program_of(schedule, f"{name}_{schedule.digest[:8]}")))
    check_reread(schedule, expected, schedule_of_plan(parse_plan(text, "MSCCL++ plan"), "MSCCL++ plan"), "MSCCL++ plan")
    return text


def _num_messages(step: Step) -> int:
    """At least so many messages carry out a step: one for each pair of ranks."""
    return len({pair for pair in zip(step.src.tolist(), step.dst.tolist(), strict=True) if pair[0] != pair[1]})


def _check_ops(least: int) -> None:
    if least > MAX_OPS_IN_ALL:
        found = f"{least} or more; take fewer ranks or an algorithm with fewer messages"
        raise ScheduleError(f"MSCCL++ plan: expected at most {MAX_OPS_IN_ALL} ops in all; found {found}")


@dataclass(eq=False)
class _Part:
    """A thread block of the plan: some consecutive instructions of one of the program, by their numbers in its flow."""

    gpu: int
    instructions: list[int]
    before: "_Part | None" = None  # of the same thread block of the program
    channels: list[int] = field(default_factory=list)  # by their numbers in the GPU
    receives_on: list[int] = field(default_factory=list)  # by their numbers in the part
    sends_on: list[int] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)  # remote ones, by their numbers in the GPU


def plan_of(program: Program) -> ExecutionPlan:
    """The plan that does what the program does; ScheduleError if it gets too large."""
    writer = _PlanWriter(program)
    chunks = num_chunks(program, program.num_ranks)
    gpus, num_ops = [], 0
    for gpu, parts in enumerate(writer.parts):
        blocks = [writer.block(tb, part) for tb, part in enumerate(parts)] or [PlanBlock(0, [PlanOp("nop")], [])]
        if len(blocks) > MAX_BLOCKS:
            expected = f"at most {MAX_BLOCKS} thread blocks, which have to run at the same time"
            raise ScheduleError(f"MSCCL++ plan: gpu {gpu}: expected {expected}; found {len(blocks)}")
        num_ops += sum(len(block.ops) for block in blocks)
        _check_ops(num_ops)
        peers = writer.peers[gpu]
        channels = [GpuChannels("memory", peers)] if peers else []
        buffers = [RemoteBuffer(peer, kind, ["memory"]) for peer, kind in writer.buffers[gpu]]  # type: ignore[arg-type]
        semaphores = [DeviceSemaphore(0) for _ in writer.semaphores[gpu]]
        gpus.append(PlanGpu(gpu, *chunks, writer.slots[gpu], blocks, channels, buffers, semaphores))
    most = MOST_OFFSET // max(*chunks, *writer.slots)  # bytes of a chunk
    return ExecutionPlan(
        program.name,
        SPELLINGS_IN_PLANS[program.collective],
        "Simple",
        program.in_place,
        gpus,
        max_message_size=most * max(chunks),
        root=UNSET if program.root is None else program.root,
    )


class _PlanWriter:
    """Decides where each message goes and which channel and semaphores its thread blocks use; writes blocks."""

    def __init__(self, program: Program) -> None:
        self.program, self.flow, self.cells = program, Flow(program), Cells(program)
        ranks = range(program.num_ranks)
        self.slots = list(program.num_scratch)
        self.peers: list[list[int]] = [[] for _ in ranks]  # of the channels of each GPU
        self.buffers: list[list[tuple[int, str]]] = [[] for _ in ranks]  # remote ones of each GPU
        self.semaphores: list[dict[tuple[_Part, _Part], int]] = [{} for _ in ranks]  # from one part to another
        self.receiver = {sent: received for received, sent in self.flow.sender.items()}
        self.parts = [self._parts(gpu) for gpu in ranks]
        self.part_of = {i: part for parts in self.parts for part in parts for i in part.instructions}
        self.landing = self._landings()  # of each receive, where its message is put
        self.channel: dict[int, tuple[int, int]] = {}  # of each send, the number of its channel in both parts
        self._connect()
        self.waiters = self._waiters()

    def _one(self, i: int) -> Instruction:
        return self.flow.nodes[i].instruction

    def _parts(self, gpu: int) -> list[_Part]:
        """Cut the thread blocks of a GPU where they have more ops than the executor allows."""
        steps: dict[int, list[int]] = defaultdict(list)
        for i, node in enumerate(self.flow.nodes):
            if node.gpu == gpu:
                steps[node.tb].append(i)
        parts: list[_Part] = []
        for tb in sorted(steps):
            size, before = MAX_OPS, None
            for i in steps[tb]:
                most = _most_ops(self._one(i))
                if size + most > MAX_OPS - _FRAME:
                    before = _Part(gpu, [], before)
                    parts.append(before)
                    size = 0
                size += most
                parts[-1].instructions.append(i)
        return parts

    def _landings(self) -> dict[int, Spot]:
        """Where messages go: into the memory where they are stored if all uses before that end before they are sent."""
        used: dict[Cell, list[int]] = defaultdict(list)
        found = {}
        for i, node in enumerate(self.flow.nodes):
            reads, writes = self.cells.used_by(node)
            one = node.instruction
            if one.kind.receives:
                sent = self.flow.before[self.flow.sender[i]]
                free = all(sent >> other & 1 for cell in writes for other in used[cell])
                if one.name in ("r", "rcs") and free:
                    found[i] = one.dst
                else:
                    found[i] = ("s", self.slots[node.gpu])
                    self.slots[node.gpu] += one.count
            for cell in reads | writes:
                used[cell].append(i)
        return found

    def _connect(self) -> None:
        """One channel for each two parts between which there are messages, in either direction."""
        channels: dict[frozenset[_Part], dict[_Part, int]] = {}
        for sent, received in sorted(self.receiver.items()):
            ends = self.part_of[sent], self.part_of[received]
            known = channels.get(frozenset(ends))
            if known is None:
                known = channels[frozenset(ends)] = {}
                for part, other in (ends, ends[::-1]):
                    known[part] = len(part.channels)
                    part.channels.append(len(self.peers[part.gpu]))
                    self.peers[part.gpu].append(other.gpu)
                    if len(part.channels) > MAX_CHANNELS:
                        expected = f"at most {MAX_CHANNELS} channels of a thread block"
                        raise ScheduleError(f"MSCCL++ plan: gpu {part.gpu}: expected {expected}; found more")
            self.channel[sent] = known[ends[0]], known[ends[1]]
            for numbers, number in ((ends[0].sends_on, known[ends[0]]), (ends[1].receives_on, known[ends[1]])):
                if number not in numbers:
                    numbers.append(number)

    def _waiters(self) -> dict[int, list[int]]:
        """The semaphores to release after each instruction: one for each part that waits for it."""
        index = {(node.gpu, node.tb, node.step): i for i, node in enumerate(self.flow.nodes)}
        waiters: dict[int, list[int]] = defaultdict(list)
        self.awaited: dict[int, int] = {}  # of each instruction that waits, its semaphore
        for i, node in enumerate(self.flow.nodes):
            if node.instruction.depends is not None:
                other = index[node.gpu, *node.instruction.depends]
                self.awaited[i] = self._semaphore(self.part_of[other], self.part_of[i])
                waiters[other].append(self.awaited[i])
        return waiters

    def _semaphore(self, releases: _Part, acquires: _Part) -> int:
        known = self.semaphores[releases.gpu]
        return known.setdefault((releases, acquires), len(known))

    def block(self, tb: int, part: _Part) -> PlanBlock:
        """The thread block of a part, with this number in its GPU."""
        out = BlockOps()
        out.signal(part.receives_on)
        out.wait(part.sends_on)
        if part.sends_on:
            out.nop()  # Another thread may be the one that waits on this channel next.
        if part.before is not None:
            out.acquire(self._semaphore(part.before, part))
        for i in part.instructions:
            self._write(out, part, i)
        after = next((other for other in self.parts[part.gpu] if other.before is part), None)
        if after is not None:
            out.release([self._semaphore(part, after)])
        channels = [BlockChannels("memory", part.channels)] if part.channels else []
        buffers = [BlockBuffers("memory", part.buffers)] if part.buffers else []
        return PlanBlock(tb, out.ops, channels, buffers)

    def _write(self, out: BlockOps, part: _Part, i: int) -> None:
        """Add the ops of an instruction."""
        one, gpu = self._one(i), part.gpu
        if i in self.awaited:
            out.acquire(self.awaited[i])
        arrived: Spot | None = None
        if one.kind.receives:
            out.wait([self.channel[self.flow.sender[i]][1]])
            arrived = self.landing[i]
        src, dst = self._local(gpu, one.src, one.count), self._local(gpu, one.dst, one.count)
        message = self._local(gpu, arrived, one.count) if arrived is not None else None
        if one.kind.reduces:
            operands = [dst, src] if message is None else [src, message]
            remote = [self._remote(part, i)] if one.kind.sends else []
            out.move("res" if remote else "re", operands, [dst, *remote])
        else:
            if one.name == "cpy":
                out.move("copy", [src], [dst])
            elif message is not None and arrived != one.dst:
                out.move("copy", [message], [dst])
            if one.kind.sends:
                out.move("put", [src if message is None else dst], [self._remote(part, i)])
        if one.kind.sends:
            out.signal([self.channel[i][0]])
        if self.waiters[i]:
            out.release(self.waiters[i])

    def _local(self, gpu: int, spot: Spot, count: int) -> tuple[PlanChunks, list[Cell]]:
        chunks = PlanChunks(type=spot[0], index=max(spot[1], 0), size=max(count, 1))  # type: ignore[arg-type]
        return chunks, [self.cells.of(gpu, one) for one in span(spot, count)]

    def _remote(self, part: _Part, i: int) -> tuple[PlanChunks, list[Cell]]:
        """Where the message that an instruction sends is put."""
        received = self.receiver[i]
        (kind, chunk), peer = self.landing[received], self.flow.nodes[received].gpu
        of_gpu = self.buffers[part.gpu]
        if (peer, kind) not in of_gpu:
            of_gpu.append((peer, kind))
        number = of_gpu.index((peer, kind))
        if number not in part.buffers:
            part.buffers.append(number)
        return PlanChunks(buffer_id=part.buffers.index(number), index=chunk, size=self._one(i).count), []


def _most_ops(one: Instruction) -> int:
    """At most so many ops say what an instruction does."""
    moves = 2 * one.kind.stores + 2 * one.kind.sends  # with a nop before each
    return (one.depends is not None) + one.kind.receives + moves + 2 * one.kind.sends + 2 * one.awaited + 1
