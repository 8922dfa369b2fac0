"""What a program computes, as folds of values into spots, and the earliest step in which each fold can run."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.schedule.ir import Buffer, Repeat, Step

ChunkSpot = tuple[int, Buffer, int]  # rank, buffer of the schedule, chunk


@dataclass(eq=False)
class MscclFold:
    """What becomes one row group: the operands, folded in their order, into a location.

    An operand is a location and the fold whose result it holds, or None for content from the start. `at` is the number
    of the instruction, and `site` says where it stands in the file.
    """

    into: ChunkSpot
    operands: "list[tuple[ChunkSpot, MscclFold | None]]"
    at: int
    site: str


Value = tuple[ChunkSpot, MscclFold | None]


def without_detours(folds: Sequence[MscclFold]) -> list[MscclFold]:
    """The folds without those whose result is in scratch for one use on the same rank; the values are the same.

    A value that is only copied to scratch is read where it comes from. A value that is only copied on from scratch is
    folded where it goes. So a fold whose first operand is received becomes one fold again.
    """
    uses = Counter(source for fold in folds for _, source in fold.operands)
    made: dict[MscclFold, MscclFold] = {}
    gone: set[MscclFold] = set()
    for fold in folds:
        operands: list[Value] = []
        for location, old in fold.operands:
            source = made[old] if old is not None else None
            if source is None or location[1] != Buffer.SCRATCH or uses[old] > 1:
                operands.append((location, source))
                continue
            stays = location[0] == fold.into[0] or all(other[0] == location[0] for other, _ in source.operands)
            if stays and (len(source.operands) == 1 or (len(fold.operands) == 1 and location[0] == fold.into[0])):
                gone.add(source)
                operands += source.operands
            else:
                operands.append((location, source))
        made[fold] = MscclFold(fold.into, operands, fold.at, fold.site)
    return [fold for fold in made.values() if fold not in gone]


def earliest_steps(folds: Sequence[MscclFold]) -> list[int] | None:
    """The earliest step of each fold; None if there is none because a value is overwritten before it can be read."""
    edges, _ = _edges(folds)
    missing = [0] * len(folds)  # how many folds must be done in earlier steps
    later: list[list[int]] = [[] for _ in folds]
    not_after: list[list[int]] = [[] for _ in folds]
    not_before: list[list[int]] = [[] for _ in folds]
    for before, after, gap in edges:
        if gap:
            missing[after] += 1
            later[before].append(after)
        else:
            not_after[after].append(before)
            not_before[before].append(after)
    steps = [-1] * len(folds)
    ready = [i for i, count in enumerate(missing) if not count]
    number = 0
    while ready:
        chosen = set(ready)  # Less those that something must not come after, and cannot be done yet; and so on.
        blocked = [i for i in ready if any(steps[j] < 0 and j not in chosen for j in not_after[i])]
        while blocked:
            i = blocked.pop()
            if i in chosen:
                chosen.remove(i)
                blocked += not_before[i]
        if not chosen:
            return None
        ready = [i for i in ready if i not in chosen]
        for i in chosen:
            steps[i] = number
            for j in later[i]:
                missing[j] -= 1
                if not missing[j]:
                    ready.append(j)
        number += 1
    return steps if -1 not in steps else None


def late(folds: Sequence[MscclFold]) -> set[int]:
    """The instructions that use a value when a fold before theirs has overwritten it."""
    return _edges(folds)[1]


def _edges(folds: Sequence[MscclFold]) -> tuple[list[tuple[int, int, int]], set[int]]:
    """Pairs of folds, and whether the second must be a step later (1) or not earlier (0); and the late ones."""
    edges: list[tuple[int, int, int]] = []
    overdue: set[int] = set()
    number = {fold: i for i, fold in enumerate(folds)}
    writer: dict[ChunkSpot, MscclFold] = {}
    readers: dict[ChunkSpot, list[int]] = defaultdict(list)
    overwriter: dict[Value, int] = {}
    for i, fold in enumerate(folds):
        for location, source in fold.operands:
            if source is not None:
                edges.append((number[source], i, 1))
            if (location, source) in overwriter:
                edges.append((i, overwriter[location, source], 0))
                overdue.add(fold.at)
            else:
                readers[location].append(i)
        before = writer.get(fold.into)
        if before is not None:
            edges.append((number[before], i, 1))
        edges += [(reader, i, 0) for reader in readers.pop(fold.into, []) if reader != i]
        overwriter[fold.into, before] = i
        writer[fold.into] = fold
    return edges, overdue


def repeats_of(folds: Sequence[MscclFold], steps: Sequence[int]) -> tuple[tuple[Repeat, ...], int]:
    """The steps of a schedule with their rows, and how many chunks of scratch they use: as many as they name."""
    slots: dict[int, dict[int, int]] = defaultdict(dict)
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(max(steps, default=-1) + 1)]
    sites = [""] * len(rows)

    def placed(location: ChunkSpot) -> ChunkSpot:
        rank, buffer, chunk = location
        if buffer == Buffer.SCRATCH:
            chunk = slots[rank].setdefault(chunk, len(slots[rank]))
        return rank, buffer, chunk

    for step, fold in sorted(zip(steps, folds, strict=True), key=lambda item: (item[0], item[1].into)):
        old_first = fold.operands[0][0] == fold.into  # The old content needs no row.
        sites[step] = sites[step] or fold.site
        to, into, at = placed(fold.into)
        for i, (location, _) in enumerate(fold.operands):
            if i or not old_first:
                rank, buffer, chunk = placed(location)
                rows[step].append((rank, to, buffer, into, chunk, at, 1, 1, i > 0))
    repeats = tuple(Repeat(_step(of_step), site=site) for of_step, site in zip(rows, sites, strict=True))
    return repeats, max((len(of_rank) for of_rank in slots.values()), default=0)


def _step(rows: list[tuple[Any, ...]]) -> Step:
    src, dst, src_buffer, dst_buffer, src_chunk, dst_chunk, count, stride, reduce = np.array(rows, np.int32).T.copy()
    buffers = src_buffer.astype(np.uint8), dst_buffer.astype(np.uint8)
    return Step(src, dst, *buffers, src_chunk, dst_chunk, count, stride, reduce.astype(bool))
