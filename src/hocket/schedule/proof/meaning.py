"""That plans compute what their schedule means: the same folds of the same operands, in the same order.

Every value is named by how it came about: a chunk of some rank's input, or a fold of named values, with a mark where
avg divides, and one on each operand that premul multiplies: a contribution that is read for the first time. Names are
64-bit hashes. Free of races, plans give the same values in every timing, so following each read to the write before it
is enough (joint.Reads). Copies keep a name, wherever they lie.
"""

import numpy as np
from numpy.typing import NDArray

from hocket.errors import VerifyError
from hocket.schedule.hashing import mix
from hocket.schedule.ir import Schedule
from hocket.schedule.lowering.dependencies import REMOTE, Ints
from hocket.schedule.lowering.plan import COMPLETES
from hocket.schedule.places import places_of
from hocket.schedule.proof.joint import JointPlans, Reads, place_name
from hocket.schedule.proof.waits import Messages

Names = NDArray[np.uint64]


def check_meaning(joint: JointPlans, messages: Messages, reads: Reads, expected: Names) -> None:
    """VerifyError (law 3) naming the first chunk of output in which race-free plans leave another value than expected.

    expected: scheduled_outputs of all schedules whose plans are joined, one after the other.
    """
    wrong = np.flatnonzero(planned_outputs(joint, messages, reads) != expected)
    if len(wrong):
        num_ranks, location = len(joint.plans), int(joint.wanted[wrong[0]])
        rank = location % num_ranks
        index = int(wrong[0]) - int(np.argmax(joint.wanted % num_ranks == rank))
        text = f"the plans leave in {place_name(location, num_ranks)} of rank {rank} another value than the schedule"
        raise VerifyError(text, law=3, rank=rank, chunk=index % joint.plans[rank].chunks_per_block)


def scheduled_outputs(schedule: Schedule) -> Names:
    """Names of the values that a schedule leaves in the ranks' outputs, rank after rank and chunk by chunk."""
    places, p = places_of(schedule), schedule.num_ranks
    once = schedule.kind.counts_contributions
    place, rank, _ = places.inputs()
    names, contributions = np.zeros(places.count, np.uint64), np.zeros(places.count, np.int64)
    untouched = np.zeros(places.count, bool)
    names[place], contributions[place], untouched[place] = _input_names(rank), 1, once
    for fold in places.folds():
        pattern, reads, writes = fold.pattern, fold.reads, fold.writes
        operands, total = names[reads], contributions[reads]
        if once:
            operands = np.where(untouched[reads], _premultiplied(operands), operands)
            untouched[writes] = False
        if pattern.max_count > 1:
            total = np.add.reduceat(total, pattern.starts)
            folded = _folded(operands, _salt(pattern.starts, pattern.counts), pattern.starts, (total == p) & once)
            operands = np.where(pattern.counts > 1, folded, operands[pattern.starts])
        names[writes], contributions[writes] = operands, total
    place, *_ = places.outputs()
    # The only rank's output is read from its input where no row did it.
    return np.where(untouched[place], _premultiplied(names[place]), names[place]) if p == 1 else names[place]


def planned_outputs(joint: JointPlans, messages: Messages, reads: Reads) -> Names:
    """Names of the values that plans leave in the ranks' outputs, rank after rank and chunk by chunk."""
    n = joint.num_instructions
    values = np.zeros(n + len(joint.held), np.uint64)  # of every instruction, and then of all inputs
    values[n:] = _input_names(joint.held % len(joint.plans) % joint.num_ranks)
    ends = joint.source_ends
    starts = ends - np.diff(ends, prepend=0)
    # What a fold reads from a channel is what the sender, which has one source, reads there.
    local = joint.sources[:, 1] != REMOTE
    operand = np.empty(len(joint.sources), np.int64)
    operand[local] = reads.writer
    operand[messages.entry] = operand[starts[messages.send]]
    raw = joint.sources[:, 3] > 0
    copies = np.flatnonzero((ends - starts == 1) & ~raw[starts])
    original = np.arange(len(values))  # of a copy what it is a copy of, and so on to the first
    original[copies] = operand[starts[copies]]
    while not np.array_equal(further := original[original], original):
        original = further
    operand = original[operand]
    folds = np.flatnonzero((ends - starts != 1) | raw[starts])
    folds = folds[np.argsort(joint.step[folds], kind="stable")]
    counts = ends[folds] - starts[folds]
    begins = np.cumsum(counts) - counts
    entries = np.arange(counts.sum()) + np.repeat(starts[folds] - begins, counts)
    operand, raw, salt = operand[entries], raw[entries], _salt(begins, counts)
    completes = joint.flags[folds] & COMPLETES > 0
    named = np.arange(len(values)) >= n
    step_ends = np.flatnonzero(np.diff(joint.step[folds], append=-1)) + 1
    first = 0
    for last in step_ends.tolist():
        begin, end = int(begins[first]), int(begins[last]) if last < len(folds) else len(entries)
        ready = False
        while not ready:  # more than one pass where folds of a step read each other, which they do in no cycle
            operands = values[operand[begin:end]]
            operands = np.where(raw[begin:end], _premultiplied(operands), operands)
            parts = begins[first:last] - begin
            folded = _folded(operands, salt[begin:end], parts, completes[first:last])
            values[folds[first:last]] = np.where(counts[first:last] > 1, folded, operands[parts])
            known = np.logical_and.reduceat(named[operand[begin:end]], parts)
            named[folds[first:last]] = known
            ready = bool(known.all())
        first = last
    return values[original[reads.output_writer]]


def _input_names(rank: Ints) -> Names:
    """Names of the chunks of all inputs, which are listed rank after rank, in the order of memory."""
    first = np.flatnonzero(np.diff(rank, prepend=-1))
    index = np.arange(len(rank)) - np.repeat(first, np.diff(first, append=len(rank)))
    return mix((rank.astype(np.uint64) << np.uint64(32)) + index.astype(np.uint64) + np.uint64(1))


def _premultiplied(names: Names) -> Names:
    return names * np.uint64(0xD1342543DE82EF95) + np.uint64(0x9E3779B97F4A7C15)


def _salt(starts: Ints, counts: Ints) -> Names:
    """For each operand of folds a random number that tells its position in its fold."""
    position = np.arange(counts.sum()) - np.repeat(starts, counts)
    return mix(position.astype(np.uint64) + np.uint64(1))


def _folded(operands: Names, salt: Names, starts: Ints, completes: NDArray[np.bool_]) -> Names:
    """The name of each fold of the operands from `starts` on to the next."""
    return mix(np.add.reduceat(mix(operands + salt), starts) + completes.astype(np.uint64))
