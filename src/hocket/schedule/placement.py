"""Where every place of one rank lies in its memory, step by step.

A place is a chunk of a buffer of the schedule, coded ``chunk * 4 + buffer``; a location is a chunk of the rank's input,
output or scratch memory, coded as in dependencies.py. A chunk of `data` lies in the output if the output holds it; else
in the input until it is first written, and from then on in scratch, whose slots are reused once dead. In place, input
and output are one memory under one name, the name of the larger.
"""

from hocket.schedule.dependencies import INPUT, OUTPUT, SCRATCH
from hocket.schedule.ir import Buffer, Schedule


class Memory:
    """Where every place of one rank lies, step by step."""

    def __init__(self, schedule: Schedule, rank: int, in_place: bool, last_use: dict[int, int]) -> None:
        kind, k = schedule.kind, schedule.chunks_per_block
        held = kind.input_blocks(rank, schedule.num_ranks, schedule.root)
        wanted = kind.output_blocks(rank, schedule.num_ranks, schedule.root)
        self.shared = in_place and len(held) > 0 and len(wanted) > 0
        self.last_use = last_use
        self.now: dict[int, int] = {}  # place -> where its content lies; absent: it holds nothing
        self.home: dict[int, int] = {}  # place -> where it lies once written; absent: scratch
        self.num_slots = 0
        self._free: list[int] = []
        self._expiring: dict[int, list[int]] = {}
        output_wins = len(wanted) >= len(held)
        first_held, first_wanted = held.start * k, wanted.start * k
        for chunk in range(first_held, held.stop * k):
            location = (chunk - first_held) * 4 + INPUT
            if self.shared and output_wins:
                location = (chunk - first_wanted) * 4 + OUTPUT
            self.now[chunk * 4 + Buffer.DATA] = self.now[(chunk - first_held) * 4 + Buffer.INPUT] = location
            if self.shared:
                self.home[chunk * 4 + Buffer.DATA] = location
        for chunk in range(first_wanted, wanted.stop * k):
            location = (chunk - first_wanted) * 4 + OUTPUT
            if self.shared and not output_wins:
                location = (chunk - first_held) * 4 + INPUT
            self.home[chunk * 4 + Buffer.DATA] = self.home[(chunk - first_wanted) * 4 + Buffer.OUTPUT] = location
        self.wanted = range(first_wanted, wanted.stop * k)

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
