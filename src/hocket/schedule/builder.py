"""What an algorithm uses to write its schedule: every call adds rows, whole vectors of them at once.

A mistake is a ScheduleError with the line of the algorithm's own file.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from hocket.errors import ScheduleError, did_you_mean
from hocket.schedule.collective import find_collective
from hocket.schedule.ir import COLUMNS, Buffer, Repeat, Schedule, Step, concatenate
from hocket.schedule.shape import Shape

_ALL_REPETITIONS_CHECKED_TO = 1024
_SAMPLED_REPETITIONS = 64


class RowArguments(TypedDict, total=False):
    """Where a row reads and writes, apart from the ranks: see Builder.reduce."""

    src_chunk: npt.ArrayLike
    dst_chunk: npt.ArrayLike
    src_buffer: str
    dst_buffer: str
    count: npt.ArrayLike
    stride: npt.ArrayLike


class Builder:
    """One schedule being written: what an algorithm gets under the name `schedule`.

    Attributes: num_ranks, ranks (0 to num_ranks - 1, int64), num_chunks (C, chunks of `data`), root. Where the
    algorithm takes them, groups (sizes of groups of consecutive ranks) and dims (lengths of a grid, the last one
    fastest); else None.
    """

    def __init__(
        self,
        collective: str,
        num_ranks: int,
        num_chunks: int,
        root: int = 0,
        groups: tuple[int, ...] | None = None,
        dims: tuple[int, ...] | None = None,
    ) -> None:
        self.num_ranks, self.num_chunks, self.root = num_ranks, num_chunks, root
        self.groups, self.dims = groups, dims
        self.collective = collective
        self._shape = Shape(find_collective(collective), num_ranks, num_chunks, root)
        self.ranks = np.arange(num_ranks)
        self._repeats: list[Repeat] = []
        self._calls: list[tuple[Step, str]] | None = None  # The step being written, with the line of each call.
        self._kinds: dict[str, str] = {}  # "data", and "input" or "output": the line of the first row with it.
        self._repeating = ""  # Line of the repeat() whose loop is running.
        self._is_finished = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """`with schedule.step():` makes one step of the calls inside. A step without rows is left out."""
        site = _site()
        self._require_between_steps(site, "steps (and repeat) do not nest")
        self._calls = []
        try:
            yield
            step = self._close()
            if step is not None:
                self._repeats.append(Repeat(step, site=site))
        finally:
            self._calls = None

    def repeat(self, times: int) -> Iterator[int]:
        """`for i in schedule.repeat(n):` makes one step of each repetition, kept as one step and a shift.

        Repetition i must be repetition 0 with its chunks of `data` moved on by a constant times i, modulo the chunk
        count, and nothing else changed: ScheduleError otherwise. Up to 1,024 ranks the loop runs for every i, above
        that for a sample. So what a repetition writes must be computed from i, and not from the repetition before.
        """
        site = _site()
        self._require_between_steps(site, "steps (and repeat) do not nest")
        if times <= 0:
            return
        self._repeating = site
        sampled = self.num_ranks > _ALL_REPETITIONS_CHECKED_TO and times > _SAMPLED_REPETITIONS
        first: Step | None = None
        shift = 0
        for i in _sample(times) if sampled else range(times):
            self._calls = []
            yield i
            calls = self._calls
            step = self._close(repetition=i)
            self._calls = None
            if i == 0:
                first = step
                continue
            if (first is None) != (step is None):
                why = "it has no rows where repetition 0 has some, or the other way round"
                self._refuse_repetition(site, i, why, sampled)
            if first is None or step is None:
                continue
            if i == 1:
                shift = _shift_between(first, step, self.num_chunks)
            difference = _difference(first.shifted(shift * i, self.num_chunks), step)
            if difference is not None:
                row, column = difference
                where = _site_of(calls, row) if row >= 0 else site
                why = f"{column} is not that of repetition 0, moved on by {shift} * {i}"
                self._refuse_repetition(where, i, why, sampled)
        if first is not None:
            self._repeats.append(Repeat(first, times, shift, site))
        self._repeating = ""

    def copy(
        self, src: npt.ArrayLike, dst: npt.ArrayLike, chunk: npt.ArrayLike | None = None, **where: Unpack[RowArguments]
    ) -> None:
        """Rows that replace dst's chunk by src's chunk; arguments as for reduce."""
        self._add("copy", src, dst, chunk, **where)

    def reduce(
        self, src: npt.ArrayLike, dst: npt.ArrayLike, chunk: npt.ArrayLike | None = None, **where: Unpack[RowArguments]
    ) -> None:
        """Rows that fold src's chunk into dst's chunk. src, dst and chunk are integers or integer arrays.

        chunk= is short for src_chunk= and dst_chunk=. src_buffer= and dst_buffer= are "data" (the default), "input",
        "output" or "scratch". count= and stride= move several chunks, stride apart, in one row; after the last chunk of
        data, input or output they continue at the first one. All arguments broadcast against each other. Rows of a step
        that write the same chunk are folded in the order in which they are written. Only the first of them may be a
        copy; if it is a reduce, the old content comes first.
        """
        self._add("reduce", src, dst, chunk, **where)

    def include(self, schedule: Schedule) -> None:
        """Insert all steps of a schedule for the same ranks and chunks."""
        site = _site()
        self._require_between_steps(site, "a whole schedule goes between steps")
        expected, found = (self.num_ranks, self.num_chunks), (schedule.num_ranks, schedule.num_chunks)
        if expected != found:
            raise ScheduleError(f"{site}: expected a schedule of (ranks, chunks) {expected}, found {found}")
        self._repeats.extend(schedule.repeats)
        for repeat in schedule.repeats:
            step = repeat.step
            self._note_kinds(map(Buffer, np.unique([step.src_buffer, step.dst_buffer]).tolist()), site)

    def finish(self) -> Schedule:
        """The finished schedule, to which nothing can be added; ScheduleError if a repeat loop was left early."""
        if self._repeating:
            raise ScheduleError(
                f"{self._repeating}: the loop over repeat() was left before its end; let it run, or write a plain loop"
            )
        self._is_finished = True
        ends = [_end_of_scratch(repeat.step) for repeat in self._repeats]
        schedule = Schedule(
            self.collective, self.num_ranks, self.num_chunks, self.root, tuple(self._repeats), max(ends, default=0)
        )
        if len(self._kinds) > 1:
            (first, its_site), (second, site) = self._kinds.items()
            raise ScheduleError(
                f"{site}: a schedule uses data, or input and output; found {second} here, and {first} at {its_site}"
            )
        return schedule

    def _require_between_steps(self, site: str, why: str) -> None:
        """ScheduleError if the schedule is finished, or a step is open."""
        if self._is_finished:
            raise ScheduleError(
                f"{site}: the schedule is finished, so this would not be in it; write all steps before the function "
                "that got the schedule returns"
            )
        if self._repeating:
            raise ScheduleError(
                f"{self._repeating}: this loop over repeat() is not at its end at {site}: either it was left early, by"
                f" `break`, say, or that line is inside it, and {why}; let it run to its end before that line, or write"
                " a plain loop: `for i in range(n): with schedule.step(): ...`"
            )
        if self._calls is not None:
            raise ScheduleError(f"{site}: a step is already open here; {why}")

    def _add(
        self,
        method: str,
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        chunk: npt.ArrayLike | None,
        **where: Unpack[RowArguments],
    ) -> None:
        site = _site()
        unknown = set(where).difference(RowArguments.__annotations__)
        if unknown:
            known, found = ", ".join(("src", "dst", "chunk", *RowArguments.__annotations__)), ", ".join(sorted(unknown))
            near = did_you_mean(min(unknown), known.split(", "))
            raise ScheduleError(f"{site}: {method}: expected arguments among {known}; found {found}{near}")
        if self._calls is None:
            raise ScheduleError(
                f"{site}: rows belong to a step; write `with schedule.step():` or schedule.repeat() around"
            )
        src_chunk, dst_chunk = where.get("src_chunk", chunk), where.get("dst_chunk", chunk)
        if src_chunk is None or dst_chunk is None:
            raise ScheduleError(f"{site}: expected chunk=, or src_chunk= and dst_chunk=; found neither for one side")
        names = where.get("src_buffer", "data"), where.get("dst_buffer", "data")
        buffers = [_buffer(name, site) for name in names]
        named = {"src": src, "dst": dst, "src_chunk": src_chunk, "dst_chunk": dst_chunk}
        named |= {"count": where.get("count", 1), "stride": where.get("stride", 1)}
        arrays = {name: _integers(name, value, site) for name, value in named.items()}
        try:
            shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
        except ValueError:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise ScheduleError(f"{site}: expected arguments that broadcast to one shape, found {shapes}") from None
        rows: dict[str, Any] = {
            name: (array if array.shape == shape else np.broadcast_to(array, shape)).astype(np.int32).ravel()
            for name, array in arrays.items()
        }
        rows = self._unwrapped(rows, buffers)
        num_rows = len(rows["src"])
        rows["stride"] = np.where(rows["count"] == 1, np.int32(1), rows["stride"])
        step = Step(
            **rows,
            src_buffer=np.full(num_rows, buffers[0], np.uint8),
            dst_buffer=np.full(num_rows, buffers[1], np.uint8),
            reduce=np.full(num_rows, method == "reduce"),
        )
        self._calls.append((step, site))
        if num_rows:
            self._note_kinds(buffers, site)

    def _note_kinds(self, buffers: Iterable[Buffer], site: str) -> None:
        """Remember the line of the first row of data, and that of the first row of input or output."""
        for buffer in buffers:
            explicit = buffer != Buffer.DATA
            if buffer != Buffer.SCRATCH and not any((kind != "data") == explicit for kind in self._kinds):
                self._kinds[buffer.name.lower()] = site

    def _unwrapped(self, rows: dict[str, Any], buffers: list[Buffer]) -> dict[str, Any]:
        """The same rows, those that run over the last chunk cut there; what makes no sense stays, to be refused."""
        sides = [side for side, buffer in zip(("src", "dst"), buffers, strict=True) if buffer != Buffer.SCRATCH]
        if (rows["count"] <= 1).all() or not sides:
            return rows
        limits = {
            side: self._shape.limits[buffer, np.clip(rows[side], 0, self.num_ranks - 1)]
            for side, buffer in zip(("src", "dst"), buffers, strict=True)
        }
        sound = (rows["count"] >= 1) & (rows["stride"] >= 1)
        for side in sides:
            chunk = rows[f"{side}_chunk"]
            sound &= (chunk >= 0) & (chunk < limits[side]) & (rows["count"] <= limits[side])
        pieces, origin, open_ = [], [], np.arange(len(sound))
        while len(open_):
            piece = {name: column[open_] for name, column in rows.items()}
            fit = piece["count"].astype(np.int64)
            for side in sides:
                room = limits[side][open_] - 1 - piece[f"{side}_chunk"]
                fit = np.where(sound[open_], np.minimum(fit, room // np.maximum(piece["stride"], 1) + 1), fit)
            pieces.append(piece | {"count": fit.astype(np.int32)})
            origin.append(open_)
            rest = piece["count"] > fit
            open_, fit = open_[rest], fit[rest]
            rows = {name: column.copy() for name, column in rows.items()}
            rows["count"][open_] -= fit.astype(np.int32)
            for side in ("src", "dst"):
                chunk = rows[f"{side}_chunk"][open_] + fit * rows["stride"][open_]
                rows[f"{side}_chunk"][open_] = chunk % limits[side][open_] if side in sides else chunk
        if len(pieces) == 1:
            return pieces[0]
        order = np.argsort(np.concatenate(origin), kind="stable")
        return {name: np.concatenate([piece[name] for piece in pieces])[order] for name in rows}

    def _close(self, repetition: int = 0) -> Step | None:
        """The step of the calls made so far, checked; None if it has no rows.

        A later repetition is compared with the first, so that only its ranges are checked, for a better message.
        """
        calls = self._calls or []
        if not any(len(step) for step, _ in calls):
            return None
        step = calls[0][0] if len(calls) == 1 else concatenate([step for step, _ in calls])
        fault = self._shape.find_range_fault(step) if repetition else self._shape.find_fault(step)
        if fault is not None:
            raise ScheduleError(f"{_site_of(calls, fault.row)}: {fault}")
        for name in COLUMNS:
            getattr(step, name).flags.writeable = False
        if not repetition:
            self._shape.passed(step)
        return step

    def _refuse_repetition(self, site: str, i: int, why: str, sampled: bool) -> None:
        if sampled:
            why += (
                f"; above {_ALL_REPETITIONS_CHECKED_TO:,} ranks the loop runs for some i only, so if chunks follow from"
                " the turn before, compute them from i instead"
            )
        raise ScheduleError(
            f"{site}: repetition {i} differs from repetition 0 by more than a constant shift of its chunks of data:"
            f" {why}; write a plain loop: `for i in range(n): with schedule.step(): ...`"
        )


def _sample(times: int) -> list[int]:
    spread = np.linspace(2, times - 1, _SAMPLED_REPETITIONS).astype(int).tolist()
    return [0, 1, *dict.fromkeys(spread)]


def _shift_between(first: Step, step: Step, num_chunks: int) -> int:
    """The shift from the first chunk of data of `first` to that of `step`, one repetition later."""
    for before, after, buffer in (
        (first.src_chunk, step.src_chunk, first.src_buffer),
        (first.dst_chunk, step.dst_chunk, first.dst_buffer),
    ):
        rows = np.flatnonzero(buffer == Buffer.DATA)
        if len(rows) and len(before) == len(after):
            return int(after[rows[0]] - before[rows[0]]) % num_chunks
    return 0


def _difference(expected: Step, found: Step) -> tuple[int, str] | None:
    """The first (row, column) in which two steps differ; row -1 if their lengths differ."""
    if len(expected) != len(found):
        return -1, "the number of rows"
    for name in COLUMNS:
        differ = getattr(expected, name) != getattr(found, name)
        if differ.any():
            return int(np.argmax(differ)), name
    return None


def _end_of_scratch(step: Step) -> int:
    end = 0
    for chunk, buffer in ((step.src_chunk, step.src_buffer), (step.dst_chunk, step.dst_buffer)):
        scratch = buffer == Buffer.SCRATCH
        if scratch.any():
            end = max(end, int((chunk + (step.count - 1) * step.stride)[scratch].max()) + 1)
    return end


def _integers(name: str, value: npt.ArrayLike, site: str) -> npt.NDArray[np.int64]:
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal lengths
        array = np.asarray(None)
    if array.dtype.kind == "f" and array.size:
        raise ScheduleError(f"{site}: {name}: expected integers, found {array.dtype}; use // for whole division")
    if array.dtype.kind not in "iu" and array.size:
        raise ScheduleError(
            f"{site}: {name}: expected a whole number below 2**31, or an array of them; found {value!r}"
        )
    if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
        raise ScheduleError(f"{site}: {name}: expected numbers below 2**31, found {array.min()} to {array.max()}")
    return array.astype(np.int64, copy=False)


def _buffer(name: str, site: str) -> Buffer:
    try:
        return Buffer[name.upper()]
    except (KeyError, AttributeError):
        raise ScheduleError(f"{site}: expected a buffer, data, input, output or scratch; found {name!r}") from None


def _site_of(calls: list[tuple[Step, str]] | None, row: int) -> str:
    for step, site in calls or []:
        if row < len(step):
            return site
        row -= len(step)
    return ""


def _site() -> str:
    """The place of the nearest caller outside this file and contextlib, as "file:line"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.endswith((__file__, "contextlib.py")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
