"""What an MSCCL file says: thread blocks of each GPU with instructions, and an order in which all of them can run."""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from hocket.errors import ScheduleError

Spot = tuple[str, int]  # buffer, "i", "o" or "s", and chunk

# Limits of the runtimes (https://github.com/microsoft/msccl, https://github.com/Azure/msccl-executor-nccl).
MAX_STEPS = 256  # of a thread block; newer runtimes are built with 64
MAX_BLOCKS_PER_CHANNEL = 32  # of one GPU
MAX_COUNT = 71  # chunks that one instruction moves
CAPACITY = 2  # instructions' worth of data that a channel holds at least


@dataclass(frozen=True)
class Kind:
    """What an instruction does: receives a chunk, folds it into (or a local one onto) another, stores, sends it on."""

    receives: bool = False
    reduces: bool = False
    stores: bool = False
    sends: bool = False


KINDS = {
    "s": Kind(sends=True),
    "r": Kind(receives=True, stores=True),
    "rcs": Kind(receives=True, stores=True, sends=True),
    "rrs": Kind(receives=True, reduces=True, sends=True),
    "rrc": Kind(receives=True, reduces=True, stores=True),
    "rrcs": Kind(receives=True, reduces=True, stores=True, sends=True),
    "cpy": Kind(stores=True),
    "re": Kind(reduces=True, stores=True),
    "nop": Kind(),
}


@dataclass
class Instruction:
    """One step of a thread block. `depends` is the (thread block, step) of the same GPU that it waits for, if any."""

    name: str
    src: Spot
    dst: Spot
    count: int
    depends: tuple[int, int] | None = None
    awaited: bool = False
    line: int = 0

    @property
    def kind(self) -> Kind:
        """What it does."""
        return KINDS[self.name]

    def reads(self) -> list[Spot]:
        """Spots of this GPU whose content it uses."""
        used = []
        if self.kind.reduces or self.name in ("s", "cpy"):
            used.append(self.src)
        if self.name == "re":
            used.insert(0, self.dst)
        return [spot for first in used for spot in span(first, self.count)]

    def writes(self) -> list[Spot]:
        """Spots of this GPU that it stores to."""
        return span(self.dst, self.count) if self.kind.stores else []


def span(first: Spot, count: int) -> list[Spot]:
    """Consecutive spots, `count` of them."""
    return [(first[0], first[1] + i) for i in range(count)]


@dataclass
class ThreadBlock:
    """Instructions that run one after the other, and the GPUs that the block sends to and receives from (-1: none)."""

    send: int
    recv: int
    channel: int
    steps: list[Instruction] = field(default_factory=list)


@dataclass
class Program:
    """A whole file. `collective` is Hocket's name for it; `num_chunks` counts the chunks of the whole vector of a rank.

    `blocks` has the thread blocks of each GPU, `num_scratch` its chunks of scratch. The format has no root: `root` is
    None unless the file has the attribute that `write` adds. `source` is the file's name, for messages.
    """

    name: str
    collective: str
    in_place: bool
    num_chunks: int
    num_channels: int
    blocks: list[list[ThreadBlock]]
    num_scratch: list[int]
    root: int | None = None
    source: str = "MSCCL XML"

    @property
    def num_ranks(self) -> int:
        """GPUs."""
        return len(self.blocks)


@dataclass(frozen=True)
class Node:
    """One instruction, and where it stands."""

    gpu: int
    tb: int
    step: int
    instruction: Instruction


