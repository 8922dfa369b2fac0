"""Runs the plans of all ranks in one thread, in a seeded random interleaving: what any executor may do, and no more.

A task is one piece of one instruction. It runs once everything it waits for has happened, and among the tasks that may
run the seed decides, sometimes in favour of a rank or of late steps. Channels hold one piece. Staged memory is read
when it is sent; lent memory then, or when the receiver runs, since a transport may copy what it could lend. Memory that
was never written holds garbage. So a plan that breaks law 3 goes wrong under some seed. Bits are those of reference.py.
"""

import heapq
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.errors import VerifyError
from hocket.schedule.collective import chunk_bounds
from hocket.schedule.lowering.dependencies import INPUT, OUTPUT, REMOTE
from hocket.schedule.lowering.plan import COMPLETES, Plan
from hocket.schedule.proof.joint import JointPlans, shared_offset
from hocket.schedule.proof.waits import match_messages
from hocket.schedule.reduction import Reduction, fold

Array = NDArray[Any]
Lengths = NDArray[np.int64]


def run_plans(
    plans: Sequence[Plan],
    inputs: Sequence[Array | None],
    reduction: str | Reduction = "sum",
    *,
    seed: int,
    num_pieces: int = 1,
    capacity: int = 1,
    block_lengths: Lengths | None = None,
) -> list[Array | None]:
    """Run one collective and give each rank's output, a new 1-d array, or None where it has none.

    inputs holds one 1-d array for each rank that has an input. Every chunk is cut into num_pieces pieces of equally
    many elements, counted for the longest chunk; capacity is how many pieces a channel holds. block_lengths (elements
    of every block of `data`) is for uneven collectives. VerifyError (law 3) if messages do not match or the tasks wait
    for each other.
    """
    return Interpreter(plans, num_pieces, capacity).run(inputs, reduction, seed, block_lengths)


