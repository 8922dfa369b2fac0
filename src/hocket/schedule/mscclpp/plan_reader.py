"""From a plan to a schedule: which values its ops move, and the earliest step for each.

Ops that use one chunk, at least one of which stores to it, must be ordered, and so must be a GPU's call and what others
do to its memory: no GPU may use memory of another one that has not begun the call or has ended it. The result of a race
is not guessed. One thing is taken for granted, as in MSCCL++'s own programs: when a call ends, ports have read what
they put.
"""

from itertools import filterfalse
from pathlib import Path

from hocket.errors import ScheduleError
from hocket.schedule.collective import COLLECTIVES
from hocket.schedule.ir import Schedule
from hocket.schedule.msccl.contents import CellContents, find_race
from hocket.schedule.msccl.folds import earliest_steps, without_detours
from hocket.schedule.msccl.program import Program
from hocket.schedule.msccl.reader import schedule_from, text_of
from hocket.schedule.msccl.text import num_chunks
from hocket.schedule.mscclpp.execution_plan import (
    SPELLINGS_IN_PLANS,
    ExecutionPlan,
    parse_plan,
    refuse_op,
    where_op,
)
from hocket.schedule.mscclpp.plan_flow import END, START, PlanFlow
from hocket.schedule.mscclpp.plan_moves import Move, Moves, has_packets, parts_of_chunk


def read(file: str | Path) -> Schedule:
    """The schedule of a plan: its path, or its text, which begins with "{". It is not proved here.

    If the file does not tell the root, it is the first root for which the plan does what the collective promises.
    ScheduleError, with gpu, tb and op, where the file is malformed or does what no schedule can say; OSError if it
    cannot be read.
    """
    plan, source = read_plan(file)
    return schedule_of_plan(plan, source)


def read_plan(file: str | Path) -> tuple[ExecutionPlan, str]:
    """What the file says, and its name for messages; arguments and errors as for read."""
    if isinstance(file, str) and file.lstrip().startswith("{"):
        return parse_plan(file, "MSCCL++ plan"), "MSCCL++ plan"
    return parse_plan(text_of(file, "JSON"), str(file)), str(file)


def schedule_of_plan(plan: ExecutionPlan, source: str) -> Schedule:
    """The schedule of a plan."""
    parts = parts_of_chunk(plan, source)
    program = _program(plan, source, parts)
    flow = PlanFlow(plan, source, Moves(plan, program, parts))
    _check_races(flow)
    _check_packets(flow)
    contents = CellContents(program, flow.moves.cells)
    for i, node in enumerate(flow.nodes):
        for move in node.moves:
            _run(contents, i, f"{source}: {where_op(node.at, node.op)}", move)
    contents.leave_in_place(source)
    folds = without_detours(contents.folds)
    steps = earliest_steps(folds)
    if steps is None:  # What waits in scratch may have to.
        folds = contents.folds
        steps = earliest_steps(folds)
        assert steps is not None  # They have run one after the other.
    return schedule_from(program, folds, steps)


def _program(plan: ExecutionPlan, source: str, parts: int) -> Program:
    """What the plan says as a whole, in parts of chunks, without thread blocks. ScheduleError if chunks do not fit."""
    names = {spelling: name for name, spelling in SPELLINGS_IN_PLANS.items()}
    if plan.collective not in names:
        raise ScheduleError(f"{source}: expected collective one of {', '.join(names)}; found {plan.collective[:40]!r}")
    if plan.protocol not in ("Simple", "LL"):
        raise ScheduleError(f"{source}: expected protocol Simple or LL; found {plan.protocol[:40]!r}")
    name, num_ranks = names[plan.collective], len(plan.gpus)
    chunks = max(plan.gpus[0].input_chunks, plan.gpus[0].output_chunks)
    scratch = [2 * gpu.scratch_chunks * parts for gpu in plan.gpus]  # chunks, and packets
    root = plan.root if isinstance(plan.root, int) and COLLECTIVES[name].rooted else None
    none: list[list[object]] = [[] for _ in plan.gpus]
    program = Program(plan.name, name, plan.inplace, chunks, 0, none, scratch, root, source)  # type: ignore[arg-type]
    multiple = num_ranks if COLLECTIVES[name].blocks != "one" else 1
    if chunks % multiple:
        raise ScheduleError(f"{source}: gpu 0: expected a multiple of {multiple} chunks; found {chunks}")
    if root is not None and root >= num_ranks:
        raise ScheduleError(f"{source}: expected root below {num_ranks}; found {root}")
    for gpu in plan.gpus:
        found, expected = (gpu.input_chunks, gpu.output_chunks), num_chunks(program, num_ranks)
        if found != expected:
            words = f"input_chunks={expected[0]} and output_chunks={expected[1]} of {plan.collective}"
            raise ScheduleError(f"{source}: gpu {gpu.id}: expected {words}; found {found[0]} and {found[1]}")
    program.num_chunks *= parts
    return program


def _check_races(flow: PlanFlow) -> None:
    """ScheduleError where the results of a plan depend on the speed of its GPUs."""
    uses = []
    for node in flow.nodes:
        reads, writes = flow.moves.used_by(node.moves)
        if node.op is START or node.op is END:  # Before and after a call, others may store to all memory of its GPU.
            writes = flow.moves.memory(node.at[0])
        uses.append(({*filterfalse(flow.moves.is_packet, reads)}, {*filterfalse(flow.moves.is_packet, writes)}))
    race = find_race(uses, flow.before, flow.read_before)
    if race is None:
        return
    node, other = (flow.nodes[i] for i in race)
    expected = "ops that use a chunk of which one stores it to be ordered, also by a nop between op and signal or wait"
    found = f"no order between it and {where_op(other.at, other.op)}"
    if other.op is START:
        expected = (
            f"a signal of gpu {other.at[0]} before its memory is used, because it may still be in the call before"
        )
        found = "no wait for one"
    elif node.op is END:
        expected = f"it to come after {where_op(other.at, other.op)}, which uses memory of this gpu"
        found = "no wait for a signal, other than a relaxed one, that follows that op and a nop"
    refuse_op(flow.source, node.at, node.op, expected, found)


def _check_packets(flow: PlanFlow) -> None:
    """ScheduleError where packets may come into scratch that the receiver has not read in an earlier call.

    With a double buffer, a GPU must not be two calls ahead: it ends a call when the receiver has begun it.
    """
    end = {node.at[0]: i for i, node in enumerate(flow.nodes) if node.op is END}
    for i, node in enumerate(flow.nodes):
        latest = end[node.at[0]] if flow.plan.use_double_scratch_buffer else i
        for move in node.moves if has_packets(node.op) else ():
            peer = move.into[0]  # The start of a GPU's call has the number of the GPU.
            if not flow.before[latest] >> peer & 1:
                expected = (
                    f"a signal or a packet of gpu {peer} before this op, or before the call of gpu {node.at[0]} ends"
                )
                found = "none: its scratch may still be in use by an earlier call"
                refuse_op(flow.source, node.at, node.op, expected, found)


def _run(contents: CellContents, at: int, site: str, move: Move) -> None:
    """Note what a move folds: two operands at a time, because the executor rounds after each of them."""
    cells = contents.cells
    for into, *operands in zip(*(move.cells(one, cells) for one in (move.into, *move.operands)), strict=True):
        values = [contents.now(cell) for cell in operands]
        location = contents.store(into)
        while len(values) > 2:
            kept = location if location not in [one for one, _ in values[2:]] else contents.slot(into[0])
            contents.fold(at, site, kept, values[:2])
            values[:2] = [(kept, contents.writer[kept])]
        contents.fold(at, site, location, values)
