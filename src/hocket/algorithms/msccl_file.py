"""An algorithm from a file of MSCCL (XML) or MSCCL++ (JSON): one schedule, for one rank count, proved like others."""

from dataclasses import replace
from pathlib import Path

from hocket.algorithms.layout import Layout
from hocket.algorithms.registry import Algorithm
from hocket.schedule import Schedule, msccl, mscclpp


def algorithm_of(path: str) -> Algorithm:
    """The algorithm of a file, with the name that the file gives it, or else the name of the file. It is not proved
    here.

    A broadcast or reduce works for every root: each rank then does what another rank does in the file. ScheduleError,
    with gpu, tb and step or op, if the file is malformed.
    """
    if path.endswith(".json"):
        plan, source = mscclpp.read_plan(path)
        schedule, name = mscclpp.schedule_of_plan(plan, source), plan.name
        kind, num_blocks = "MSCCL++ plan", sum(len(gpu.threadblocks) for gpu in plan.gpus)
    else:
        program = msccl.read_program(Path(path))
        schedule, name = msccl.schedule_of(program), program.name
        kind, num_blocks = "MSCCL file", sum(map(len, program.blocks))
    num_ranks = schedule.num_ranks

    def produce(layout: Layout) -> Schedule:
        return _rotated(schedule, layout.root)

    return Algorithm(
        collective=schedule.collective,
        name=name or Path(path).stem,
        doc=f"An {kind} for {num_ranks} GPUs with {num_blocks} thread blocks.",
        source=f"{path}:1",
        produce=produce,
        ranks=(f"exactly {num_ranks}", lambda p: p == num_ranks),
    )


def _rotated(schedule: Schedule, root: int) -> Schedule:
    """The schedule for another root. Ranks move on; chunks stay, because no rooted collective of MSCCL has a block per
    rank.
    """
    if not schedule.kind.rooted or root == schedule.root:
        return schedule
    by, p = root - schedule.root, schedule.num_ranks
    repeats = tuple(
        replace(repeat, step=replace(repeat.step, src=(repeat.step.src + by) % p, dst=(repeat.step.dst + by) % p))
        for repeat in schedule.repeats
    )
    return replace(schedule, root=root, repeats=repeats)