class Flow:
    """All instructions of a program in an order in which they can run: `nodes`.

    `sender` maps the index of an instruction that receives to the index of the instruction that sends. `before` has,
    for each instruction, the set (as bits) of the instructions that have ended before it. ScheduleError if there is no
    such order. With `bounded`, a message is sent only when all but CAPACITY of the messages before it on its channel
    have been received.
    """

    def __init__(self, program: Program, *, bounded: bool = False) -> None:
        self.program = program
        found = list(_nodes(program))
        index = {(node.gpu, node.tb, node.step): i for i, node in enumerate(found)}
        pairs = _pairs(program, found)
        ahead: list[list[int]] = [[] for _ in found]  # for each, what must have ended
        for i, node in enumerate(found):
            if node.step:
                ahead[i].append(index[node.gpu, node.tb, node.step - 1])
            if node.instruction.depends:
                ahead[i].append(self._awaited(found, index, i))
        for channel in pairs:
            for number, (sent, received) in enumerate(channel):
                ahead[received].append(sent)
                if bounded and number >= CAPACITY:
                    ahead[sent].append(channel[number - CAPACITY][1])
        order = _order(program, found, ahead)
        position = {i: n for n, i in enumerate(order)}
        self.nodes = [found[i] for i in order]
        self.sender = {position[received]: position[sent] for channel in pairs for sent, received in channel}
        self.before: list[int] = []
        for i in order:
            bits = 0
            for other in ahead[i]:
                bits |= self.before[position[other]] | 1 << position[other]
            self.before.append(bits)

    def _awaited(self, found: list[Node], index: dict[tuple[int, int, int], int], i: int) -> int:
        node = found[i]
        assert node.instruction.depends is not None
        tb, step = node.instruction.depends
        other = index.get((node.gpu, tb, step))
        if other is None:
            refuse(self.program, node, "a step of its GPU to depend on", f"no tb {tb}, step {step}")
        if not found[other].instruction.awaited:
            refuse(self.program, node, f"hasdep=1 at tb {tb}, step {step}, for which it waits", "hasdep=0")
        return other


def can_run(program: Program) -> bool:
    """Whether all instructions come to their end, also where a channel holds no more than CAPACITY messages."""
    try:
        Flow(program, bounded=True)
    except ScheduleError:
        return False
    return True


def where(node: Node) -> str:
    """Where an instruction stands, in words."""
    return f"gpu {node.gpu}, tb {node.tb}, step {node.step} ({node.instruction.name})"


def refuse(program: Program, node: Node, expected: str, found: str) -> NoReturn:
    """Raise a ScheduleError about an instruction."""
    line = f":{node.instruction.line}" if node.instruction.line else ""
    raise ScheduleError(f"{program.source}{line}: {where(node)}: expected {expected}; found {found}")


def _nodes(program: Program) -> Iterator[Node]:
    for gpu, blocks in enumerate(program.blocks):
        for tb, block in enumerate(blocks):
            for step, instruction in enumerate(block.steps):
                yield Node(gpu, tb, step, instruction)


def _pairs(program: Program, found: list[Node]) -> list[list[tuple[int, int]]]:
    """For each channel its messages in order, as (send, receive): the n-th one sent is the n-th one received."""
    sent: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    received: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for i, node in enumerate(found):
        block = program.blocks[node.gpu][node.tb]
        if node.instruction.kind.sends:
            sent[node.gpu, block.send, block.channel].append(i)
        if node.instruction.kind.receives:
            received[block.recv, node.gpu, block.channel].append(i)
    pairs = []
    for channel in sorted({*sent, *received}):
        ends, others = sent[channel], received[channel]
        if len(ends) != len(others):
            longer, verb = (ends, "receive") if len(ends) > len(others) else (others, "send")
            node, peer = found[longer[min(len(ends), len(others))]], channel[1 if verb == "receive" else 0]
            refuse(program, node, f"gpu {peer} to {verb} this message on channel {channel[2]}", "that it does not")
        for one, other in zip(ends, others, strict=True):
            counts = found[one].instruction.count, found[other].instruction.count
            if counts[0] != counts[1]:
                refuse(program, found[other], f"cnt={counts[0]}, as {where(found[one])} sends", str(counts[1]))
        pairs.append(list(zip(ends, others, strict=True)))
    return pairs


def _order(program: Program, found: list[Node], ahead: list[list[int]]) -> list[int]:
    missing = [len(others) for others in ahead]
    behind: list[list[int]] = [[] for _ in found]
    for i, others in enumerate(ahead):
        for other in others:
            behind[other].append(i)
    ready = deque(i for i, count in enumerate(missing) if not count)
    order = []
    while ready:
        i = ready.popleft()
        order.append(i)
        for other in behind[i]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    if len(order) < len(found):
        stuck = set(range(len(found))).difference(order)
        circle = [min(stuck)]
        while circle.count(circle[-1]) == 1:
            circle.append(next(other for other in ahead[circle[-1]] if other in stuck))
        circle = circle[circle.index(circle[-1]) :]
        text = " <- ".join(where(found[i]) for i in circle)
        raise ScheduleError(f"{program.source}: expected an order in which all steps can run; found a circle: {text}")
    return order
