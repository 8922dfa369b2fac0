"""An order in which all ops of a plan can run, and what is certain to have ended before each of them.

The threads of a block run its ops without waiting for each other. Only a nop or a barrier orders what stands before it
and what stands after it; a signal, a wait or a semaphore carries this order to another block only if a nop stands
between it and the data. A relaxed signal, or a packet that arrives, tells only that a call has begun and what has been
read. A put through a port has ended when a later signal on its channel has arrived, or when a later flush has ended.

A call begins and ends on each GPU at a time of its own. Before it begins there, and after it has ended, the memory of
this GPU is not the call's.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from hocket.errors import ScheduleError
from hocket.schedule.msccl.contents import Cell
from hocket.schedule.mscclpp.execution_plan import (
    MAX_BARRIERS,
    MAX_CHANNELS,
    MAX_CHANNELS_OF_OP,
    MAX_SEMAPHORES_OF_OP,
    ExecutionPlan,
    PlanOp,
    refuse_op,
    where_op,
)
from hocket.schedule.mscclpp.plan_moves import At, Move, Moves, has_packets

ChannelEnd = tuple[int, str, int]  # gpu, channel type, number among the GPU's channels of this type

_SIGNALS = ("signal", "rlxsignal", "pws", "pwsf")
_WAITS = ("wait", "rlxwait")
START, END = PlanOp("start"), PlanOp("end")


@dataclass(frozen=True)
class PlanNode:
    """One op, where it stands (gpu, thread block, number), and what it moves; of an op with packets one chunk.

    START and END are no ops, but those of a GPU's call.
    """

    at: At
    op: PlanOp
    moves: Sequence[Move]


@dataclass
class _Progress:
    """How far a thread block has come. `sync` is its last nop or barrier, `since` what has run after it."""

    gpu: int
    tb: int
    done: int = 0
    sync: list[int] = field(default_factory=list)
    since: list[int] = field(default_factory=list)
    puts: dict[ChannelEnd, list[int]] = field(default_factory=lambda: defaultdict(list))  # through ports, since then
    issued: dict[ChannelEnd, list[int]] = field(default_factory=lambda: defaultdict(list))  # before, and not flushed


class PlanFlow:
    """All ops of a plan in an order in which they can run: `nodes`.

    `before` has, for each of them, the set (as bits) of the ops that have ended before it; `read_before` those that
    have at least read what they read. ScheduleError where no such order exists, or where a call would leave a counter
    of the executor other than it found it.
    """

    def __init__(self, plan: ExecutionPlan, source: str, moves: Moves) -> None:
        self.plan, self.source, self.moves = plan, source, moves
        self.nodes: list[PlanNode] = []
        self.before: list[int] = []
        self.read_before: list[int] = []
        self._peers = {
            (gpu.id, kind): _peers(plan, source, gpu.id, kind) for gpu in plan.gpus for kind in ("memory", "port")
        }
        # Of each signal at each end of a channel, what has ended when it arrives: first the op that has sent it.
        self._arrived: dict[ChannelEnd, list[list[int]]] = defaultdict(list)
        self._taken: dict[ChannelEnd, int] = defaultdict(int)
        self._acquired: dict[tuple[int, int], int] = defaultdict(int)
        self._released: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._releases: dict[tuple[int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._acquirer: dict[tuple[int, int], int] = {}
        self._members: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._users: dict[tuple[ChannelEnd, str], int] = {}
        self._packets: dict[Cell, int] = {}  # what has written each of them
        self._look_ahead()
        for gpu in plan.gpus:  # Their numbers are those of the GPUs.
            self._note((gpu.id, -1, 0), START, (), [])
        self._blocks = [_Progress(gpu.id, tb.id, sync=[gpu.id]) for gpu in plan.gpus for tb in gpu.threadblocks]
        while any([self._advance(block) for block in self._blocks]):
            pass
        self._check_end()
        for gpu in plan.gpus:
            of_gpu = [one for one in self._blocks if one.gpu == gpu.id]
            ended = [i for one in of_gpu for i in (*one.sync, *one.since)]
            # Nothing says when ports have read what they put; the executor's own plans do not wait for that either.
            put = [i for one in of_gpu for puts in (one.puts, one.issued) for of_end in puts.values() for i in of_end]
            self._note((gpu.id, -1, 0), END, (), ended, put)

    def _ops(self, block: _Progress) -> list[PlanOp]:
        return self.plan.gpus[block.gpu].threadblocks[block.tb].ops

    def _look_ahead(self) -> None:
        """Check each op by itself; count the releases of semaphores; find the members of barriers."""
        for gpu in self.plan.gpus:
            for tb in gpu.threadblocks:
                for i, op in enumerate(tb.ops):
                    at = (gpu.id, tb.id, i)
                    self._check(at, op)
                    for semaphore in op.semaphore_ids:
                        key = (gpu.id, semaphore)
                        if op.name == "sem_release":
                            self._releases[key][tb.id] += 1
                        elif self._acquirer.setdefault(key, tb.id) != tb.id:
                            found = f"tb {self._acquirer[key]} and tb {tb.id}"
                            self.refuse(at, op, f"one thread block to acquire semaphore {semaphore}", found)
                    if op.name in (*_SIGNALS, *_WAITS):
                        self._claim(at, op, "wait" if op.name in _WAITS else "signal")
                    if op.name == "barrier" and isinstance(op.barrier_id, int):
                        self._members[gpu.id, op.barrier_id].add(tb.id)

    def _claim(self, at: At, op: PlanOp, what: str) -> None:
        """Both ends of a channel count; so the signals, and the waits, of an end belong to one thread block."""
        for end in self.channels(at, op):
            first = self._users.setdefault((end, what), at[1])
            if first != at[1]:
                self.refuse(at, op, f"one thread block to {what} on channel {end[2]}", f"tb {first} and tb {at[1]}")

    def _check(self, at: At, op: PlanOp) -> None:
        semaphores = len(self.plan.gpus[at[0]].semaphores)
        if op.name in (*_SIGNALS, *_WAITS, "flush"):
            if not 1 <= len(op.channel_ids) <= MAX_CHANNELS_OF_OP or len({*op.channel_ids}) < len(op.channel_ids):
                self.refuse(at, op, f"1 to {MAX_CHANNELS_OF_OP} channel_ids, each once", str([*op.channel_ids]))
            self.channels(at, op)
        if op.name in ("pws", "pwsf", "flush") and op.channel_type != "port":
            self.refuse(at, op, "channel_type port", op.channel_type)
        few = 1 <= len(op.semaphore_ids) <= MAX_SEMAPHORES_OF_OP and max(op.semaphore_ids) < semaphores
        if op.name in ("sem_acquire", "sem_release") and not few:
            expected = f"1 to {MAX_SEMAPHORES_OF_OP} semaphore_ids below {semaphores}, the semaphores of the gpu"
            self.refuse(at, op, expected, str([*op.semaphore_ids]))
        if op.name == "barrier" and not (isinstance(op.barrier_id, int) and op.barrier_id < MAX_BARRIERS):
            self.refuse(at, op, f"barrier_id below {MAX_BARRIERS}", str(op.barrier_id))

    def refuse(self, at: At, op: PlanOp, expected: str, found: str) -> NoReturn:
        """Raise a ScheduleError about an op."""
        refuse_op(self.source, at, op, expected, found)

    def channels(self, at: At, op: PlanOp) -> list[ChannelEnd]:
        """The ends of the channels that an op names."""
        gpu, tb, _ = at
        if (gpu, op.channel_type) not in self._peers:
            expected = "channel_type memory or port; what a switch does in one op has no row in a schedule"
            self.refuse(at, op, expected, repr(op.channel_type))
        of_block = self.plan.gpus[gpu].threadblocks[tb].channels
        known = [i for one in of_block if one.channel_type == op.channel_type for i in one.channel_ids]
        if len(known) > MAX_CHANNELS:
            self.refuse(at, op, f"at most {MAX_CHANNELS} channels of a type in its thread block", str(len(known)))
        ends = []
        for channel in op.channel_ids:
            if channel >= len(known) or known[channel] >= len(self._peers[gpu, op.channel_type]):
                self.refuse(at, op, f"a channel of its thread block and gpu, of type {op.channel_type}", str(channel))
            ends.append((gpu, op.channel_type, known[channel]))
        return ends

    def peers(self, at: At, op: PlanOp) -> list[int]:
        """The GPUs at the other ends of the channels that an op names."""
        return [self._peers[gpu, kind][number] for gpu, kind, number in self.channels(at, op)]

    def _other_end(self, end: ChannelEnd) -> ChannelEnd | None:
        """The end of a channel at its peer: the k-th from a to b is the k-th from b to a."""
        gpu, kind, number = end
        peers = self._peers[gpu, kind]
        peer = peers[number]
        back = [i for i, other in enumerate(self._peers[peer, kind]) if other == gpu]
        k = peers[:number].count(peer)
        return (peer, kind, back[k]) if k < len(back) else None

    def _advance(self, block: _Progress) -> bool:
        """Run the ops of a thread block as far as they can; whether there was any."""
        start = block.done
        while block.done < len(self._ops(block)) and self._run(block):
            pass
        return block.done > start

    def _run(self, block: _Progress) -> bool:
        """Run the next op of a thread block, if it need not wait."""
        op, at = self._ops(block)[block.done], (block.gpu, block.tb, block.done)
        if has_packets(op):
            return self._pass_packets(block, op)
        ahead = list(block.sync)
        loosely: list[int] = []
        if op.name == "barrier":
            return self._meet(block, op)
        if op.name in _WAITS:
            ends = self.channels(at, op)
            if any(len(self._arrived[end]) <= self._taken[end] for end in ends):
                return False
            for end in ends:
                signal = self._arrived[end][self._taken[end]]
                (loosely if "rlx" in op.name + self.nodes[signal[0]].op.name else ahead).extend(signal)
                self._taken[end] += 1
        if op.name == "sem_acquire":
            keys = [(block.gpu, semaphore) for semaphore in op.semaphore_ids]
            if any(self._free(key) < op.semaphore_ids.count(key[1]) for key in keys):
                return False
            for key in keys:
                self._acquired[key] += 1
                ahead += self._surely_released(key)
        i, block.done = len(self.nodes), block.done + 1
        if op.name == "sem_release":
            for semaphore in op.semaphore_ids:
                self._released[block.gpu, semaphore][block.tb].append(i)
        ends = self.channels(at, op) if op.name in (*_SIGNALS, "flush") else []
        for end in ends:
            if op.name in _SIGNALS and (other := self._other_end(end)) is not None:
                self._arrived[other].append([i, *block.issued[end]])
            if op.name in ("flush", "pwsf"):
                ahead += block.issued.pop(end, [])
        moves = self.moves.of(at, op)
        self._note(at, op, moves, ahead + (block.since if op.name == "nop" else []), loosely)
        if op.name == "nop":
            self._synchronized(block, i)
        elif op.name in ("put", "pws") and op.channel_type == "port":
            for end in self.channels(at, op):
                block.puts[end].append(i)
            peers, targets = self.peers(at, op), [move.into[0] for move in moves]
            if peers != targets:
                self.refuse(at, op, f"channel_ids of channels to gpus {targets}, as dst_buff says", f"gpus {peers}")
        else:
            block.since.append(i)
        return True

    def _pass_packets(self, block: _Progress, op: PlanOp) -> bool:
        """Run an op with packets, if all that it reads are there. Each chunk is an op of its own."""
        at = (block.gpu, block.tb, block.done)
        chunks = self.moves.one_by_one(op, self.moves.of(at, op))
        uses = [self.moves.used_by(of_chunk) for of_chunk in chunks]
        if any(self.moves.is_packet(cell) and cell not in self._packets for reads, _ in uses for cell in reads):
            return False
        for of_chunk, (reads, writes) in zip(chunks, uses, strict=True):
            for cell in filter(self.moves.is_packet, writes):
                if self._packets.setdefault(cell, len(self.nodes)) != len(self.nodes):
                    other = self.nodes[self._packets[cell]]
                    self.refuse(at, op, "each packet to be written once", f"{where_op(other.at, other.op)} before it")
            block.since.append(len(self.nodes))
            self._note(at, op, of_chunk, block.sync, [self._packets[cell] for cell in reads if cell in self._packets])
        block.done += 1
        return True

    def _note(
        self, at: At, op: PlanOp, moves: Sequence[Move], ahead: Sequence[int], loosely: Sequence[int] = ()
    ) -> None:
        """Add an op that runs after those `ahead`, and after the reads and starts that come before those `loosely`."""
        bits = read_bits = 0
        for other in ahead:
            bits |= self.before[other] | 1 << other
            read_bits |= self.read_before[other] | 1 << other
        for other in loosely:
            bits |= self.before[other] & ((1 << len(self.plan.gpus)) - 1)
            read_bits |= self.read_before[other] | 1 << other
        self.nodes.append(PlanNode(at, op, moves))
        self.before.append(bits)
        self.read_before.append(read_bits)

    def _synchronized(self, block: _Progress, i: int) -> None:
        block.sync, block.since = [i], []
        for end, puts in block.puts.items():
            block.issued[end] += puts
        block.puts.clear()

    def _free(self, key: tuple[int, int]) -> int:
        gpu, semaphore = key
        released = sum(len(of_block) for of_block in self._released[key].values())
        return self.plan.gpus[gpu].semaphores[semaphore].init_value + released - self._acquired[key]

    def _surely_released(self, key: tuple[int, int]) -> list[int]:
        """The releases without which a semaphore could not have been acquired as often as it has been."""
        start = self.plan.gpus[key[0]].semaphores[key[1]].init_value
        total = start + sum(self._releases[key].values())
        return [
            node
            for tb, nodes in self._released[key].items()
            for position, node in enumerate(nodes)
            if total - (self._releases[key][tb] - position) < self._acquired[key]
        ]

    def _meet(self, block: _Progress, op: PlanOp) -> bool:
        """Run a barrier in all its thread blocks, if all have come to it."""
        assert isinstance(op.barrier_id, int)
        members = self._members[block.gpu, op.barrier_id]
        if op.num_threadblocks != len(members):
            at = (block.gpu, block.tb, block.done)
            expected = f"num_threadblocks={len(members)}, as many as have barrier {op.barrier_id}"
            self.refuse(at, op, expected, str(op.num_threadblocks))
        those = [one for one in self._blocks if one.gpu == block.gpu and one.tb in members]
        ops = [self._ops(one)[one.done] if one.done < len(self._ops(one)) else None for one in those]
        if any(other is None or (other.name, other.barrier_id) != (op.name, op.barrier_id) for other in ops):
            return False
        ahead = [i for one in those for i in (*one.sync, *one.since)]
        for one in those:
            self._note((one.gpu, one.tb, one.done), op, (), ahead)
            self._synchronized(one, len(self.nodes) - 1)
            one.done += 1
        return True

    def _check_end(self) -> None:
        stuck = [one for one in self._blocks if one.done < len(self._ops(one))]
        if stuck:
            first = ", ".join(where_op((one.gpu, one.tb, one.done), self._ops(one)[one.done]) for one in stuck[:4])
            more = " ..." if len(stuck) > 4 else ""
            found = f"that these wait forever: {first}{more}"
            raise ScheduleError(f"{self.source}: expected an order in which all ops can run; found {found}")
        for end, arrived in self._arrived.items():
            if len(arrived) != self._taken[end]:
                node = self.nodes[arrived[-1][0]]
                found = f"{len(arrived)} signals and {self._taken[end]} waits"
                self.refuse(node.at, node.op, f"gpu {end[0]} to wait for every signal on this channel", found)
        for (gpu, semaphore), releases in self._released.items():
            count, acquired = sum(map(len, releases.values())), self._acquired[gpu, semaphore]
            if count != acquired:
                node = self.nodes[next(iter(releases.values()))[-1]]
                expected = f"semaphore {semaphore} to be acquired as often as released, because it outlives the call"
                self.refuse(node.at, node.op, expected, f"{count} releases, {acquired} acquisitions")


def _peers(plan: ExecutionPlan, source: str, gpu: int, kind: str) -> list[int]:
    """The GPUs at the other ends of a GPU's channels of a type."""
    peers = [peer for one in plan.gpus[gpu].channels if one.channel_type == kind for peer in one.connected_to]
    wrong = [peer for peer in peers if peer == gpu or peer >= len(plan.gpus)]
    if wrong:
        expected = f"channels to other gpus, below {len(plan.gpus)}"
        raise ScheduleError(f"{source}: gpu {gpu}: expected {expected}; found connected_to {wrong[0]}")
    return peers
