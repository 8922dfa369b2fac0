"""Describes transfers in a few letters: "c3 += r0" means that a rank folds rank 0's chunk 3 into its own."""

from typing import Any

import numpy as np

from hocket.schedule import Buffer, Schedule, Step

BUFFER_LETTERS = "cios"
"""The letters for chunks of data, input, output and scratch memory."""

_MOST_EXPLAINED = 3  # the chunk in the legend, if there are so many


def received(step: Step) -> list[tuple[int, str]]:
    """Returns what each rank receives as (rank, "c3 += r0"), ordered by rank; a run of chunks is one text."""
    step = step.expanded()
    assert step.group is not None
    groups: dict[int, list[int]] = {}
    for row, group in enumerate(step.group.tolist()):
        groups.setdefault(group, []).append(row)
    described = [_describe(step, rows) for rows in groups.values()]
    merged: list[list[Any]] = []
    for rank, letter, chunk, text in sorted(described, key=lambda item: item[0]):
        last = merged[-1] if merged else None
        if last is not None and (rank, letter, chunk, text) == (last[0], last[1], last[3] + 1, last[4]):
            last[3] = chunk
        else:
            merged.append([rank, letter, chunk, chunk, text])
    return [
        (rank, f"{letter}{first}{f'-{last}' if last > first else ''} {text}")
        for rank, letter, first, last, text in merged
    ]


def legend(schedule: Schedule) -> str:
    """Returns the meaning of the texts of this schedule."""
    last = {Buffer.DATA: 0} if schedule.uses_data else {Buffer.OUTPUT: 0}
    for repeat in schedule.repeats:
        step = repeat.step
        for buffers, chunks in ((step.src_buffer, step.src_chunk), (step.dst_buffer, step.dst_chunk)):
            for buffer in map(Buffer, np.unique(buffers).tolist()):
                last[buffer] = max(last.get(buffer, 0), int(chunks[buffers == buffer].max()))
    (buffer, chunk), *_ = last.items()
    chunk = min(chunk, _MOST_EXPLAINED)
    text = (
        f"{BUFFER_LETTERS[buffer]}{chunk} += r0: the rank folds rank 0's chunk {chunk} into its own; = r0: copies it; "
        "= r0 + r1: folds both, rounded once"
    )
    others = sorted(set(last) - {Buffer.DATA})
    if others:
        names = ", ".join(f"{BUFFER_LETTERS[one]}0" for one in others)
        text += f"; {names}: chunk 0 of {', '.join(one.name.lower() for one in others)} memory"
    return text


def _describe(step: Step, rows: list[int]) -> tuple[int, str, int, str]:
    """Returns the destination of a row group (rank, buffer letter, chunk) and the text of its sources."""
    rank, chunk = int(step.dst[rows[0]]), int(step.dst_chunk[rows[0]])
    letter = BUFFER_LETTERS[step.dst_buffer[rows[0]]]
    sources = []
    for row in rows:
        place = f"{BUFFER_LETTERS[step.src_buffer[row]]}{step.src_chunk[row]}"
        sources.append(f"r{step.src[row]}" + ("" if place == f"{letter}{chunk}" else f".{place}"))
    return rank, letter, chunk, ("+= " if step.reduce[rows[0]] else "= ") + " + ".join(sources)
