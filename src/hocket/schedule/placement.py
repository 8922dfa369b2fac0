"""Where every place of one rank lies in its memory, step by step.

A place is a chunk of a buffer of the schedule, coded ``chunk * 4 + buffer``; a location is a chunk of the rank's input,
output or scratch memory, coded as in dependencies.py. A chunk of `data` lies in the output if the output holds it; else
in the input until it is first written, and from then on in scratch, whose slots are reused once dead. In place, input
and output are one memory under one name, the name of the larger; so in an all_to_all what is received overwrites what
is still to be sent, unless lowering has moved it out of the way.
"""

from hocket.schedule.collective import in_place_offset
from hocket.schedule.dependencies import INPUT, OUTPUT, SCRATCH
from hocket.schedule.ir import Buffer, Schedule


class Memory:
    """Where every place of one rank lies, step by step."""

    def __init__(self, schedule: Schedule, rank: int, in_place: bool, last_use: dict[int, int]) -> None:
        kind, k = schedule.kind, schedule.chunks_per_block
        held = list(kind.input_blocks(rank, schedule.num_ranks, schedule.root))
        wanted = list(kind.output_blocks(rank, schedule.num_ranks, schedule.root))
        self.shared = in_place and len(held) > 0 and len(wanted) > 0
        # Where other data is received than was sent, memory has two meanings: the input that it holds is not its home.
        self.exchanges = self.shared and kind.blocks == "pair"
        self.last_use = last_use
        self.now: dict[int, int] = {}  # place -> where its content lies; absent: it holds nothing
        self.home: dict[int, int] = {}  # place -> where it lies once written; absent: scratch
        self.num_slots = 0
        self._free: list[int] = []
        self._expiring: dict[int, list[int]] = {}
        output_wins = len(wanted) >= len(held)
        offset = in_place_offset(held, wanted) * k if self.shared else 0
        for index, chunk in enumerate(_chunks(held, k)):
            location = index * 4 + INPUT
            if self.shared and output_wins:
                location = (index + offset) * 4 + OUTPUT
            self.now[chunk * 4 + Buffer.DATA] = self.now[index * 4 + Buffer.INPUT] = location
            if self.shared and not self.exchanges:
                self.home[chunk * 4 + Buffer.DATA] = location
        self.wanted = _chunks(wanted, k)
        for index, chunk in enumerate(self.wanted):
            location = index * 4 + OUTPUT
            if self.shared and not output_wins:
                location = (index + offset) * 4 + INPUT
            self.home[chunk * 4 + Buffer.DATA] = self.home[index * 4 + Buffer.OUTPUT] = location

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


def _chunks(blocks: list[int], chunks_per_block: int) -> list[int]:
    """The chunks of `data` that these blocks have, in their order."""
    return [block * chunks_per_block + j for block in blocks for j in range(chunks_per_block)]
