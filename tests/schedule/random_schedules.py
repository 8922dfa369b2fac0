"""Schedules that mean nothing but mean it exactly: any rows of legal shape, for what must hold of every schedule."""

import random

import numpy as np

from hocket.schedule.collective import COLLECTIVES
from hocket.schedule.ir import Block, Buffer, Schedule, Step

Place = tuple[int, Buffer, int]  # rank, buffer, chunk


def random_schedule(seed: int) -> Schedule:
    """Up to 5 ranks and 5 steps with every entanglement that the shape allows; all output is written in the end."""
    choice = random.Random(seed)
    name = choice.choice(list(COLLECTIVES))
    kind, p, k = COLLECTIVES[name], choice.randint(1, 5), choice.randint(1, 3)
    root, num_chunks, num_scratch = choice.randrange(p), kind.num_blocks(p) * k, choice.choice((0, 2))
    explicit = choice.random() < 0.4
    held: dict[Place, int] = {}  # place -> size class of what it holds
    wanted: list[Place] = []
    for rank in range(p):
        inputs, outputs = kind.input_blocks(rank, p, root), kind.output_blocks(rank, p, root)
        for blocks, buffer in ((inputs, Buffer.INPUT), (outputs, Buffer.OUTPUT)):
            first = 0 if explicit else blocks.start * k
            for chunk in range(first, first + len(blocks) * k):
                place = (rank, buffer if explicit else Buffer.DATA, chunk)
                if buffer is Buffer.INPUT:
                    held[place] = chunk % k
                else:
                    wanted.append(place)
    writable = {(rank, Buffer.DATA, chunk) for rank in range(p) for chunk in range(num_chunks)}
    writable = set(wanted) if explicit else writable
    writable |= {(rank, Buffer.SCRATCH, slot) for rank in range(p) for slot in range(num_scratch)}
    steps = []
    for _ in range(choice.randint(0, 5)):
        rows: list[tuple[Place, Place, bool]] = []
        writes: dict[Place, int] = {}
        for target in choice.sample(sorted(writable), min(len(writable), choice.randint(1, 12))):
            sources = [s for s, size in held.items() if target[1] is Buffer.SCRATCH or size == target[2] % k]
            if sources:
                first = choice.choice(sources)
                size = held[first]
                copies = held.get(target) != size or choice.random() < 0.5
                alike = [s for s in sources if held[s] == size]
                more = choice.choices(alike, k=choice.choice((0, 0, 1, 2)))
                rows += [(s, target, not copies or i > 0) for i, s in enumerate([first, *more])]
                writes[target] = size
        held |= writes
        if rows:
            steps.append(_step(rows))
    missing = [place for place in wanted if place not in held]
    last = []
    for place in missing:
        source = choice.choice([s for s, size in held.items() if size == place[2] % k])
        last.append((source, place, False))
    if last:
        steps.append(_step(last))
    return Schedule(name, p, num_chunks, root, tuple(Block(step) for step in steps), num_scratch)


def random_inputs(schedule: Schedule, block: int, seed: int) -> list[np.ndarray | None]:
    """An input for each rank that has one, `block` elements a block: float32, so that every order has its own bits."""
    generator = np.random.default_rng(seed)
    inputs = []
    for rank in range(schedule.num_ranks):
        size = len(schedule.kind.input_blocks(rank, schedule.num_ranks, schedule.root))
        inputs.append(generator.standard_normal(size * block).astype(np.float32) if size else None)
    return inputs


def _step(rows: list[tuple[Place, Place, bool]]) -> Step:
    def column(values: list[int], dtype: type = np.int32) -> np.ndarray:
        return np.array(values, dtype)

    sources, targets = [row[0] for row in rows], [row[1] for row in rows]
    return Step(
        src=column([place[0] for place in sources]),
        dst=column([place[0] for place in targets]),
        src_buffer=column([place[1] for place in sources], np.uint8),
        dst_buffer=column([place[1] for place in targets], np.uint8),
        src_chunk=column([place[2] for place in sources]),
        dst_chunk=column([place[2] for place in targets]),
        count=np.ones(len(rows), np.int32),
        stride=np.ones(len(rows), np.int32),
        reduce=column([row[2] for row in rows], np.bool_),
    )
