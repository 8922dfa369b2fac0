"""A pipeline in one process: runs a table over channels, in a seeded order, with numbers that tell their origin.

It knows neither laws nor timing. Each rank receives right before it computes and sends right after, as law 3 says.
`runs_well` tells whether all ranks end, and whether what they computed is what one process computes.
"""

import random
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hocket.training.pipeline import KINDS, PipelineTable, table_of

Operation = tuple[str, int, int, int]
"""Kind, stage, micro-batch, and 1 if it overlaps the operation before it."""


class Action(NamedTuple):
    sends: bool
    peer: int
    tag: tuple[str, int, int]
    value: int = 0


class MisuseError(Exception):
    """A rank ran an operation that it cannot run: it has not the stage, or not what the operation needs."""


def operations_of(table: PipelineTable) -> list[list[Operation]]:
    """The operations of each rank, as plain tuples."""
    ranks: list[list[Operation]] = [[] for _ in range(table.num_ranks)]
    columns = (table.rank, table.position, table.kind, table.stage, table.microbatch)
    before = (-1, -1)
    for rank, position, kind, stage, microbatch in zip(*(column.tolist() for column in columns), strict=True):
        ranks[rank].append((KINDS[kind], stage, microbatch, int(before == (rank, position))))
        before = rank, position
    return ranks


def table_from(ranks: list[list[Operation]], placement: np.ndarray, num_microbatches: int) -> PipelineTable:
    """The table of such operations."""
    arrays = [np.array([(KINDS.index(kind), *rest) for kind, *rest in rank], np.int32).reshape(-1, 4) for rank in ranks]
    return table_of("test", num_microbatches, placement, arrays)


def result(kind: str, stage: int, microbatch: int, *inputs: int) -> int:
    """A number that only this operation with these inputs gives."""
    return hash((KINDS.index(kind), stage, microbatch, *inputs))


def one_process(num_stages: int, num_microbatches: int) -> Counter[Any]:
    """What every F, B and W gives if one process runs the micro-batches one after the other."""
    results: Counter[Any] = Counter()
    for microbatch in range(num_microbatches):
        inputs, value = [], 0
        for stage in range(num_stages):
            inputs.append(value)
            value = result("F", stage, microbatch, value)
            results["F", value] += 1
        for stage in reversed(range(num_stages)):
            results["W", result("W", stage, microbatch, inputs[stage], value)] += 1
            value = result("B", stage, microbatch, inputs[stage], value)
            results["B", value] += 1
    return results


