"""Programs of the ranks of a process group, measured in turns, and figures printed beside their goals."""

import statistics
from collections.abc import Callable, Mapping
from time import perf_counter

import numpy as np
import torch.distributed as dist

Programs = dict[str, Callable[[], object]]
Figures = dict[str, dict[str, float]]
"""By part of a benchmark, and by name."""
Goals = Mapping[tuple[str, str], tuple[str, float]]
"""By part and name of a figure: ">=" or "<=", and the value."""


def measured(programs: Programs, num_rounds: int, seconds: float = 0.1) -> dict[str, float]:
    """Returns the median seconds of a call of each program; they take turns in rounds. Times are of the slowest rank.

    seconds: for the calls of one program in a round, at most 1000 of them.
    """
    comm = dist.group.WORLD.communicator

    def timed(program: Callable[[], object], num_calls: int) -> float:
        comm.barrier()
        started = perf_counter()
        for _ in range(num_calls):
            program()
        spent = np.array([perf_counter() - started])
        return float(comm.all_reduce(spent, op="max")[0]) / num_calls

    num_calls = {}
    for name, program in programs.items():
        for _ in range(5):  # plans, connections; and three rounds until an order is locked
            program()
        num_calls[name] = max(1, min(1000, int(seconds / timed(program, 2))))
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(num_rounds):
        for name, program in programs.items():
            times[name].append(timed(program, num_calls[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def show(part: str, num_ranks: int, figures: Mapping[str, float], goals: Goals) -> None:
    """Prints the figures of a part, a line each."""
    print(f"{part}, {num_ranks} ranks")
    for name, value in figures.items():
        print(f"  {name:<58} {value:>10.2f}{_verdict(goals.get((part, name)), value)}")


def _verdict(goal: tuple[str, float] | None, value: float) -> str:
    if goal is None:
        return ""
    sign, least = goal
    reached = value >= least if sign == ">=" else value <= least
    return f"   goal {sign} {least:g}: {'reached' if reached else 'missed'}"
