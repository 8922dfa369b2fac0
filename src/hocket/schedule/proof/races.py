"""Law 3: plans, exactly as the core is given them, run without deadlock and without a data race.

Checked are the following points:

- The arrays are well formed.
- The sends and receives of each channel match, and there is no wait cycle under channels of capacity one (waits.py).
- Every two conflicting accesses of a location are ordered in all timings.
- Nothing is read before it is written, all output is written, and the input stays as it is unless the call is in place.
- The plans compute what the schedule means (meaning.py).
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hocket.errors import VerifyError
from hocket.schedule.capacity import require_memory
from hocket.schedule.ir import Schedule
from hocket.schedule.lowering.dependencies import (
    INPUT,
    OUTPUT,
    REMOTE,
    WRITE_AFTER_READ,
    Accesses,
    Conflicts,
    conflicts,
)
from hocket.schedule.lowering.lower import lower_all
from hocket.schedule.lowering.plan import COMPLETES, STAGED, Plan
from hocket.schedule.proof.joint import JointPlans, Reads, location_name
from hocket.schedule.proof.meaning import Names, check_meaning, scheduled_outputs
from hocket.schedule.proof.waits import Waits, match_messages

_KINDS = ("reads what is not certainly written", "overwrites what is not certainly read", "may be overtaken by")
_ROW_BYTES = 512  # of memory for each row and alias mode, measured


def check(schedule: Schedule, in_place: bool) -> None:
    """Lower a schedule for all ranks and check law 3. VerifyError names rank, step, size class and both accesses."""
    check_together([schedule], [in_place])


def check_together(schedules: Sequence[Schedule], modes: Iterable[bool]) -> None:
    """`check` several schedules of one collective with equal numbers of ranks and chunks (all roots, for example) at
    once.

    This is faster than one by one. A VerifyError numbers ranks schedule after schedule; to learn which schedule breaks
    the law, check them one by one.
    """
    plans: dict[bool, list[Plan]] = {in_place: [] for in_place in modes}
    num_rows = sum(schedule.num_rows for schedule in schedules)
    what = f"checking the plans of all {schedules[0].num_ranks} ranks, which do {num_rows:,} rows (law 3),"
    require_memory(_ROW_BYTES * num_rows * len(plans), what, "Try fewer ranks or chunks")
    for schedule in schedules:
        for in_place, lowered in plans.items():
            lowered += lower_all(schedule, in_place)
    expected = np.concatenate([scheduled_outputs(schedule) for schedule in schedules])
    for lowered in plans.values():
        _check_joined(lowered, schedules, expected)


def check_plans(plans: Sequence[Plan], schedule: Schedule, *, meaning: bool = True) -> None:
    """Check given plans, one for each rank in order, against law 3. Errors as in `check`.

    Without `meaning` they only have to be safe; they need not compute what the schedule means.
    """
    _check_joined(plans, [schedule], scheduled_outputs(schedule) if meaning else None)


def _check_joined(plans: Sequence[Plan], schedules: Sequence[Schedule], expected: Names | None) -> None:
    """Law 3 for the plans of these schedules, rank after rank and schedule after schedule.

    The schedules have nothing in common, so what is true of all of them together is true of each.
    """
    num_ranks = schedules[0].num_ranks
    num_plans = num_ranks * len(schedules)
    if len(plans) != num_plans:
        raise VerifyError("plans are missing", law=3, expected=f"{num_plans} plans", found=len(plans))
    for number, plan in enumerate(plans):
        _check_arrays(plan, number % num_ranks, schedules[number // num_ranks])
    _check_ends(plans)
    joint = JointPlans(plans, num_ranks)
    _check_entries(joint, schedules)
    messages = match_messages(joint)
    waits = Waits(joint, messages)
    waits.check_cycles()
    touched = joint.accesses()
    found = conflicts(touched)
    _check_order(joint, waits, found)
    reads = joint.reads(touched)
    _check_contents(joint, touched, reads)
    if expected is not None:
        check_meaning(joint, messages, reads, expected)


def _check_arrays(plan: Plan, rank: int, schedule: Schedule) -> None:
    """The plan belongs to this rank of the schedule, and its arrays have the right form."""
    kind, size, k = schedule.kind, schedule.num_ranks, schedule.chunks_per_block
    head = (plan.rank, plan.num_ranks, plan.chunks_per_block, plan.uneven)
    expected = (rank, size, k, kind.uneven)
    if head != expected:
        raise _misfit(rank, "rank, num_ranks, chunks_per_block and uneven differ from the schedule's", expected, head)
    for name, blocks, num_chunks, given in (
        ("input", plan.input_blocks, plan.num_input_chunks, kind.input_blocks(rank, size, schedule.root)),
        ("output", plan.output_blocks, plan.num_output_chunks, kind.output_blocks(rank, size, schedule.root)),
    ):
        if blocks.tolist() != list(given) or num_chunks != len(given) * k:
            raise _misfit(rank, f"its {name} is not the collective's", list(given), blocks.tolist())
    for name, array, width in (
        ("instructions", plan.instructions, 6),
        ("sources", plan.sources, 4),
        ("destinations", plan.destinations, 3),
    ):
        if array.ndim != 2 or array.shape[1] != width or array.dtype != np.int32:
            raise _misfit(rank, f"{name} have a wrong form", f"int32[n, {width}]", f"{array.dtype}{list(array.shape)}")


def _check_ends(plans: Sequence[Plan]) -> None:
    """The ends in the instructions cut each list completely, so that every instruction has its part."""
    num_instructions = np.array([len(plan.instructions) for plan in plans])
    ends = np.concatenate([plan.instructions[:, 2:5] for plan in plans])
    begins = np.cumsum(num_instructions) - num_instructions
    rises = np.diff(ends, axis=0, prepend=0)
    some = np.flatnonzero(num_instructions)
    rises[begins[some]] = ends[begins[some]]
    totals = np.zeros((len(plans), 3), np.int64)
    totals[some] = ends[(begins + num_instructions - 1)[some]]
    lengths = np.array([(len(plan.sources), len(plan.destinations), len(plan.dependencies)) for plan in plans])
    wrong = totals != lengths
    least = (1, 1, 0)
    short, which = np.nonzero(rises < least)
    wrong[np.repeat(np.arange(len(plans)), num_instructions)[short], which] = True
    if wrong.any():
        rank, column = divmod(int(np.argmax(wrong)), 3)
        expected = f"ends that rise by {least[column]} or more to {lengths[rank, column]}"
        message = f"column {column + 2} of the instructions does not cut its list"
        raise _misfit(rank, message, expected, plans[rank].instructions[:, column + 2])


def _misfit(rank: int, message: str, expected: object, found: object) -> VerifyError:
    return VerifyError(f"the plan of rank {rank}: {message}", law=3, rank=rank, expected=expected, found=found)


def _check_entries(joint: JointPlans, schedules: Sequence[Schedule]) -> None:
    """Every number of the arrays names something that exists; each instruction is a fold or a send."""
    plans, schedule, p = joint.plans, schedules[0], joint.num_ranks
    roots = np.array([one.root for one in schedules])[joint.rank // p]
    steps = np.array([plan.num_steps for plan in plans])[joint.rank]
    k = schedule.chunks_per_block
    limits = np.array([(p.num_input_chunks, p.num_output_chunks, p.num_scratch, np.iinfo(np.int32).max) for p in plans])
    _refuse(joint, (joint.step < 0) | (joint.step >= steps), "has a step that does not exist")
    size_classes = schedule.num_chunks if schedule.kind.uneven else k
    _refuse(joint, (joint.chunk < 0) | (joint.chunk >= size_classes), "has a size class that does not exist")
    known = schedule.kind.knows(joint.rank % p, joint.chunk // k, p, roots)
    _refuse(joint, ~known, "has a chunk whose length its rank does not know")
    backwards = (np.diff(joint.step, prepend=0) < 0) & (np.diff(joint.rank, prepend=-1) == 0)
    _refuse(joint, backwards, "is listed after one of a later step")
    for entries, owner, side in (
        (joint.sources, joint.source_owner, "reads"),
        (joint.destinations, joint.destination_owner, "writes"),
    ):
        peer, space, index = entries[:, :3].T
        rank = joint.rank[owner]
        wrong = (space < INPUT) | (space > REMOTE)
        wrong |= (index < 0) | (index >= limits[rank, np.clip(space, 0, 3)])
        remote = space == REMOTE
        wrong |= np.where(remote, (peer // p != rank // p) | (peer == rank), peer != -1)
        _refuse(joint, wrong, f"{side} a place or a rank that does not exist", owner)
        fixed = np.flatnonzero((space == INPUT) | (space == OUTPUT))
        rank, space, index, chunk = rank[fixed], space[fixed], index[fixed], joint.chunk[owner[fixed]]
        fits = joint.size_classes(rank, space, index) == chunk
        if plans[0].in_place and schedule.kind.blocks == "pair":  # it receives chunks where it sent others from
            fits |= joint.size_classes(rank, INPUT + OUTPUT - space, index) == chunk
        _refuse(joint, ~fits, f"{side} a chunk of another size class", owner[fixed])
    raw = joint.sources[:, 3]
    wrong = (raw < 0) | (raw > 1) | ((raw > 0) & joint.sends[joint.source_owner])
    _refuse(joint, wrong, "has a mark for raw operands that no fold has", joint.source_owner)
    num_sources = np.bincount(joint.source_owner, minlength=joint.num_instructions)
    num_destinations = np.bincount(joint.destination_owner, minlength=joint.num_instructions)
    local = np.bincount(joint.destination_owner[joint.destinations[:, 1] != REMOTE], minlength=joint.num_instructions)
    remote_sources = np.bincount(joint.source_owner[joint.sources[:, 1] == REMOTE], minlength=joint.num_instructions)
    send = (local == 0) & (num_sources == 1) & (remote_sources == 0) & (joint.flags & ~STAGED == 0)
    fold = (local == 1) & (num_destinations == 1) & (joint.flags & ~COMPLETES == 0)
    _refuse(joint, ~(send | fold), "is neither a fold (one local destination) nor a send (one local source)")
    apart = ~joint.shares[joint.rank[joint.destination_owner]]
    _refuse(joint, apart & (joint.destinations[:, 1] == INPUT), "writes the input", joint.destination_owner)
    own = joint.first[joint.rank[joint.dependent]]
    wrong = (joint.dependency >= joint.dependent) | (joint.dependency < own)
    _refuse(joint, wrong, "depends on an instruction that is not an earlier one of its rank", joint.dependent)


def _refuse(joint: JointPlans, wrong: NDArray[np.bool_], message: str, owner: NDArray[np.int64] | None = None) -> None:
    if wrong.any():
        index = int(np.argmax(wrong))
        instruction = index if owner is None else int(owner[index])
        raise VerifyError(f"{joint.describe(instruction)} {message}", **joint.where(instruction))


def _check_order(joint: JointPlans, waits: Waits, found: Conflicts) -> None:
    """Every conflict is ordered, by a dependency of its own or because other waits imply it."""
    n = joint.num_instructions
    needed, given = found.later * n + found.earlier, joint.dependent * n + joint.dependency
    if np.array_equal(needed, given):
        return
    direct = np.isin(needed, given)
    for index in np.flatnonzero(~direct).tolist():
        earlier, later, kind = int(found.earlier[index]), int(found.later[index]), int(found.kind[index])
        # Folds of other ranks read memory that was lent. Any other access ends with its instruction.
        ends = waits.readers(earlier) if kind == WRITE_AFTER_READ and joint.lent[earlier] else [earlier]
        if not all(waits.happens_before(end, later) for end in ends):
            where = location_name(int(found.location[index]), len(joint.plans))
            raise VerifyError(
                f"race for {where}: {joint.describe(later)} {_KINDS[kind]} {joint.describe(earlier)};"
                " nothing orders the two",
                **joint.where(later),
            )


def _check_contents(joint: JointPlans, touched: Accesses, reads: Reads) -> None:
    """No read finds an empty location or a chunk of another length; every chunk of output gets a content."""
    reader, location = touched.instruction[~touched.write], touched.location[~touched.write]
    empty = np.flatnonzero(reads.writer < 0)
    if len(empty):
        instruction, where = int(reader[empty[0]]), location_name(int(location[empty[0]]), len(joint.plans))
        text = f"{joint.describe(instruction)} reads {where} before anything is written there"
        raise VerifyError(text, **joint.where(instruction))
    missing = joint.wanted[reads.output_writer < 0]
    if len(missing):
        rank, where = int(missing[0]) % len(joint.plans), location_name(int(missing[0]), len(joint.plans))
        raise VerifyError(f"rank {rank} never writes {where}, which belongs to its result", law=3, rank=rank)
    written = np.flatnonzero(reads.writer < joint.num_instructions)
    differ = joint.chunk[reads.writer[written]] != joint.chunk[reader[written]]
    _refuse(joint, differ, "reads a chunk of another size class than was written", reader[written])
