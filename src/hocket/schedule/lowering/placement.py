"""Where places lie in the memory of their ranks, before the first step and from step to step.

A place is a chunk of a buffer of the schedule, coded ``chunk * 4 + buffer``; a location is a chunk of the rank's input,
output or scratch memory, coded as in dependencies.py. A chunk of `data` lies in the output if the output holds it; else
in the input until it is first written, and from then on in scratch, whose slots are reused once dead. In place, input
and output are one memory under one name, the name of the larger; so in an all_to_all what is received overwrites what
is still to be sent, unless lowering has moved it out of the way.
"""

import numpy as np

from hocket.schedule.ir import Buffer, Schedule
from hocket.schedule.lowering.dependencies import INPUT, OUTPUT, SCRATCH, Ints

NOWHERE = -1


def is_shared(schedule: Schedule, rank: Ints) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Which of these ranks have input and output in one memory if the call is in place: bool, shaped like rank."""
    kind, num_ranks, root = schedule.kind, schedule.num_ranks, schedule.root
    shared = (kind.num_input_blocks(num_ranks, root) > 0) & (kind.num_output_blocks(num_ranks, root) > 0)
    return np.asarray(shared[rank])


def first_locations(schedule: Schedule, in_place: bool, rank: Ints, place: Ints) -> tuple[Ints, Ints]:
    """Where places of ranks lie before the first step, and once they are written; arrays of equal length.

    NOWHERE if a place holds nothing then, or goes to scratch.
    """
    kind, k, num_ranks, root = schedule.kind, schedule.chunks_per_block, schedule.num_ranks, schedule.root
    num_held = kind.num_input_blocks(num_ranks, root)[rank]
    num_wanted = kind.num_output_blocks(num_ranks, root)[rank]
    chunk, buffer = place >> 2, place & 3
    block, within = chunk // k, chunk % k
    is_data = buffer == Buffer.DATA
    held = np.where(is_data, kind.input_position(rank, block, num_ranks, root), block)
    held[(buffer == Buffer.OUTPUT) | (buffer == Buffer.SCRATCH)] = NOWHERE
    wanted = np.where(is_data, kind.output_position(rank, block, num_ranks, root), block)
    wanted[(buffer == Buffer.INPUT) | (buffer == Buffer.SCRATCH)] = NOWHERE
    now = np.where(held >= 0, (held * k + within) * 4 + INPUT, NOWHERE)
    home = np.where(wanted >= 0, (wanted * k + within) * 4 + OUTPUT, NOWHERE)
    if in_place:
        shared = is_shared(schedule, rank)
        # The smaller is a part of the larger, which begins at its first block: see collective.in_place_offset.
        offset = np.where(
            num_wanted > num_held,
            kind.output_position(rank, kind.input_block(rank, 0, num_ranks), num_ranks, root),
            kind.input_position(rank, kind.output_block(rank, 0, num_ranks), num_ranks, root),
        )
        offset[num_wanted == num_held] = 0
        renamed = shared & (num_wanted >= num_held) & (now >= 0)
        now[renamed] += (offset * k * 4 + OUTPUT - INPUT)[renamed]
        renamed = shared & (num_wanted < num_held) & (home >= 0)
        home[renamed] += (offset * k * 4 + INPUT - OUTPUT)[renamed]
        if kind.blocks != "pair":  # where other data is received than was sent, the input is not the home of its chunks
            stays = shared & is_data & (home < 0)
            home[stays] = now[stays]
    return now, home


class Memory:
    """Where every place of one rank lies, step by step."""

    def __init__(self, now: dict[int, int], home: dict[int, int], last_use: dict[int, int]) -> None:
        self.now = now  # place -> where its content lies; absent: it holds nothing
        self.home = home  # place -> where it lies once written; absent: scratch
        self.last_use = last_use  # place -> step
        self.num_slots = 0
        self._free: list[int] = []
        self._expiring: dict[int, list[int]] = {}

    def begin(self, step: int) -> None:
        """Free the slots whose last use lies before this step."""
        if self._expiring:
            for last in [last for last in self._expiring if last < step]:
                self._free += self._expiring.pop(last)
                self._free.sort(reverse=True)

    def slot(self, last_use: int) -> int:
        """The location of the lowest free slot, taken until after last_use."""
        if self._free:
            index = self._free.pop()
        else:
            index = self.num_slots
            self.num_slots += 1
        self._expiring.setdefault(last_use, []).append(index)
        return index * 4 + SCRATCH

    def write(self, place: int) -> int:
        """Where this place is written, and lies from now on."""
        location = self.home.get(place)
        if location is None:
            location = self.home[place] = self.slot(self.last_use[place])
        self.now[place] = location
        return location
