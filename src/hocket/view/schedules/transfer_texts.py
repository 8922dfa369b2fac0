"""Describes transfers in a few letters: "c3 += r0" means that a rank folds rank 0's chunk 3 into its own."""

from typing import Any

from hocket.schedule import Buffer, Schedule, Step

BUFFER_LETTERS = "cios"
"""The letters for chunks of data, input, output and scratch memory."""

_LEGEND = "c3 += r0: the rank folds rank 0's chunk 3 into its own; = r0: copies it; = r0 + r1: folds both, rounded once"
_LEGEND_BUFFERS = "; i2, o2, s2: chunk 2 of input, output, scratch memory"


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
    buffers = (buffer for repeat in schedule.repeats for buffer in (repeat.step.src_buffer, repeat.step.dst_buffer))
    only_data = all(bool((buffer == Buffer.DATA).all()) for buffer in buffers)
    return _LEGEND + ("" if only_data else _LEGEND_BUFFERS)


def _describe(step: Step, rows: list[int]) -> tuple[int, str, int, str]:
    """Returns the destination of a row group (rank, buffer letter, chunk) and the text of its sources."""
    rank, chunk = int(step.dst[rows[0]]), int(step.dst_chunk[rows[0]])
    letter = BUFFER_LETTERS[step.dst_buffer[rows[0]]]
    sources = []
    for row in rows:
        place = f"{BUFFER_LETTERS[step.src_buffer[row]]}{step.src_chunk[row]}"
        sources.append(f"r{step.src[row]}" + ("" if place == f"{letter}{chunk}" else f".{place}"))
    return rank, letter, chunk, ("+= " if step.reduce[rows[0]] else "= ") + " + ".join(sources)
