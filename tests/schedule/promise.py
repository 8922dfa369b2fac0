"""What collectives promise, in plain NumPy: the definition, without a schedule."""

from collections.abc import Callable, Sequence

import numpy as np

from hocket.schedule import Schedule, reference

Arrays = Sequence[np.ndarray | None]


def even_lengths(schedule: Schedule, block: int) -> np.ndarray:
    """Returns the lengths of blocks of data that are all equally long."""
    return np.full(schedule.kind.num_blocks(schedule.num_ranks), block)


def named_lengths(schedule: Schedule, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """The argument block_lengths, for collectives that take it."""
    return {"block_lengths": lengths} if schedule.kind.uneven else {}


def input_sizes(schedule: Schedule, lengths: np.ndarray) -> list[int | None]:
    """Returns the elements of every rank's input; None if it has none."""
    p = schedule.num_ranks
    held = [schedule.kind.input_blocks(rank, p, schedule.root) for rank in range(p)]
    return [int(lengths[blocks].sum()) if blocks else None for blocks in held]


def promised_outputs(
    schedule: Schedule,
    inputs: Arrays,
    lengths: np.ndarray,
    reduce: Callable[[Sequence[np.ndarray]], np.ndarray] = np.add.reduce,
) -> list[np.ndarray | None]:
    """Returns every rank's output for these inputs; None if it has none. `reduce` combines all contributions."""
    kind, p, root = schedule.kind, schedule.num_ranks, schedule.root
    contributions: dict[int, list[np.ndarray]] = {}
    for rank, array in enumerate(inputs):
        blocks = kind.input_blocks(rank, p, root)
        parts = np.split(array, np.cumsum(lengths[blocks])[:-1]) if blocks else []
        for block, part in zip(blocks, parts, strict=True):
            contributions.setdefault(block, []).append(part)
    data = {block: reduce(parts) if kind.reduces else parts[0] for block, parts in contributions.items()}
    wanted = [kind.output_blocks(rank, p, root) for rank in range(p)]
    return [np.concatenate([data[block] for block in blocks]) if blocks else None for blocks in wanted]


def keeps_promise(schedule: Schedule, block: int = 7) -> None:
    """Asserts that all outputs for random integers, `block` in each block, are as promised."""
    generator = np.random.default_rng(schedule.num_ranks)
    lengths = even_lengths(schedule, block)
    sizes = input_sizes(schedule, lengths)
    inputs = [None if size is None else generator.integers(-99, 99, size) for size in sizes]
    expected = promised_outputs(schedule, inputs, lengths)
    for rank, (left, right) in enumerate(zip(reference.run(schedule, inputs), expected, strict=True)):
        assert (left is None and right is None) or np.array_equal(left, right), rank
