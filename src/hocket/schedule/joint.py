"""The plans of all ranks joined into one table of instructions, for what must be asked of them together.

Instructions are numbered through, rank after rank. What the table says is checked elsewhere: law 3 in races.py and
waits.py; it runs in interpreter.py.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.schedule.collective import in_place_offset
from hocket.schedule.dependencies import INPUT, OUTPUT, REMOTE, SPACE_NAMES, Accesses, Ints, accesses, owners
from hocket.schedule.plan import STAGED, Plan


class JointPlans:
    """All ranks' instructions, as int64 columns by instruction, and the entries of their lists with their owner."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = plans
        ends = [plan.instructions[:, 2:5].astype(np.int64) for plan in plans]
        lists = [(plan.instructions, plan.sources, plan.destinations, plan.dependencies) for plan in plans]
        sizes = np.array([[len(array) for array in arrays] for arrays in lists])
        self.first = np.cumsum(sizes[:, 0]) - sizes[:, 0]
        self.num_instructions = int(sizes[:, 0].sum())
        self.rank = np.repeat(np.arange(len(plans)), sizes[:, 0])
        instructions = np.concatenate([plan.instructions for plan in plans]).astype(np.int64)
        self.step, self.chunk, self.flags = instructions[:, 0], instructions[:, 1], instructions[:, 5]
        shift = np.cumsum(sizes[:, 1:], axis=0) - sizes[:, 1:]
        joined = np.concatenate([own + base for own, base in zip(ends, shift, strict=True)])
        self.sources = np.concatenate([plan.sources for plan in plans]).astype(np.int64)
        self.destinations = np.concatenate([plan.destinations for plan in plans]).astype(np.int64)
        self.source_owner, self.destination_owner = owners(joined[:, 0]), owners(joined[:, 1])
        self.dependent = owners(joined[:, 2])
        earlier = np.concatenate([plan.dependencies for plan in plans]).astype(np.int64)
        self.dependency = earlier + self.first[self.rank[self.dependent]]
        self.sends = np.zeros(self.num_instructions, bool)
        self.sends[self.destination_owner[self.destinations[:, 1] == REMOTE]] = True
        self.lent = self.sends & (self.flags & STAGED == 0)
        self._joined = joined

    def accesses(self) -> Accesses:
        """Every touch of memory; a location is told apart by rank, and memory that is shared in place has one name."""
        sources, destinations = self.unified()
        touched = accesses(self._joined[:, 0], self._joined[:, 1], sources, destinations)
        return touched._replace(location=touched.location * len(self.plans) + self.rank[touched.instruction])

    def unified(self) -> tuple[Ints, Ints]:
        """Sources and destinations, with the one name of memory that input and output share in place: the larger's."""
        return _unify(self, self.sources, self.source_owner), _unify(self, self.destinations, self.destination_owner)

    def size_classes(self, rank: Ints, space: Ints, index: Ints) -> Ints:
        """The size class that existing chunks of ranks' input and output have."""
        if not self.plans[0].uneven:
            return index % self.plans[0].chunks_per_block
        found = np.zeros_like(index)
        for one in (INPUT, OUTPUT):
            tables = [plan.size_classes(one) for plan in self.plans]
            begins = np.cumsum([0, *map(len, tables)])
            chosen = space == one
            found[chosen] = np.concatenate(tables)[begins[rank[chosen]] + index[chosen]]
        return found

    def describe(self, instruction: int) -> str:
        """One instruction in words: rank, number, step, what it reads and writes."""
        rank = int(self.rank[instruction])
        read = _words(self.sources[self.source_owner == instruction])
        written = _words(self.destinations[self.destination_owner == instruction])
        number = instruction - int(self.first[rank])
        return f"rank {rank}'s instruction {number} of step {self.step[instruction]} ({read} -> {written})"

    def where(self, instruction: int) -> dict[str, Any]:
        """The fields of a VerifyError about this instruction."""
        return {
            "law": 3,
            "step": int(self.step[instruction]),
            "rank": int(self.rank[instruction]),
            "chunk": int(self.chunk[instruction]),
        }


def _unify(joint: JointPlans, entries: NDArray[np.int64], owner: Ints) -> NDArray[np.int64]:
    table = np.array([shared_offset(plan) for plan in joint.plans], np.int64)
    loses, offset = table[joint.rank[owner], 0], table[joint.rank[owner], 1]
    renamed = entries[:, 1] == loses
    if not renamed.any():
        return entries
    entries = entries.copy()
    entries[renamed, 1] = INPUT + OUTPUT - loses[renamed]
    entries[renamed, 2] += offset[renamed]
    return entries


def shared_offset(plan: Plan) -> tuple[int, int]:
    """Which of input and output is a part of the other (-1: they are apart), and its first chunk's index there."""
    held, wanted = plan.num_input_chunks, plan.num_output_chunks
    if not (plan.in_place and held and wanted):
        return -1, 0
    offset = in_place_offset(plan.input_blocks.tolist(), plan.output_blocks.tolist())
    return (INPUT if wanted >= held else OUTPUT), offset * plan.chunks_per_block


def _words(entries: NDArray[np.int64]) -> str:
    return " + ".join(
        ("raw " if raw and raw[0] else "")
        + (f"message {index} of rank {peer}" if space == REMOTE else f"{SPACE_NAMES.get(space, space)}[{index}]")
        for peer, space, index, *raw in entries.tolist()
    )


def place_name(location: int, num_ranks: int) -> str:
    """A location of JointPlans.accesses in words, without its rank."""
    code = location // num_ranks
    return f"{SPACE_NAMES[code & 3]}[{code >> 2}]"


def memory(joint: JointPlans, plan: Plan, space: int) -> NDArray[np.int64]:
    """The locations of a rank's whole input or output, as JointPlans.accesses names them."""
    index = np.arange(plan.num_input_chunks if space == INPUT else plan.num_output_chunks, dtype=np.int64)
    loses, offset = shared_offset(plan)
    if space == loses:
        space, index = INPUT + OUTPUT - space, index + offset
    return (index * 4 + space) * len(joint.plans) + plan.rank