class Interpreter:
    """Plans made ready to be run many times, with other data and seeds."""

    def __init__(self, plans: Sequence[Plan], num_pieces: int = 1, capacity: int = 1) -> None:
        self.plans, self.num_pieces = plans, num_pieces
        self.joint = joint = JointPlans(plans)
        self.messages = match_messages(joint)
        n = joint.num_instructions
        self.num_tasks = n * num_pieces  # task = piece * n + instruction
        self.sends, self.lent = joint.sends.tolist(), joint.lent.tolist()
        self.rank, self.step = joint.rank.tolist(), joint.step.tolist()
        self.completes = ((joint.flags & COMPLETES) > 0).tolist()
        # What each instruction reads: (sending instruction, REMOTE, _) or (-1, space, index); and what of it is raw.
        self.raw: list[list[bool]] = [[] for _ in range(n)]
        self.reads: list[list[tuple[int, int, int]]] = [[] for _ in range(n)]
        sender = {}
        for send, receiver in zip(self.messages.send.tolist(), self.messages.fold.tolist(), strict=True):
            sender[receiver, self.rank[send]] = send
        for owner, (peer, space, index, raw) in zip(joint.source_owner.tolist(), joint.sources.tolist(), strict=True):
            self.raw[owner].append(bool(raw))
            self.reads[owner].append((sender[owner, peer] if space == REMOTE else -1, space, index))
        self.writes: list[tuple[int, int]] = [(REMOTE, 0)] * n
        for owner, (_, space, index) in zip(joint.destination_owner.tolist(), joint.destinations.tolist(), strict=True):
            if space != REMOTE:
                self.writes[owner] = (space, index)
        self.after: list[list[int]] = [[] for _ in range(self.num_tasks)]
        self.waits = [0] * self.num_tasks
        self._link(capacity)

    def _link(self, capacity: int) -> None:
        """Which tasks wait for which; memory is settled and a channel free when the last of some tasks has run."""
        joint, messages, n = self.joint, self.messages, self.joint.num_instructions
        readers: dict[int, list[int]] = {}
        channels: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for send, receiver in zip(messages.send.tolist(), messages.fold.tolist(), strict=True):
            readers.setdefault(send, []).append(receiver)
            queue = channels.setdefault((self.rank[send], self.rank[receiver]), [])
            queue.append((len(queue), send, receiver))
        edges: set[tuple[int, int]] = set()
        pieces = range(self.num_pieces)
        for instruction, earlier in zip(joint.dependent.tolist(), joint.dependency.tolist(), strict=True):
            for task in readers[earlier] if self.lent[earlier] else (earlier,):
                edges.update((task + piece * n, instruction + piece * n) for piece in pieces)
        for queue in channels.values():
            turns = sorted(
                (piece + self.step[send], self.step[send], order, piece, send, receiver)
                for order, send, receiver in queue
                for piece in pieces
            )
            for turn, (_, _, _, piece, send, receiver) in enumerate(turns):
                edges.add((send + piece * n, receiver + piece * n))
                if turn:
                    _, _, _, before, previous, reader = turns[turn - 1]
                    edges.add((previous + before * n, send + piece * n))
                    edges.add((reader + before * n, receiver + piece * n))
                if turn >= capacity:
                    _, _, _, before, previous, _ = turns[turn - capacity]
                    edges.update((reader + before * n, send + piece * n) for reader in readers[previous])
        for earlier, later in edges:
            self.after[earlier].append(later)
            self.waits[later] += 1

    def run(
        self,
        inputs: Sequence[Array | None],
        reduction: str | Reduction,
        seed: int,
        block_lengths: Lengths | None = None,
    ) -> list[Array | None]:
        """One run; arguments and errors as `run_plans`."""
        layout = _Layout(self.plans, inputs, self.num_pieces, block_lengths)
        memory = layout.memory
        n, num_ranks = self.joint.num_instructions, len(self.plans)
        copied: dict[int, Array] = {}
        copies = random.Random(~seed)
        for task in self._order(seed):
            piece, instruction = divmod(task, n)
            chunk, rank = int(self.joint.chunk[instruction]), self.rank[instruction]
            operands = []
            for sender, space, index in self.reads[instruction]:
                if sender < 0:
                    operands.append(memory[layout.range(rank, space, index, chunk, piece)])
                elif (message := piece * n + sender) in copied:
                    operands.append(copied[message])
                else:
                    _, from_space, from_index = self.reads[sender][0]
                    operands.append(memory[layout.range(self.rank[sender], from_space, from_index, chunk, piece)])
            if not self.sends[instruction]:
                target = layout.range(rank, *self.writes[instruction], chunk, piece)
                completes, raw = self.completes[instruction], self.raw[instruction]
                copies_only = len(operands) == 1 and not raw[0]
                memory[target] = (
                    operands[0] if copies_only else fold(operands, reduction, memory.dtype, completes, num_ranks, raw)
                )
            elif not self.lent[instruction] or copies.random() < 0.5:
                copied[task] = operands[0].copy()
        return layout.outputs()

    def _order(self, seed: int) -> list[int]:
        """All tasks in an order that respects what they wait for."""
        choice = random.Random(seed)
        n = self.joint.num_instructions
        by_rank, by_step = choice.choice((0, 0, 1, 100)), choice.choice((0, 0, 1, -1))
        favour = [by_rank * choice.random() for _ in self.plans]
        waits = self.waits.copy()

        def entry(task: int) -> tuple[float, int]:
            instruction = task % n
            return favour[self.rank[instruction]] + by_step * self.step[instruction] + choice.random(), task

        ready = [entry(task) for task in range(self.num_tasks) if not waits[task]]
        heapq.heapify(ready)
        order = []
        while ready:
            task = heapq.heappop(ready)[1]
            order.append(task)
            for later in self.after[task]:
                waits[later] -= 1
                if not waits[later]:
                    heapq.heappush(ready, entry(later))
        if len(order) < self.num_tasks:
            stuck = next(task for task in range(self.num_tasks) if waits[task]) % n
            count, example = self.num_tasks - len(order), self.joint.describe(stuck)
            raise VerifyError(
                f"deadlock: {count} tasks wait for ever, one of them {example}", **self.joint.where(stuck)
            )
        return order


