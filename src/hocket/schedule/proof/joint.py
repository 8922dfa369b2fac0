"""The plans of all ranks joined into one table of instructions, for what must be asked of them together.

Instructions are numbered through, rank after rank. What the table says is checked elsewhere: law 3 in races.py and
waits.py; it runs in interpreter.py.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hocket.schedule.collective import in_place_offset
from hocket.schedule.lowering.dependencies import INPUT, OUTPUT, REMOTE, SPACE_NAMES, Accesses, Ints, accesses, owners
from hocket.schedule.lowering.plan import STAGED, Plan


class Reads(NamedTuple):
    """Who wrote what is read: an instruction; beyond them, the i-th chunk of JointPlans.held as it was before; or -1.

    writer has an entry for each local source, in their order; output_writer for each of JointPlans.wanted in the end.
    """

    writer: Ints
    output_writer: Ints


class JointPlans:
    """All ranks' instructions, as int64 columns by instruction, and the entries of their lists with their owner.

    The plans of several schedules, num_ranks each, may be joined: then ranks are numbered through, schedule after
    schedule, also in sources and destinations, and no two schedules have a rank, a location or a channel in common.
    """

    def __init__(self, plans: Sequence[Plan], num_ranks: int | None = None) -> None:
        self.plans, self.num_ranks = plans, num_ranks or len(plans)
        sizes = np.array(
            [
                (len(plan.instructions), len(plan.sources), len(plan.destinations), len(plan.dependencies))
                for plan in plans
            ]
        )
        self.first = np.cumsum(sizes[:, 0]) - sizes[:, 0]
        self.num_instructions = int(sizes[:, 0].sum())
        self.rank = np.repeat(np.arange(len(plans)), sizes[:, 0])
        instructions = np.concatenate([plan.instructions for plan in plans]).astype(np.int64)
        self.step, self.chunk, self.flags = instructions[:, 0], instructions[:, 1], instructions[:, 5]
        shift = np.cumsum(sizes[:, 1:], axis=0) - sizes[:, 1:]
        joined = instructions[:, 2:5] + shift[self.rank]
        self.sources = np.concatenate([plan.sources for plan in plans]).astype(np.int64)
        self.destinations = np.concatenate([plan.destinations for plan in plans]).astype(np.int64)
        self.source_owner, self.destination_owner = owners(joined[:, 0]), owners(joined[:, 1])
        for entries, owner in ((self.sources, self.source_owner), (self.destinations, self.destination_owner)):
            rank = self.rank[owner]
            entries[:, 0] += np.where(entries[:, 1] == REMOTE, rank - rank % self.num_ranks, 0)
        self.dependent = owners(joined[:, 2])
        earlier = np.concatenate([plan.dependencies for plan in plans]).astype(np.int64)
        self.dependency = earlier + self.first[self.rank[self.dependent]]
        self.sends = np.zeros(self.num_instructions, bool)
        self.sends[self.destination_owner[self.destinations[:, 1] == REMOTE]] = True
        self.lent = self.sends & (self.flags & STAGED == 0)
        self.source_ends, self.destination_ends = joined[:, 0], joined[:, 1]
        self._shared = np.array([shared_offset(plan) for plan in plans], np.int64)
        self.shares = self._shared[:, 0] >= 0
        self.held = self._memory(INPUT, np.array([plan.num_input_chunks for plan in plans]))
        self.wanted = self._memory(OUTPUT, np.array([plan.num_output_chunks for plan in plans]))

    def accesses(self) -> Accesses:
        """Every touch of memory; a location is told apart by rank, and memory that is shared in place has one name."""
        sources = self._unified(self.sources, self.source_owner)
        destinations = self._unified(self.destinations, self.destination_owner)
        touched = accesses(self.source_ends, self.destination_ends, sources, destinations)
        return touched._replace(location=touched.location * len(self.plans) + self.rank[touched.instruction])

    def reads(self, touched: Accesses) -> Reads:
        """Follow each read, and the output in the end, to the write before it in program order."""
        n, num_touched, num_held, num_wanted = map(len, (self.step, touched.write, self.held, self.wanted))
        instruction = np.concatenate((touched.instruction, np.full(num_held, -1), np.full(num_wanted, n)))
        location = np.concatenate((touched.location, self.held, self.wanted))
        write = np.concatenate((touched.write, np.ones(num_held, bool), np.zeros(num_wanted, bool)))
        writer = np.concatenate((touched.instruction, n + np.arange(num_held), np.full(num_wanted, -1)))
        order = np.argsort((location * (n + 2) + instruction + 1) * 2 + write)  # it reads before it writes
        position = np.arange(len(order))
        last = np.maximum.accumulate(np.where(write[order], position, 0))
        found = order[last]
        seen = np.empty(len(order), np.int64)
        seen[order] = np.where(write[found] & (location[found] == location[order]), writer[found], -1)
        return Reads(seen[:num_touched][~touched.write], seen[num_touched + num_held :])

    def _unified(self, entries: NDArray[np.int64], owner: Ints) -> NDArray[np.int64]:
        """Entries with the one name of memory that input and output share in place: the larger's."""
        loses, offset = self._shared[self.rank[owner]].T
        renamed = entries[:, 1] == loses
        if not renamed.any():
            return entries
        entries = entries.copy()
        entries[renamed, 1] = INPUT + OUTPUT - loses[renamed]
        entries[renamed, 2] += offset[renamed]
        return entries

    def _memory(self, space: int, sizes: Ints) -> Ints:
        """The locations of all ranks' whole input or output, rank after rank, as `accesses` names them."""
        rank = np.repeat(np.arange(len(sizes)), sizes)
        index = np.arange(len(rank)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        entries = np.stack((rank, np.full_like(rank, space), index), axis=1)
        loses, offset = self._shared[rank].T
        renamed = loses == space
        entries[renamed, 1], entries[renamed, 2] = INPUT + OUTPUT - space, (index + offset)[renamed]
        return (entries[:, 2] * 4 + entries[:, 1]) * len(self.plans) + rank

    def size_classes(self, rank: Ints, space: Ints, index: Ints) -> Ints:
        """The size class that existing chunks of ranks' input and output have."""
        k = self.plans[0].chunks_per_block
        if not self.plans[0].uneven:
            return index % k
        found = np.zeros_like(index)
        for one, blocks in (
            (INPUT, [plan.input_blocks for plan in self.plans]),
            (OUTPUT, [plan.output_blocks for plan in self.plans]),
        ):
            begins = np.cumsum([0, *map(len, blocks)])
            chosen = space == one
            within = index[chosen]
            found[chosen] = np.concatenate(blocks)[begins[rank[chosen]] + within // k] * k + within % k
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


def shared_offset(plan: Plan) -> tuple[int, int]:
    """Which of input and output is a part of the other (-1: they are apart), and its first chunk's index there."""
    held, wanted = plan.num_input_chunks, plan.num_output_chunks
    if not (plan.in_place and held and wanted):
        return -1, 0
    if held == wanted:
        return INPUT, 0
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
