"""That plans compute what their schedule means: the same folds of the same operands, in the same order.

Every value is named by how it came about: a chunk of some rank's input, or a fold of named values, with a mark where
avg divides, and one on each operand that premul multiplies: a contribution that is read for the first time. Names are
64-bit hashes. Free of races, plans give the same values in every timing, so following each read to the write before it
is enough. Copies keep a name, wherever they lie.
"""

from functools import lru_cache

import numpy as np

from hocket.errors import VerifyError
from hocket.schedule.dependencies import INPUT, OUTPUT, REMOTE
from hocket.schedule.ir import Schedule
from hocket.schedule.joint import JointPlans, memory, place_name
from hocket.schedule.places import Places
from hocket.schedule.plan import COMPLETES
from hocket.schedule.waits import Messages


def check_meaning(joint: JointPlans, messages: Messages, schedule: Schedule) -> None:
    """VerifyError (law 3) naming the first chunk of output in which race-free plans leave another value."""
    expected = scheduled_outputs(schedule)
    found = planned_outputs(joint, messages)
    for rank, plan in enumerate(joint.plans):
        for index, location in enumerate(memory(joint, plan, OUTPUT).tolist()):
            if found.get(location) != expected[rank][index]:
                place, chunk = place_name(location, len(joint.plans)), index % plan.chunks_per_block
                text = f"the plans leave in {place} of rank {rank} another value than the schedule"
                raise VerifyError(text, law=3, rank=rank, chunk=chunk)


@lru_cache(1)  # The proof asks once for each alias mode.
def scheduled_outputs(schedule: Schedule) -> list[list[int]]:
    """Names of the values that a schedule leaves in each rank's output, chunk by chunk."""
    places, p = Places(schedule), schedule.num_ranks
    once = schedule.kind.counts_contributions
    name, contributions = [0] * places.count, [0] * places.count
    untouched = [False] * places.count
    position = [0] * p
    for place, rank, _ in zip(*(column.tolist() for column in places.inputs()), strict=True):
        name[place], contributions[place], untouched[place] = _input_name(rank, position[rank]), 1, once
        position[rank] += 1
    for fold in places.folds():
        starts, counts = fold.pattern.starts.tolist(), fold.pattern.counts.tolist()
        reads, results = fold.reads.tolist(), []
        for start, count in zip(starts, counts, strict=True):
            operands = reads[start : start + count]
            total = sum([contributions[read] for read in operands])
            names = [_premultiplied(name[read]) if untouched[read] else name[read] for read in operands]
            results.append((names[0] if count == 1 else hash((once and total == p, *names)), total))
        for place, (value, total) in zip(fold.writes.tolist(), results, strict=True):
            name[place], contributions[place], untouched[place] = value, total, False
    outputs: list[list[int]] = [[] for _ in range(p)]
    for place, rank, _ in zip(*(column.tolist() for column in places.outputs()), strict=True):
        # The only rank's output is read from its input where no row did it.
        outputs[rank].append(_premultiplied(name[place]) if untouched[place] and p == 1 else name[place])
    return outputs


def planned_outputs(joint: JointPlans, messages: Messages) -> dict[int, int]:
    """Names of the values that plans leave in each location of their memory, coded as in JointPlans.accesses."""
    n = joint.num_instructions
    last: dict[int, int] = {}  # location -> the instruction that wrote it last; beyond n: what it held before
    names = [0] * n
    for rank, plan in enumerate(joint.plans):
        for index, location in enumerate(memory(joint, plan, INPUT).tolist()):
            last[location] = len(names)
            names.append(_input_name(rank, index))
    reader = messages.fold * len(joint.plans) + joint.rank[messages.send]
    sender = dict(zip(reader.tolist(), messages.send.tolist(), strict=True))
    operands: list[list[int]] = [[] for _ in range(n)]
    raw: list[list[int]] = [[] for _ in range(n)]
    sources, destinations = joint.unified()
    reads = zip(joint.source_owner.tolist(), sources.tolist(), strict=True)
    writes = dict(zip(joint.destination_owner.tolist(), destinations.tolist(), strict=True))
    num_ranks, rank_of = len(joint.plans), joint.rank.tolist()
    read = next(reads, None)
    for instruction in range(n):
        while read is not None and read[0] == instruction:
            peer, space, index, multiplied = read[1]
            raw[instruction].append(multiplied)
            if space == REMOTE:
                operands[instruction].append(sender[instruction * num_ranks + peer])
            else:
                operands[instruction].append(last[(index * 4 + space) * num_ranks + rank_of[instruction]])
            read = next(reads, None)
        _, space, index = writes[instruction]
        if space != REMOTE:
            last[(index * 4 + space) * num_ranks + rank_of[instruction]] = instruction
    completes = (joint.flags & COMPLETES > 0).tolist()
    named = [False] * n + [True] * (len(names) - n)
    for instruction in np.argsort(joint.step, kind="stable").tolist():
        stack = [instruction]
        while stack:
            top = stack[-1]
            missing = [operand for operand in operands[top] if not named[operand]]
            if missing and not named[top]:
                stack += missing
                continue
            stack.pop()
            marked = zip(operands[top], raw[top], strict=True)
            values = [_premultiplied(names[operand]) if marks else names[operand] for operand, marks in marked]
            names[top] = values[0] if len(values) == 1 else hash((completes[top], *values))
            named[top] = True
    return {location: names[instruction] for location, instruction in last.items()}


def _input_name(rank: int, index: int) -> int:
    return hash((rank, index))


def _premultiplied(name: int) -> int:
    return hash(("raw", name))
