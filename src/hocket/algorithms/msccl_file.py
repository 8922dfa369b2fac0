"""An algorithm from an MSCCL file: one schedule, for one rank count, proved like any other."""

from dataclasses import replace
from pathlib import Path

from hocket.algorithms.layout import Layout
from hocket.algorithms.registry import Algorithm
from hocket.schedule import Schedule, msccl


def algorithm_of(path: str) -> Algorithm:
    """The algorithm of a file, with the name that the file gives it, or else the name of the file. It is not proved
    here.

    A broadcast or reduce works for every root: each rank then does what another rank does in the file. ScheduleError,
    with line, gpu, tb and step, if the file is malformed.
    """
    program = msccl.read_program(Path(path))
    schedule = msccl.schedule_of(program)
    num_ranks = schedule.num_ranks

    def produce(layout: Layout) -> Schedule:
        return _rotated(schedule, layout.root)

    return Algorithm(
        collective=schedule.collective,
        name=program.name or Path(path).stem,
        doc=f"An MSCCL file for {num_ranks} GPUs with {sum(map(len, program.blocks))} thread blocks.",
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
