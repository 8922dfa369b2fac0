"""Random schedules without a purpose: any rows of legal shape, to test properties that hold for every schedule."""

import random

import numpy as np

from hocket.schedule import COLLECTIVES, Buffer, Repeat, Schedule, Step

Place = tuple[int, Buffer, int]  # rank, buffer, chunk


def random_schedule(seed: int) -> Schedule:
    """Up to 5 ranks and 5 steps, with all dependencies that the shape allows; at the end, all output is written."""
    choice = random.Random(seed)
    name = choice.choice(list(COLLECTIVES))
    kind, p, k = COLLECTIVES[name], choice.randint(1, 5), choice.randint(1, 3)
    if kind.blocks == "pair":
        p, k = min(p, 3), min(k, 2)
    root, num_chunks, num_scratch = choice.randrange(p), kind.num_blocks(p) * k, choice.choice((0, 2))
    explicit = choice.random() < 0.4
    held: dict[Place, int] = {}  # place -> size class of its content
    sizes: dict[Place, int] = {}  # place outside scratch -> its size class
    wanted: list[Place] = []

    def fits(size: int, *ranks: int) -> bool:
        """Returns whether these ranks know how long chunks of this class are."""
        return all(kind.knows(rank, size // k, p, root) for rank in ranks)

    for rank in range(p):
        for chunk in range(0 if explicit else num_chunks):
            sizes[rank, Buffer.DATA, chunk] = chunk if kind.uneven else chunk % k
        inputs, outputs = kind.input_blocks(rank, p, root), kind.output_blocks(rank, p, root)
        for blocks, buffer in ((inputs, Buffer.INPUT), (outputs, Buffer.OUTPUT)):
            for index, chunk in enumerate(block * k + j for block in blocks for j in range(k)):
                place = (rank, buffer, index) if explicit else (rank, Buffer.DATA, chunk)
                sizes[place] = chunk if kind.uneven else chunk % k
                if buffer is Buffer.INPUT:
                    held[place] = sizes[place]
                else:
                    wanted.append(place)
    writable = set(wanted if explicit else sizes)
    writable |= {(rank, Buffer.SCRATCH, slot) for rank in range(p) for slot in range(num_scratch)}
    steps = []
    for _ in range(choice.randint(0, 5)):
        rows: list[tuple[Place, Place, bool]] = []
        writes: dict[Place, int] = {}
        for target in choice.sample(sorted(writable), min(len(writable), choice.randint(1, 12))):
            sources = [
                source
                for source, size in held.items()
                if size == sizes.get(target, size) and fits(size, source[0], target[0])
            ]
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
        sources = [s for s, size in held.items() if size == sizes[place] and fits(size, s[0], place[0])]
        last.append((choice.choice(sources), place, False))
    if last:
        steps.append(_step(last))
    return Schedule(name, p, num_chunks, root, tuple(Repeat(step) for step in steps), num_scratch)


def random_lengths(schedule: Schedule, block: int, seed: int, *, in_place: bool) -> np.ndarray | None:
    """Returns the elements of every block of an uneven collective: 0 to `block`; None if blocks are equally long.

    In place, two ranks exchange equally many elements in both directions.
    """
    kind, p = schedule.kind, schedule.num_ranks
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, block + 1, kind.num_blocks(p)) * generator.integers(0, 4, kind.num_blocks(p)).clip(
        0, 1
    )
    if kind.blocks == "pair" and in_place:
        table = lengths.reshape(p, p)
        lengths = (np.triu(table) + np.triu(table, 1).T).ravel()
    return lengths if kind.uneven else None


def random_inputs(
    schedule: Schedule, block: int, seed: int, lengths: np.ndarray | None = None
) -> list[np.ndarray | None]:
    """Returns a float32 input, in which every order has other bits, for each rank that has one. block: its elements."""
    generator = np.random.default_rng(seed)
    kind, p = schedule.kind, schedule.num_ranks
    if lengths is None:
        lengths = np.full(kind.num_blocks(p), block)
    inputs = []
    for rank in range(p):
        blocks = kind.input_blocks(rank, p, schedule.root)
        inputs.append(generator.standard_normal(lengths[blocks].sum()).astype(np.float32) if blocks else None)
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