class _Layout:
    """All ranks' memory in one array, and where each piece of each chunk lies in it."""

    def __init__(
        self, plans: Sequence[Plan], inputs: Sequence[Array | None], num_pieces: int, block_lengths: Lengths | None
    ) -> None:
        self.plans = plans
        given = [array if plan.num_input_chunks else None for plan, array in zip(plans, inputs, strict=True)]
        dtype, blocks = _block_lengths(plans, given, block_lengths)
        k = plans[0].chunks_per_block
        bounds = np.stack([chunk_bounds(length, k) for length in blocks.tolist()])
        # By chunk of data, which serves equal blocks too: their size classes are the chunks of the first.
        self.lengths: list[int] = np.diff(bounds, axis=1).ravel().tolist()
        self.longest = max(self.lengths)
        self.piece = max(1, -(-self.longest // num_pieces))
        self.begins: list[list[list[int]]] = []  # by rank, space and index; the last is the end
        size = 0
        for plan in plans:
            spaces: list[list[int]] = []
            for held in (plan.input_blocks, plan.output_blocks):
                ends = np.cumsum(blocks[held])
                begins = ((ends - blocks[held])[:, None] + bounds[held, :-1]).ravel()
                spaces.append([*begins.tolist(), int(ends[-1]) if len(ends) else 0])
            loses, offset = shared_offset(plan)
            for space in (INPUT, OUTPUT):
                if space != loses:
                    spaces[space] = [size + begin for begin in spaces[space]]
                    size = spaces[space][-1]
            if loses >= 0:
                larger, smaller = spaces[INPUT + OUTPUT - loses], spaces[loses]
                spaces[loses] = [larger[offset] + begin for begin in smaller]
                if spaces[loses] != larger[offset : offset + len(smaller)]:
                    raise ValueError(
                        f"rank {plan.rank}: expected blocks that are equally long where one takes the other's place, "
                        "to exchange them in place; found others"
                    )
            spaces.append([size + slot * self.longest for slot in range(plan.num_scratch)])
            size += plan.num_scratch * self.longest
            self.begins.append(spaces)
        self.memory: Array = np.frombuffer(b"\xa5" * (size * dtype.itemsize), dtype).copy()
        if dtype.kind in "fc":
            self.memory[:] = np.nan
        for rank, array in enumerate(given):
            begin, end = self.begins[rank][INPUT][0], self.begins[rank][INPUT][-1]
            found = 0 if array is None else len(array)
            if found != end - begin:
                raise ValueError(f"rank {rank}: expected an input of {end - begin} elements, found {found}")
            if array is not None:
                self.memory[begin:end] = array

    def range(self, rank: int, space: int, index: int, chunk: int, piece: int) -> slice:
        """One piece of a chunk of this size class; empty where the chunk is too short to have it."""
        begin, length = self.begins[rank][space][index], self.lengths[chunk]
        return slice(begin + min(piece * self.piece, length), begin + min((piece + 1) * self.piece, length))

    def outputs(self) -> list[Array | None]:
        """A copy of each rank's output memory."""
        found: list[Array | None] = []
        for plan in self.plans:
            begins = self.begins[plan.rank][OUTPUT]
            found.append(self.memory[begins[0] : begins[-1]].copy() if plan.num_output_chunks else None)
        return found


def _block_lengths(
    plans: Sequence[Plan], inputs: Sequence[Array | None], block_lengths: Lengths | None
) -> tuple[np.dtype[Any], Lengths]:
    """The dtype of the inputs, and elements of each block of data: as given, or those of the first input's equal ones.

    ValueError if there is no input where there should be one, or no lengths where blocks are uneven.
    """
    first = next(rank for rank, plan in enumerate(plans) if plan.num_input_chunks)
    sample = inputs[first]
    if sample is None:
        raise ValueError(f"rank {first}: expected an input, found None")
    num_blocks = 1 + max(int(held.max(initial=0)) for plan in plans for held in (plan.input_blocks, plan.output_blocks))
    if plans[0].uneven != (block_lengths is not None) or (
        block_lengths is not None and len(block_lengths) != num_blocks
    ):
        expected = f"lengths of {num_blocks} blocks" if plans[0].uneven else "no lengths, as blocks are equally long"
        raise ValueError(f"block_lengths: expected {expected}, found {block_lengths}")
    if block_lengths is None:
        return sample.dtype, np.full(num_blocks, len(sample) // len(plans[first].input_blocks), np.int64)
    return sample.dtype, np.asarray(block_lengths, np.int64)
