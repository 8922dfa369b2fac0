"""The instructions of one rank, given to thread blocks.

Every pair of ranks has one channel. A rank has a thread block for each peer that it sends to, one for each peer that it
receives from, and one for local work. If a chunk is sent on when it arrives, the blocks of both peers are one block,
and the two instructions are one instruction.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate

from hocket.schedule.msccl.program import MAX_BLOCKS_PER_CHANNEL, Instruction, Spot, ThreadBlock

_PEERS_PER_CHANNEL = (MAX_BLOCKS_PER_CHANNEL - 1) // 2


@dataclass(eq=False)
class Op:
    """An instruction of one rank before it stands in a thread block: the peers that it uses, and what it waits for."""

    name: str
    src: Spot
    dst: Spot
    count: int
    recv: int = -1
    send: int = -1
    after: "set[Op]" = field(default_factory=set)
    users: "set[Op]" = field(default_factory=set)  # that read what it stores
    stays: bool = False  # something of what it stores is part of the output
    within: "Op | None" = None  # the receive that a send has become part of


def thread_blocks(ops: list[Op], rank: int, num_ranks: int, fuse: bool) -> list[ThreadBlock]:
    """The blocks of a rank, whose instructions are in an order in which they can run.

    Without `fuse`, a block either sends or receives, and no instruction does both.
    """
    for op in ops:
        op.within = None
    partner = _partners(ops, rank, num_ranks) if fuse else {}
    both = {recv: send for send, recv in partner.items()}
    streams: dict[tuple[int, int, int], list[Op]] = defaultdict(list)  # by send, recv and channel of the block
    for op in ops:
        if op.send >= 0:
            channel = _channel(rank, op.send, num_ranks)
            streams[op.send, partner.get(op.send, -1), channel].append(op)
        elif op.recv >= 0:
            channel = _channel(op.recv, rank, num_ranks)
            streams[both.get(op.recv, -1), op.recv, channel].append(op)
        else:
            streams[-1, -1, 0].append(op)
    return _with_dependencies([_Block(*key, _fused(streams[key])) for key in sorted(streams)], ops)


def _partners(ops: list[Op], rank: int, num_ranks: int) -> dict[int, int]:
    """For each peer that is sent to, the one from which comes most of what can be passed on; each once."""
    gains = Counter((op.send, source.recv) for op in ops if (source := _passes_on(op)))
    partner: dict[int, int] = {}
    for (send, recv), _ in sorted(gains.items(), key=lambda item: (-item[1], item[0])):
        same = _channel(rank, send, num_ranks) == _channel(recv, rank, num_ranks)
        if same and send not in partner and recv not in partner.values():
            partner[send] = recv
    return partner


def _channel(src: int, dst: int, num_ranks: int) -> int:
    """So that no channel has more thread blocks on a rank than the runtimes allow."""
    return ((dst - src) % num_ranks - 1) // _PEERS_PER_CHANNEL


@dataclass
class _Block:
    send: int
    recv: int
    channel: int
    ops: list[Op]


def _passes_on(op: Op) -> Op | None:
    """The receive whose whole result, and nothing else, this one sends; None if there is none."""
    if op.send < 0 or len(op.after) != 1:
        return None
    source = next(iter(op.after))
    return source if source.recv >= 0 and (source.dst, source.count) == (op.src, op.count) else None


def _fused(ops: list[Op]) -> list[Op]:
    """The instructions of a block in order, with sends made part of receives where that keeps the order of sends."""
    waiting = [op for op in ops if op.send >= 0]
    receives = any(op.recv >= 0 for op in ops)
    result = []
    for op in ops:
        if op.within is None:
            result.append(op)
        if op.send >= 0 and op.within is None:
            waiting.pop(0)
        if receives and op.recv >= 0 and waiting and _passes_on(waiting[0]) is op:
            waiting.pop(0).within = op
    return result


def _with_dependencies(blocks: list[_Block], ops: list[Op]) -> list[ThreadBlock]:
    """Thread blocks of one rank with their instructions, and a nop for each dependency beyond the first."""
    onward = {op.within: op for op in ops if op.within is not None}
    at = {op: (tb, number) for tb, block in enumerate(blocks) for number, op in enumerate(block.ops)}
    at.update({op: at[receive] for receive, op in onward.items()})
    needs: list[list[list[tuple[int, int]]]] = []  # of each block's instructions: other blocks, and how far they are
    for tb, block in enumerate(blocks):
        awaited: dict[int, int] = {tb: len(block.ops)}
        needs.append([])
        for op in block.ops:
            last: dict[int, int] = {}
            for other, number in (at[one] for one in op.after):
                if number > max(awaited.get(other, -1), last.get(other, -1)):
                    last[other] = number
            awaited.update(last)
            needs[-1].append(sorted(last.items()))
    step: list[list[int]] = []  # of each instruction, nops counted
    for of_block in needs:
        ends = list(accumulate(max(len(waits), 1) for waits in of_block))
        step.append([end - 1 for end in ends])
    made = [ThreadBlock(block.send, block.recv, block.channel) for block in blocks]
    told = {(other, step[other][number]) for of_block in needs for waits in of_block for other, number in waits}
    for tb, (block, of_block) in enumerate(zip(blocks, needs, strict=True)):
        for number, (op, waits) in enumerate(zip(block.ops, of_block, strict=True)):
            steps = [(other, step[other][end]) for other, end in waits]
            for extra in steps[:-1]:
                made[tb].steps.append(Instruction("nop", ("i", -1), ("o", -1), 0, extra))
            name = _name(op, onward.get(op))
            depends = steps[-1] if steps else None
            awaits = (tb, step[tb][number]) in told
            made[tb].steps.append(Instruction(name, op.src, op.dst, op.count, depends, awaits))
    return made


def _name(op: Op, onward: Op | None) -> str:
    """What an instruction is called that also sends its result, if another one was to do that."""
    if onward is None:
        return op.name
    if op.name == "r":
        return "rcs"
    return "rrs" if op.users == {onward} and not op.stays else "rrcs"