class World:
    """All ranks of a table. capacity: of each channel, None for no limit; tagged: receive in any order."""

    def __init__(self, table: PipelineTable, capacity: int | None = None, tagged: bool = True, seed: int = 0) -> None:
        self.table, self.capacity, self.tagged = table, capacity, tagged
        self.random = random.Random(seed)
        self.results: Counter[Any] = Counter()
        self.channels: dict[tuple[int, int], deque[tuple[Any, int]]] = {}
        self.programs = [self._program(rank, rows) for rank, rows in enumerate(operations_of(table))]
        self.pending: list[Action | None] = []

    def runs_well(self) -> bool:
        """Run all ranks until none can go on."""
        try:
            self.pending = [next(program, None) for program in self.programs]
            while movable := [rank for rank in range(len(self.programs)) if self._can_go(rank)]:
                self._go(self.random.choice(movable))
        except MisuseError:
            return False
        left = any(self.channels.values()) or any(action is not None for action in self.pending)
        return not left and self.results == one_process(self.table.num_stages, self.table.num_microbatches)

    def home(self, stage: int, microbatch: int) -> int:
        direction = microbatch * len(self.table.placement) // self.table.num_microbatches
        return int(self.table.placement[direction, stage])

    def _program(self, rank: int, rows: list[Operation]) -> Iterator[Action]:
        inputs: dict[tuple[int, int], int] = {}  # of each forward
        gradients: dict[tuple[int, int], int] = {}  # what came in for each input backward
        here: dict[tuple[str, int, int], int] = {}  # results for stages of this rank
        last = self.table.num_stages - 1
        while rows:
            size = 2 if len(rows) > 1 and rows[1][3] else 1
            block, rows = rows[:size], rows[size:]
            arrived = {}
            for kind, stage, microbatch, _ in block:
                at_the_end = stage == (0 if kind == "F" else last)
                if kind == "W" or at_the_end:
                    continue
                tag = ("F", stage - 1, microbatch) if kind == "F" else ("B", stage + 1, microbatch)
                if (source := self.home(*tag[1:])) != rank:
                    arrived[kind] = yield Action(False, source, tag)
                elif tag in here:
                    arrived[kind] = here[tag]
                else:
                    raise MisuseError
            known, results = dict(inputs), []  # what the operations of a pair know: not each other
            for kind, stage, microbatch, _ in block:
                cell = stage, microbatch
                if (
                    self.home(*cell) != rank
                    or (kind != "F" and cell not in known)
                    or (kind == "W") > (cell in gradients)
                ):
                    raise MisuseError
                if kind == "F":
                    inputs[cell] = arrived.get(kind, 0)
                    results.append(("F", *cell, result("F", *cell, inputs[cell])))
                    continue
                if kind in "BG":
                    above = known_forward(stage, microbatch, known[cell]) if stage == last else arrived[kind]
                    gradients[cell] = above
                    results.append(("B", *cell, result("B", *cell, known[cell], above)))
                if kind in "WG":
                    self.results["W", result("W", *cell, known[cell], gradients[cell])] += 1
            for kind, stage, microbatch, value in results:
                self.results[kind, value] += 1
                here[kind, stage, microbatch] = value
                following = stage + (1 if kind == "F" else -1)
                if 0 <= following <= last and (target := self.home(following, microbatch)) != rank:
                    yield Action(True, target, (kind, stage, microbatch), value)

    def _can_go(self, rank: int) -> bool:
        action = self.pending[rank]
        if action is None:
            return False
        if action.sends:
            channel = self.channels.setdefault((rank, action.peer), deque())
            if self.capacity == 0:
                other = self.pending[action.peer]
                return other is not None and (other.sends, other.peer, other.tag) == (False, rank, action.tag)
            return self.capacity is None or len(channel) < self.capacity
        channel = self.channels.setdefault((action.peer, rank), deque())
        return any(tag == action.tag for tag, _ in (channel if self.tagged else list(channel)[:1]))

    def _go(self, rank: int) -> None:
        action = self.pending[rank]
        assert action is not None
        if action.sends:
            self.channels[rank, action.peer].append((action.tag, action.value))
            self._resume(rank, None)
            if self.capacity == 0:
                self._go(action.peer)  # both ends of a rendezvous go on together
            return
        channel = self.channels[action.peer, rank]
        found = next(entry for entry in channel if entry[0] == action.tag)
        channel.remove(found)
        self._resume(rank, found[1])

    def _resume(self, rank: int, value: Any) -> None:
        try:
            self.pending[rank] = self.programs[rank].send(value)
        except StopIteration:
            self.pending[rank] = None


def known_forward(stage: int, microbatch: int, value: int) -> int:
    """What the backward of the last stage begins with: the result of its forward."""
    return result("F", stage, microbatch, value)


def mutate(ranks: list[list[Operation]], num_microbatches: int, rng: random.Random) -> list[list[Operation]]:
    """Swap, drop, duplicate or move one operation, change its kind or micro-batch, or make or break a pair."""
    ranks = [list(rank) for rank in ranks]
    rank = rng.choice([number for number, rows in enumerate(ranks) if len(rows) > 1])
    rows = ranks[rank]
    at, other = rng.sample(range(len(rows)), 2)
    kind, stage, microbatch, joined = rows[at]
    match rng.choice(("swap", "swap near", "drop", "duplicate", "move", "move away", "kind", "microbatch", "pair")):
        case "swap":
            rows[at], rows[other] = (*rows[other][:3], joined), (kind, stage, microbatch, rows[other][3])
        case "swap near":
            near = at - 1 if at else 1
            rows[at], rows[near] = (*rows[near][:3], joined), (kind, stage, microbatch, rows[near][3])
        case "drop":
            del rows[at]
        case "duplicate":
            rows.insert(other, rows[at])
        case "move":
            rows.insert(other, rows.pop(at))
        case "move away":
            target = rng.choice(ranks)
            target.insert(rng.randrange(len(target) + 1), rows.pop(at))
        case "kind":
            rows[at] = (rng.choice(KINDS), stage, microbatch, joined)
        case "microbatch":
            rows[at] = (kind, stage, rng.randrange(num_microbatches), joined)
        case "pair":
            rows[at] = (kind, stage, microbatch, 1 - joined)
    return ranks
