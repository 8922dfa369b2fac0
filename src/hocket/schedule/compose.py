"""Schedules from schedules: one after the other, side by side, on other ranks, with finer chunks, run backwards.

Composing proved schedules gives a proved schedule if the result is a whole collective; `verify` checks it all the same.
Periodic parts stay periodic.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.errors import ScheduleError
from hocket.schedule.collective import find_collective
from hocket.schedule.ir import Bools, Buffer, Ints, Repeat, Schedule, Step, concatenate
from hocket.schedule.shape import CHUNKS_BELOW, Shape

_THEN = {
    ("reduce_scatter", "all_gather"): "all_reduce",
    ("reduce", "broadcast"): "all_reduce",
    ("scatter", "all_gather"): "broadcast",
    ("reduce_scatter", "gather"): "reduce",
    ("gather", "broadcast"): "all_gather",
}

_LEFT_OUT = -1  # stands for the place of a chunk that is left out


def collective_of_then(first: str, second: str, collective: str | None = None) -> str:
    """What one collective followed by another one amounts to; ScheduleError unless it is known or given."""
    if collective is not None:
        return find_collective(collective).name
    if (first, second) not in _THEN:
        known = ", ".join(f"{a} then {b}" for a, b in _THEN)
        raise ScheduleError(f"expected {known}, or collective= for the whole; found {first} then {second}")
    return _THEN[first, second]


def collective_of_beside(first: str, second: str, collective: str | None = None) -> str:
    """What two collectives side by side amount to: the same collective, unless another one is given."""
    if collective is not None:
        return find_collective(collective).name
    if first != second:
        raise ScheduleError(f"expected one collective, or collective= for the whole; found {first} and {second}")
    return first


def collective_of_reversed(collective: str) -> str:
    """The collective run backwards; ScheduleError if there is none."""
    reverse = find_collective(collective).reverse
    if reverse is None:
        raise ScheduleError(f"expected a collective that can be run backwards; found {collective}")
    return reverse


def then(first: Schedule, second: Schedule, *, collective: str | None = None) -> Schedule:
    """All steps of the first, then those of the second, on the same `data`.

    reduce_scatter then all_gather, and reduce then broadcast (with the same root), make an all_reduce. All other pairs
    need collective=. Chunks are refined to the least common number.
    """
    _require_schedules("then", second)
    name = collective_of_then(first.collective, second.collective, collective)
    root = _common_root("then", first, second, collective)
    first, second = _matched("then", first, second)
    num_scratch = max(first.num_scratch, second.num_scratch)
    return _renamed(replace(first, repeats=first.repeats + second.repeats, num_scratch=num_scratch), name, root)


def beside(first: Schedule, *others: Schedule, collective: str | None = None) -> Schedule:
    """Step i of all schedules as one step i, on the same `data`. The scratch of each lies behind that of the ones
    before.

    ScheduleError if two of them write the same place in the same step.
    """
    _require_schedules("beside", *others)
    name, root = first.collective, first.root
    for other in others:
        name = collective_of_beside(name, other.collective, collective)
        root = _common_root("beside", first, other, collective)
    parts = _matched("beside", first, *others)
    scratch = np.cumsum([0, *(part.num_scratch for part in parts)]).tolist()
    repeats: list[Repeat] = []
    for row in _aligned([part.repeats for part in parts], parts[0].num_chunks):
        present = [
            _scratch_behind(repeat, offset) for repeat, offset in zip(row, scratch, strict=False) if repeat is not None
        ]
        step = present[0].step
        if len(present) > 1:
            step = concatenate([repeat.step for repeat in present])
            _refuse_shared(present, number=sum(repeat.times for repeat in repeats))
        repeats.append(replace(present[0], step=step))
    return _renamed(replace(parts[0], repeats=tuple(repeats), num_scratch=scratch[-1]), name, root)


def _refuse_shared(repeats: Sequence[Repeat], number: int) -> None:
    """ScheduleError if two of these repeats write one place."""
    ranks = np.concatenate([np.unique(repeat.step.dst) for repeat in repeats])
    if len(np.unique(ranks)) == len(ranks):
        return  # Parts that write on different ranks need no closer look, which would cost the most.
    steps = [repeat.step.expanded() for repeat in repeats]
    joined = concatenate(steps)
    written = joined.destinations()
    part = np.repeat(np.arange(len(steps)), [len(step) for step in steps])
    order = np.argsort(written, kind="stable")
    twice = (np.diff(written[order]) == 0) & (np.diff(part[order]) != 0)
    if twice.any():
        at = int(np.argmax(twice))
        row = order[at]
        left, right = (repeats[part[order[at + i]]].site or "one part" for i in (0, 1))
        raise ScheduleError(
            f"beside: expected no place that two parts write in one step, found {twice.sum()} in step {number}, first"
            f" {Buffer(joined.dst_buffer[row]).name.lower()}[{joined.dst_chunk[row]}] of rank {joined.dst[row]}"
            f" ({left} and {right}); put the parts on different chunks with compose.on(..., chunks=[...])"
        )


def on(
    schedule: Schedule,
    ranks: Sequence[int],
    num_ranks: int,
    *,
    chunks: Sequence[int] | None = None,
    num_chunks: int | None = None,
    collective: str | None = None,
) -> Schedule:
    """The schedule on `ranks` of a group of num_ranks: its rank i becomes rank ranks[i] of the group, its root too.

    With all ranks of the group (a permutation), blocks move with their ranks, so the collective stays whole.
    With some of the ranks, the result is a part for further composition; a collective with a block per rank then needs
    collective=, the collective of the whole. Chunks stay as they are. Or chunk c becomes chunk chunks[c] of num_chunks;
    with -1 there, it is left out with all its transfers.
    """
    num_ranks = _whole_number("on: expected num_ranks as a whole number", num_ranks)
    if chunks is not None or num_chunks is not None:
        num_chunks = _whole_number("on: expected num_chunks= as a whole number", num_chunks)
    place = _whole_numbers("on: expected ranks as whole numbers", ranks)
    if place.shape != (schedule.num_ranks,) or len(np.unique(place)) != len(place):
        raise ScheduleError(f"on: expected {schedule.num_ranks} different ranks, found {place.tolist()}")
    if place.min() < 0 or place.max() >= num_ranks:
        raise ScheduleError(f"on: expected ranks from 0 to {num_ranks - 1}, found {place.tolist()}")
    if not schedule.uses_data:
        return _permuted(schedule, place, num_ranks, num_chunks or collective)
    per_rank = schedule.kind.blocks != "one"
    if collective is None and per_rank and (chunks is not None or len(place) != num_ranks):
        raise ScheduleError(
            f"on: a {schedule.collective} of {len(place)} of {num_ranks} ranks is a part of something else;"
            " expected collective=, the whole that it is a part of"
        )
    there: Ints | None = None
    if chunks is not None:
        assert num_chunks is not None
        there = _chunks_there(schedule, chunks, num_chunks)
    elif collective is None and per_rank:
        k = schedule.chunks_per_block
        block_there = place if schedule.kind.blocks == "rank" else (place[:, None] * num_ranks + place).ravel()
        there = (block_there[:, None] * k + np.arange(k)).astype(np.int32).ravel()
    if there is None:
        repeats = tuple(replace(repeat, step=_with_ranks(repeat.step, place)) for repeat in schedule.repeats)
    else:
        left_out = np.zeros((schedule.num_ranks, schedule.num_scratch), bool)  # What lies in scratch.
        repeats = tuple(  # If chunks move to other places, nothing stays periodic.
            Repeat(_with_ranks(_with_chunks(step, {Buffer.DATA: there}, left_out), place), site=schedule.site(number))
            for number, step in enumerate(schedule.steps())
        )
        repeats = tuple(repeat for repeat in repeats if len(repeat.step))
    moved = replace(schedule, num_ranks=num_ranks, repeats=repeats, num_chunks=num_chunks or schedule.num_chunks)
    return _renamed(moved, collective or schedule.collective, int(place[schedule.root]))


def _permuted(schedule: Schedule, place: npt.NDArray[np.int64], num_ranks: int, asked: Any) -> Schedule:
    """A schedule on input and output, with its ranks in another order: blocks move with their ranks."""
    if len(place) != num_ranks or asked:
        raise ScheduleError(
            f"on: expected a schedule on data, or only another order of all ranks; found a {schedule.collective} on "
            "input, output"
        )
    kind, k = schedule.kind, schedule.chunks_per_block
    there: dict[Buffer, Ints] = {}
    for buffer, extent in ((Buffer.INPUT, kind.input), (Buffer.OUTPUT, kind.output)):
        moves = extent in ("row", "column") or (extent in ("whole", "root") and kind.blocks == "rank")
        if moves:  # a rank's own block has no neighbours in its memory
            there[buffer] = (place[:, None] * k + np.arange(k)).astype(np.int32).ravel()
    left_out = np.zeros((schedule.num_ranks, schedule.num_scratch), bool)
    repeats = tuple(
        Repeat(_with_ranks(_with_chunks(step, there, left_out), place), site=schedule.site(number))
        for number, step in enumerate(schedule.steps())
    )
    return _renamed(replace(schedule, repeats=repeats), schedule.collective, int(place[schedule.root]))


def _chunks_there(schedule: Schedule, chunks: Sequence[int], num_chunks: int) -> Ints:
    there = _whole_numbers("on: expected chunks= as whole numbers", chunks)
    if num_chunks >= CHUNKS_BELOW:
        raise ScheduleError(f"on: expected num_chunks= below 2**31, found {num_chunks}")
    kept = there[there != _LEFT_OUT]
    if there.shape != (schedule.num_chunks,) or len(np.unique(kept)) != len(kept):
        raise ScheduleError(f"on: expected {schedule.num_chunks} different chunks, found {there.size}: {there}")
    if kept.min(initial=0) < 0 or kept.max(initial=0) >= num_chunks:
        raise ScheduleError(
            f"on: expected chunks below num_chunks={num_chunks}, found {kept.min(initial=0)} to {kept.max(initial=0)}"
        )
    return there.astype(np.int32)


def refine(schedule: Schedule, chunks: int) -> Schedule:
    """Every chunk cut in `chunks`: the same transfers of the same bytes, in smaller parts."""
    chunks = _whole_number("refine: expected to cut every chunk in a whole number of parts", chunks)
    if chunks < 1:
        raise ScheduleError(f"refine: expected to cut every chunk in 1 or more, found {chunks}")
    if chunks == 1:
        return schedule
    found = max(schedule.num_chunks, schedule.num_scratch) * chunks
    if found >= CHUNKS_BELOW:
        raise ScheduleError(f"refine: expected fewer than 2**31 chunks, found {found}; cut every chunk in fewer")

    def refined(repeat: Repeat) -> Repeat:
        step = repeat.step if (repeat.step.stride == 1).all() else repeat.step.spread()[0]
        step = replace(
            step,
            src_chunk=step.src_chunk * np.int32(chunks),
            dst_chunk=step.dst_chunk * np.int32(chunks),
            count=step.count * np.int32(chunks),
        )
        return replace(repeat, step=step, shift=repeat.shift * chunks)

    return replace(
        schedule,
        num_chunks=schedule.num_chunks * chunks,
        num_scratch=schedule.num_scratch * chunks,
        repeats=tuple(refined(repeat) for repeat in schedule.repeats),
    )


def reversed(schedule: Schedule) -> Schedule:
    """The schedule run backwards: all_gather <-> reduce_scatter, broadcast <-> reduce, scatter <-> gather.

    Every transfer goes the other way, the last one first. A copy that was sent becomes a contribution that is received,
    and the other way round. Local operands of a fold have no counterpart and are dropped.
    """
    name = collective_of_reversed(schedule.collective)
    _require_data("reversed", schedule)
    reduces = find_collective(name).reduces
    if schedule.num_scratch and reduces:
        repeats = _reversed_through_scratch(schedule)
    else:
        repeats, shape = [], Shape.of(replace(schedule, collective=name))
        for repeat in schedule.repeats[::-1]:
            last = repeat.step.shifted(repeat.shift * (repeat.times - 1), schedule.num_chunks)
            step = _reversed(last, reduces)
            if reduces and shape.find_fault(step):  # Ranges that were read together may overlap only in part.
                step = step.spread()[0]
            repeats.append(Repeat(step, repeat.times, -repeat.shift % schedule.num_chunks, repeat.site))
    return replace(schedule, collective=name, repeats=tuple(repeat for repeat in repeats if len(repeat.step)))


def _reversed(step: Step, reduces: bool) -> Step:
    stays = (step.src == step.dst) & (step.src_buffer == step.dst_buffer) & (step.src_chunk == step.dst_chunk)
    step = step.take(~stays)
    return Step(
        src=step.dst,
        dst=step.src,
        src_buffer=step.dst_buffer,
        dst_buffer=step.src_buffer,
        src_chunk=step.dst_chunk,
        dst_chunk=step.src_chunk,
        count=step.count,
        stride=step.stride,
        reduce=np.full(len(step), reduces),
    )


def _reversed_through_scratch(schedule: Schedule) -> list[Repeat]:
    """Backwards into reductions: the first row into an empty scratch slot becomes a copy."""
    held = np.zeros((schedule.num_ranks, schedule.num_scratch), bool)
    repeats = []
    for number, forward in list(enumerate(schedule.steps()))[::-1]:
        step = _reversed(forward.spread()[0], reduces=True).expanded()
        reads, writes = step.src_buffer == Buffer.SCRATCH, step.dst_buffer == Buffer.SCRATCH
        first = np.diff(step.destinations(), prepend=-1) != 0  # The first row of its row group.
        empty = np.zeros(len(step), bool)
        empty[writes] = ~held[step.dst[writes], step.dst_chunk[writes]]
        held[step.src[reads], step.src_chunk[reads]] = False
        held[step.dst[writes], step.dst_chunk[writes]] = True
        repeats.append(Repeat(replace(step, reduce=~(first & empty), group=None), site=schedule.site(number)))
    return repeats


def _common_root(operator: str, first: Schedule, second: Schedule, collective: str | None) -> int:
    if collective is not None and not find_collective(collective).rooted:
        return 0  # Parts of another collective may have other roots, for example leaders of groups.
    roots = {schedule.root for schedule in (first, second) if schedule.kind.rooted}
    if len(roots) > 1:
        raise ScheduleError(f"{operator}: expected one root, found {first.root} and {second.root}")
    return roots.pop() if roots else 0


def _require_schedules(operator: str, *others: object) -> None:
    for other in others:
        if not isinstance(other, Schedule):
            found = f"{type(other).__name__} {other}"
            raise TypeError(f"{operator}: expected a schedule, such as algorithm.build(num_ranks); found {found}")


def _whole_number(expected: str, value: Any) -> int:
    """ScheduleError if it is none; `expected` is how the message begins."""
    try:
        return index(value)
    except TypeError:
        raise ScheduleError(f"{expected}, found {value!r}") from None


def _whole_numbers(expected: str, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """ScheduleError if there is another among them; `expected` is how the message begins."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists of unequal lengths
        array = np.asarray(None)
    if array.dtype.kind not in "iu" and array.size:
        raise ScheduleError(f"{expected}, found {values!r}")
    return array.astype(np.int64)


