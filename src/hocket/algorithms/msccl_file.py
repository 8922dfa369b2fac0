"""An algorithm that comes as an MSCCL file: one schedule, for one rank count, proved like any other."""

from dataclasses import replace
from pathlib import Path

from hocket.algorithms.layout import Layout
from hocket.algorithms.registry import Algorithm
from hocket.schedule import Schedule, msccl


def algorithm_of(path: str) -> Algorithm:
    """The algorithm of a file, under the name that it has there, or else the file's. It is not proved here.

    A broadcast or reduce is turned for any other root: each rank does what another one does in the file.
    ScheduleError, naming line, gpu, tb and step, where the file is malformed.
    """
    program = msccl.read_program(Path(path))
    schedule = msccl.schedule_of(program)
    num_ranks = schedule.num_ranks

    def produce(layout: Layout) -> Schedule:
        return _turned(schedule, layout.root)

    return Algorithm(
        collective=schedule.collective,
        name=program.name or Path(path).stem,
        doc=f"An MSCCL file for {num_ranks} GPUs with {sum(map(len, program.blocks))} thread blocks.",
        source=f"{path}:1",
        produce=produce,
        ranks=(f"exactly {num_ranks}", lambda p: p == num_ranks),
    )


def _turned(schedule: Schedule, root: int) -> Schedule:
    """The same for another root. Ranks move on, and chunks stay, as no rooted collective here has a block per rank."""
    if not schedule.kind.rooted or root == schedule.root:
        return schedule
    by, p = root - schedule.root, schedule.num_ranks
    blocks = tuple(
        replace(block, step=replace(block.step, src=(block.step.src + by) % p, dst=(block.step.dst + by) % p))
        for block in schedule.blocks
    )
    return replace(schedule, root=root, blocks=blocks)