def _require_data(operator: str, schedule: Schedule) -> None:
    if not schedule.uses_data:
        raise ScheduleError(f"{operator}: expected a schedule on data, found a {schedule.collective} on input, output")


def _matched(operator: str, *parts: Schedule) -> list[Schedule]:
    """All with the least common number of chunks; ScheduleError unless they are about the same ranks, on data."""
    for part in parts:
        if part.num_ranks != parts[0].num_ranks:
            found = f"{parts[0].num_ranks} and {part.num_ranks}"
            raise ScheduleError(f"{operator}: expected equal rank counts, found {found}")
        _require_data(operator, part)
    chunks = math.lcm(*(part.num_chunks for part in parts))
    return [refine(part, chunks // part.num_chunks) for part in parts]


def _renamed(schedule: Schedule, collective: str, root: int) -> Schedule:
    return replace(schedule, collective=collective, root=root if find_collective(collective).rooted else 0)


def _aligned(parts: Sequence[Sequence[Repeat]], num_chunks: int) -> Iterator[list[Repeat | None]]:
    """Repeats of all parts, cut so that those side by side have equal times and shifts; None where one has ended."""
    queues = [list(part[::-1]) for part in parts]
    while any(queues):
        heads = [queue[-1] for queue in queues if queue]
        length = min(head.times for head in heads) if len({head.shift for head in heads}) == 1 else 1
        yield [_cut(queue, length, num_chunks) if queue else None for queue in queues]


def _cut(queue: list[Repeat], length: int, num_chunks: int) -> Repeat:
    """The first `length` repetitions of the last repeat of the queue; the others stay in it."""
    repeat = queue.pop()
    if length < repeat.times:
        rest = repeat.step.shifted(repeat.shift * length, num_chunks)
        queue.append(replace(repeat, step=rest, times=repeat.times - length))
    return replace(repeat, times=length, shift=repeat.shift if length > 1 else 0)


def _with_ranks(step: Step, place: npt.NDArray[np.int64]) -> Step:
    return replace(step, src=place[step.src].astype(np.int32), dst=place[step.dst].astype(np.int32), group=None)


def _with_chunks(step: Step, there: Mapping[Buffer, Ints], left_out: Bools) -> Step:
    """Chunk c of a buffer as there[buffer][c]; scratch stays. left_out[rank, slot] follows through it what
    is left out.
    """
    contiguous = all(bool((np.diff(one) == 1).all()) and one[0] != _LEFT_OUT for one in there.values())
    step, rows = (step, np.arange(len(step))) if contiguous else step.spread()
    moved = []
    for chunk, buffer in ((step.src_chunk, step.src_buffer), (step.dst_chunk, step.dst_buffer)):
        for one, chunks in there.items():
            here = buffer == one
            chunk = np.where(here, chunks[np.where(here, chunk, 0)], chunk)
        moved.append(chunk.astype(np.int32))
    step = replace(step, src_chunk=moved[0], dst_chunk=moved[1], group=None)
    if any((one == _LEFT_OUT).any() for one in there.values()):
        gone = step.src_chunk == _LEFT_OUT
        from_scratch, to_scratch = step.src_buffer == Buffer.SCRATCH, step.dst_buffer == Buffer.SCRATCH
        gone[from_scratch] = left_out[step.src[from_scratch], step.src_chunk[from_scratch]]
        left_out[step.dst[to_scratch], step.dst_chunk[to_scratch]] = gone[to_scratch]
        step, rows = step.take(~gone), rows[~gone]
    return step if contiguous else _joined(step, rows)


def _joined(step: Step, rows: npt.NDArray[np.int64]) -> Step:
    """A spread step with its rows joined again where they come from one row and their places are equally far apart."""
    at_home = (step.src_chunk == step.dst_chunk) & (step.src_buffer == Buffer.DATA) & (step.dst_buffer == Buffer.DATA)
    if len(np.unique(rows)) == len(rows) or not at_home.all():
        return step  # Rows that fold into one place must stay equal; other rows may come from several.
    same = np.diff(rows, prepend=-1) == 0
    ahead = np.where(same, np.diff(step.src_chunk, prepend=0), 0)
    second = same & ~np.roll(same, 1)  # The second one of its row may be at any distance from the first.
    starts = np.flatnonzero(~same | (ahead < 1) | (~second & (ahead != np.roll(ahead, 1))))
    count = np.diff(starts, append=len(rows)).astype(np.int32)
    stride = np.where(count > 1, ahead[np.minimum(starts + 1, len(rows) - 1)], 1).astype(np.int32)
    return replace(step.take(starts), count=count, stride=stride)


def _scratch_behind(repeat: Repeat, offset: int) -> Repeat:
    step = repeat.step
    if not offset:
        return repeat
    moved = {
        name: getattr(step, name) + np.int32(offset) * (getattr(step, buffer) == Buffer.SCRATCH)
        for name, buffer in (("src_chunk", "src_buffer"), ("dst_chunk", "dst_buffer"))
    }
    return replace(repeat, step=replace(step, **moved))
